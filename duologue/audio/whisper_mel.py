"""Whisper's log-mel front end in numpy (Radford et al. 2022; openai/whisper audio.py).

80 Slaney mel bands, 25 ms periodic Hann window, 10 ms hop, at 16 kHz.
"""

from functools import cache

import numpy as np

RATE_HZ = 16_000
N_FFT = 400
HOP = 160
N_MELS = 80


@cache
def _filters() -> np.ndarray:
    """Slaney-scaled, area-normalised triangles, float32 [N_MELS, N_FFT // 2 + 1]."""
    linear_per_mel, log_from_hz, log_step = 200.0 / 3, 1000.0, np.log(6.4) / 27.0
    log_from_mel = log_from_hz / linear_per_mel

    def to_hz(mel: np.ndarray) -> np.ndarray:
        log_part = log_from_hz * np.exp(log_step * (mel - log_from_mel))
        return np.where(mel < log_from_mel, mel * linear_per_mel, log_part)

    top_mel = log_from_mel + np.log(RATE_HZ / 2 / log_from_hz) / log_step
    edges = to_hz(np.linspace(0, top_mel, N_MELS + 2))[:, None]
    bins = np.linspace(0, RATE_HZ / 2, N_FFT // 2 + 1)[None, :]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    area = 2.0 / (edges[2:] - edges[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * area).astype(np.float32)


def log_mel(samples: np.ndarray, frames: int) -> np.ndarray:
    """Log-mel of float32 [n] at 16 kHz, silence-padded or cut to `frames` hops.

    Returns:
        float32 [N_MELS, frames], scaled as Whisper expects it.
    """
    padded = np.zeros(frames * HOP, np.float32)
    padded[: min(len(samples), len(padded))] = samples[: len(padded)]
    padded = np.pad(padded, N_FFT // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][:frames]
    hann = np.hanning(N_FFT + 1)[:-1].astype(np.float32)
    power = np.abs(np.fft.rfft(windows * hann, axis=1)).astype(np.float32) ** 2
    logs = np.log10(np.maximum(_filters() @ power.T, 1e-10))
    return ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
