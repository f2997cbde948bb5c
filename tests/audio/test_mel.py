"""Mel front ends against torch's transform and librosa's filters."""

from pathlib import Path

import numpy as np
import pytest
import torch

from duologue.audio import mel
from duologue.audio.mel import flow_mel, slaney_filters
from duologue.audio.pcm import read_audio
from duologue.audio.whisper_mel import log_mel

ROOT = Path(__file__).parents[2]
SPEECH = ROOT / "tests/data/questions/question_17.ogg"
LIBROSA = ROOT / ".references/s3tokenizer/s3tokenizer/assets/mel_filters.npz"


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_are_those_of_librosa(n_mels):
    with np.load(LIBROSA) as file:
        expected = file[f"mel_{n_mels}"]
    np.testing.assert_allclose(slaney_filters(16_000, 400, n_mels, 8000.0), expected, atol=1e-8)


def test_filters_of_the_flow_are_those_of_librosa():
    """Computed by librosa 0.11: filters.mel(sr=24000, n_fft=1920, n_mels=80, fmin=0, fmax=8000)."""
    filters = slaney_filters(24_000, 1920, 80, 8000.0)
    some = filters[[0, 30, 79]]
    assert some.argmax(axis=1).tolist() == [3, 94, 616]
    np.testing.assert_allclose(some.max(axis=1), [0.02666536, 0.02105197, 0.00336569], rtol=1e-5)
    np.testing.assert_allclose(some.sum(axis=1), [0.07999608, 0.0804334, 0.08000149], rtol=1e-5)


def _spectrum(samples: np.ndarray, n_fft: int, hop: int, *, center: bool) -> np.ndarray:
    """Power in float64, [bins, frames]."""
    window = torch.hann_window(n_fft, dtype=torch.float64)
    wide = torch.from_numpy(samples.astype(np.float64))
    spectrum = torch.stft(wide, n_fft, hop, window=window, center=center, return_complex=True)
    return spectrum.abs().square().numpy()


def test_mel_of_the_flow_agrees_with_its_formula():
    samples = read_audio(SPEECH, rate_hz=24_000)
    power = _spectrum(np.pad(samples, 720, mode="reflect"), 1920, 480, center=False)
    magnitude = slaney_filters(24_000, 1920, 80, 8000.0) @ np.sqrt(power + 1e-9)
    given = flow_mel(samples)
    assert given.dtype == np.float32
    assert given.shape == (len(samples) // 480, 80)
    np.testing.assert_allclose(given, np.log(np.maximum(magnitude, 1e-5)).T, atol=5e-4)


@pytest.mark.parametrize("n_samples", [96_000, 96_077])
def test_mel_of_the_tokenizer_agrees_with_its_formula(n_samples):
    samples = read_audio(SPEECH)[:n_samples]
    power = _spectrum(samples, 400, 160, center=True)[:, :-1]
    logs = np.log10(np.maximum(slaney_filters(16_000, 400, 128, 8000.0) @ power, 1e-10))
    given = log_mel(samples, n_mels=128)
    assert given.shape == (128, n_samples // 160)
    expected = (np.maximum(logs, logs.max() - 8) + 4) / 4
    np.testing.assert_allclose(given, expected, atol=1e-4)


def test_blocks_change_nothing(monkeypatch):
    samples = read_audio(SPEECH, rate_hz=24_000)
    whole = flow_mel(samples)
    monkeypatch.setattr(mel, "_BLOCK_FRAMES", 37)
    np.testing.assert_allclose(flow_mel(samples), whole, atol=1e-5)
