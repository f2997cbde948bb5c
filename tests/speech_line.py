"""A speech-text LM and all that stands behind it, without ears: questions are text."""

import asyncio
import re

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMRunFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection

from duologue.lm.engine import Request
from duologue.lm.modes import Mode
from duologue.lm.vocabulary import Vocabulary
from duologue.memory import Memory
from duologue.particles import renderer_for
from duologue.rehearsal import virtual
from duologue.tools import ToolRegistry
from processors.frames import AnswerTextFrame
from processors.playout import Playout
from processors.side_branch import SideBranch
from services.speech_lm import SpeechLM
from services.token2wav import Token2wav
from services.voice import Voice
from tests.fakes import FakeBatcher, FakeEngine, FakeVoice
from tests.test_playout import Tap
from tests.test_speech_lm import FAMILY, VOICE
from tests.workers import running

FRAMING = re.compile(r"<\||[a-z]*_call|function|tts_|<audio|think>|clock_of|\{")


class Front(Tap):
    """Stands for the user's aggregator."""

    def __init__(self, context: LLMContext):
        super().__init__()
        self._context = context

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMRunFrame):
            await self.push_frame(LLMContextFrame(self._context))


class Line:
    def __init__(self, engine: FakeEngine, tools: ToolRegistry, family: Vocabulary):
        self.context = LLMContext(messages=[{"role": "system", "content": "You are Ada."}])
        self.messages: list = self.context.messages
        self.memory, self.engine, self.tools = Memory(self.messages), engine, tools
        self.voice, self.batcher = FakeVoice(0.2), FakeBatcher()
        self.front, self.tap = Front(self.context), Tap()
        request = Request(tools=tools.schemas(), max_tokens=2048)
        trim = self.memory.trim
        lm = SpeechLM(engine, family, Mode.T1_T2A2, request, self.memory, trim, decoded=True)
        branch = SideBranch(self.memory, tools, renderer_for("piper"))
        voices = Voice(self.voice), Token2wav(self.batcher, VOICE)  # type: ignore[arg-type]
        playout = Playout(self.memory, clock=asyncio.get_running_loop().time)
        self.worker = PipelineWorker(
            Pipeline([self.front, lm, branch, *voices, playout, self.tap]),
            params=PipelineParams(audio_out_sample_rate=24_000),
            enable_rtvi=False,
            enable_turn_tracking=False,
        )

    async def ask(self, text: str = "Hello?") -> None:
        self.messages.append({"role": "user", "content": text})
        await self.worker.queue_frame(LLMContextFrame(self.context))

    async def interrupt(self, pause_s: float = 0.5) -> None:
        """As a user does who speaks for a while."""
        await self.worker.queue_frame(UserStartedSpeakingFrame())
        await self.worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(pause_s)
        await self.worker.queue_frame(UserStoppedSpeakingFrame())

    @property
    def errors(self) -> list[str]:
        return [f.error for _, f in self.front.frames if isinstance(f, ErrorFrame)]

    @property
    def answers(self) -> list[str]:
        told = [m["content"].strip() for m in self.messages if m["role"] == "assistant"]
        return [text for text in told if text]

    def check(self) -> None:
        """No framing is said, shown or remembered; every call is settled, every stream closed."""
        shown = [f.text for _, f in self.tap.frames if isinstance(f, AnswerTextFrame)]
        for text in (*self.voice.said, *self.answers, "".join(shown)):
            assert not FRAMING.search(text), text
        calls = [call["id"] for m in self.messages for call in m.get("tool_calls", ())]
        assert [m["tool_call_id"] for m in self.messages if m["role"] == "tool"] == calls
        assert self.engine.closed == len(self.engine.requests)


def on_the_line(scenario, *answers, tools: ToolRegistry | None = None, family=FAMILY) -> None:
    """Run a scenario in virtual time with an engine that gives these answers."""

    async def main():
        line = Line(FakeEngine(*answers), tools or ToolRegistry(), family)
        async with running(line.worker):
            await scenario(line)
        line.check()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtual.run(main())
