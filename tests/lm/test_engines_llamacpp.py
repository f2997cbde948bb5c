"""Raw prompts to a real llama.cpp, in process and over HTTP, with models made on the spot."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import requests

from duologue.errors import EngineError, UsageError
from duologue.lm.completions import Completions
from duologue.lm.engine import Capabilities, Finish, Ids, Request, Step
from duologue.lm.llamacpp import LlamaCpp
from duologue.lm.openai_http import OpenAIHttp
from duologue.lm.prompt import AudioPart, IdsPart, Part, TextPart
from duologue.lm.servers import LlamaCppServer
from tests.lm.both_forms import CONTEXT, Made
from tests.lm.tiny_gguf import (
    AUDIO_0,
    BOT,
    EOT,
    SIZE,
    TTS_END,
    TTS_PAD,
    TTS_START,
    chain_model,
    random_model,
)

PROMPT = (BOT, *b"hi", TTS_START)
ASK = Request(parts=(IdsPart(PROMPT),), max_tokens=40, temperature=0.0)
OTHERS = [replace(ASK, parts=(IdsPart((BOT, token)),)) for token in (35, 75)]
LONG = replace(ASK, max_tokens=400)

HANZI = list("你".encode())
AUDIO = [[AUDIO_0 + 4 * group + n for n in range(4)] for group in range(5)]
CHAIN = [
    TTS_START,
    ord("h"),
    *AUDIO[0],
    HANZI[0],
    *AUDIO[1],
    HANZI[1],
    *AUDIO[2],
    HANZI[2],
    *AUDIO[3],
    *"é".encode(),
    TTS_PAD,
    TTS_END,
    EOT,
]
"""Step-Audio 2's interleave, with a character spread over three groups."""
CYCLE = [token for token in range(SIZE) if token != EOT] + [0]
"""Goes round for ever; no rounding of whatever runs beside it can change that."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no failure."""
    monkeypatch.setattr("duologue.lm.abort.LIMIT_S", 20.0)


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(random_model(tmp_path_factory.mktemp("gguf") / "random.gguf", seed=10))
    # Batches and caches round differently; another seed, if this fails.
    assert min(map(made.margin, [ASK, *OTHERS])) > 0.1
    yield made
    asyncio.run(made.in_process.close())


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(chain_model(tmp_path_factory.mktemp("gguf") / "chain.gguf", CHAIN))
    yield made
    asyncio.run(made.in_process.close())


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(chain_model(tmp_path_factory.mktemp("gguf") / "cycle.gguf", CYCLE))
    yield made
    asyncio.run(made.in_process.close())


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(chain_model(tmp_path_factory.mktemp("gguf") / "flat.gguf", []))
    yield made
    asyncio.run(made.in_process.close())


Engine = LlamaCpp | Completions
FORMS = ["in process", "over http"]
every_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture
async def engines() -> AsyncIterator[Any]:
    opened: list[Completions] = []

    def engine_of(made: Made, form: str) -> Engine:
        if form == "in process":
            return made.in_process
        opened.append(Completions(f"{made.root}/v1", "small", server="llamacpp"))
        return opened[-1]

    yield engine_of
    for engine in opened:
        await engine.close()


async def collect(engine: Engine, request: Request = ASK) -> list[Step]:
    return [step async for step in engine.stream(request)]


def ids_in(steps: list[Step]) -> list[int]:
    return [token for step in steps if isinstance(step, Ids) for token in step.ids]


@every_form
async def test_no_id_is_lost_where_a_character_is_split(chain: Made, engines, form: str) -> None:
    """A stream of llama.cpp loses the ids between the parts of a character."""
    steps = await collect(engines(chain, form))
    assert ids_in(steps) == CHAIN[1:]
    assert steps[-1] == Finish("stop", len(CHAIN) - 1)


def test_a_stream_of_llama_cpp_still_loses_them(chain: Made) -> None:
    """If this fails, streams have become exact, and short requests are needed no more."""
    body = {"prompt": PROMPT, "n_predict": 40, "return_tokens": True, "stream": True}
    lines = requests.post(f"{chain.root}/completion", json=body, timeout=20).text.splitlines()
    tokens = re.findall(r'"tokens":\[(\d+)\]', "".join(lines))
    assert 0 < len(tokens) < len(CHAIN) - 1


@every_form
@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 40])
async def test_short_requests_give_what_one_whole_request_gives(
    random: Made, engines, form: str, tokens: int
) -> None:
    steps = await collect(engines(random, form), replace(ASK, max_tokens=tokens))
    assert ids_in(steps) == random.whole(PROMPT, tokens)
    assert steps[-1] == Finish("length", tokens)


@every_form
@pytest.mark.parametrize(
    "parts",
    [
        (TextPart("<|BOT|>hi<tts_start>"),),
        (TextPart("<|BOT|>h"), TextPart("i<tts_start>")),
        (IdsPart((BOT,)), TextPart("hi"), IdsPart((TTS_START,))),
    ],
    ids=["text", "texts", "mixed"],
)
async def test_text_and_ids_make_the_same_prompt(
    random: Made, engines, form: str, parts: tuple[Part, ...]
) -> None:
    engine = engines(random, form)
    assert await collect(engine, replace(ASK, parts=parts)) == await collect(engine)


@every_form
async def test_an_answer_depends_on_its_seed_and_on_nothing_else(
    random: Made, engines, form: str
) -> None:
    engine = engines(random, form)
    await collect(engine)  # A prompt that is in the cache is rounded in one way.
    drawn = [
        tuple(ids_in(await collect(engine, replace(ASK, temperature=1.5, seed=seed))))
        for seed in (0, 1, 0, 1, None, None)
    ]
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4


@every_form
async def test_every_token_is_drawn_anew(flat: Made, engines, form: str) -> None:
    ids = ids_in(await collect(engines(flat, form), replace(ASK, temperature=1.0, seed=3)))
    assert len(ids) > 20 and len(set(ids)) > len(ids) / 3


@every_form
async def test_a_repeat_penalty_counts_what_came_before(random: Made, engines, form: str) -> None:
    engine = engines(random, form)
    plain, kept = [
        ids_in(await collect(engine, replace(LONG, max_tokens=60, repeat_penalty=penalty)))
        for penalty in (1.0, 2.0)
    ]
    assert len(set(kept)) > len(set(plain))


@every_form
async def test_the_id_that_ends_the_answer_is_its_last(random: Made, engines, form: str) -> None:
    whole = random.whole(PROMPT, 40)
    stop = next(
        token for place, token in enumerate(whole) if place > 10 and token not in whole[:place]
    )
    expected = whole[: whole.index(stop) + 1]
    steps = await collect(engines(random, form), replace(ASK, stop_ids=(stop, EOT)))
    assert ids_in(steps) == expected
    assert steps[-1] == Finish("stop", len(expected))


@every_form
@pytest.mark.parametrize("room", [1, 2, 3, 6, 7, 8])
async def test_a_full_context_ends_the_answer(random: Made, engines, form: str, room: int) -> None:
    prompt = tuple(n % 200 for n in range(CONTEXT - room))
    steps = await collect(engines(random, form), replace(ASK, parts=(IdsPart(prompt),)))
    assert steps[-1] == Finish("length", len(ids_in(steps)))
    assert room <= len(ids_in(steps)) <= room + 1


@every_form
async def test_interleaved_answers_equal_sequential_ones(random: Made, engines, form: str) -> None:
    engine, order = engines(random, form), []
    alone = [ids_in(await collect(engine, request)) for request in OTHERS]

    async def follow(which: int) -> list[int]:
        steps = []
        async for step in engine.stream(OTHERS[which]):
            order.append(which)
            steps.append(step)
        return ids_in(steps)

    assert await asyncio.gather(follow(0), follow(1)) == alone
    assert alone[0] != alone[1]
    assert sum(a != b for a, b in zip(order, order[1:], strict=False)) > 4, "one after the other"


async def test_in_process_an_abort_takes_effect_at_the_next_token(cycle: Made) -> None:
    engine = LlamaCpp(cycle.model, prefill_threads=1, context=CONTEXT)
    asked, handle = [], engine._server.handle_completions

    class Counting:
        def handle_completions(self, body: dict, take: Any) -> None:
            asked.append(body)
            handle(body, take)

    engine._server = Counting()
    steps, taken = engine.stream(LONG), 3
    for _ in range(taken):
        await anext(steps)
    await steps.aclose()  # type: ignore[attr-defined]
    at_abort = len(asked)
    await engine.close()
    aborts = engine.aborts
    assert len(asked) <= at_abort + 1, "at most the token in work"
    assert (aborts.confirmed, aborts.unconfirmed) == (1, 0)
    assert aborts.wasted_tokens <= 1
    assert all(body["n_predict"] == 1 for body in asked)


async def test_over_http_an_abort_leaves_no_slot_at_work(cycle: Made, engines) -> None:
    engine, before = engines(cycle, "over http"), cycle.generated()
    steps, taken = engine.stream(LONG), 0
    while taken < 10:
        taken += len((await anext(steps)).ids)
    await steps.aclose()
    await engine.close()
    assert cycle.busy() == 0
    assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == (1, 0)
    assert taken <= cycle.generated() - before <= taken + 3
    assert engine.aborts.wasted_tokens <= 3


async def test_over_http_an_aborted_chat_leaves_no_slot_at_work(cycle: Made) -> None:
    engine = OpenAIHttp(f"{cycle.root}/v1", "small", server="llamacpp")
    steps = engine.stream(Request([{"role": "user", "content": "Hi"}], max_tokens=400))
    await anext(steps)
    await steps.aclose()  # type: ignore[attr-defined]
    await engine.close()
    assert cycle.busy() == 0
    assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == (1, 0)


@every_form
async def test_a_cancelled_consumer_stops_the_generation(cycle: Made, engines, form: str) -> None:
    engine = engines(cycle, form)
    started = asyncio.Event()

    async def follow() -> None:
        async for _ in engine.stream(LONG):
            started.set()

    consumer = asyncio.create_task(follow())
    await started.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    watch = engine._watch if isinstance(engine, LlamaCpp) else engine._exchange.watch
    await watch.settle()
    assert engine.aborts.unconfirmed == 0
    generated = cycle.generated()
    assert ids_in(await collect(engine, replace(ASK, max_tokens=5))) == cycle.whole(PROMPT, 5)
    # A request that had not reached a slot yet may still run to its end.
    more = LlamaCppServer.always_sliced or 0
    assert cycle.generated() - generated <= 10 + more, "the old answer goes on"


async def test_a_deserted_request_is_seen_at_work_by_its_seed(cycle: Made, engines) -> None:
    """Another answer that keeps a slot at work is not taken for it."""
    engine = engines(cycle, "over http")
    kept = asyncio.create_task(collect(engine, LONG))
    aborted = engine.stream(replace(LONG, seed=4))
    await anext(aborted)
    await aborted.aclose()
    assert ids_in(await kept) == cycle.whole(PROMPT, 400)
    await engine.close()
    assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == (1, 0)


@every_form
async def test_a_prompt_longer_than_the_context_is_an_error(
    random: Made, engines, form: str
) -> None:
    engine = engines(random, form)
    with pytest.raises(EngineError, match="exceeds the available context size"):
        await collect(engine, replace(ASK, parts=(IdsPart((1,) * (CONTEXT + 1)),)))
    assert ids_in(await collect(engine)) == random.whole(PROMPT, 40), "the engine lives on"


@every_form
async def test_an_id_beyond_the_vocabulary_is_an_error(random: Made, engines, form: str) -> None:
    engine = engines(random, form)
    with pytest.raises(EngineError, match="(?i)invalid token"):
        await collect(engine, replace(ASK, parts=(IdsPart((100_000,)),)))
    assert ids_in(await collect(engine)) == random.whole(PROMPT, 40), "the engine lives on"


@every_form
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stop": ("x",)}, "takes stop_ids for a raw prompt"),
        ({"parts": (AudioPart(np.zeros(9, np.float32), 16_000),)}, "takes no sound"),
        ({"parts": (IdsPart(()),)}, "takes parts"),
    ],
    ids=["stop text", "sound", "nothing"],
)
async def test_what_it_cannot_take_is_refused_before_any_work(
    random: Made, engines, form: str, change: dict, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        await collect(engines(random, form), replace(ASK, **change))


async def test_a_chat_in_process_refuses_stop_ids(random: Made) -> None:
    request = Request([{"role": "user", "content": "Hi"}], stop_ids=(1,))
    with pytest.raises(UsageError, match="not at stop_ids"):
        await collect(random.in_process, request)


def test_capabilities(random: Made) -> None:
    expected = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)
    assert random.in_process.capabilities == expected
