"""The generator is the published one, and a frame's noise depends on nothing but its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import InputError
from duologue.token2wav import noise

# Random123, tests/kat_vectors: philox4x32, 10 rounds.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    counters = tuple(np.array([word], np.uint64) for word in words(counter))
    k0, k1 = words(key)
    assert [int(word[0]) for word in noise.philox(counters, (k0, k1))] == words(expected)


def test_recipe_of_one_value():
    """Each word of the counter, and each step of Box-Muller, in plain Python."""
    seed, frame, stream = 0x0123456789ABCDEF, (5 << 32) + 7, noise.SOURCE
    counter = tuple(np.array([word], np.uint64) for word in (2, 7, 5, stream))
    w0, w1, w2, w3 = (int(w[0]) for w in noise.philox(counter, (0x89ABCDEF, 0x01234567)))

    def pair(a: int, b: int) -> list[float]:
        radius = np.sqrt(-2 * np.log(((a >> 8) + 0.5) / 2**24))
        angle = 2 * np.pi * ((b >> 8) + 0.5) / 2**24
        return [radius * np.cos(angle), radius * np.sin(angle)]

    got = noise.normal(seed, stream, frame, 1, 12)[0, 8:]
    np.testing.assert_allclose(got, pair(w0, w1) + pair(w2, w3), atol=2e-6)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.integers(1, 13),
)
def test_any_chunks_give_the_same(seed, first, lengths, per_frame):
    whole = noise.normal(seed, noise.FLOW, first, sum(lengths), per_frame)
    starts = np.cumsum([first, *lengths[:-1]])
    parts = [
        noise.normal(seed, noise.FLOW, int(start), length, per_frame)
        for start, length in zip(starts, lengths, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    wide = noise.normal(seed, noise.FLOW, first, sum(lengths), per_frame + 5)
    np.testing.assert_array_equal(wide[:, :per_frame], whole)


def test_moments():
    """2 million values; each bound is 5 standard errors."""
    values = noise.normal(3, noise.SOURCE, 0, 4000, 480).astype(np.float64)
    n = values.size
    assert abs(values.mean()) < 5 / np.sqrt(n)
    assert abs((values**2).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((values**3).mean()) < 5 * np.sqrt(15 / n)
    assert abs((values**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert 4.5 < np.abs(values).max() < 5.9


def test_nothing_is_shared_between_frames_seeds_and_streams():
    n, per_frame = 2000, 80
    base = noise.normal(1, noise.FLOW, 0, n, per_frame)
    others = {
        "next frame": noise.normal(1, noise.FLOW, 1, n, per_frame),
        "high frame": noise.normal(1, noise.FLOW, 1 << 32, n, per_frame),
        "next seed": noise.normal(2, noise.FLOW, 0, n, per_frame),
        "high seed": noise.normal(1 + (1 << 32), noise.FLOW, 0, n, per_frame),
        "source": noise.normal(1, noise.SOURCE, 0, n, per_frame),
        "prompt": noise.normal(1, noise.PROMPT, 0, n, per_frame),
        "next bin": np.roll(base, 1, axis=1),
        "other half of a pair": base.reshape(n, -1, 2)[..., ::-1].reshape(n, -1),
    }
    for name, other in others.items():
        for a, b in ((base, other), (base**2 - 1, other**2 - 1)):
            correlation = (a * b).mean() / (a.std() * b.std())
            assert abs(correlation) < 5 / np.sqrt(base.size), name


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(seed):
    with pytest.raises(InputError, match=str(seed)):
        noise.normal(seed, noise.FLOW, 0, 1, 80)
