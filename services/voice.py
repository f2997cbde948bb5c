"""A decoupled voice: an answer's text to audio, clause by clause, with the time of every word."""

import asyncio

import numpy as np
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.ai_service import AIService
from pipecat.services.settings import TTSSettings

from duologue.audio.pcm import resample, to_int16_bytes
from duologue.errors import EngineError
from duologue.particles import Particle
from duologue.text import Clause, ClauseSplitter, Speaker
from duologue.tts.piper import PiperVoice
from duologue.tts.words import spread
from processors.frames import AnswerTextFrame, ParticleFrame, StreamFrame, VoiceAudioFrame

AUDIBLE = 10 ** (-46 / 20)


class Voice(AIService):
    """Speaks each clause as soon as it stands.

    Not a pipecat TTSService, whose text frames carry no offsets: every audio frame says which of
    the answer's characters have been said by which sample, and barge-in cuts the memory by that.
    Synthesis runs inside `process_frame`, so text waits in this processor's queue meanwhile and an
    interruption drops both. It has no marks of its own: particles are reported as not expressed.

    Args:
        voice: The engine, shared by sessions.
        lang: Language of the text, "en" or "zh".
    """

    def __init__(self, voice: PiperVoice, *, lang: str = "en"):
        settings = TTSSettings(model=type(voice).__name__, voice=None, language=lang)
        super().__init__(settings=settings)
        self._voice = voice
        self._lang = lang
        self._rate_hz = 0
        self._begin(0)

    def can_generate_metrics(self) -> bool:
        """Time to first audio and processing time are reported."""
        return True

    async def setup(self, setup: FrameProcessorSetup):
        """Take the output's sample rate, so that nothing has to be resampled later."""
        await super().setup(setup)
        self._rate_hz = setup.audio_out_sample_rate

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Speak answers; pass everything else."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame):
            self._begin(frame.metadata.get("turn", 0))
            await self.push_frame(frame, direction)
        elif isinstance(frame, AnswerTextFrame) and not frame.spoken:
            await self._speak(self._clauses.feed(frame.text))
        elif isinstance(frame, StreamFrame) and isinstance(frame.item, Particle):
            if not frame.item.closes:
                await self.push_frame(ParticleFrame(turn=self._turn, particle=frame.item))
        elif isinstance(frame, LLMFullResponseEndFrame):
            try:
                await self._speak(self._clauses.flush())
            finally:
                if self._started:
                    await self.push_frame(TTSStoppedFrame())
                await self.push_frame(frame, direction)
        else:
            if isinstance(frame, InterruptionFrame):
                self._begin(self._turn)
            await self.push_frame(frame, direction)

    def _begin(self, turn: int) -> None:
        self._turn = turn
        self._started = False
        self._mid_sentence = False
        self._clauses = ClauseSplitter(self._lang)
        self._speaker = Speaker(self._lang)

    async def _speak(self, clauses: list[Clause]) -> None:
        for clause in clauses:
            spoken = self._speaker.say(clause.text)
            if not spoken:
                continue
            await self.start_processing_metrics()
            if not self._started:
                await self.start_ttfb_metrics()
            try:
                frame = await self._synthesize(clause, spoken)
            except EngineError as error:
                await self.push_error(str(error), exception=error)
                continue
            await self.stop_ttfb_metrics()
            await self.stop_processing_metrics()
            if not self._started:
                self._started = True
                await self.push_frame(TTSStartedFrame())
            await self.push_frame(frame)

    async def _synthesize(self, clause: Clause, spoken: str) -> VoiceAudioFrame:
        loop = asyncio.get_running_loop()
        speech = await loop.run_in_executor(self._voice.pool, self._voice.synthesize, spoken)
        # The silence at a voice's ends separates clauses. Before the first it only delays, and
        # where a sentence is cut without a mark it is no pause.
        rate_hz, said = self._voice.rate_hz, speech.samples
        skip = leading_silence(said, rate_hz) if not self._started or self._mid_sentence else 0
        self._mid_sentence = clause.text.rstrip()[-1:].isalnum()
        trail = leading_silence(said[::-1], rate_hz) if self._mid_sentence else 0
        samples = resample(said[skip : len(said) - trail], rate_hz, self._rate_hz)
        ratio = self._rate_hz / rate_hz
        # What is spoken may have other words than what is written ("$5" is "five dollars"); their
        # time is shared out over the written ones.
        words = spread(clause.text, [word.end_sample - skip for word in speech.words])
        return VoiceAudioFrame(
            to_int16_bytes(samples),
            self._rate_hz,
            1,
            turn=self._turn,
            words=tuple((round(w.end_sample * ratio), clause.start + w.end) for w in words),
        )


def leading_silence(samples: np.ndarray, rate_hz: int) -> int:
    """Samples of float32 [n] before the first one that can be heard, less 5 ms for its attack."""
    loud = np.flatnonzero(np.abs(samples) > AUDIBLE)
    return max(0, int(loud[0]) - rate_hz // 200) if len(loud) else 0
