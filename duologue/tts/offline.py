"""A whole text to one waveform, through the same steps as in a conversation."""

import numpy as np

from duologue.particles import Scanner, Text
from duologue.text import ClauseSplitter, Speaker
from duologue.tts.piper import PiperVoice


def spoken_clauses(text: str, *, lang: str = "en") -> list[str]:
    """A text as a voice is to say it, clause by clause, without marks, thoughts and particles."""
    scanner, splitter, speaker = Scanner(), ClauseSplitter(lang), Speaker(lang)
    events = [*scanner.feed(text), *scanner.flush()]
    plain = "".join(event.text for event in events if isinstance(event, Text))
    clauses = [*splitter.feed(plain), *splitter.flush()]
    return [said for clause in clauses if (said := speaker.say(clause.text))]


def speak(voice: PiperVoice, text: str, *, lang: str = "en") -> np.ndarray:
    """Speak `text`; marks, thoughts and particles are not said.

    Returns:
        float32 [n] at `voice.rate_hz`; empty when there is nothing to say.
    """
    parts = [voice.synthesize(said).samples for said in spoken_clauses(text, lang=lang)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
