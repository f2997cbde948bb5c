"""Kaldi's log filter banks in numpy (kaldi-asr/kaldi feat/feature-fbank.cc), as CAM++ takes them.

80 bins from 20 Hz to 8 kHz, 25 ms Povey window, 10 ms hop, at 16 kHz; no dither, whole frames only.
"""

from functools import cache

import numpy as np

from duologue.audio.mel import by_frame

RATE_HZ = 16_000
SIZE = 400
HOP = 160
N_FFT = 512
N_BINS = 80
MIN_HZ = 20.0
PRE_EMPHASIS = np.float32(0.97)


@cache
def _filters() -> np.ndarray:
    """Triangles that are linear in mel, float32 [N_FFT // 2 + 1, N_BINS]."""
    hz = np.arange(N_FFT // 2 + 1) * RATE_HZ / N_FFT
    mel, low, high = (1127 * np.log1p(np.asarray(x) / 700) for x in (hz, MIN_HZ, RATE_HZ / 2))
    edges = np.linspace(low, high, N_BINS + 2)
    rising = (mel[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mel[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


@cache
def _povey_window() -> np.ndarray:
    return (np.hanning(SIZE) ** 0.85).astype(np.float32)


def fbank(samples: np.ndarray) -> np.ndarray:
    """Log filter banks of float32 [n] in [-1, 1] at 16 kHz, n at least 400.

    Returns:
        float32 [(n - 400) // 160 + 1, 80].
    """
    return by_frame(samples, SIZE, HOP, _features)


def _features(frames: np.ndarray) -> np.ndarray:
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    windowed = (frames - PRE_EMPHASIS * before) * _povey_window()
    spectrum = np.fft.rfft(windowed, N_FFT, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    return np.log(np.maximum(power @ _filters(), np.finfo(np.float32).eps))
