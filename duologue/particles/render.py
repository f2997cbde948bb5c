"""How a voice shows a particle: its own mark, words in its place, or nothing."""

from dataclasses import dataclass
from typing import Protocol

from duologue.errors import UsageError
from duologue.particles.scanner import Particle


@dataclass(frozen=True, slots=True)
class Rendered:
    """What goes to the voice in a particle's place.

    Attributes:
        text: what to feed the voice, or None where the particle is stripped.
        native: whether `text` is a mark of that engine rather than words.
    """

    text: str | None
    native: bool = False

    @property
    def stripped(self) -> bool:
        """Whether the voice gets nothing; the caller reports it."""
        return self.text is None


class Renderer(Protocol):
    """One speech engine's way with particles."""

    def render(self, particle: Particle) -> Rendered:
        """Returns what this engine gets in the place of `particle`."""
        ...


class StripRenderer:
    """For voices that read words only, such as Piper and Kokoro: everything is stripped."""

    def render(self, particle: Particle) -> Rendered:
        """Strips."""
        return Rendered(None)


INTERJECTIONS: dict[str, dict[str, str]] = {
    "en": {
        "laugh": "haha",
        "chuckle": "heh heh",
        "giggle": "hee hee",
        "sigh": "ah",
        "clear_throat": "ahem",
        "cough": "ahem",
        "gasp": "oh!",
        "hum": "hmm",
        "groan": "ugh",
        "uhm": "um",
        "oh": "oh",
        "ah": "ah",
        "wa": "wow",
        "confirm": "mm-hmm",
        "question": "eh?",
        "dissatisfied": "hmph",
    },
    "zh": {
        "laugh": "哈哈",
        "chuckle": "呵呵",
        "giggle": "嘻嘻",
        "sigh": "唉",
        "clear_throat": "咳",
        "cough": "咳咳",
        "gasp": "啊！",
        "sob": "呜呜",
        "cry": "呜呜",
        "hum": "嗯",
        "groan": "呃",
        "uhm": "嗯",
        "oh": "哦",
        "ah": "啊",
        "wa": "哇",
        "confirm": "嗯",
        "question": "诶？",
        "dissatisfied": "哼",
    },
}
"""Words for sounds, by language and taxonomy name."""


class InterjectionRenderer:
    """For voices without marks of their own: says a sound as a word, strips the rest.

    Args:
        lang: a language of `INTERJECTIONS`.

    Raises:
        UsageError: another language.
    """

    def __init__(self, lang: str = "en"):
        if lang not in INTERJECTIONS:
            known = ", ".join(INTERJECTIONS)
            raise UsageError(f"language {lang!r} has no interjections: use one of {known}")
        self._words = INTERJECTIONS[lang]

    def render(self, particle: Particle) -> Rendered:
        """Returns the word for the sound; the end of a range has none."""
        return Rendered(None if particle.closes else self._words.get(particle.name))
