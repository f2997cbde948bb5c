"""What can be read from the level of a voice. Audio is mono float32 [n], times are seconds."""

import numpy as np

FRAME_S = 0.01
FLOOR_DB = -100.0
AUDIBLE_DB = -45.0
"""Below this is silence to an ear on the phone, and above it is the bot's voice."""
SPEECH_RANGE_DB = 35.0
"""Speech's quiet ends stand out this far below its loudest frame; breath and noise lie lower."""


def levels_db(samples: np.ndarray, rate_hz: int) -> np.ndarray:
    """RMS in dBFS of each whole 10 ms, float32 [frames]."""
    width = round(FRAME_S * rate_hz)
    frames = samples[: len(samples) // width * width].reshape(-1, width)
    power = np.mean(frames.astype(np.float32) ** 2, axis=1)
    return 10 * np.log10(np.maximum(power, 10 ** (FLOOR_DB / 10)))


def first_sound(
    samples: np.ndarray, rate_hz: int, after_s: float = 0.0, threshold_db: float = AUDIBLE_DB
) -> float | None:
    """Time of the first sample above the threshold from `after_s` on."""
    start = max(0, round(after_s * rate_hz))
    loud = np.abs(samples[start:]) > 10 ** (threshold_db / 20)
    return (start + int(np.argmax(loud))) / rate_hz if loud.any() else None


def speech_span(samples: np.ndarray, rate_hz: int) -> tuple[float, float] | None:
    """Start and end of the speech in a recording, to 10 ms; None if it holds none."""
    levels = levels_db(samples, rate_hz)
    if not len(levels) or levels.max() < AUDIBLE_DB:
        return None
    (loud,) = np.nonzero(levels > max(levels.max() - SPEECH_RANGE_DB, AUDIBLE_DB - 10))
    return float(loud[0] * FRAME_S), float((loud[-1] + 1) * FRAME_S)


def spans(mask: np.ndarray, min_s: float = 0.0) -> list[tuple[float, float]]:
    """Start and end of each run of True, over frames of 10 ms, that lasts at least `min_s`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    return [
        (float(start * FRAME_S), float(end * FRAME_S))
        for start, end in runs
        if (end - start) * FRAME_S >= min_s - 1e-9
    ]


def gaps(samples: np.ndarray, rate_hz: int, min_s: float = 0.1) -> list[tuple[float, float]]:
    """The silences of at least `min_s` between the first and the last sound."""
    audible = levels_db(samples, rate_hz) > AUDIBLE_DB
    return [
        (start, end)
        for start, end in spans(~audible, min_s)
        if audible[: round(start / FRAME_S)].any() and audible[round(end / FRAME_S) :].any()
    ]


def quiet_after(
    samples: np.ndarray,
    rate_hz: int,
    onset_s: float,
    *,
    drop_db: float = 20.0,
    hold_s: float = 0.1,
) -> tuple[float, float] | None:
    """The silence with which a voice gives way to a sound that begins at `onset_s`.

    The level has to fall by `drop_db` below that of the voice in the second before, and to stay
    there for `hold_s`. Speech pauses of its own accord too: a longer `hold_s` leaves those out.

    Returns:
        Start and end of the silence (the end of the recording if nothing follows); None if the
        voice was not to be heard before the onset, or did not give way.
    """
    levels = levels_db(samples, rate_hz)
    onset = round(onset_s / FRAME_S)
    before = levels[max(0, onset - round(1 / FRAME_S)) : onset]
    voiced = before[before > AUDIBLE_DB]
    if not len(voiced):
        return None
    voice_db = 10 * np.log10(np.mean(10 ** (voiced / 10)))
    for start, end in spans(levels[onset:] <= voice_db - drop_db, hold_s):
        return onset_s + start, onset_s + end
    return None
