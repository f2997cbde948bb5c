"""What a prompt is made of, for engines that take a prompt as it is instead of chat messages."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text with its special tokens spelled out, as in `<|BOT|>human`."""

    text: str


@dataclass(frozen=True, slots=True)
class IdsPart:
    """Token ids of the model."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AudioPart:
    """Sound for a model that hears: float32 [n] in -1..1."""

    samples: np.ndarray
    rate_hz: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate_hz

    def pieces(self, longest_s: float) -> "Iterator[AudioPart]":
        """The sound in pieces that a model can take; 0 is no limit."""
        step = int(longest_s * self.rate_hz) or len(self.samples)
        if len(self.samples) <= step:
            yield self
            return
        for start in range(0, len(self.samples), step):
            yield AudioPart(self.samples[start : start + step], self.rate_hz)


Part = TextPart | IdsPart | AudioPart
