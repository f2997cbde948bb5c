"""Speech particles: what a language model writes about the voice, taken off the text it says."""

from duologue.particles.render import (
    INTERJECTIONS,
    InterjectionRenderer,
    Rendered,
    Renderer,
    StripRenderer,
)
from duologue.particles.scanner import MAX_HELD, Particle, Scanner, Text, Thought
from duologue.particles.taxonomy import LEXICON, Entry, Kind, Lexicon

__all__ = [
    "INTERJECTIONS",
    "LEXICON",
    "MAX_HELD",
    "Entry",
    "InterjectionRenderer",
    "Kind",
    "Lexicon",
    "Particle",
    "Rendered",
    "Renderer",
    "Scanner",
    "StripRenderer",
    "Text",
    "Thought",
]
