"""Kaldi filter banks against kaldi-native-fbank."""

from pathlib import Path

import numpy as np
import pytest

from duologue.audio.fbank import fbank
from duologue.audio.pcm import read_audio

SPEECH = Path(__file__).parents[1] / "data/questions/question_17.ogg"
kaldi = pytest.importorskip("kaldi_native_fbank")


def _reference(samples: np.ndarray) -> np.ndarray:
    options = kaldi.FbankOptions()
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = 80
    extractor = kaldi.OnlineFbank(options)
    extractor.accept_waveform(16_000, samples.tolist())
    extractor.input_finished()
    return np.stack([extractor.get_frame(i) for i in range(extractor.num_frames_ready)])


@pytest.mark.parametrize("n_samples", [400, 559, 560, 97_600])
def test_it_agrees_with_kaldi(n_samples):
    samples = read_audio(SPEECH)[-n_samples:]
    expected, given = _reference(samples), fbank(samples)
    assert given.dtype == np.float32
    assert given.shape == expected.shape
    # Where the energy is near the floor, either rounds its float32 sums in its own way.
    np.testing.assert_allclose(given, expected, atol=1e-3)
    assert np.abs(given - expected).mean() < 1e-4


def test_silence_is_at_the_floor():
    np.testing.assert_allclose(fbank(np.zeros(800, np.float32)), np.log(np.finfo(np.float32).eps))
