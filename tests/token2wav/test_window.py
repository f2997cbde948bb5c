"""What the flow remembers, against plain lists."""

import gc
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duologue.token2wav.prompts import Shared
from duologue.token2wav.window import Window, collate, distances

LIKE = np.zeros((2, 0, 1), np.float32)


def frames(first: int, count: int) -> np.ndarray:
    """[2, count, 1]: each frame holds its own number."""
    return np.broadcast_to(
        np.arange(first, first + count, dtype=np.float32)[:, None], (2, count, 1)
    )


@given(st.integers(1, 7), st.lists(st.integers(0, 12), max_size=8))
def test_window_keeps_the_newest_at_their_distances(size, lengths):
    window, written = Window(LIKE, size), 0
    for length in lengths:
        window.append(frames(written, length))
        written += length
    kept = dict(zip(window.distances().tolist(), window.kept[1, :, 0].tolist(), strict=True))
    assert kept == {distance: written - distance for distance in range(1, 1 + min(size, written))}


def test_window_takes_room_once():
    window = Window(LIKE, 5)
    ring = window.ring
    window.append(frames(0, 12))
    assert window.ring is ring


def test_collate_and_distances():
    """Two rows: a full window and one that has begun, behind one prompt."""
    prompt, long, short = Window(LIKE, 2), Window(LIKE, 3), Window(LIKE, 3)
    prompt.append(frames(0, 2))
    long.append(frames(2, 7))
    short.append(frames(2, 1))
    rows = [[prompt, long], [prompt, short]]
    stacked, mask = collate([[window.kept for window in row] for row in rows])
    assert stacked.shape == (2, 2, 5, 1)
    np.testing.assert_array_equal(mask, [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(stacked[1, 0, :, 0], [0, 1, 2, 0, 0])
    # Frame numbers and distances add up to the row's next frame: 9 and 3.
    np.testing.assert_array_equal(distances(rows) + stacked[:, 0, :, 0], [[9] * 5, [3, 3, 3, 0, 0]])


class Value:
    pass


def test_shared_makes_each_value_once():
    shared: Shared[Value] = Shared(2)
    first = shared.get("a", Value)
    assert shared.get("a", Value) is first
    assert shared.get("b", Value) is not first


def test_shared_keeps_those_used_last():
    shared: Shared[Value] = Shared(2)
    values = {name: weakref.ref(shared.get(name, Value)) for name in "ab"}
    shared.get("a", Value)
    values["c"] = weakref.ref(shared.get("c", Value))
    gc.collect()
    assert [name for name, value in values.items() if value()] == ["a", "c"]


def test_shared_finds_what_somebody_holds():
    shared: Shared[Value] = Shared(1)
    held = shared.get("a", Value)
    shared.get("b", Value)
    assert shared.get("a", Value) is held
