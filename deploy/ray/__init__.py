"""The speech server on many machines, by Ray Serve."""
