"""PCM in and out: files of any common kind to mono float32, and int16 bytes both ways.

Samples are float32 in [-1, 1], shape [n]; rates are in Hz.
"""

from pathlib import Path

import numpy as np
import soxr

from duologue.errors import InputError

ASR_RATE_HZ = 16_000
"""What the ASR, VAD and end-of-turn models take."""


def to_int16_bytes(samples: np.ndarray) -> bytes:
    """Mono float32 [n] to little-endian 16-bit PCM; values beyond full scale are clipped."""
    return np.clip(np.rint(samples * 32767.0), -32768, 32767).astype("<i2").tobytes()


def from_int16_bytes(data: bytes) -> np.ndarray:
    """Little-endian 16-bit mono PCM to float32 [n]; an odd last byte is dropped."""
    return np.frombuffer(data, "<i2", count=len(data) // 2).astype(np.float32) / 32768.0


def resample(samples: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Band-limited resampling of one whole signal, float32 [n] to [round(n * to / from)]."""
    if from_hz == to_hz:
        return samples
    return soxr.resample(samples, from_hz, to_hz, quality="HQ")


def read_audio(path: Path, *, rate_hz: int = ASR_RATE_HZ, max_s: float | None = None) -> np.ndarray:
    """Read any file that libsndfile knows as mono float32 at `rate_hz`.

    Channels are averaged. Works for 8 to 32 bit, any sample rate, WAV, FLAC, Ogg and MP3.

    Raises:
        InputError: missing, not a file, not audio, without samples, or longer than `max_s`.
    """
    import soundfile

    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise InputError(f"{path}: found {found}, expected an audio file; check the path")
    try:
        with soundfile.SoundFile(path) as file:
            seconds = file.frames / file.samplerate
            if max_s is not None and seconds > max_s:
                raise InputError(
                    f"{path}: found {seconds:.0f} s of audio, expected at most {max_s:.0f} s; "
                    "cut the file, or use `duologue transcribe` for long recordings"
                )
            samples = file.read(dtype="float32", always_2d=True)
            rate = file.samplerate
    except soundfile.SoundFileError as error:
        raise InputError(
            f"{path}: found {path.stat().st_size} bytes that are not audio, "
            "expected WAV, FLAC, Ogg or MP3"
        ) from error
    if not len(samples):
        raise InputError(f"{path}: found 0 samples, expected some audio; record it again")
    mono = np.nan_to_num(samples.mean(axis=1, dtype=np.float32))
    return resample(mono, rate, rate_hz)


def check_target(path: Path) -> None:
    """Find out before the work that its result cannot be written.

    Raises:
        InputError: `path` is a folder, lies in none, or has the ending of another format.
    """
    if path.suffix.lower() != ".wav":
        raise InputError(f"{path}: found the ending {path.suffix!r}, expected .wav")
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder" if path.is_dir() else "no such folder"
        raise InputError(f"{path}: found {found}, expected the name of a WAV to write")


def write_wav(path: Path, samples: np.ndarray, rate_hz: int) -> None:
    """Write mono float32 [n] as a 16-bit WAV.

    Raises:
        InputError: the folder is missing or cannot be written.
    """
    import soundfile

    try:
        soundfile.write(path, np.clip(samples, -1, 1), rate_hz, subtype="PCM_16", format="WAV")
    except (soundfile.SoundFileError, OSError) as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another path") from error
