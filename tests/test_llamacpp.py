"""llama.cpp in process, with the embedded model."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from duologue.errors import EngineError, ModelError
from duologue.lm.engine import Finish, Request, Step, TextDelta
from duologue.lm.llamacpp import LlamaCpp
from duologue.models import ensure

OPENING = [
    {"role": "system", "content": "You are Ada, a voice assistant. Answer in one short sentence."},
    {"role": "user", "content": "Who are you?"},
    {
        "role": "assistant",
        "content": "I'm Ada, a small voice assistant that runs on this computer.",
    },
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
    {"role": "user", "content": "How many days are in a week?"},
    {"role": "assistant", "content": "A week has seven days."},
]
LETTERS = [*OPENING, {"role": "user", "content": "Say the alphabet."}]
MONTHS = [*OPENING, {"role": "user", "content": "How many months are in a year?"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaCpp]:
    # More threads than free cores wait for each other in spin loops.
    engine = LlamaCpp(ensure("smollm2-135m-instruct"), slots=2, prefill_threads=1)
    yield engine
    asyncio.run(engine.close())


def text(steps: list[Step]) -> str:
    return "".join(step.text for step in steps if isinstance(step, TextDelta))


async def collect(engine: LlamaCpp, request: Request) -> list[Step]:
    return [step async for step in engine.stream(request)]


async def settled(engine: LlamaCpp, request: Request) -> str:
    """The answer with the prompt in the cache: one read in one go is rounded differently."""
    await collect(engine, request)
    return text(await collect(engine, request))


async def close(steps: AsyncIterator[Step]) -> None:
    await steps.aclose()  # type: ignore[attr-defined]


class Listener:
    """The library's own HTTP listener, as a second look into the same model."""

    def __init__(self, engine: LlamaCpp, session: ClientSession):
        self._url, self._session = engine._server.listening_address, session

    async def busy_slots(self) -> int:
        async with self._session.get(self._url + "/slots") as answer:
            return sum(slot["is_processing"] for slot in await answer.json())

    async def wait_for(self, busy: int) -> None:
        async with asyncio.timeout(10):
            while await self.busy_slots() != busy:
                pass

    async def timings(self, messages: list[dict]) -> dict[str, Any]:
        """How many prompt tokens were cached (cache_n) and read (prompt_n)."""
        body = {"messages": messages, "max_tokens": 1, "cache_prompt": True}
        async with self._session.post(self._url + "/v1/chat/completions", json=body) as answer:
            return (await answer.json())["timings"]


@pytest.fixture
async def listener(engine: LlamaCpp) -> AsyncIterator[Listener]:
    async with ClientSession() as session:
        yield Listener(engine, session)


async def test_an_answer_streams_piece_by_piece(engine: LlamaCpp) -> None:
    steps = await collect(engine, Request(LETTERS, max_tokens=16, temperature=0.0))
    assert len(steps) > 8
    assert steps[-1] == Finish("length")
    assert "ABCD" in text(steps).replace(" ", "")
    ended = await collect(engine, Request(MONTHS, max_tokens=80, temperature=0.0))
    assert ended[-1] == Finish("stop")
    assert "year" in text(ended)


async def test_interleaved_answers_equal_sequential_ones(engine: LlamaCpp) -> None:
    requests = [Request(ask, max_tokens=24, temperature=0.0) for ask in (LETTERS, MONTHS)]
    alone = [await settled(engine, request) for request in requests]
    order: list[int] = []

    async def follow(which: int) -> str:
        said = ""
        async for step in engine.stream(requests[which]):
            order.append(which)
            said += text([step])
        return said

    assert await asyncio.gather(follow(0), follow(1)) == alone
    assert alone[0] != alone[1]
    switches = sum(a != b for a, b in zip(order, order[1:], strict=False))
    assert switches > 4, "the answers did not run at the same time"


async def test_an_abort_returns_at_once_and_stops_the_generation(
    engine: LlamaCpp, listener: Listener
) -> None:
    await anext(steps := engine.stream(Request(LETTERS, max_tokens=1500)))
    await listener.wait_for(1)
    begin = time.monotonic()
    await close(steps)
    assert time.monotonic() - begin < 0.1
    # 1500 tokens take twenty seconds.
    await listener.wait_for(0)


async def test_an_abort_leaves_the_other_answer_alone(engine: LlamaCpp) -> None:
    request = Request(LETTERS, max_tokens=24, temperature=0.0)
    alone = await settled(engine, request)
    await anext(other := engine.stream(Request(MONTHS, max_tokens=1500)))
    steps = engine.stream(request)
    said = [await anext(steps)]
    await close(other)
    said += [step async for step in steps]
    assert text(said) == alone


async def test_a_cancelled_consumer_stops_the_generation(
    engine: LlamaCpp, listener: Listener
) -> None:
    task = asyncio.create_task(collect(engine, Request(LETTERS, max_tokens=1500)))
    await listener.wait_for(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await listener.wait_for(0)


async def test_an_answer_closed_while_it_waits_for_a_slot_never_runs(
    engine: LlamaCpp, listener: Listener
) -> None:
    running = [engine.stream(Request(LETTERS, max_tokens=1500)) for _ in range(2)]
    for steps in running:
        await anext(steps)
    waiting = asyncio.ensure_future(anext(late := engine.stream(Request(MONTHS))))
    await listener.wait_for(2)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await close(late)
    for steps in running:
        await close(steps)
    await listener.wait_for(0)
    assert engine._pool._work_queue.qsize() == 0


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        [{"content": "Hello."}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": "word " * 3000}],
    ],
)
async def test_messages_that_the_model_cannot_take_are_an_engine_error(
    engine: LlamaCpp, messages: list[dict]
) -> None:
    with pytest.raises(EngineError, match="llama.cpp failed: .+"):
        await collect(engine, Request(messages))
    assert await collect(engine, Request(LETTERS, max_tokens=1)), "the engine lives on"


async def test_prewarming_leaves_little_of_the_prompt_to_read() -> None:
    engine = LlamaCpp(ensure("smollm2-135m-instruct"), prefill_threads=1)
    async with ClientSession() as session:
        listener = Listener(engine, session)
        cold = await listener.timings(LETTERS)
        assert cold["cache_n"] == 0
        await collect(engine, Request([{"role": "user", "content": "Bye."}], max_tokens=1))
        await engine.prewarm([*OPENING, {"role": "user", "content": "Hello."}])
        warm = await listener.timings(LETTERS)
    await engine.close()
    whole = cold["prompt_n"]
    assert warm["cache_n"] + warm["prompt_n"] == whole
    assert warm["prompt_n"] < 0.25 * whole
    assert warm["cache_n"] > 0.75 * whole


def test_a_model_that_is_none_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected one \*.gguf file, found 0"):
        LlamaCpp(tmp_path)
    for name in ["a.gguf", "b.gguf"]:
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="found 2"):
        LlamaCpp(tmp_path)
    with pytest.raises(ModelError, match="cannot load"):
        LlamaCpp(tmp_path / "a.gguf")
