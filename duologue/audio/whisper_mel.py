"""Whisper's log-mel front end in numpy (Radford et al. 2022; openai/whisper audio.py).

80 or 128 Slaney mel bands, 25 ms periodic Hann window, 10 ms hop, at 16 kHz.
"""

import numpy as np

from duologue.audio.mel import by_frame, periodic_hann, slaney_filters

RATE_HZ = 16_000
N_FFT = 400
HOP = 160


def log_mel(samples: np.ndarray, frames: int | None = None, *, n_mels: int = 80) -> np.ndarray:
    """Log-mel of float32 [n] at 16 kHz.

    Args:
        samples: More than 200, unless `frames` is given.
        frames: Hops that the samples are silence-padded or cut to; None takes the signal as it is.
        n_mels: 80 for Whisper up to large-v2; 128 for later ones and for the S3 speech tokenizer.

    Returns:
        float32 [n_mels, frames or n // 160], contiguous, scaled as Whisper expects it.
    """
    if frames is not None:
        samples = samples[: frames * HOP]
        samples = np.pad(samples, (0, frames * HOP - len(samples)))
    filters = slaney_filters(RATE_HZ, N_FFT, n_mels, RATE_HZ / 2).T
    window = periodic_hann(N_FFT)

    def features(windows: np.ndarray) -> np.ndarray:
        power = np.abs(np.fft.rfft(windows * window, axis=1)).astype(np.float32) ** 2
        return np.log10(np.maximum(power @ filters, 1e-10))

    padded = np.pad(samples, N_FFT // 2, mode="reflect")
    # A centred transform has one frame more; Whisper leaves out the last.
    logs = by_frame(padded, N_FFT, HOP, features)[: len(samples) // HOP].T
    scaled = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(scaled, np.float32)
