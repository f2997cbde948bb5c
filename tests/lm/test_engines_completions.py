"""Raw prompts over HTTP, against stand-ins for vLLM, SGLang and trtllm-serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from duologue.errors import ConfigError, EngineError, UsageError
from duologue.lm.chunks import CompletionReader
from duologue.lm.completions import Completions
from duologue.lm.engine import Capabilities, Finish, Ids, Request, Step, TextDelta
from duologue.lm.prompt import AudioPart, IdsPart, Part, TextPart
from tests.lm.fake_servers import (
    FakeServer,
    FakeSglang,
    FakeTrtllm,
    FakeVllm,
    ids_after,
    serving,
    spelled,
    successor,
)

PROMPT = (0, 5, 151_000)
ASK = Request(parts=(IdsPart(PROMPT),), max_tokens=20, temperature=0.0)
KINDS = {"vllm": FakeVllm, "sglang": FakeSglang, "trtllm": FakeTrtllm}
every_kind = pytest.mark.parametrize("kind", KINDS)


@asynccontextmanager
async def client(url: str, server: str, **options) -> AsyncIterator[Completions]:
    engine = Completions(url, "small", server=server, **options)
    try:
        yield engine
    finally:
        await engine.close()


async def collect(engine: Completions, request: Request = ASK) -> list[Step]:
    return [step async for step in engine.stream(request)]


def ids_in(steps: list[Step]) -> list[int]:
    return [token for step in steps if isinstance(step, Ids) for token in step.ids]


def text_in(steps: list[Step]) -> str:
    return "".join(step.text for step in steps if isinstance(step, TextDelta))


@every_kind
@pytest.mark.parametrize("per_chunk", [1, 3, 50])
async def test_ids_arrive_however_many_share_a_chunk(kind: str, per_chunk: int) -> None:
    fake = KINDS[kind](per_chunk=per_chunk)
    async with serving(fake), client(fake.url, kind) as engine:
        steps = await collect(engine)
    assert ids_in(steps) == ids_after(PROMPT, 20)
    assert steps[-1] == Finish("length", 20)
    assert not text_in(steps)
    assert len(steps) - 1 == -(-20 // per_chunk)


async def test_id_0_is_an_id() -> None:
    prompt = next([n] for n in range(9999) if successor([n]) == 0)
    fake = FakeVllm()
    async with serving(fake), client(fake.url, "vllm") as engine:
        steps = await collect(engine, Request(parts=(IdsPart(tuple(prompt)),), max_tokens=1))
    assert steps == [Ids((0,)), Finish("length", 1)]


@every_kind
async def test_the_id_that_ends_the_answer_is_its_last(kind: str) -> None:
    expected = ids_after(PROMPT, 7)
    request = Request(parts=ASK.parts, max_tokens=20, stop_ids=(expected[-1],))
    fake = KINDS[kind]()
    async with serving(fake), client(fake.url, kind) as engine:
        steps = await collect(engine, request)
    assert ids_in(steps) == expected
    assert steps[-1] == Finish("stop", 7)


@every_kind
@pytest.mark.parametrize(
    ("parts", "sent"),
    [
        ((IdsPart((1, 0)), IdsPart((2,))), [1, 0, 2]),
        ((TextPart("<|BOT|>hu"), TextPart("man\n你好")), "<|BOT|>human\n你好"),
    ],
    ids=["ids", "text"],
)
async def test_the_prompt_goes_out_as_it_is(
    kind: str, parts: tuple[Part, ...], sent: str | list[int]
) -> None:
    fake = KINDS[kind]()
    async with serving(fake), client(fake.url, kind) as engine:
        await collect(engine, Request(parts=parts, max_tokens=1))
    assert fake.requests[0]["prompt"] == sent
    # SGLang has no such field.
    assert kind == "sglang" or fake.requests[0]["add_special_tokens"] is False


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vllm", {"return_token_ids": True, "skip_special_tokens": False}),
        ("sglang", {"return_token_ids": True, "skip_special_tokens": False}),
        ("trtllm", {"detokenize": False}),
        ("openai", {}),
    ],
)
async def test_the_request_says_what_was_asked(kind: str, expected: dict) -> None:
    request = Request(
        parts=ASK.parts,
        max_tokens=3,
        temperature=0.5,
        repeat_penalty=1.2,
        seed=7,
        request_id="turn4",
    )
    fake = KINDS.get(kind, FakeServer)()
    async with serving(fake), client(fake.url, kind) as engine:
        await collect(engine, request)
        await collect(engine, Request(parts=ASK.parts, max_tokens=1))
    body, plain = fake.requests
    assert body.items() >= expected.items()
    assert body["max_tokens"] == 3 and body["temperature"] == 0.5 and body["seed"] == 7
    assert body["repetition_penalty"] == 1.2
    assert not {"seed", "stop", "stop_token_ids", "repetition_penalty"} & set(plain)


@pytest.mark.parametrize(("kind", "field"), [("vllm", "request_id"), ("sglang", "rid")])
async def test_no_name_of_a_request_begins_another(kind: str, field: str) -> None:
    """SGLang aborts by prefix, and everything for an empty name."""
    fake = KINDS[kind]()
    async with serving(fake), client(fake.url, kind) as engine:
        for name in ["", "a", "a", "a-1", "ab"]:
            await collect(engine, Request(parts=ASK.parts, max_tokens=1, request_id=name))
    names = [body[field] for body in fake.requests]
    assert all(names) and "a" in names[1]
    assert not [(a, b) for a in names for b in names if a is not b and b.startswith(a)]


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
async def test_a_server_without_ids_gives_text_with_its_special_tokens(kind: str) -> None:
    fake = KINDS.get(kind, FakeServer)(gives_ids=False)
    async with serving(fake), client(fake.url, kind) as engine:
        steps = await collect(engine)
    shown = "" if kind == "openai" else spelled(ids_after(PROMPT, 20))
    assert text_in(steps) == shown
    assert steps[-1] == Finish("length", 20)
    assert not ids_in(steps)


@every_kind
async def test_interleaved_answers_equal_sequential_ones(kind: str) -> None:
    requests = [Request(parts=(IdsPart((n,)),), max_tokens=30) for n in range(4)]
    order: list[int] = []
    fake = KINDS[kind]()
    async with serving(fake), client(fake.url, kind) as engine:
        alone = [ids_in(await collect(engine, request)) for request in requests]

        async def follow(n: int) -> list[int]:
            steps = []
            async for step in engine.stream(requests[n]):
                order.append(n)
                steps.append(step)
            return ids_in(steps)

        assert await asyncio.gather(*map(follow, range(4))) == alone
    assert len({tuple(ids) for ids in alone}) == 4
    assert sum(a != b for a, b in zip(order, order[1:], strict=False)) > 8, "one after the other"


@pytest.mark.parametrize("lost", [[0], [10], [3, 4], [19]], ids=str)
@pytest.mark.parametrize("per_chunk", [1, 4])
async def test_lost_tokens_are_told(lost: list[int], per_chunk: int) -> None:
    """vllm-project/vllm#23335, #28635, #30099: the stream has fewer tokens than the usage."""
    fake = FakeVllm(lost=lost, per_chunk=per_chunk)
    async with serving(fake), client(fake.url, "vllm") as engine:
        with pytest.raises(EngineError, match=f"counts 20 .* {20 - len(lost)} arrived"):
            await collect(engine)


async def test_an_end_token_that_is_counted_but_kept_is_no_loss() -> None:
    stop = ids_after(PROMPT, 7)[-1]
    request = Request(parts=ASK.parts, max_tokens=20, stop_ids=(stop,))
    fake = FakeVllm(lost=[6])
    async with serving(fake), client(fake.url, "vllm") as engine:
        steps = await collect(engine, request)
    assert ids_in(steps) == ids_after(PROMPT, 6)
    assert steps[-1] == Finish("stop", 7)


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": "none"},
        {"choices": [None]},
        {"choices": [{"text": 5}]},
        {"choices": [{"token_ids": [-1]}]},
        {"choices": [{"token_ids": ["5"]}]},
        {"choices": [{"token_ids": [True]}]},
        {"choices": [{"token_ids": [5.0]}]},
        {"choices": [], "usage": {"completion_tokens": "many"}},
    ],
    ids=str,
)
def test_a_chunk_of_another_shape_is_an_error(odd: dict) -> None:
    with pytest.raises(EngineError, match="expected a completion chunk, got"):
        list(CompletionReader().read(odd))


@pytest.mark.parametrize(
    "empty",
    [{}, {"choices": None}, {"choices": [{}]}, {"choices": [], "usage": None},
     {"choices": [{"text": "", "token_ids": []}]}, {"choices": [{"token_ids": None}]}],
    ids=str,
)  # fmt: skip
def test_chunks_without_content_are_no_step(empty: dict) -> None:
    assert list(CompletionReader().read(empty)) == []


def test_text_beside_ids_is_not_said_twice() -> None:
    """A server's detokenizer may hand its last piece of text over without ids."""
    reader = CompletionReader()
    chunks = [{"text": "a", "token_ids": [5]}, {"text": "b", "token_ids": []}, {"text": "c"}]
    steps = [step for choice in chunks for step in reader.read({"choices": [choice]})]
    assert steps == [Ids((5,))]


@every_kind
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"broken_at": 5}, "EngineCore died"),
        ({"broken_at": 5, "broken_by": {"object": "error", "message": "died"}}, "died"),
        ({"broken_at": 5, "broken_by": {"choices": 5}}, "expected a completion chunk"),
        ({"cut_at": 5}, "is the server running"),
    ],
    ids=["error in the stream", "error of another form", "no chunk", "connection cut"],
)
async def test_a_broken_answer_is_an_error_and_the_next_one_is_whole(
    kind: str, fault: dict, told: str
) -> None:
    """A fresh connection for the next request; the broken one is not tried again."""
    fake = KINDS[kind](**fault)
    async with serving(fake), client(fake.url, kind) as engine:
        steps: list[Step] = []
        with pytest.raises(EngineError, match=told) as caught:
            async for step in engine.stream(ASK):
                steps.append(step)
        fake.broken_at = fake.cut_at = -1
        again = await collect(engine)
        await engine._exchange.watch.settle()
        assert engine.aborts.confirmed == engine.aborts.unconfirmed == 0
    assert fake.url in str(caught.value) and "'small'" in str(caught.value)
    assert ids_in(steps) == ids_after(PROMPT, 20)[: len(ids_in(steps))]
    assert 3 <= len(ids_in(steps)) <= 5
    assert ids_in(again) == ids_after(PROMPT, 20)
    assert len(fake.requests) == 2


@pytest.mark.parametrize("asked_meanwhile", [False, True])
async def test_a_server_that_was_started_again_is_found_again(asked_meanwhile: bool) -> None:
    first, second = FakeVllm(), FakeVllm()
    async with serving(first), client(first.url, "vllm") as engine:
        await collect(engine)
        port = int(first.url.rsplit(":", 1)[1].removesuffix("/v1"))
        async with asyncio.timeout(5):
            await first.stop()
        if asked_meanwhile:
            with pytest.raises(EngineError, match="is the server running"):
                await collect(engine)
        async with serving(second, port):
            assert ids_in(await collect(engine)) == ids_after(PROMPT, 20)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_silent_server_is_given_up(kind: str) -> None:
    fake = KINDS[kind]()
    async with serving(fake), client(fake.url, kind, timeout_s=0.3) as engine:
        fake.silent = True
        with pytest.raises(EngineError, match="no piece of an answer within 0.3 s"):
            await collect(engine)
        fake.silent = False
        engine._exchange._http._timeout_s = 20
        assert ids_in(await collect(engine)) == ids_after(PROMPT, 20)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Request([{"role": "user", "content": "Hi"}]), "messages and tools go to a chat engine"),
        (Request(parts=ASK.parts, tools=[{}]), "messages and tools go to a chat engine"),
        (Request(), "takes parts"),
        (Request(parts=(TextPart(""), IdsPart(()))), "takes parts"),
        (Request(parts=(TextPart("a"), IdsPart((1,)))), "prompt_ids"),
        (Request(parts=(AudioPart(np.zeros(9, np.float32), 16_000),)), "takes no sound"),
    ],
    ids=["messages", "tools", "nothing", "empty parts", "mixed", "sound"],
)
async def test_what_it_cannot_take_is_refused_before_any_work(request_: Request, told: str) -> None:
    async with client("http://127.0.0.1:9/v1", "vllm") as engine:
        with pytest.raises(UsageError, match=told):
            await collect(engine, request_)


async def test_prewarming_with_messages_says_how_instead() -> None:
    async with client("http://127.0.0.1:9/v1", "vllm") as engine:
        await engine.prewarm([])
        with pytest.raises(UsageError, match="max_tokens 1"):
            await engine.prewarm([{"role": "user", "content": "Hi"}])


def test_an_unknown_kind_of_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="'tgi' is not known: use one of openai, vllm"):
        Completions("http://127.0.0.1:9/v1", "small", server="tgi")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("openai", Capabilities(prompt_ids=True)),
        ("vllm", Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)),
        ("sglang", Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)),
        ("trtllm", Capabilities(token_ids=True, prompt_ids=True)),
        ("llamacpp", Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)),
    ],
)
async def test_capabilities(kind: str, expected: Capabilities) -> None:
    async with client("http://127.0.0.1:9/v1", kind) as engine:
        assert engine.capabilities == expected
