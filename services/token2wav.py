"""Speech tokens to sound as a pipecat service, on an engine that sessions share."""

import asyncio
import secrets

import soxr
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    MetricsFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.ai_service import AIService
from pipecat.services.settings import TTSSettings

from duologue.audio.pcm import to_int16_bytes
from duologue.errors import CapacityError, DuologueError
from duologue.token2wav.async_utterance import AsyncUtterance, Opens
from duologue.token2wav.batch import Said
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule
from processors.frames import SpeechTokensFrame, VoiceAudioFrame


class Token2wavMetricsData(MetricsData):
    """How one answer was spoken.

    Parameters:
        audio_s: Seconds of sound.
        rtf: Seconds of the engine's work for a second of sound, shared batches counted in full.
        queue_s: Longest wait of a chunk for the engine, seconds.
    """

    audio_s: float
    rtf: float
    queue_s: float


class Token2wav(AIService):
    """Speaks the speech tokens between the start and the end of an answer.

    The answer's end passes on when its last sample has; an interruption drops the rest of it. Once
    something of an answer has failed, what was accepted before is spoken and the rest is not.

    Args:
        batcher: The engine, shared by sessions.
        voice: Who speaks.
        schedule: Sizes of the chunks.
    """

    def __init__(self, batcher: Opens, voice: VoicePrompt, *, schedule: Schedule | None = None):
        super().__init__(settings=TTSSettings(model="token2wav", voice=None, language=None))
        self._batcher = batcher
        self._voice = voice
        self._schedule = schedule
        self._rate_hz = 0
        self._answer: _Answer | None = None
        self._failed = False
        self._turn = 0

    def can_generate_metrics(self) -> bool:
        """Time to first audio, and `Token2wavMetricsData` for each answer."""
        return True

    async def setup(self, setup: FrameProcessorSetup):
        """Take the output's sample rate."""
        await super().setup(setup)
        self._rate_hz = setup.audio_out_sample_rate

    async def cleanup(self):
        """Drop the answer."""
        await self._drop()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Speak tokens; pass everything else."""
        await super().process_frame(frame, direction)
        if isinstance(frame, SpeechTokensFrame):
            await self._speak(frame)
            return
        if isinstance(frame, LLMFullResponseStartFrame):
            await self._drop()
            self._turn, self._failed = frame.metadata.get("turn", 0), False
        elif isinstance(frame, LLMFullResponseEndFrame):
            await self._finish()
        elif isinstance(frame, InterruptionFrame):
            await self._drop()
        await self.push_frame(frame, direction)

    async def _speak(self, frame: SpeechTokensFrame) -> None:
        if self._failed or frame.turn != self._turn:
            return
        try:
            if self._answer is None:
                await self.start_ttfb_metrics()
                self._answer = await self._begin()
            self._answer.utterance.push(frame.tokens)
        except DuologueError as error:
            self._failed = True
            refused = isinstance(error, CapacityError)
            await self.push_error(
                f"no voice is free: {error}" if refused else str(error), exception=error
            )

    async def _begin(self) -> "_Answer":
        seed = secrets.randbits(64)
        utterance = await AsyncUtterance.open(self._batcher, self._voice, seed, self._schedule)
        answer = _Answer(utterance, self._batcher.rate_hz, self._rate_hz)
        answer.player = self.create_task(self._play(answer), "play")
        return answer

    async def _play(self, answer: "_Answer") -> None:
        while not answer.utterance.over:
            said = await answer.utterance.take()
            if said.error is not None:
                await self.push_error(str(said.error), exception=said.error)
            frame = answer.frame(said, self._turn)
            if frame is None:
                continue
            if not answer.started:
                answer.started = True
                await self.stop_ttfb_metrics()
                await self.push_frame(TTSStartedFrame())
            await self.push_frame(frame)

    async def _finish(self) -> None:
        answer = self._answer
        if answer is None or answer.player is None:
            return
        answer.utterance.finish()
        await answer.player
        self._answer = None
        if answer.started:
            await self.push_frame(TTSStoppedFrame())
            await self.push_frame(MetricsFrame(data=[answer.metrics(self.name)]))

    async def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        answer.utterance.cancel()
        if answer.player is not None:
            await self.cancel_task(answer.player)
        if answer.started:
            await self.push_frame(TTSStoppedFrame())


class _Answer:
    """One answer: its utterance, and what has come of it."""

    def __init__(self, utterance: AsyncUtterance, from_hz: int, to_hz: int):
        self.utterance = utterance
        self.player: asyncio.Task[None] | None = None
        self.started = False
        self._rate_hz = to_hz
        self._resampler = soxr.ResampleStream(from_hz, to_hz, 1) if from_hz != to_hz else None
        self._samples = 0
        self._step_s = 0.0
        self._queue_s = 0.0

    def frame(self, said: Said, turn: int) -> VoiceAudioFrame | None:
        """The audio of a result; None without any sample."""
        self._step_s += said.step_s
        self._queue_s = max(self._queue_s, said.queue_s)
        if said.error is not None:
            return None
        samples = said.samples
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=said.final)
        if not len(samples):
            return None
        self._samples += len(samples)
        return VoiceAudioFrame(to_int16_bytes(samples), self._rate_hz, 1, turn=turn)

    def metrics(self, processor: str) -> Token2wavMetricsData:
        """Of the whole answer."""
        audio_s = self._samples / self._rate_hz
        return Token2wavMetricsData(
            processor=processor,
            model="token2wav",
            audio_s=audio_s,
            rtf=self._step_s / audio_s,
            queue_s=self._queue_s,
        )
