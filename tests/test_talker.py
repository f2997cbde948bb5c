"""A talker whose server gives less than the clause, in virtual time: nothing unheard is kept."""

import asyncio

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker

from duologue.errors import EngineError
from duologue.lm.engine import Finish, Ids, Request, Step
from duologue.memory import Memory
from duologue.particles import renderer_for
from duologue.rehearsal import virtual
from duologue.tools import ToolRegistry
from processors.playout import Playout
from processors.side_branch import SideBranch
from services.talker import Talker
from services.token2wav import Token2wav
from tests.fakes import FakeBatcher, FakeEngine
from tests.lm.streams import ids_of
from tests.test_playout import Tap
from tests.test_speech_lm import COSYVOICE2, VOICE
from tests.workers import running

FIRST, SECOND = "The sea is deep.", " Many animals live."


def speech(tokens: int, *end: str) -> list[Step]:
    return [Ids(tuple(ids_of(COSYVOICE2, *range(1, tokens + 1), *end)))]


def read_out(*answers) -> tuple[list[dict], list[str], int]:
    """(what is remembered, errors, speech tokens) of an answer of two clauses."""
    messages: list[dict] = []
    front, batcher = Tap(), FakeBatcher()

    async def main():
        memory = Memory(messages)
        stages = [
            front,
            SideBranch(memory, ToolRegistry(), renderer_for("piper")),
            Talker(FakeEngine(*answers), COSYVOICE2, Request(), memory),
            Token2wav(batcher, VOICE),  # type: ignore[arg-type]
            Playout(memory, clock=asyncio.get_running_loop().time),
        ]
        worker = PipelineWorker(
            Pipeline(stages),
            params=PipelineParams(audio_out_sample_rate=24_000),
            enable_rtvi=False,
            enable_turn_tracking=False,
        )
        text = LLMTextFrame(FIRST + SECOND)
        frames = [LLMFullResponseStartFrame(), text, LLMFullResponseEndFrame()]
        async with running(worker):
            await worker.queue_frames(frames)
            await asyncio.sleep(10)

    virtual.run(main())
    errors = [f.error for _, f in front.frames if isinstance(f, ErrorFrame)]
    return messages, errors, len(batcher.tokens)


def test_a_whole_answer_is_kept():
    messages, errors, tokens = read_out(speech(40, "<|eos1|>"), speech(40))
    assert (messages[0]["content"], errors, tokens) == (FIRST + SECOND, [], 80)


@pytest.mark.parametrize(
    "nothing",
    [
        [],
        ["I cannot."],
        [Finish("abort")],
        [EngineError("is missing")],
        [RuntimeError("its lock is missing")],
    ],
    ids=["nothing", "text", "an abort", "an error", "a fault"],
)
def test_a_clause_without_speech_is_told_and_not_remembered(nothing):
    messages, errors, tokens = read_out(speech(40), nothing)
    assert messages[0]["content"] == FIRST and tokens == 40
    assert len(errors) == 1 and "is missing" in errors[0]
    messages, errors, tokens = read_out(nothing, speech(40))
    assert (messages, tokens, len(errors)) == ([], 0, 1)


@pytest.mark.parametrize(
    "broken",
    [[*speech(9), Finish("length")], [*speech(9), Finish("abort")], speech(1) * 2000],
    ids=["too long", "an abort", "a loop"],
)
def test_a_clause_that_breaks_off_ends_the_answer(broken):
    messages, errors, tokens = read_out(broken, speech(40))
    assert len(errors) == 1 and "breaks off" in errors[0]
    assert tokens <= 250
    kept = messages[0]["content"] if messages else ""
    assert FIRST.startswith(kept) and kept != FIRST
