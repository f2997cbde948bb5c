"""What is refused before it reaches a graph, or an ear."""

import numpy as np
import pytest

from duologue.errors import EngineError, InputError
from duologue.token2wav.checks import check_mel, check_samples


@pytest.mark.parametrize(
    ("mel", "says"),
    [
        (np.full((3, 4), np.nan), "found values that are not finite"),
        (np.full((3, 4), 1e300), "found values that are not finite"),
        (np.full((3, 4), "1"), "found <U1, expected float32"),
        (np.full((3, 4), None), "found object, expected float32"),
        (np.full((3, 4), 1j), "found complex128, expected float32"),
        ([[1.0, 2.0], [3.0]], r"found no array .*, expected \[frames, 4\]"),
        (np.zeros(4), r"found shape \[4\], expected \[frames, 4\]"),
        (np.zeros((3, 5)), r"found shape \[3, 5\], expected"),
        (None, r"found shape \[\], expected"),
    ],
)
def test_mel_that_is_none(mel, says):
    with pytest.raises(InputError, match=f"mel: {says}"):
        check_mel(mel, 4)


@pytest.mark.parametrize("mel", [np.ones((2, 4)), np.ones((2, 4), int), [[1] * 4] * 2])
def test_any_numbers_are_mel(mel):
    checked = check_mel(mel, 4)
    assert checked.dtype == np.float32
    np.testing.assert_array_equal(checked, np.ones((2, 4)))
    assert check_mel(np.zeros((0, 4)), 4).shape == (0, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_sound(bad):
    check_samples(np.zeros(0, np.float32))
    with pytest.raises(EngineError, match="samples that are not finite"):
        check_samples(np.array([0.0, bad], np.float32))
