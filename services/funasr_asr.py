"""FunASR as a pipecat service: SenseVoice for whole stretches, Paraformer while they go on."""

from duologue.asr.funasr_client import Funasr, FunasrStream, FunasrTranscript
from services.segment_asr import SegmentASR

TTFS_P99_S = 1.0
"""Not measured, on the safe side: SenseVoice on two CPU cores, a few seconds of speech."""

MAX_SPEECH_S = 28.0
"""FunASR itself cuts at 30 s."""


class FunasrASR(SegmentASR):
    """One session's speech recognition on shared FunASR models.

    Args:
        model: The models; their pool runs one call at a time.
        barge_in_every_s: Pause between interims while the bot has the floor.
        live_every_s: The same while it has not, for the live transcript only; 0 is off.
    """

    def __init__(self, model: Funasr, *, barge_in_every_s: float = 0.15, live_every_s: float = 1.2):
        super().__init__(
            "funasr",
            model.pool,
            ttfs_s=TTFS_P99_S,
            max_speech_s=MAX_SPEECH_S,
            barge_in_every_s=barge_in_every_s,
            live_every_s=live_every_s,
        )
        self._model = model
        self._stream: FunasrStream | None = None

    def recognize(self, audio: bytes) -> FunasrTranscript:
        """See `SegmentASR.recognize`."""
        return self._model.transcribe(audio)

    def glimpse(self, audio: bytes, *, fresh: bool) -> FunasrTranscript:
        """See `SegmentASR.glimpse`; a streaming model is given only what is new."""
        if not self._model.has_interims:
            return self._model.transcribe(audio)
        stream = self._stream
        if stream is None or fresh:
            self._end_stream()
            stream = self._stream = self._model.stream()
        return stream.feed(audio[stream.fed :])

    async def cleanup(self):
        """Free the stream."""
        await super().cleanup()
        self._end_stream()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
