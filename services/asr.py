"""Whisper as a pipecat service: a segment per stretch of speech, with interim transcripts.

Interims decide on barge-in while the speech still goes on, and feed the page's live transcript.
"""

import asyncio
from collections.abc import AsyncGenerator

from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.utils.time import time_now_iso8601

from duologue.asr.whisper import MAX_SPEECH_S, Transcript, Whisper
from duologue.audio.pcm import from_int16_bytes
from processors.frames import FloorFrame

TTFS_P99_S = 0.6
"""Speech end to final transcript, measured on two busy cores; turn strategies wait this long."""


class WhisperASR(SegmentedSTTService):
    """One session's speech recognition on a shared Whisper model.

    Args:
        model: The model; its pool runs one transcription at a time.
        first_look_s: Speech beyond the VAD's start before the first interim; less is guesswork.
        barge_in_every_s: Pause between interims while the bot has the floor.
        live_every_s: The same while it has not, for the live transcript only; 0 is off.
    """

    def __init__(
        self,
        model: Whisper,
        *,
        first_look_s: float = 0.3,
        barge_in_every_s: float = 0.15,
        live_every_s: float = 1.2,
    ):
        super().__init__(
            settings=STTSettings(model="whisper", language=None),
            ttfs_p99_latency=TTFS_P99_S,
            trailing_silence_secs=0,
        )
        self._model = model
        self._first_look_s = first_look_s
        self._barge_in_every_s = barge_in_every_s
        self._live_every_s = live_every_s
        self._floor = False
        self._interims: asyncio.Task[None] | None = None

    @property
    def wants_wav_segments(self) -> bool:
        """Raw PCM, as the model takes it."""
        return False

    def can_generate_metrics(self) -> bool:
        """Time to final transcript and processing time are reported."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Also follow who has the floor: it sets how often unfinished speech is looked at."""
        await super().process_frame(frame, direction)
        if isinstance(frame, FloorFrame):
            self._floor = frame.taken
        elif isinstance(frame, VADUserStartedSpeakingFrame):
            await self._stop_interims()
            self._interims = self.create_task(self._look(), "interims")
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            await self._stop_interims()

    async def process_audio_frame(self, frame: InputAudioRawFrame, direction: FrameDirection):
        """Buffer audio; speech longer than the model's window is handed over in parts."""
        await super().process_audio_frame(frame, direction)
        if len(self._audio_buffer) > MAX_SPEECH_S * self.sample_rate * 2:
            await self._segment_queue.put(bytes(self._audio_buffer))
            self._audio_buffer.clear()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Transcribe one stretch of speech (16-bit mono PCM).

        Yields a frame even when nothing was understood: an empty text tells the turn strategies
        that the sound was no speech.
        """
        await self.start_processing_metrics()
        transcript = await self._transcribe(audio)
        await self.stop_processing_metrics()
        text = transcript.text if transcript.credible else ""
        frame = TranscriptionFrame(text, self._user_id, time_now_iso8601(), result=transcript)
        # A turn that this very transcript starts must not drop it (pipecat-ai/pipecat#5683).
        frame.interruptible = False
        yield frame

    async def cleanup(self):
        """Stop looking at unfinished speech."""
        await self._stop_interims()
        await super().cleanup()

    async def _look(self) -> None:
        await asyncio.sleep(self._first_look_s)
        while True:
            if self._floor or self._live_every_s:
                transcript = await self._transcribe(bytes(self._audio_buffer))
                if transcript.credible:
                    frame = InterimTranscriptionFrame(
                        transcript.text, self._user_id, time_now_iso8601(), result=transcript
                    )
                    await self.push_frame(frame)
            await asyncio.sleep(self._barge_in_every_s if self._floor else self._live_every_s or 1)

    async def _transcribe(self, audio: bytes) -> Transcript:
        loop = asyncio.get_running_loop()
        samples = from_int16_bytes(audio)
        return await loop.run_in_executor(self._model.pool, self._model.transcribe, samples)

    async def _stop_interims(self) -> None:
        if self._interims is not None:
            task, self._interims = self._interims, None
            await self.cancel_task(task)
