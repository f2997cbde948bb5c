"""A clip of somebody's voice: read, freed of the silence around it, and checked."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duologue.audio.pcm import ASR_RATE_HZ, read_audio
from duologue.errors import InputError

MIN_S, MAX_S = 3.0, 30.0
MAX_FILE_S = 120.0
MIN_RATE_HZ, MAX_RATE_HZ = 8_000, 192_000
SILENCE_DBFS = -60.0
MIN_DBFS = -45.0
MAX_CLIPPED = 0.001
"""Share of samples at full scale; clean speech stays far below."""

MARGIN_S = 0.1
FRAME_S = 0.02
QUIET_DB = 40.0
"""How far below the loudest frame of a clip its silence lies."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Speech of one person, 3 to 30 s.

    Attributes:
        samples: float32 [n], mono.
        rate_hz: As recorded.
    """

    samples: np.ndarray
    rate_hz: int

    @property
    def seconds(self) -> float:
        """Length."""
        return len(self.samples) / self.rate_hz


def read_clip(path: Path) -> Clip:
    """Read a voice clip from any audio file; channels are averaged.

    Raises:
        InputError: missing, not audio, silent, too quiet, clipped, or not 3 to 30 s of speech.
    """
    rate_hz = _rate_hz(path)
    samples = read_audio(path, rate_hz=rate_hz)
    _check_length(path, len(samples) / rate_hz, len(samples) / rate_hz, (MIN_S, MAX_FILE_S))
    if _dbfs(samples) < SILENCE_DBFS:
        raise InputError(
            f"{path}: found silence ({_dbfs(samples):.0f} dBFS); check the microphone, and that "
            "the two channels of a stereo clip do not cancel each other"
        )
    clip = Clip(_trimmed(samples, rate_hz), rate_hz)
    _check_length(path, clip.seconds, len(samples) / rate_hz, (MIN_S, MAX_S))
    _check_level(path, clip.samples)
    return clip


def _rate_hz(path: Path) -> int:
    import soundfile

    try:
        info = soundfile.info(path)
    except (soundfile.SoundFileError, OSError):
        # `read_audio` says better what is wrong with it.
        return ASR_RATE_HZ
    if not MIN_RATE_HZ <= info.samplerate <= MAX_RATE_HZ:
        raise InputError(
            f"{path}: found {info.samplerate} samples/s, expected {MIN_RATE_HZ} to {MAX_RATE_HZ}"
        )
    _check_length(path, info.duration, info.duration, (0, MAX_FILE_S))
    return info.samplerate


def _check_length(path: Path, seconds: float, whole_s: float, limits: tuple[float, float]) -> None:
    least, most = limits
    if least <= seconds <= most:
        return
    inside = "" if seconds == whole_s else f" in {whole_s:.1f} s with the silence around it"
    raise InputError(
        f"{path}: found {seconds:.1f} s of speech{inside}, expected {MIN_S:.0f} to {MAX_S:.0f} s; "
        f"{'record more' if seconds < least else 'cut the clip'}"
    )


def _check_level(path: Path, samples: np.ndarray) -> None:
    if _dbfs(samples) < MIN_DBFS:
        raise InputError(
            f"{path}: found speech at {_dbfs(samples):.0f} dBFS, expected at least {MIN_DBFS:.0f}; "
            "record louder or closer to the microphone"
        )
    peak = np.abs(samples).max()
    # The highest value of 8 bits is 127 / 128. A lossy codec overshoots.
    clipped = float(np.mean(np.abs(samples) >= 0.999 * min(peak, 1.0))) if peak > 0.99 else 0.0
    if clipped > MAX_CLIPPED:
        raise InputError(
            f"{path}: found {clipped:.1%} of the samples clipped at full scale, "
            f"expected at most {MAX_CLIPPED:.1%}; record at a lower level"
        )


def _dbfs(samples: np.ndarray) -> float:
    """Level without a constant offset; a full-scale square wave has 0."""
    return 20 * float(np.log10(max(samples.std(), 1e-10)))


def _trimmed(samples: np.ndarray, rate_hz: int) -> np.ndarray:
    size = round(FRAME_S * rate_hz)
    n_frames = len(samples) // size
    level = samples[: n_frames * size].reshape(n_frames, size).std(axis=1)
    loud = np.flatnonzero(level >= level.max() * 10 ** (-QUIET_DB / 20))
    margin = round(MARGIN_S * rate_hz)
    return samples[max(0, loud[0] * size - margin) : (loud[-1] + 1) * size + margin]
