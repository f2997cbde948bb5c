"""Speech tokens in, sound out: the service between an answer's start and its end."""

import asyncio

import numpy as np
import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.workers.runner import WorkerRunner

from duologue.engines.torch_model import engine_of
from duologue.token2wav.config import TINY
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.stream import Schedule
from duologue.token2wav.weights import load_preset
from processors.frames import SpeechTokensFrame, VoiceAudioFrame
from services.token2wav import Token2wav, Token2wavMetricsData
from tests.test_playout import Tap
from tests.token2wav.test_pipeline import speech, voice

TOKEN = TINY.samples_per_token


@pytest.fixture(scope="module")
def model():
    return engine_of(load_preset("tiny", 3), EngineSettings(sessions=2, window=20))


@pytest.fixture(scope="module")
def batcher(model):
    with model.batcher() as batcher:
        yield batcher


class Ear(Tap):
    """A tap that can be waited for."""

    def __init__(self):
        super().__init__()
        self.news = asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.news.set()


class Stage:
    """The service in a pipeline of its own."""

    def __init__(self, batcher, rate_hz: int):
        self.service = Token2wav(batcher, voice(1), schedule=Schedule((4,)))
        self.tap = Ear()
        self.errors: list[str] = []
        self.worker = PipelineWorker(
            Pipeline([self.service, self.tap]),
            params=PipelineParams(audio_out_sample_rate=rate_hz, enable_metrics=True),
        )

        @self.worker.event_handler("on_pipeline_error")
        async def on_error(worker, frame):
            self.errors.append(frame.error)
            self.tap.news.set()

    async def wait_for_error(self):
        async with asyncio.timeout(30):
            while not self.errors:
                self.tap.news.clear()
                await self.tap.news.wait()

    async def say(self, frame):
        await self.worker.queue_frame(frame)

    async def answer(self, *parts: SpeechTokensFrame, turn: int = 1):
        await self.begin(turn)
        for frame in (*parts, LLMFullResponseEndFrame()):
            await self.say(frame)

    async def begin(self, turn: int):
        start = LLMFullResponseStartFrame()
        start.metadata["turn"] = turn
        await self.say(start)

    async def wait_for(self, kind, count: int = 1):
        async with asyncio.timeout(30):
            while len(self.of(kind)) < count:
                self.tap.news.clear()
                await self.tap.news.wait()

    def of(self, kind):
        return [frame for _, frame in self.tap.frames if isinstance(frame, kind)]

    def kinds(self):
        wanted = (TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame, LLMFullResponseEndFrame)
        return [type(frame).__name__ for _, frame in self.tap.frames if isinstance(frame, wanted)]


@pytest.fixture
def play(batcher):
    """Run a scenario on a stage."""

    async def run(scenario, rate_hz=24_000):
        stage = Stage(batcher, rate_hz)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(stage.worker)
        running = asyncio.create_task(runner.run())
        try:
            await scenario(stage)
        finally:
            await stage.worker.cancel()
            await running
        return stage

    return run


def tokens(first: int, count: int, turn: int = 1) -> SpeechTokensFrame:
    return SpeechTokensFrame(turn=turn, tokens=speech(first, count).astype(np.int32))


async def test_an_answer_is_spoken_between_started_and_stopped(play, batcher):
    async def scenario(stage):
        await stage.answer(tokens(1, 5), tokens(2, 8))
        await stage.wait_for(LLMFullResponseEndFrame)

    stage = await play(scenario)
    names = stage.kinds()
    assert names[0] == "TTSStartedFrame" and names[-2:] == [
        "TTSStoppedFrame",
        "LLMFullResponseEndFrame",
    ]
    audio = stage.of(VoiceAudioFrame)
    assert sum(len(frame.audio) // 2 for frame in audio) == 13 * TOKEN
    assert {frame.turn for frame in audio} == {1}
    metrics = [data for frame in stage.of(MetricsFrame) for data in frame.data]
    assert any(isinstance(data, TTFBMetricsData) and data.value > 0 for data in metrics)
    [whole] = [data for data in metrics if isinstance(data, Token2wavMetricsData)]
    assert whole.audio_s == pytest.approx(13 / 25)
    assert whole.rtf > 0


async def test_another_output_rate_keeps_the_length(play):
    async def scenario(stage):
        await stage.answer(tokens(1, 9))
        await stage.wait_for(LLMFullResponseEndFrame)

    stage = await play(scenario, rate_hz=16_000)
    samples = sum(len(frame.audio) // 2 for frame in stage.of(VoiceAudioFrame))
    assert samples == pytest.approx(9 * TOKEN * 2 / 3, abs=2)


async def test_an_interruption_drops_the_rest_and_the_next_answer_is_whole(play, model):
    async def scenario(stage):
        await stage.begin(1)
        await stage.say(tokens(1, 20))
        await stage.wait_for(VoiceAudioFrame)
        await stage.say(InterruptionFrame())
        await stage.wait_for(InterruptionFrame)
        seen = len(stage.of(VoiceAudioFrame))
        await stage.answer(tokens(1, 9), tokens(3, 6, turn=2), turn=2)
        await stage.wait_for(LLMFullResponseEndFrame)
        later = stage.of(VoiceAudioFrame)[seen:]
        assert {frame.turn for frame in later} == {2}
        assert sum(len(frame.audio) // 2 for frame in later) == 6 * TOKEN

    await play(scenario)
    assert not model.flow._slots.generations


async def test_a_refused_answer_is_one_error_and_never_begins_in_its_middle(play, batcher):
    taken = [batcher.open(voice(1), 1, lambda said: None) for _ in range(2)]

    async def scenario(stage):
        await stage.begin(1)
        await stage.say(tokens(1, 6))
        await stage.wait_for_error()
        for utterance in taken:
            utterance.cancel()
        await stage.say(tokens(1, 20))
        await stage.say(LLMFullResponseEndFrame())
        await stage.wait_for(LLMFullResponseEndFrame)
        assert len(stage.errors) == 1 and "no voice is free" in stage.errors[0]
        assert not stage.of(VoiceAudioFrame)

    await play(scenario)


@pytest.mark.parametrize("rate_hz", [24_000, 16_000])
async def test_an_engine_that_fails_ends_the_answer(play, model, monkeypatch, rate_hz):
    step, runs = model.flow.step, []

    def fails_late(work):
        runs.append(1)
        if len(runs) > 6:
            raise RuntimeError("out of memory")
        return step(work)

    monkeypatch.setattr(type(model.flow), "step", lambda self, work: fails_late(work))

    async def scenario(stage):
        await stage.answer(tokens(1, 60))
        await stage.wait_for(LLMFullResponseEndFrame)
        assert ["out of memory" in error for error in stage.errors] == [True]
        assert 0 < sum(len(f.audio) // 2 for f in stage.of(VoiceAudioFrame)) < 60 * TOKEN

    await play(scenario, rate_hz)


async def test_an_answer_without_tokens_makes_no_sound(play):
    async def scenario(stage):
        await stage.answer()
        await stage.wait_for(LLMFullResponseEndFrame)

    stage = await play(scenario)
    assert stage.kinds() == ["LLMFullResponseEndFrame"]
