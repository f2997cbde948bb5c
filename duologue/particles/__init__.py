"""Speech particles: what a language model writes about the voice, taken off the text it says."""

from duologue.particles.aliases import lexicon_for
from duologue.particles.lexicon import LEXICON, Entry, Lexicon
from duologue.particles.render import Notation, NotationRenderer, Rendered, Renderer, Unknown
from duologue.particles.renderers import NOTATIONS, renderer_for, talker_renderer
from duologue.particles.renderers.plain import INTERJECTIONS
from duologue.particles.scanner import MAX_HELD, Control, Particle, Scanner, Text, Thought
from duologue.particles.taxonomy import Kind, Span
from duologue.particles.utterance import Composer, Utterance

__all__ = [
    "INTERJECTIONS",
    "LEXICON",
    "MAX_HELD",
    "NOTATIONS",
    "Composer",
    "Control",
    "Entry",
    "Kind",
    "Lexicon",
    "Notation",
    "NotationRenderer",
    "Particle",
    "Rendered",
    "Renderer",
    "Scanner",
    "Span",
    "Text",
    "Thought",
    "Unknown",
    "Utterance",
    "lexicon_for",
    "renderer_for",
    "talker_renderer",
]
