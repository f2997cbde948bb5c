"""The next speech token from the talker's logits, and where a clause's speech ends.

Only codes and `END` can come. A clause cannot end long before fast speech would, nor last longer
than slow speech does: a small model now and then skips a clause, or runs on behind it. Randomness
goes by position (see `duologue.token2wav.noise`), so the same request and seed give the same tokens
whatever else runs.
"""

from dataclasses import dataclass

import numpy as np

from duologue.talker.config import END, FIRST_CODE
from duologue.token2wav import noise

TALKER = 3
"""Stream of the noise; token2wav has the others."""

LEAST_PER_BYTE, MOST_PER_BYTE = 0.4, 4
"""Codes for each byte of a clause. Speech has 1 to 3."""

SHORTEST, SPARE = 5, 25
"""Codes besides: of the shortest word, and of pauses."""

RECENT = 64
"""How many codes a repetition penalty looks back."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: 0 takes the likeliest.
        top_k: Of so many likeliest.
        repeat_penalty: Divides what speaks for a recent code; 1.0 is off.
        least: Codes before `END` can come.
        most: Codes at most.
    """

    temperature: float
    top_k: int
    repeat_penalty: float
    least: int
    most: int


def lengths(text_bytes: int) -> tuple[int, int]:
    """The least and the most codes of a clause."""
    return SHORTEST + int(LEAST_PER_BYTE * text_bytes), SPARE + MOST_PER_BYTE * text_bytes


def uniforms(seed: int, count: int) -> np.ndarray:
    """A number in (0, 1) for each of the first positions of an answer, float64 [count].

    Raises:
        InputError: the seed is out of range.
    """
    position, zero = np.arange(count, dtype=np.uint64), np.zeros(1, np.uint64)
    stream = np.full(1, TALKER, np.uint64)
    words = noise.philox((zero, position, zero, stream), noise.key(seed))[0]
    return (words + 0.5) / 2.0**32


def draw(logits: np.ndarray, said: list[int], sampling: Sampling, uniform: float) -> int:
    """The id that comes next.

    Args:
        logits: float32 [vocab_size].
        said: Ids of the answer so far.
        sampling: How.
        uniform: In (0, 1).
    """
    scores = logits[FIRST_CODE:].astype(np.float64)
    if sampling.repeat_penalty != 1 and said:
        recent = np.unique(said[-RECENT:]) - FIRST_CODE
        seen, penalty = scores[recent], sampling.repeat_penalty
        scores[recent] = np.where(seen > 0, seen / penalty, seen * penalty)
    scores = np.append(scores, logits[END] if len(said) >= sampling.least else -np.inf)
    if sampling.temperature == 0:
        chosen = scores.argmax()
    else:
        likely = np.argpartition(-scores, sampling.top_k)[: sampling.top_k]
        # In an order that no partition decides.
        likely = likely[np.lexsort((likely, -scores[likely]))]
        weights = np.exp((scores[likely] - scores[likely[0]]) / sampling.temperature)
        place = np.searchsorted(np.cumsum(weights), uniform * weights.sum())
        chosen = likely[min(place, len(likely) - 1)]
    return END if chosen == len(scores) - 1 else FIRST_CODE + int(chosen)
