"""The source signal: the reference's, without its noise, and going on without a break."""

import copy

import numpy as np
import pytest
import torch

from duologue.errors import ModelError
from duologue.token2wav.config import HiftConfig
from duologue.token2wav.source import Source, SourceWeights
from tests.token2wav import reference

CONFIG = HiftConfig(base_channels=16, f0_channels=16)
SAMPLES = CONFIG.samples_per_frame
WEIGHTS = SourceWeights(
    np.random.default_rng(0).normal(0, 0.4, CONFIG.nb_harmonics + 1).astype(np.float32), 0.07
)
# A voice of 70 to 230 Hz, breaks below the threshold, and the highest f0 that is promised.
F0 = np.stack(
    [
        np.where(np.arange(40) % 11 > 7, 4.0, 150 + 80 * np.sin(np.arange(40) / 3)),
        np.linspace(0, 2600, 40),
    ]
).astype(np.float32)


@pytest.fixture(scope="module")
def source():
    return Source(CONFIG, WEIGHTS)


def silent(f0_hz):
    return np.zeros((*f0_hz.shape, SAMPLES), np.float32)


def reference_source(f0_hz, seed=0):
    """The reference's module in float64: its float32 phase is 1e-3 off after a second."""
    module = copy.deepcopy(reference.build_hift(CONFIG, 1).m_source).double()
    module.l_linear.weight.data[0] = torch.from_numpy(WEIGHTS.harmonics)
    module.l_linear.bias.data[0] = WEIGHTS.bias
    per_sample = np.repeat(f0_hz.astype(np.float64), SAMPLES, axis=1)[..., None]
    torch.manual_seed(seed)
    with torch.inference_mode():
        return module(torch.from_numpy(per_sample))[0][..., 0].numpy()


@reference.available
def test_it_is_the_reference_without_noise(source, monkeypatch):
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    expected = reference_source(F0)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(source.excite(F0, silent(F0), None), expected, atol=2e-6)
    # Its random initial phases change nothing.
    np.testing.assert_array_equal(expected, reference_source(F0, seed=1))


@reference.available
def test_one_noise_is_as_loud_as_nine(source):
    """Levels of what lies in front of tanh, voiced and unvoiced, to 3 % (five sigma)."""
    f0_hz = np.repeat(np.float32([[0.0], [100.0]]), 40, axis=1)
    normals = np.random.default_rng(1).standard_normal(silent(f0_hz).shape).astype(np.float32)
    clean = np.arctanh(source.excite(f0_hz, silent(f0_hz), None).astype(np.float64))
    ours = np.arctanh(source.excite(f0_hz, normals, None).astype(np.float64)) - clean
    theirs = np.arctanh(reference_source(f0_hz)) - clean
    np.testing.assert_allclose(ours.std(axis=1), theirs.std(axis=1), rtol=0.03)
    assert theirs.std(axis=1).min() > 1e-3


@pytest.mark.parametrize("cut", [1, 17, 39])
def test_the_phase_runs_on(source, cut):
    normals = np.random.default_rng(2).standard_normal(silent(F0).shape).astype(np.float32)
    whole = source.excite(F0, normals, None)
    phase = np.array([source.advance(None, row[:cut]) for row in F0])
    second = source.excite(F0[:, cut:], normals[:, cut:], phase)
    np.testing.assert_allclose(second, whole[:, cut * SAMPLES :], atol=2e-6)


def test_the_last_half_frame_waits_for_the_next_f0(source):
    whole = source.excite(F0, silent(F0), None)
    settled = 20 * SAMPLES - SAMPLES // 2
    first = source.excite(F0[:, :20], silent(F0)[:, :20], None)
    np.testing.assert_allclose(first[:, :settled], whole[:, :settled], atol=2e-6)
    assert np.abs(first - whole[:, : 20 * SAMPLES]).max() > 1e-3


def test_the_phase_of_an_hour(source):
    """220.3 Hz for an hour of 1 s chunks: the phase is that of the exact product."""
    chunk = np.full(50, 220.3, np.float32)
    phase = None
    for _ in range(3600):
        phase = source.advance(phase, chunk)
    exact = (float(chunk[0]) * 3600) % 1.0
    assert abs(phase - exact) < 1e-6


def test_no_frames_leave_the_phase(source):
    assert source.advance(None, F0[0, :0]) is None
    assert source.advance(0.25, F0[0, :0]) == 0.25


def test_weights_of_another_model():
    with pytest.raises(ModelError, match=r"found shape \[3\], expected \[9\]"):
        Source(CONFIG, SourceWeights(np.zeros(3, np.float32), 0.0))
