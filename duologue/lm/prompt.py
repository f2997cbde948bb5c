"""What a prompt is made of, for engines that take a prompt as it is instead of chat messages."""

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


Part = TextPart | IdsPart | AudioPart
