"""The talker as an engine: what it draws, how requests share it, and how they end."""

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from duologue.engines.torch import TorchGraph
from duologue.errors import CapacityError, ConfigError, EngineError, InputError, UsageError
from duologue.lm.engine import Finish, Ids, Request
from duologue.lm.prompt import IdsPart, TextPart
from duologue.talker.config import CODES, END, FIRST_CODE, text_ids
from duologue.talker.engine import TalkerEngine, signature
from duologue.talker.sampling import Sampling, draw, lengths, uniforms
from tests.embedded.tiny import SOUNDS, TALKER, talker
from tests.token2wav.flows import Spy

TEXT = "hello there."
SHORTEST, LONGEST = lengths(len(TEXT))


class Scripted:
    """A graph whose logits a function of the number of ids so far gives."""

    def __init__(self, logits):
        self.inputs, self.outputs = signature(TALKER)
        self._logits = logits

    def run(self, arrays):
        past = arrays["past"].shape[4] + arrays["ids"].shape[1]
        shape = self.outputs[1].size({"batch": 1, "all": past})
        return {"logits": self._logits(past)[None], "new_past": np.zeros(shape, np.float32)}


def likely(token: int) -> np.ndarray:
    logits = np.zeros(TALKER.vocab_size, np.float32)
    logits[token] = 30
    return logits


class Gate:
    """Holds a graph's runs back until it is opened."""

    def __init__(self, graph: Spy):
        self.reached, self._opened = threading.Event(), threading.Event()
        graph.before = self._pass

    def _pass(self) -> None:
        self.reached.set()
        assert self._opened.wait(60)

    async def until_reached(self) -> None:
        await asyncio.to_thread(self.reached.wait, 60)

    async def open(self) -> None:
        await asyncio.to_thread(self._opened.set)


@pytest.fixture
def graph():
    return Spy(TorchGraph(talker(), *signature(TALKER)))


@pytest.fixture
async def engine(graph):
    engine = TalkerEngine(graph, TALKER)
    yield engine
    await engine.close()


def request(text: str = TEXT, **options) -> Request:
    # The likeliest token of random weights is the one before it: only heat makes them talk.
    usual = {"seed": 1, "max_tokens": 500, "temperature": 4.0}
    return Request(parts=(TextPart(text),), **usual | options)


async def steps_of(engine: TalkerEngine, asked: Request) -> list:
    async with asyncio.timeout(60):
        return [step async for step in engine.stream(asked)]


async def ids_of(engine: TalkerEngine, asked: Request) -> list[int]:
    steps = await steps_of(engine, asked)
    return [token for step in steps if isinstance(step, Ids) for token in step.ids]


async def test_a_seed_says_every_token(engine):
    first = await ids_of(engine, request())
    assert first == await ids_of(engine, request())
    assert first == await ids_of(engine, request(seed=1, text="Hello there."))
    assert first != await ids_of(engine, request(seed=2))
    parts = (IdsPart(tuple(text_ids(TEXT))),)
    assert first == await ids_of(engine, replace(request(), parts=parts))
    assert all(FIRST_CODE <= token < FIRST_CODE + CODES or token == END for token in first)
    assert len(set(first)) > 5
    assert await ids_of(engine, request(seed=None)) != await ids_of(engine, request(seed=None))


async def test_it_goes_on_from_its_own_tokens(engine, graph):
    """The likeliest tokens are those of the whole sequence, read at once."""
    ids = await ids_of(engine, request(temperature=0, max_tokens=12))
    prompt = text_ids(TEXT)
    past = np.zeros(graph.inputs[1].size({"batch": 1, "past": 0}), np.float32)
    for place, token in enumerate(ids):
        whole = np.array([[*prompt, *ids[:place]]], np.int64)
        logits = graph.graph.run({"ids": whole, "past": past})["logits"][0]
        assert token == FIRST_CODE + logits[FIRST_CODE:].argmax()
    assert [call["ids"].shape[1] for call in graph.calls] == [len(prompt)] + [1] * 11


async def test_requests_take_turns_and_change_nothing_for_each_other(engine, graph):
    texts = ["one two three.", "four five.", "six seven eight nine ten."]
    alone = [await ids_of(engine, request(text, seed=n)) for n, text in enumerate(texts)]
    graph.calls.clear()
    gate = Gate(graph)
    asked = [
        asyncio.create_task(ids_of(engine, request(text, seed=n))) for n, text in enumerate(texts)
    ]
    await gate.until_reached()
    await gate.open()
    assert await asyncio.gather(*asked) == alone
    widths = [call["past"].shape[4] for call in graph.calls]
    begun = [place for place, width in enumerate(widths) if width == 0]
    assert len(begun) == 3 and begun[-1] <= 3
    # What is one longer is the same request once more.
    again = [then == width + 1 for width, then in zip(widths[3:], widths[4:15], strict=False)]
    assert not any(again)


async def test_a_closed_request_ends_at_its_next_token(engine, graph):
    async with aclosing(engine.stream(request())) as steps:
        async for step in steps:
            assert isinstance(step, Ids)
            break
    runs = len(graph.calls)
    assert not engine._jobs
    assert (await ids_of(engine, request(max_tokens=3))) and len(graph.calls) <= runs + 1 + 3


async def test_a_cancelled_reader_frees_its_place(graph):
    engine = TalkerEngine(graph, TALKER, capacity=1)
    gate = Gate(graph)
    reader = asyncio.create_task(steps_of(engine, request()))
    await gate.until_reached()
    with pytest.raises(CapacityError, match="all 1 requests of the talker are taken"):
        await steps_of(engine, request())
    reader.cancel()
    await asyncio.wait([reader])
    await gate.open()
    assert len(await ids_of(engine, request(max_tokens=4))) == 4
    await engine.close()


async def test_a_clause_ends_with_end_and_not_before_it_can_be_said():
    engine = TalkerEngine(Scripted(lambda past: likely(END)), TALKER)
    steps = await steps_of(engine, request())
    assert steps[-1] == Finish("stop", SHORTEST + 1)
    assert steps[-2] == Ids((END,))
    assert END not in [token for step in steps[:-2] for token in step.ids]
    await engine.close()
    assert lengths(1) == (5, 29)


async def test_a_clause_that_runs_on_is_cut():
    engine = TalkerEngine(Scripted(lambda past: likely(FIRST_CODE + past % CODES)), TALKER)
    assert (await steps_of(engine, request()))[-1] == Finish("length", LONGEST)
    assert (await steps_of(engine, request(max_tokens=7)))[-1] == Finish("length", 7)
    text = "a" * (TALKER.max_positions // 4 - 2)
    room = TALKER.max_positions - len(text_ids(text))
    assert (await steps_of(engine, request(text)))[-1] == Finish("length", room)
    stop = FIRST_CODE + len(text_ids(TEXT)) + 3
    assert (await steps_of(engine, request(stop_ids=(stop,))))[-2:] == [
        Ids((stop,)),
        Finish("stop", 4),
    ]
    await engine.close()


async def test_a_text_that_is_long_for_its_positions_is_said_in_pieces(graph):
    graph.graph = Scripted(lambda past: likely(END))
    engine = TalkerEngine(graph, TALKER)
    words = "one two three four five six seven eight nine ten eleven twelve thirteen "
    asked = request(words + "a" * 90 + " 1999 1999", max_tokens=9999)
    steps = await steps_of(engine, asked)
    prompts = [call["ids"][0].tolist() for call in graph.calls if call["past"].shape[4] == 0]
    pieces = [
        "one two three four five six seven eight nine ten eleven twelve",
        "thirteen " + "a" * 53,
        "a" * 37 + " one thousand nine",
        "hundred ninety-nine one thousand nine hundred ninety-nine",
    ]
    assert prompts == [text_ids(piece) for piece in pieces]
    count = sum(lengths(len(piece))[0] for piece in pieces) + 1
    assert steps[-1] == Finish("stop", count)
    assert [step for step in steps if step == Ids((END,))] == steps[-2:-1]
    assert (await steps_of(engine, replace(asked, max_tokens=90)))[-1] == Finish("length", 90)
    await engine.close()


async def test_what_follows_a_piece_that_runs_on_is_said():
    engine = TalkerEngine(Scripted(lambda past: likely(FIRST_CODE)), TALKER, sounds=SOUNDS)
    steps = await steps_of(
        engine, request("hello [laugh] world", repeat_penalty=1.0, temperature=0)
    )
    ids = [token for step in steps if isinstance(step, Ids) for token in step.ids]
    first, last = (lengths(len(word))[1] for word in ("hello", "world"))
    laugh = [FIRST_CODE + code for code in SOUNDS["laugh"]]
    assert ids == [*first * [FIRST_CODE], *laugh, *last * [FIRST_CODE]]
    assert steps[-1] == Finish("length", len(ids))
    await engine.close()


async def test_sounds_are_said_where_they_stand(graph):
    graph.graph = Scripted(lambda past: likely(END))
    engine = TalkerEngine(graph, TALKER, sounds=SOUNDS)

    async def codes_of(text: str, **options) -> list[int]:
        ids = await ids_of(engine, request(text, **options))
        assert ids[-1] == END
        return [token - FIRST_CODE for token in ids[:-1]]

    assert await codes_of("[laugh]") == SOUNDS["laugh"]
    assert await codes_of("[sigh] [laugh].") == [*SOUNDS["sigh"], *SOUNDS["laugh"]]
    assert not graph.calls
    least = lengths(len("hello"))[0]
    said = await codes_of("Hello [laugh] hello")
    assert said[least:-least] == SOUNDS["laugh"] and len(graph.calls) == 2 * (least + 1)
    cut = await steps_of(engine, request("[laugh]", max_tokens=2))
    assert cut[-1] == Finish("length", 2)
    assert await codes_of("[laugh]" * 12) == 12 * SOUNDS["laugh"]
    with pytest.raises(InputError, match="found no English letter"):
        await codes_of("[")
    await engine.close()
    with pytest.raises(InputError, match=r"\[sigh\]: found a sound that this voice has not"):
        await steps_of(TalkerEngine(graph, TALKER), request("[sigh]"))


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (Request(messages=[{"role": "user", "content": "Hi"}]), UsageError, "raw prompt"),
        (Request(), UsageError, "raw prompt"),
        (request(tools=[{}]), UsageError, "without messages and tools"),
        (request(stop=("x",)), UsageError, "no text to stop at"),
        (request(temperature=float("nan")), UsageError, "temperature: found nan"),
        (request(repeat_penalty=0.5), UsageError, "repeat_penalty: found 0.5"),
        (request(seed=2**64), InputError, "seed"),
        (request("你好, привет"), InputError, "found no English letter, digit or sound"),
        (request("a" * 500), InputError, "give one clause at a time"),
        (Request(parts=(IdsPart((256, *b"a" * 200, 257)),)), InputError, "expected 3 to 128"),
        (Request(parts=(TextPart("a"), TextPart("b"))), UsageError, "found 2 parts"),
        (Request(parts=(IdsPart((256, 7000, 257)),)), InputError, "found the id 7000"),
    ],
)
async def test_what_it_cannot_answer_is_refused(engine, asked, error, message):
    with pytest.raises(error, match=message):
        await steps_of(engine, asked)
    with pytest.raises(UsageError, match="no messages"):
        await engine.prewarm([{"role": "user", "content": "Hi"}])


async def test_a_failure_ends_its_request_only(engine, graph):
    def fail():
        raise ValueError("no memory")

    graph.before = fail
    with pytest.raises(EngineError, match="the talker failed: ValueError..no memory"):
        await steps_of(engine, request())
    graph.before = lambda: None
    await engine.prewarm([])
    assert len(await ids_of(engine, request(max_tokens=3))) == 3


async def test_logits_that_are_no_numbers_are_no_speech():
    engine = TalkerEngine(Scripted(lambda past: likely(END) * np.nan), TALKER)
    with pytest.raises(EngineError, match="no numbers"):
        await steps_of(engine, request())
    await engine.close()


async def test_closing_ends_requests(graph):
    engine = TalkerEngine(graph, TALKER)
    gate = Gate(graph)
    reader = asyncio.create_task(steps_of(engine, request()))
    await gate.until_reached()
    closing = asyncio.create_task(engine.close())
    await gate.open()
    await closing
    with pytest.raises(EngineError, match="the talker is closed"):
        await reader
    with pytest.raises(EngineError, match="the talker is closed"):
        await steps_of(engine, request())
    await TalkerEngine(graph, TALKER).close()


# Drawing


def sampling(**options) -> Sampling:
    usual = {"temperature": 1.0, "top_k": 3, "repeat_penalty": 1.0, "least": 0, "most": 100}
    return Sampling(**usual | options)


def test_only_the_likeliest_are_drawn_and_as_often_as_they_are_likely():
    logits = np.full(TALKER.vocab_size, -5.0, np.float32)
    # Text may be as likely as can be.
    logits[:END] = 50
    logits[[FIRST_CODE, FIRST_CODE + 9, END]] = np.log([0.5, 0.3, 0.2])
    drawn = [draw(logits, [], sampling(), u) for u in (np.arange(1000) + 0.5) / 1000]
    tokens, counts = np.unique(drawn, return_counts=True)
    assert dict(zip(tokens.tolist(), counts.tolist(), strict=True)) == {
        END: 200,
        FIRST_CODE: 500,
        FIRST_CODE + 9: 300,
    }
    assert {draw(logits, [], sampling(top_k=1), u) for u in (0.001, 0.999)} == {FIRST_CODE}
    assert {draw(logits, [], sampling(temperature=0.01), u) for u in (0.1, 0.999)} == {FIRST_CODE}
    assert END not in {draw(logits, [], sampling(least=1), u) for u in (0.1, 0.5, 0.99)}


def test_a_repetition_penalty_makes_recent_codes_less_likely():
    logits = np.full(TALKER.vocab_size, -5.0, np.float32)
    logits[FIRST_CODE], logits[FIRST_CODE + 1] = 2.0, 1.5
    greedy = sampling(temperature=0, repeat_penalty=1.5)
    assert draw(logits, [], greedy, 0.5) == FIRST_CODE
    assert draw(logits, [FIRST_CODE], greedy, 0.5) == FIRST_CODE + 1
    assert draw(logits, [FIRST_CODE, *[FIRST_CODE + 7] * 64], greedy, 0.5) == FIRST_CODE
    logits[FIRST_CODE:] = -1
    logits[FIRST_CODE + 3] = -0.9
    assert draw(logits, [FIRST_CODE + 3], greedy, 0.5) != FIRST_CODE + 3


def test_randomness_goes_by_position():
    numbers = uniforms(7, 200)
    assert ((numbers > 0) & (numbers < 1)).all() and len(set(numbers)) == 200
    np.testing.assert_array_equal(uniforms(7, 50), numbers[:50])
    assert uniforms(8, 1) != numbers[0]
    assert abs(uniforms(3, 20_000).mean() - 0.5) < 0.01


def test_top_k_is_a_number_of_codes(graph):
    for top_k in (0, CODES + 1):
        with pytest.raises(ConfigError, match=f"top_k: found {top_k}"):
            TalkerEngine(graph, TALKER, top_k=top_k)
