"""Aborts: that they take effect, that this is seen, and what happens where they do not."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duologue.lm.abort import Aborts
from duologue.lm.completions import SLICE_TOKENS, Completions
from duologue.lm.engine import Finish, Ids, Request, Step
from duologue.lm.openai_http import OpenAIHttp
from duologue.lm.prompt import IdsPart, TextPart
from tests.lm.fake_servers import FakeLlama, FakeServer, FakeSglang, FakeVllm, ids_after, serving
from tests.lm.test_engines_completions import KINDS

PROMPT = (3, 1, 4)
LONG = Request(parts=(IdsPart(PROMPT),), max_tokens=50_000, temperature=0.0)
CHAT = Request([{"role": "user", "content": "Hi"}], max_tokens=50_000)
VERIFIED = ["vllm", "sglang"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no failure."""
    monkeypatch.setattr("duologue.lm.abort.LIMIT_S", 20.0)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes need not be waited for."""
    monkeypatch.setattr("duologue.lm.abort.LIMIT_S", 0.2)


never = pytest.mark.usefixtures("impatient")


@asynccontextmanager
async def engine_on(fake: FakeServer, kind: str) -> AsyncIterator[Completions]:
    async with serving(fake):
        engine = Completions(fake.url, "small", server=kind)
        try:
            yield engine
        finally:
            await engine.close()


async def begin(engine: Completions, request: Request = LONG, tokens: int = 5) -> AsyncIterator:
    """An answer of which some tokens have arrived."""
    steps, count = engine.stream(request), 0
    while count < tokens:
        step = await anext(steps)
        assert isinstance(step, Ids)
        count += len(step.ids)
    return steps


async def settled(engine: Completions) -> Aborts:
    await engine._exchange.watch.settle()
    return engine.aborts


async def finished(engine: Completions, request: Request) -> tuple[list[int], Step]:
    steps = [step async for step in engine.stream(request)]
    return [token for step in steps if isinstance(step, Ids) for token in step.ids], steps[-1]


@pytest.mark.parametrize("kind", VERIFIED)
async def test_closing_the_iterator_stops_the_server_and_says_so(kind: str) -> None:
    fake = KINDS[kind]()
    async with engine_on(fake, kind) as engine:
        for _ in range(3):
            await (await begin(engine)).aclose()
        aborts = await settled(engine)
        assert fake.running == 0
    assert (aborts.confirmed, aborts.unconfirmed) == (3, 0)
    assert aborts.wasted_tokens < LONG.max_tokens / 10
    assert aborts.slowest_s > 0


@never
@pytest.mark.parametrize("kind", KINDS)
async def test_closing_does_not_wait_for_the_server(kind: str) -> None:
    fake = KINDS[kind](deaf=True)
    async with engine_on(fake, kind) as engine:
        steps = await begin(engine)
        await steps.aclose()
        aborts = engine.aborts
        assert aborts.confirmed == aborts.unconfirmed == 0, "it has waited until something is known"


@pytest.mark.parametrize("kind", VERIFIED)
@pytest.mark.parametrize("silent", [True, False], ids=["before the first piece", "among pieces"])
async def test_a_cancelled_consumer_stops_the_server(kind: str, silent: bool) -> None:
    fake = KINDS[kind]()
    fake.silent = silent
    async with engine_on(fake, kind) as engine:
        consumer = asyncio.create_task(finished(engine, LONG))
        await fake.asked.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        aborts = await settled(engine)
        assert fake.running == 0
    assert (aborts.confirmed, aborts.unconfirmed) == (1, 0)


async def test_sglang_is_told_which_request_by_its_name() -> None:
    fake = FakeSglang()
    async with engine_on(fake, "sglang") as engine:
        kept = await begin(engine)
        await (await begin(engine)).aclose()
        aborts = await settled(engine)
        assert fake.to_abort == [fake.requests[1]["rid"]]
        assert fake.running == 1
        await kept.aclose()
        await settled(engine)
    assert (aborts.confirmed, aborts.unconfirmed) == (2, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_leaves_the_other_answer_alone(kind: str) -> None:
    other = Request(parts=(IdsPart((9, 9)),), max_tokens=60)
    fake = KINDS[kind]()
    async with engine_on(fake, kind) as engine:
        aborted = await begin(engine)
        following = asyncio.create_task(finished(engine, other))
        await aborted.aclose()
        assert await following == (ids_after((9, 9), 60), Finish("length", 60))


async def test_sglang_counts_every_token_behind_an_abort() -> None:
    fake = FakeSglang()
    async with engine_on(fake, "sglang") as engine:
        taken = 5
        await (await begin(engine, tokens=taken)).aclose()
        aborts = await settled(engine)
    assert taken + aborts.wasted_tokens == fake.generated


async def test_vllm_counts_the_tokens_that_reached_nobody() -> None:
    """At each look at the metrics 7 more for nobody and 1000 that another answer has brought."""
    fake = FakeVllm()
    async with engine_on(fake, "vllm") as engine:
        steps = await begin(engine)
        fake.running += 1
        looks = itertools.count(1)

        def looked() -> None:
            fake.generated += 1007
            engine._exchange._traffic.received += 1000
            fake.running -= next(looks) == 3

        fake.looked = looked
        fake.silent = True
        await steps.aclose()
        aborts = await settled(engine)
    assert (aborts.confirmed, aborts.unconfirmed) == (1, 0)
    assert aborts.wasted_tokens == 2 * 7


@never
@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_that_does_nothing_is_told_and_bounds_the_next(kind: str) -> None:
    """vllm-project/vllm#54947: the server goes on although the client has left."""
    fake = KINDS[kind](deaf=True)
    async with engine_on(fake, kind) as engine:
        await (await begin(engine)).aclose()
        aborts = await settled(engine)
        assert (aborts.confirmed, aborts.unconfirmed) == (0, 1)
        at_stake = aborts.wasted_tokens
        assert LONG.max_tokens - 500 < at_stake < LONG.max_tokens
        count = len(fake.requests)
        await (await begin(engine)).aclose()
        aborts = await settled(engine)
        assert aborts.wasted_tokens - at_stake <= SLICE_TOKENS
        assert [body["max_tokens"] for body in fake.requests[count:]] == [SLICE_TOKENS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, SLICE_TOKENS - 1, SLICE_TOKENS, SLICE_TOKENS + 1, 200])
@pytest.mark.parametrize("text", [False, True], ids=["ids", "text"])
async def test_a_sliced_answer_equals_a_whole_one(kind: str, tokens: int, text: bool) -> None:
    parts = (TextPart("Hi"),) if text else (IdsPart(PROMPT),)
    request = Request(parts=parts, max_tokens=tokens)
    fake = KINDS[kind]()
    async with engine_on(fake, kind) as engine:
        whole = await finished(engine, request)
        engine.aborts.unconfirmed = 1
        sliced = await finished(engine, request)
    assert sliced == whole
    assert len(whole[0]) == tokens
    assert whole[1] == Finish("length", tokens)
    # trtllm-serve does not tell the ids of a prompt of text.
    whole_only = text and kind == "trtllm"
    assert len(fake.requests) - 1 == (1 if whole_only else -(-tokens // SLICE_TOKENS))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sliced_answer_ends_where_a_whole_one_ends(kind: str) -> None:
    end = ids_after(PROMPT, 100)[-1]
    request = Request(parts=(IdsPart(PROMPT),), max_tokens=400, stop_ids=(end,))
    fake = KINDS[kind]()
    async with engine_on(fake, kind) as engine:
        whole = await finished(engine, request)
        engine.aborts.unconfirmed = 1
        assert await finished(engine, request) == whole
    assert whole[1] == Finish("stop", len(whole[0]))


@pytest.mark.parametrize("why", ["text", "stop text"])
async def test_what_cannot_be_continued_is_asked_for_whole(why: str) -> None:
    request = Request(parts=(IdsPart(PROMPT),), max_tokens=150, stop=("x",) * (why == "stop text"))
    fake = FakeVllm(gives_ids=why != "text")
    async with engine_on(fake, "vllm") as engine:
        await finished(engine, request)
        engine.aborts.unconfirmed = 1
        await finished(engine, request)
    assert [body["max_tokens"] for body in fake.requests] == [150, 150]


@never
async def test_a_server_at_work_for_others_is_not_seen_to_stop() -> None:
    fake = FakeVllm()
    async with engine_on(fake, "vllm") as engine:
        fake.running += 1
        await (await begin(engine)).aclose()
        aborts = await settled(engine)
    assert (aborts.confirmed, aborts.unconfirmed) == (0, 1)


@never
@pytest.mark.parametrize("fault", ["no metrics", "no such metric", "gone"])
async def test_a_server_that_shows_nothing_is_not_seen_to_stop(fault: str) -> None:
    fake = {"no metrics": FakeServer(), "no such metric": FakeVllm(prefix="other")}.get(fault)
    fake = fake or FakeVllm()
    async with engine_on(fake, "vllm") as engine:
        await (await begin(engine)).aclose()
        if fault == "gone":
            await fake.stop()
        aborts = await settled(engine)
    assert (aborts.confirmed, aborts.unconfirmed) == (0, 1)


@pytest.mark.parametrize(
    ("slots", "confirmed", "wasted"),
    [
        ([{"is_processing": False}], 1, 3),
        ([{"is_processing": False, "params": {"seed": "mine"}}], 1, 3),
        ([{"is_processing": True, "params": {"seed": 1}, "next_token": []}], 1, 3),
        ([{"is_processing": True, "params": {"seed": "mine"}, "next_token": []}], 0, 3),
        ([{"is_processing": True, "next_token": [{"n_decoded": 2}]}], 0, 3),
        ([{"id": 0}], 0, 3),
        (None, 0, 3),
    ],
    ids=["idle", "done", "another's", "mine", "whose it does not tell", "odd", "no slots"],
)
async def test_llama_cpp_shows_in_its_slots_whether_it_has_stopped(
    slots: list[dict] | None, confirmed: int, wasted: int, request: pytest.FixtureRequest
) -> None:
    if not confirmed:
        request.getfixturevalue("impatient")
    fake = FakeLlama(slots)
    async with engine_on(fake, "llamacpp") as engine:
        consumer = asyncio.create_task(finished(engine, LONG))
        await fake.asked.wait()
        consumer.cancel()
        await asyncio.wait({consumer})
        aborts = await settled(engine)
    assert (aborts.confirmed, aborts.unconfirmed) == (confirmed, 1 - confirmed)
    assert aborts.wasted_tokens == wasted


@pytest.mark.parametrize(("busy", "confirmed"), [(False, 1), (True, 0)])
async def test_a_chat_is_found_in_the_slots_of_llama_cpp(
    busy: bool, confirmed: int, request: pytest.FixtureRequest
) -> None:
    if not confirmed:
        request.getfixturevalue("impatient")
    fake = FakeLlama([{"is_processing": busy, "params": {"seed": "mine"}}])
    async with serving(fake):
        engine = OpenAIHttp(fake.url, "small", server="llamacpp")
        consumer = asyncio.create_task(anext(engine.stream(CHAT)))
        await fake.asked.wait()
        consumer.cancel()
        await asyncio.wait({consumer})
        await engine.close()
    assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == (confirmed, 1 - confirmed)


async def test_closing_the_engine_sees_the_last_abort_through() -> None:
    fake = FakeVllm()
    async with serving(fake):
        engine = Completions(fake.url, "small", server="vllm")
        await (await begin(engine)).aclose()
        await engine.close()
        assert fake.running == 0
        assert engine.aborts.confirmed == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_no_task_stays_behind_aborts(kind: str) -> None:
    fake = KINDS[kind]()
    async with engine_on(fake, kind) as engine:
        for _ in range(5):
            await (await begin(engine)).aclose()
        await settled(engine)
        assert not [task for task in asyncio.all_tasks() if "duologue" in repr(task.get_coro())]


@pytest.mark.parametrize("kind", VERIFIED)
async def test_a_chat_is_stopped_in_the_same_way(kind: str) -> None:
    fake = KINDS[kind]()
    async with serving(fake):
        engine = OpenAIHttp(fake.url, "small", server=kind)
        assert engine.capabilities.verified_abort
        steps = engine.stream(CHAT)
        await anext(steps)
        assert fake.running == 1
        await steps.aclose()  # type: ignore[attr-defined]
        await engine.close()
        assert fake.running == 0
    assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == (1, 0)
