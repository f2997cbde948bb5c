"""Text on its way to speech: clauses to say one at a time, and words that a voice can say."""

from duologue.text.clauses import Clause, ClauseSplitter

__all__ = ["Clause", "ClauseSplitter"]
