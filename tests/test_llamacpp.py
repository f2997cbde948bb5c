"""llama.cpp with the embedded model: in process, and as an OpenAI-compatible server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from duologue.errors import EngineError, ModelError
from duologue.lm.engine import Engine, Finish, Request, Step, TextDelta
from duologue.lm.llamacpp import LlamaCpp
from duologue.lm.openai_http import OpenAIHttp
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
LETTERS = Request(
    [*OPENING, {"role": "user", "content": "Say the alphabet."}], max_tokens=16, temperature=0.0
)
MONTHS = Request(
    [*OPENING, {"role": "user", "content": "How many months are in a year?"}],
    max_tokens=24,
    temperature=0.0,
)
SONG = Request(
    [{"role": "user", "content": "la la la la la la la la la"}], max_tokens=300, temperature=0.0
)
"""Takes seconds."""


class Tap:
    """Between the engine and the library: what was asked for and what came back."""

    def __init__(self, server: Any):
        self.server = server
        self.asked: list[dict] = []
        self.chunks: list[dict] = []

    def handle_chat_completions(self, body: dict, take: Callable[[dict], bool]) -> None:
        self.asked.append(body)

        def tapped(chunk: dict) -> bool:
            self.chunks.append(chunk)
            return take(chunk)

        self.server.handle_chat_completions(body, tapped)

    @property
    def ends(self) -> int:
        """Answers that the library has brought to their end."""
        return sum(bool(c["choices"][0]["finish_reason"]) for c in self.chunks if c.get("choices"))

    async def wait_for(self, busy: int, within_s: float = 20) -> None:
        """Until so many slots are at work, by the library's own HTTP listener."""
        async with asyncio.timeout(within_s), ClientSession() as session:
            while True:
                async with session.get(self.server.listening_address + "/slots") as answer:
                    if sum(slot["is_processing"] for slot in await answer.json()) == busy:
                        return


def load(slots: int) -> tuple[LlamaCpp, Tap]:
    # More threads than free cores wait for each other in spin loops.
    engine = LlamaCpp(ensure("smollm2-135m-instruct"), slots=slots, prefill_threads=1)
    tap = Tap(engine._server)
    engine._server = tap
    return engine, tap


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[LlamaCpp, Tap]]:
    engine, tap = load(slots=2)
    yield engine, tap
    asyncio.run(engine.close())


@pytest.fixture
def engine(loaded: tuple[LlamaCpp, Tap]) -> LlamaCpp:
    return loaded[0]


@pytest.fixture
def tap(loaded: tuple[LlamaCpp, Tap]) -> Tap:
    return loaded[1]


def text(steps: list[Step]) -> str:
    return "".join(step.text for step in steps if isinstance(step, TextDelta))


async def collect(engine: Engine, request: Request) -> list[Step]:
    return [step async for step in engine.stream(request)]


async def settled(engine: LlamaCpp, request: Request) -> str:
    """The answer with the prompt in the cache: one read in one go is rounded differently."""
    await collect(engine, request)
    return text(await collect(engine, request))


@asynccontextmanager
async def started(engine: Engine, request: Request) -> AsyncIterator[AsyncIterator[Step]]:
    """An answer that has begun; it is closed at the end."""
    steps = engine.stream(request)
    await anext(steps)
    try:
        yield steps
    finally:
        await steps.aclose()  # type: ignore[attr-defined]


async def test_an_answer_streams_piece_by_piece(engine: LlamaCpp) -> None:
    steps = await collect(engine, LETTERS)
    assert len(steps) > 8
    assert steps[-1] == Finish("length")
    assert "ABCD" in text(steps).replace(" ", "")
    ended = await collect(engine, MONTHS)
    assert ended[-1] == Finish("stop")
    assert "year" in text(ended)


async def test_interleaved_answers_equal_sequential_ones(engine: LlamaCpp) -> None:
    alone = [await settled(engine, request) for request in (LETTERS, MONTHS)]
    order: list[str] = []

    async def follow(request: Request) -> str:
        said = ""
        async for step in engine.stream(request):
            order.append(request.messages[-1]["content"])
            said += text([step])
        return said

    assert await asyncio.gather(follow(LETTERS), follow(MONTHS)) == alone
    assert alone[0] != alone[1]
    switches = sum(a != b for a, b in zip(order, order[1:], strict=False))
    assert switches > 4, "the answers did not run at the same time"


async def test_an_abort_returns_at_once_and_stops_the_generation(
    engine: LlamaCpp, tap: Tap
) -> None:
    ends = tap.ends
    async with started(engine, SONG):
        await tap.wait_for(1)
        begin = time.monotonic()
    assert time.monotonic() - begin < 0.1
    await tap.wait_for(0)
    assert tap.ends == ends


async def test_an_abort_leaves_the_other_answer_alone(engine: LlamaCpp) -> None:
    alone = await settled(engine, LETTERS)
    async with started(engine, SONG):
        steps = engine.stream(LETTERS)
        said = [await anext(steps)]
    said += [step async for step in steps]
    assert text(said) == alone


async def test_a_cancelled_consumer_stops_the_generation(engine: LlamaCpp, tap: Tap) -> None:
    ends = tap.ends
    task = asyncio.create_task(collect(engine, SONG))
    await tap.wait_for(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await tap.wait_for(0)
    assert tap.ends == ends


async def test_an_answer_closed_while_it_waits_for_a_slot_never_runs(
    engine: LlamaCpp, tap: Tap
) -> None:
    async with started(engine, SONG), started(engine, SONG):
        asked = len(tap.asked)
        waiting = asyncio.create_task(collect(engine, LETTERS))
        await tap.wait_for(2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await tap.wait_for(0)
    await collect(engine, MONTHS)
    assert [body["messages"] for body in tap.asked[asked:]] == [MONTHS.messages]


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
    assert (await collect(engine, LETTERS))[-1] == Finish("length"), "the engine lives on"


@pytest.fixture
async def over_http(tap: Tap) -> AsyncIterator[OpenAIHttp]:
    """The same model through the library's own HTTP server."""
    client = OpenAIHttp(tap.server.listening_address + "/v1", "default")
    yield client
    await client.close()


async def test_over_http_it_says_what_it_says_in_process(
    engine: LlamaCpp, over_http: OpenAIHttp
) -> None:
    said = set()
    for penalty in [1.0, 1.5]:
        request = replace(LETTERS, repeat_penalty=penalty)
        in_process = await settled(engine, request)
        steps = await collect(over_http, request)
        assert text(steps) == in_process
        assert steps[-1] == Finish("length")
        said.add(in_process)
    assert len(said) == 2, "the penalty changes nothing"


async def test_over_http_a_closed_iterator_stops_the_generation(
    over_http: OpenAIHttp, tap: Tap
) -> None:
    async with started(over_http, replace(SONG, max_tokens=900)):
        await tap.wait_for(1)
    # 900 tokens take twenty seconds.
    await tap.wait_for(0, within_s=3)


async def test_over_http_bad_messages_are_refused(over_http: OpenAIHttp) -> None:
    with pytest.raises(EngineError, match="must contain 'content'"):
        await collect(over_http, Request([{"role": "user"}]))


async def test_prewarming_leaves_little_of_the_prompt_to_read() -> None:
    engine, tap = load(slots=1)

    async def read(request: Request) -> tuple[int, int]:
        """(tokens found in the cache, tokens read) until the first one of the answer."""
        await collect(engine, request)
        timings = tap.chunks[-1]["timings"]
        return timings["cache_n"], timings["prompt_n"]

    cached, whole = await read(MONTHS)
    assert cached == 0
    await collect(engine, Request(SONG.messages, max_tokens=1))
    await engine.prewarm([*OPENING, {"role": "user", "content": "Hello."}])
    cached, rest = await read(MONTHS)
    await engine.close()
    assert cached + rest == whole
    assert rest < 0.2 * whole


def test_a_model_that_is_none_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected one \*.gguf file, found 0"):
        LlamaCpp(tmp_path)
    for name in ["a.gguf", "b.gguf"]:
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="found 2"):
        LlamaCpp(tmp_path)
    with pytest.raises(ModelError, match="cannot load"):
        LlamaCpp(tmp_path / "a.gguf")
