"""Language models behind one seam: a request in, a stream of steps out."""
