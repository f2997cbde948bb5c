"""Text on its way to speech: clauses to say one at a time, and words that a voice can say."""

from duologue.text.clauses import Clause, ClauseSplitter
from duologue.text.speakable import Speaker, speakable

__all__ = ["Clause", "ClauseSplitter", "Speaker", "speakable"]
