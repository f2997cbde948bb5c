"""What the side branch lets the decoupled voice say: what the LM's own speech does not."""

import asyncio

import numpy as np
import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMRunFrame,
    TTSSpeakFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker

from bots.models import Models, Speech
from bots.virtual_call import virtual_call
from duologue.lm.engine import ToolCall
from duologue.memory import Memory
from duologue.particles import renderer_for
from duologue.rehearsal import virtual
from duologue.token2wav.step import VoicePrompt
from duologue.tools import ToolRegistry, ToolResult
from processors.frames import (
    AnswerDoneFrame,
    ParticleFrame,
    SpeechTokensFrame,
    StreamFrame,
    ToolCallFrame,
)
from processors.playout import Playout
from processors.side_branch import SideBranch
from services.token2wav import Token2wav
from services.voice import Voice
from tests.fakes import FakeBatcher, FakeEngine, FakeVoice
from tests.particle_texts import particles
from tests.test_playout import Tap
from tests.test_speech_lm import FAMILY, answer, config, ids, ta4
from tests.workers import running

TOKENS = 50
TOKEN_S = 0.04
SAID, UNSAID = "It is noon.", "See the map too."
VOICE = VoicePrompt(
    np.zeros(2, np.int32), np.zeros((4, 80), np.float32), np.zeros(192, np.float32), "nobody"
)


class Call:
    """What stands behind a speech-text LM."""

    def __init__(self):
        self.messages: list[dict] = []
        self.memory, self.voice, self.tools = Memory(self.messages), FakeVoice(0.2), ToolRegistry()
        self.tap, self.lm = Tap(), Tap()
        branch = SideBranch(self.memory, self.tools, renderer_for("piper"))
        decoder = Token2wav(FakeBatcher(), VOICE)  # type: ignore[arg-type]
        clock = asyncio.get_running_loop().time
        playout = Playout(self.memory, clock=clock)
        self.worker = PipelineWorker(
            Pipeline([self.lm, branch, Voice(self.voice), decoder, playout, self.tap]),  # type: ignore[arg-type]
            params=PipelineParams(audio_out_sample_rate=24_000),
            enable_rtvi=False,
            enable_turn_tracking=False,
        )

    async def answer(self, *items: StreamFrame, tokens: int = TOKENS, decoded: bool = True):
        start = LLMFullResponseStartFrame()
        turn = start.metadata["turn"] = self.memory.begin()
        if decoded:
            self.memory.follow(turn, lambda s: len(SAID) * (s > 1), lambda: tokens * TOKEN_S)
        speech = [SpeechTokensFrame(turn=turn, tokens=np.arange(tokens, dtype=np.int32))]
        frames = [start, *items, *(speech if tokens else []), LLMFullResponseEndFrame()]
        await self.worker.queue_frames(frames)

    @property
    def remembered(self) -> list[str]:
        return [message["content"] for message in self.messages]

    @property
    def ended(self) -> list[tuple[int, bool]]:
        return [(f.chars, f.interrupted) for _, f in self.tap.of(AnswerDoneFrame)]


def on_the_line(scenario):
    async def main():
        call = Call()
        async with running(call.worker):
            await scenario(call)

    virtual.run(main())


def said(text: str) -> StreamFrame:
    return StreamFrame(text, spoken=True)


@pytest.mark.parametrize(
    "items",
    [
        (said(SAID), StreamFrame(" See the"), StreamFrame(" map too.")),
        (StreamFrame(UNSAID), said(SAID)),
    ],
    ids=["behind the speech", "before it"],
)
def test_it_is_heard_behind_the_speech_and_remembered(items):
    async def scenario(call: Call):
        await call.answer(*items)
        await asyncio.sleep(10)
        assert call.voice.said == [UNSAID]
        assert [text.strip() for text in call.remembered] == [SAID, UNSAID]
        first_s = call.tap.audio()[0][0]
        levels = [(at - first_s, chunk.max()) for at, chunk in call.tap.audio()]
        speech = round(0.1 * 32767)
        assert all((at < TOKENS * TOKEN_S - 0.09) == (level == speech) for at, level in levels)
        assert [interrupted for _, interrupted in call.ended] == [False, False]

    on_the_line(scenario)


def test_an_answer_without_any_speech_is_heard():
    async def scenario(call: Call):
        await call.answer(StreamFrame(UNSAID), tokens=0)
        await asyncio.sleep(10)
        assert (call.voice.said, call.remembered) == ([UNSAID], [UNSAID])

    on_the_line(scenario)


def test_who_interrupts_the_speech_hears_none_of_it():
    async def scenario(call: Call):
        await call.answer(said(SAID), StreamFrame(UNSAID))
        await asyncio.sleep(1.5)
        await call.worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(10)
        assert call.remembered == [SAID]
        assert call.ended == [(len(SAID), True), (0, True)]
        await call.answer(said(SAID))
        await asyncio.sleep(10)
        assert call.remembered == [SAID, SAID]

    on_the_line(scenario)


def test_nothing_of_an_answer_comes_behind_its_interruption():
    async def scenario(call: Call):
        frames = [LLMFullResponseStartFrame(), said(SAID), StreamFrame(UNSAID)]
        frames[0].metadata["turn"] = turn = call.memory.begin()
        call.memory.follow(turn, lambda s: 0, lambda: 1.0)
        await call.worker.queue_frames(frames)
        await asyncio.sleep(1)
        await call.worker.queue_frame(InterruptionFrame())
        await call.worker.queue_frame(LLMFullResponseEndFrame())
        await asyncio.sleep(10)
        assert (call.voice.said, call.remembered) == ([], [])

    on_the_line(scenario)


def test_who_interrupts_it_has_heard_its_beginning():
    async def scenario(call: Call):
        await call.answer(said(SAID), StreamFrame(UNSAID))
        await asyncio.sleep(TOKENS * TOKEN_S + 0.6)
        await call.worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(1)
        assert call.remembered == [SAID, "See the"]

    on_the_line(scenario)


def test_blanks_marks_and_punctuation_alone_are_no_answer():
    async def scenario(call: Call):
        await call.answer(said(SAID), StreamFrame("\n ."), StreamFrame(particles("(laughs)")[0]))
        await asyncio.sleep(10)
        assert (call.voice.said, call.remembered, len(call.ended)) == ([], [SAID], 1)

    on_the_line(scenario)


def test_where_a_decoupled_voice_says_all_text_it_says_it_at_once():
    async def scenario(call: Call):
        mark = StreamFrame(particles("(laughs)")[0])
        await call.answer(
            StreamFrame(SAID), mark, StreamFrame(" " + UNSAID), tokens=0, decoded=False
        )
        await asyncio.sleep(10)
        assert (call.voice.said, call.remembered) == ([SAID, UNSAID], [f"{SAID} {UNSAID}"])
        assert [f.rendered for _, f in call.tap.of(ParticleFrame)] == [False]

    on_the_line(scenario)


def test_an_announcement_does_not_make_it_forget_a_result():
    async def scenario(call: Call):
        known = asyncio.Event()

        @call.tools.tool()
        async def look_up() -> ToolResult:
            """Looks it up."""
            await known.wait()
            return ToolResult(1)

        start = LLMFullResponseStartFrame()
        tool_call = ToolCallFrame(ToolCall("a", "look_up", "{}"))
        await call.worker.queue_frames([start, tool_call, LLMFullResponseEndFrame()])
        await asyncio.sleep(1)
        await call.worker.queue_frame(UserStartedSpeakingFrame())
        await call.worker.queue_frame(TTSSpeakFrame("Time is up."))
        await asyncio.sleep(1)
        known.set()
        await asyncio.sleep(1)
        assert (call.voice.said, call.lm.of(LLMRunFrame)) == ([], [])
        await call.worker.queue_frame(UserStoppedSpeakingFrame())
        await asyncio.sleep(5)
        assert (call.voice.said, len(call.lm.of(LLMRunFrame))) == (["Time is up."], 1)

    on_the_line(scenario)


def test_text_behind_step_audio2s_speech_is_heard_and_remembered(whisper, say):
    async def main():
        engine = FakeEngine(answer(ta4("the clock says it is time", 50), ids("look at it.")))
        batcher, voice = FakeBatcher(), FakeVoice(0.2)
        speech = Speech(FAMILY, batcher, VOICE)  # type: ignore[arg-type]
        async with virtual_call(Models(whisper, engine, voice, speech), config()) as call:  # type: ignore[arg-type]
            await asyncio.sleep(0.3)
            await call.say(say("Tell me about the sea."))
            await call.wait_for("bot_end", turn=2)
            assert (batcher.tokens, voice.said) == ([*range(1, 51)], ["look at it."])
            told = [message["content"].strip() for message in call.session.context.messages[-2:]]
            assert told == ["the clock says it is time", "look at it."]
            await call.say(say("Tell me more."))
            await call.wait_for("bot_end", turn=3)
            prompt = list(engine.requests[1].parts[0].ids)
            assert [token for token in prompt if token in ids(*range(1, 51))] == ids(*range(1, 51))

    virtual.run(main())
