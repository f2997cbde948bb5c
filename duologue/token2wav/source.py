"""The source signal of the vocoder: harmonics of f0 and noise, with a phase that runs on.

The neural source filter of HiFTNet (SineGen2 of CosyVoice 2 and Step-Audio 2), streaming. There f0
is repeated over the samples of its frame, turned into cycles a sample, brought back to frame rate,
summed, and interpolated linearly to samples. Since f0 is constant within a frame, that is a phase
known at the centre of each frame and a straight line from centre to centre, and before the first
and behind the last centre the phase stands still. The reference draws a random initial phase for
each overtone too, but adds it to sample 0, which the way back to frame rate never reads: it has no
effect, and overtones are exact multiples of the fundamental.

Nine noises, one a harmonic, enter only through a weighted sum, which is normal itself: one noise
scaled by the norm of the weights has the same distribution.
"""

from dataclasses import dataclass

import numpy as np

from duologue.errors import ModelError
from duologue.token2wav.config import HiftConfig


@dataclass(frozen=True, slots=True)
class SourceWeights:
    """How the harmonics are merged (`m_source.l_linear` of the checkpoint).

    Attributes:
        harmonics: float32 [nb_harmonics + 1], fundamental first.
        bias: Added to their sum.
    """

    harmonics: np.ndarray
    bias: float


class Source:
    """Makes the source signal of many sessions at once.

    A phase is that of the fundamental at the centre of a frame, in cycles, float64 in [0, 1).

    Args:
        config: Rates, levels and thresholds.
        weights: Of the checkpoint.

    Raises:
        ModelError: the weights are not for that many harmonics.
    """

    def __init__(self, config: HiftConfig, weights: SourceWeights):
        if weights.harmonics.shape != (config.nb_harmonics + 1,):
            raise ModelError(
                f"source weights: found shape {list(weights.harmonics.shape)}, expected "
                f"[{config.nb_harmonics + 1}]; take the weights and sizes of one model"
            )
        self._config, self._weights = config, weights
        self._noise_gain = float(np.linalg.norm(weights.harmonics))

    def advance(self, phase: float | None, f0_hz: np.ndarray) -> float | None:
        """The phase of the last of these frames.

        Args:
            phase: Of the frame before them; None before the first frame of an utterance.
            f0_hz: float32 [T].
        """
        if not len(f0_hz):
            return phase
        cycles = f0_hz.sum(dtype=np.float64) / self._config.sample_rate_hz
        return float(((phase or 0.0) + cycles * self._config.samples_per_frame) % 1.0)

    def excite(self, f0_hz: np.ndarray, noise: np.ndarray, phase: np.ndarray | None) -> np.ndarray:
        """The source signal, float32 [B, T * samples_per_frame].

        The second half of the last frame is right only where the utterance ends with it: otherwise
        the next frame's f0 bends it. Equals the reference as long as no harmonic passes the sample
        rate (f0 of 2667 Hz with 8 overtones).

        Args:
            f0_hz: float32 [B, T].
            noise: Standard normals, float32 [B, T, samples_per_frame].
            phase: [B], of the frame before the first; None where utterances start.
        """
        config = self._config
        angle = 2 * np.pi * self._cycles(f0_hz.astype(np.float64), phase)
        sine, cosine = np.sin(angle), np.cos(angle)
        voiced = (f0_hz > config.voiced_threshold_hz)[..., None]
        merged = self._merged_sines(sine, 2 * cosine) * (np.float32(config.nsf_alpha) * voiced)
        level = np.where(voiced, config.nsf_sigma, config.nsf_alpha / 3) * self._noise_gain
        merged += noise * level.astype(np.float32)
        return np.tanh(merged + np.float32(self._weights.bias)).reshape(len(f0_hz), -1)

    def _cycles(self, f0_hz: np.ndarray, phase: np.ndarray | None) -> np.ndarray:
        """Phase of the fundamental at each sample, float32 [B, T, samples_per_frame], modulo 1."""
        samples = self._config.samples_per_frame
        step = f0_hz / self._config.sample_rate_hz
        before, behind = step.copy(), np.zeros_like(step)
        behind[:, :-1] = step[:, 1:]
        if phase is None:
            before[:, 0] = 0.0
            phase = np.zeros(len(f0_hz))
        centre = phase[:, None] + np.cumsum(step, axis=1) * samples
        offset = np.arange(samples) - (samples - 1) / 2
        slope = np.where(offset < 0, before[..., None], behind[..., None])
        cycles = centre[..., None] + offset * slope
        return (cycles - np.floor(cycles)).astype(np.float32)

    def _merged_sines(self, sine: np.ndarray, twice_cosine: np.ndarray) -> np.ndarray:
        """Weighted sum of the sines of all harmonics, by Clenshaw's recurrence."""
        newer, older = np.zeros_like(sine), np.zeros_like(sine)
        for weight in self._weights.harmonics[::-1]:
            newer, older = weight + twice_cosine * newer - older, newer
        return newer * sine
