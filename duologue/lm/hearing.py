"""Which of the user's sound goes with which of their messages.

A recogniser gives the words of each stretch of speech, and a message is made of the words of whole
stretches in a row. Stretches that are in no message, such as backchannels, stand between those. So
words tell a message's sound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from duologue.audio.pcm import ASR_RATE_HZ, from_int16_bytes, resample
from duologue.lm.engine import Message
from duologue.lm.prompt import AudioPart


@dataclass(frozen=True, slots=True)
class _Stretch:
    letters: str
    samples: np.ndarray


class Hearing:
    """The sound of one session's user, at 16 kHz.

    Args:
        longest_s: Seconds of sound that wait for their message. Older sound is forgotten, so that a
            longer turn has none.
    """

    def __init__(self, longest_s: float):
        self._longest = round(longest_s * ASR_RATE_HZ)
        self._stretches: list[_Stretch] = []
        # With the message itself, whose id nobody else can have as long as it is here.
        self._known: dict[int, tuple[Message, AudioPart]] = {}

    def hear(self, text: str, audio: bytes, rate_hz: int) -> None:
        """Take a stretch of speech: its words, and its sound as 16-bit mono PCM."""
        if letters := _letters(text):
            samples = resample(from_int16_bytes(audio), rate_hz, ASR_RATE_HZ)
            self._stretches.append(_Stretch(letters, samples))
        while sum(len(stretch.samples) for stretch in self._stretches) > self._longest:
            del self._stretches[0]

    def attend(
        self, messages: Sequence[Message], *, past: bool, provisional: bool
    ) -> list[AudioPart | None]:
        """The sound of each message, None where there is none.

        Args:
            messages: The conversation; the same objects each time.
            past: Whether what has been answered still has its sound; if not, it is forgotten.
            provisional: Whether the last message is a guess, which keeps nothing and changes
                nothing.
        """
        sounds: list[AudioPart | None] = [None] * len(messages)
        known: dict[int, tuple[Message, AudioPart]] = {}
        end = len(self._stretches)
        claimed = 0
        # The newest first: what stands before its words can only be an older one's.
        for place in _users(messages, past):
            message = messages[place]
            if found := self._known.get(id(message)):
                known[id(message)] = found
                sounds[place] = found[1]
            elif run := self._run(str(message.get("content")), end):
                end = run.start
                samples = [stretch.samples for stretch in self._stretches[run.start : run.stop]]
                sound = sounds[place] = AudioPart(np.concatenate(samples), ASR_RATE_HZ)
                if not (provisional and place == len(messages) - 1):
                    known[id(message)] = message, sound
                    claimed = max(claimed, run.stop)
        self._known = self._known | known if provisional else known
        del self._stretches[:claimed]
        return sounds

    def _run(self, text: str, end: int) -> range | None:
        """The newest stretches before `end` that make up a text."""
        for stop in range(end, 0, -1):
            rest = _letters(text)
            for start in range(stop - 1, -1, -1):
                letters = self._stretches[start].letters
                if not rest.endswith(letters):
                    break
                rest = rest.removesuffix(letters)
                if not rest:
                    return range(start, stop)
        return None


def _users(messages: Sequence[Message], past: bool) -> list[int]:
    """Places of the user's messages, newest first; without the past only those in a row."""
    places = [n for n, message in enumerate(messages) if message["role"] == "user"][::-1]
    if past:
        return places
    newest = places[0] if places else 0
    return [place for n, place in enumerate(places) if place == newest - n]


def _letters(text: str) -> str:
    """A text but for its blanks: joining changes them."""
    return "".join(text.split())
