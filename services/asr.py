"""Whisper as a pipecat service."""

from duologue.asr.whisper import MAX_SPEECH_S, Transcript, Whisper
from duologue.audio.pcm import from_int16_bytes
from services.segment_asr import SegmentASR

TTFS_P99_S = 0.6
"""Measured on two busy cores."""


class WhisperASR(SegmentASR):
    """One session's speech recognition on a shared Whisper model.

    Args:
        model: The model; its pool runs one transcription at a time.
        barge_in_every_s: Pause between interims while the bot has the floor.
        live_every_s: The same while it has not, for the live transcript only; 0 is off.
    """

    def __init__(
        self, model: Whisper, *, barge_in_every_s: float = 0.06, live_every_s: float = 1.2
    ):
        super().__init__(
            "whisper",
            model.pool,
            ttfs_s=TTFS_P99_S,
            max_speech_s=MAX_SPEECH_S,
            barge_in_every_s=barge_in_every_s,
            live_every_s=live_every_s,
        )
        self._model = model

    def recognize(self, audio: bytes) -> Transcript:
        """See `SegmentASR.recognize`."""
        return self._model.transcribe(from_int16_bytes(audio))

    def glimpse(self, audio: bytes, *, fresh: bool) -> Transcript:
        """See `SegmentASR.glimpse`."""
        return self._model.transcribe(from_int16_bytes(audio), hasty=True)
