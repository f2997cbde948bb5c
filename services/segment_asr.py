"""A recogniser of whole stretches of speech as a pipecat service, with interim transcripts.

Interims decide on barge-in while the speech still goes on, and feed the page's live transcript.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

import numpy as np
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

from duologue.audio.pcm import ASR_RATE_HZ, from_int16_bytes, resample, to_int16_bytes
from duologue.errors import EngineError
from processors.frames import FloorFrame, UserSpeechFrame

FIRST_LOOK_S = 0.25
"""With less speech than this beyond the VAD's start, a look is guesswork."""
PAUSE_S = 0.08
"""Longer than the closure of a stop consonant, shorter than the VAD's silence."""
VAD_LAG_S = 0.15
"""How long after a sound's end the VAD still calls it speech."""
QUIET = 0.05
"""26 dB below the stretch's loudest frame."""


class Recognised(Protocol):
    """What a recogniser understood."""

    @property
    def text(self) -> str:
        """The words.

        Engines may also tell `confidence` and `no_speech`, as Whisper does; one that does not is
        believed.
        """
        ...

    @property
    def credible(self) -> bool:
        """Whether the text is more likely heard than made up from noise."""
        ...


class Pause:
    """Notices where speech falls silent: PAUSE_S of frames far below the speech's own level."""

    def __init__(self) -> None:
        self._peak = 0.0
        self.quiet_s = 0.0

    def follow(self, audio: bytes, rate_hz: int) -> bool | None:
        """Take the next frame; True at a pause's beginning, False at speech, None in between."""
        samples = from_int16_bytes(audio)
        level = float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0
        self._peak = max(self._peak, level)
        if level > self._peak * QUIET:
            self.quiet_s = 0.0
            return False
        before, self.quiet_s = self.quiet_s, self.quiet_s + len(samples) / rate_hz
        return True if before < PAUSE_S <= self.quiet_s else None


class SegmentASR(SegmentedSTTService):
    """One session's speech recognition on a model that sessions share.

    Args:
        model: Its name.
        pool: Runs the model, one call at a time.
        ttfs_s: Speech end to final transcript, 99th percentile; turn strategies wait this long.
        max_speech_s: Longer speech is recognised in parts.
        barge_in_every_s: Pause between interims while the bot has the floor.
        live_every_s: The same while it has not, for the live transcript only; 0 is off.

    Attributes:
        gives_sound: Whether the sound goes down ahead of its words, for a model that hears.
    """

    def __init__(
        self,
        model: str,
        pool: Executor,
        *,
        ttfs_s: float,
        max_speech_s: float,
        barge_in_every_s: float,
        live_every_s: float,
    ):
        super().__init__(
            settings=STTSettings(model=model, language=None),
            ttfs_p99_latency=ttfs_s,
            trailing_silence_secs=0,
        )
        self._pool = pool
        self._max_speech_s = max_speech_s
        self._barge_in_every_s = barge_in_every_s
        self._live_every_s = live_every_s
        self.gives_sound = False
        self._floor = False
        self._interims: asyncio.Task[None] | None = None
        self._pause = Pause()
        self._early: asyncio.Future[Recognised] | None = None
        self._early_for: dict[bytes, asyncio.Future[Recognised]] = {}

    @abstractmethod
    def recognize(self, audio: bytes) -> Recognised:
        """Recognise one whole stretch of speech (16-bit mono PCM, 16 kHz); runs in the pool."""

    def glimpse(self, audio: bytes, *, fresh: bool) -> Recognised:
        """Recognise what there is of an unfinished stretch; runs in the pool.

        Args:
            audio: From the stretch's start.
            fresh: Whether this is the first look at it; each further one has more audio.
        """
        return self.recognize(audio)

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
            self._pause = Pause()
            self._interims = self.create_task(self._look(), "interims")
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            await self._stop_interims()

    async def process_audio_frame(self, frame: InputAudioRawFrame, direction: FrameDirection):
        """Buffer audio; speech longer than the model's window is handed over in parts."""
        await super().process_audio_frame(frame, direction)
        self._follow_pauses(frame)
        if len(self._audio_buffer) > self._max_speech_s * self.sample_rate * 2:
            self._drop_early()
            await self._segment_queue.put(bytes(self._audio_buffer))
            self._audio_buffer.clear()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Transcribe one stretch of speech (16-bit mono PCM).

        Yields a frame even when nothing was understood: an empty text tells the turn strategies
        that the sound was no speech.
        """
        await self.start_processing_metrics()
        early = self._early_for.pop(audio, None)
        heard = await (early or self._in_pool(self.recognize, audio))
        await self.stop_processing_metrics()
        text = heard.text if heard.credible else ""
        if self.gives_sound and text:
            yield UserSpeechFrame(text, audio, self.sample_rate)
        frame = TranscriptionFrame(text, self._user_id, time_now_iso8601(), result=heard)
        # A turn that this very transcript starts must not drop it (pipecat-ai/pipecat#5683).
        frame.interruptible = False
        yield frame

    async def cleanup(self):
        """Stop recognising. A session that ends while it starts is only cleaned up."""
        await super().cleanup()
        await self._stop_interims()
        self._drop_early()
        await self._cancel_segment_task()

    def _follow_pauses(self, frame: InputAudioRawFrame) -> None:
        """Recognise at the first sign of a pause what the VAD will call finished a moment later.

        What comes until then is silence, so that the result is the segment's; speech voids it.
        """
        if not self._user_speaking:
            return
        match self._pause.follow(frame.audio, frame.sample_rate):
            case True if self._early is None:
                self._early = self._in_pool(self.recognize, bytes(self._audio_buffer))
            case False:
                self._drop_early()

    async def _handle_user_stopped_speaking(self, frame: VADUserStoppedSpeakingFrame):
        # The VAD has heard speech since where the level had long fallen: soft words, not silence.
        if self._pause.quiet_s > frame.stop_secs + VAD_LAG_S:
            self._drop_early()
        if self._early is not None:
            self._early_for[bytes(self._audio_buffer)] = self._early
            self._early = None
        await super()._handle_user_stopped_speaking(frame)

    def _drop_early(self) -> None:
        """What has not begun never does; what runs is not looked at."""
        early, self._early = self._early, None
        if early is not None:
            early.cancel()

    async def _look(self) -> None:
        seen = 0
        await asyncio.sleep(FIRST_LOOK_S)
        while True:
            wanted = self._floor or self._live_every_s
            if wanted and len(self._audio_buffer) != seen:
                audio = bytes(self._audio_buffer)
                glimpse = partial(self.glimpse, fresh=not 0 < seen < len(audio))
                seen = len(audio)
                try:
                    heard = await self._in_pool(glimpse, audio)
                except EngineError as error:
                    await self.push_error(str(error), exception=error)
                    return
                # Even a doubtful word counts where it may be an interruption.
                if heard.text and (self._floor or heard.credible):
                    frame = InterimTranscriptionFrame(
                        heard.text, self._user_id, time_now_iso8601(), result=heard
                    )
                    await self.push_frame(frame)
            await asyncio.sleep(self._barge_in_every_s if self._floor else self._live_every_s or 1)

    def _in_pool(
        self, recognize: Callable[[bytes], Recognised], audio: bytes
    ) -> asyncio.Future[Recognised]:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, lambda: recognize(self._for_model(audio)))
        # Nobody may be left to look at the failure of an attempt that was dropped.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def _for_model(self, audio: bytes) -> bytes:
        """At the rate that models take: a phone's pipeline runs at 8 kHz."""
        if self.sample_rate == ASR_RATE_HZ:
            return audio
        return to_int16_bytes(resample(from_int16_bytes(audio), self.sample_rate, ASR_RATE_HZ))

    async def _stop_interims(self) -> None:
        if self._interims is not None:
            task, self._interims = self._interims, None
            await self.cancel_task(task)
