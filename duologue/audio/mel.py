"""Mel filter banks (Slaney), and the log-mel that Step-Audio 2's flow takes for a prompt.

All in numpy; a long signal goes through in blocks of frames, so that memory stays small.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

FLOW_RATE_HZ = 24_000
FLOW_N_FFT = 1920
FLOW_HOP = 480
FLOW_N_MELS = 80
FLOW_MAX_HZ = 8000.0

_BLOCK_FRAMES = 1024


@cache
def slaney_filters(rate_hz: int, n_fft: int, n_mels: int, max_hz: float) -> np.ndarray:
    """Area-normalised triangles from 0 to `max_hz` (Slaney's Auditory Toolbox, librosa's default).

    Returns:
        float32 [n_mels, n_fft // 2 + 1].
    """
    linear_per_mel, log_from_hz, log_step = 200.0 / 3, 1000.0, np.log(6.4) / 27.0
    log_from_mel = log_from_hz / linear_per_mel

    def to_hz(mel: np.ndarray) -> np.ndarray:
        log_part = log_from_hz * np.exp(log_step * (mel - log_from_mel))
        return np.where(mel < log_from_mel, mel * linear_per_mel, log_part)

    top_mel = log_from_mel + np.log(max_hz / log_from_hz) / log_step
    edges = to_hz(np.linspace(0, top_mel, n_mels + 2))[:, None]
    bins = np.linspace(0, rate_hz / 2, n_fft // 2 + 1)[None, :]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    area = 2.0 / (edges[2:] - edges[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * area).astype(np.float32)


@cache
def periodic_hann(size: int) -> np.ndarray:
    """float32 [size]."""
    return np.hanning(size + 1)[:-1].astype(np.float32)


def by_frame(
    samples: np.ndarray, size: int, hop: int, features: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Features of every whole frame of a signal.

    Args:
        samples: float32 [n], at least `size`.
        size: Samples of a frame.
        hop: Samples from one frame to the next.
        features: [block, size] to [block, n_features].

    Returns:
        [(n - size) // hop + 1, n_features].
    """
    frames = sliding_window_view(samples, size)[::hop]
    starts = range(0, len(frames), _BLOCK_FRAMES)
    return np.concatenate([features(frames[start : start + _BLOCK_FRAMES]) for start in starts])


def flow_mel(samples: np.ndarray) -> np.ndarray:
    """The flow's log-mel of float32 [n] at 24 kHz, n at least 960 (one speech token).

    As in Step-Audio 2 and HiFi-GAN: natural logarithm of the mel of the magnitude, not the power.

    Returns:
        float32 [n // 480, 80].
    """
    filters = slaney_filters(FLOW_RATE_HZ, FLOW_N_FFT, FLOW_N_MELS, FLOW_MAX_HZ).T
    window = periodic_hann(FLOW_N_FFT)

    def features(frames: np.ndarray) -> np.ndarray:
        spectrum = np.fft.rfft(frames * window, axis=1)
        magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + np.float32(1e-9))
        return np.log(np.maximum(magnitude @ filters, np.float32(1e-5)))

    padded = np.pad(samples, (FLOW_N_FFT - FLOW_HOP) // 2, mode="reflect")
    return by_frame(padded, FLOW_N_FFT, FLOW_HOP, features)
