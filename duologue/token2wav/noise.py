"""Noise that depends on where it is used (seed, stream, frame), not on what was drawn before.

Any chunk schedule, batch, engine or machine gives a frame the same noise. The generator is
Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Random123).
The recipe, which a GPU kernel repeats in integers and float32:

    key     = (seed mod 2^32, seed div 2^32)
    counter = (block, frame mod 2^32, frame div 2^32, stream)
    w0 w1 w2 w3 = philox4x32_10(counter, key)               # uint32
    u(w)    = (float32(w >> 8) + 0.5) * 2^-24               # sum rounded to even, in (0, 1]
    r, a    = sqrt(-2 ln u(w0)), float32(2 pi) * u(w1)      # float32; again with w2, w3
    normals 4 * block + (0, 1, 2, 3) of the frame = r cos a, r sin a, r' cos a', r' sin a'

Box-Muller in float32: no value lies beyond 5.9, which 1 of 270 million normals would.
"""

import operator

import numpy as np

from duologue.errors import InputError

FLOW, SOURCE, PROMPT = 0, 1, 2
"""Streams: start of the flow, noise of the vocoder's source, start of the flow over a prompt."""

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def key(seed: int) -> tuple[int, int]:
    """The two 32-bit key words of a seed.

    Raises:
        InputError: the seed is not a whole number in [0, 2^64).
    """
    try:
        seed = operator.index(seed)
    except TypeError as error:
        raise InputError(
            f"seed: found {seed!r}, expected a whole number from 0 to 2^64 - 1; choose another seed"
        ) from error
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed: found {seed}, expected 0 to 2^64 - 1; choose another seed")
    return seed & 0xFFFFFFFF, seed >> 32


def philox(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Philox4x32-10: four arrays of 32-bit counter words to four arrays of random words.

    Words lie in uint64 arrays, whose shapes broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (p2 >> _HALF) ^ c1 ^ np.uint64(k0), p2 & _LOW
        c2, c3 = (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def normal(seed: int, stream: int, first_frame: int, frames: int, per_frame: int) -> np.ndarray:
    """Standard normals of a run of frames, float32 [frames, per_frame].

    Frame f is the same for every `first_frame` and `frames` that cover it, and its first values are
    the same for every `per_frame`.

    Args:
        seed: Of the utterance, 0 to 2^64 - 1.
        stream: What the noise is for: FLOW, SOURCE or PROMPT.
        first_frame: Index of the first frame, at least 0.
        frames: How many frames.
        per_frame: How many values each.

    Raises:
        InputError: the seed is out of range.
    """
    frame = np.arange(first_frame, first_frame + frames, dtype=np.uint64)[:, None]
    block = np.arange(-(-per_frame // 4), dtype=np.uint64)[None, :]
    counter = (block, frame & _LOW, frame >> _HALF, np.full((1, 1), stream, np.uint64))
    u0, u1, u2, u3 = (_uniform(words) for words in philox(counter, key(seed)))
    values = np.empty((frames, block.size, 4), np.float32)
    values[..., 0], values[..., 1] = _box_muller(u0, u1)
    values[..., 2], values[..., 3] = _box_muller(u2, u3)
    return values.reshape(frames, 4 * block.size)[:, :per_frame]


def _uniform(words: np.ndarray) -> np.ndarray:
    top = (words >> np.uint64(8)).astype(np.float32)
    return (top + np.float32(0.5)) * np.float32(2.0**-24)


def _box_muller(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    radius = np.sqrt(np.float32(-2) * np.log(u))
    angle = np.float32(2 * np.pi) * v
    return radius * np.cos(angle), radius * np.sin(angle)
