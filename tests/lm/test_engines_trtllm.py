"""TensorRT-LLM in process, against a stand-in for the package; it does not run here."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from duologue.errors import EngineError, UsageError
from duologue.lm.engine import Capabilities, Finish, Ids, Request, Step
from duologue.lm.prompt import IdsPart, TextPart
from duologue.lm.trtllm import TrtLlm
from tests.lm import fake_trtllm
from tests.lm.fake_servers import ids_after

PROMPT = (0, 7)
ASK = Request(parts=(IdsPart(PROMPT),), max_tokens=40, temperature=0.0)
LONG = Request(parts=(IdsPart(PROMPT),), max_tokens=100_000)

Load = Callable[..., TrtLlm]


@pytest.fixture
async def load(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Load]:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", fake_trtllm.package())
    # A busy machine is no failure.
    monkeypatch.setattr("duologue.lm.abort.LIMIT_S", 20.0)
    engines: list[TrtLlm] = []

    def load(timeout_s: float = 20.0, **script) -> TrtLlm:
        engines.append(engine := TrtLlm(Path("model"), timeout_s=timeout_s))
        for name, value in script.items():
            setattr(engine._llm, name, value)
        return engine

    yield load
    for engine in engines:
        await engine.close()


async def collect(engine: TrtLlm, request: Request = ASK) -> list[Step]:
    return [step async for step in engine.stream(request)]


def ids_in(steps: list[Step]) -> list[int]:
    return [token for step in steps if isinstance(step, Ids) for token in step.ids]


@pytest.mark.parametrize("per_step", [1, 3, 99])
async def test_outputs_that_grow_become_ids_given_once(load: Load, per_step: int) -> None:
    steps = await collect(load(per_step=per_step))
    assert ids_in(steps) == ids_after(PROMPT, 40)
    assert steps[-1] == Finish("length", 40), "not its default of 32 tokens"
    assert len(steps) - 1 == -(-40 // per_step)


async def test_the_id_that_ends_the_answer_is_its_last(load: Load) -> None:
    expected = ids_after(PROMPT, 9)
    steps = await collect(load(), Request(parts=ASK.parts, stop_ids=(expected[-1],)))
    assert ids_in(steps) == expected
    assert steps[-1] == Finish("stop", 9)


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (0.7, False)])
async def test_the_request_says_what_was_asked(
    load: Load, temperature: float, greedy: bool
) -> None:
    engine = load()
    await collect(
        engine,
        Request(parts=ASK.parts, max_tokens=2, temperature=temperature, seed=5, repeat_penalty=1.1),
    )
    params = engine._llm.asked[0]
    assert params.greedy == greedy
    assert (params.temperature or 0.0) == temperature
    assert params.seed == 5 and params.repetition_penalty == 1.1 and not params.detokenize


async def test_interleaved_answers_equal_sequential_ones(load: Load) -> None:
    engine = load()
    requests = [Request(parts=(IdsPart((n,)),), max_tokens=20) for n in range(4)]
    alone = [await collect(engine, request) for request in requests]
    assert await asyncio.gather(*(collect(engine, request) for request in requests)) == alone


async def test_closing_the_iterator_aborts_and_sees_the_end(load: Load) -> None:
    engine = load(per_step=2)
    steps = engine.stream(LONG)
    await anext(steps)
    await steps.aclose()  # type: ignore[attr-defined]
    assert engine._llm.aborted == 1
    await engine._watch.settle()
    aborts = engine.aborts
    assert (aborts.confirmed, aborts.unconfirmed, aborts.wasted_tokens) == (1, 0, 2)


async def test_a_cancelled_consumer_aborts(load: Load) -> None:
    engine = load(silent=True)
    consumer = asyncio.create_task(collect(engine, LONG))
    await engine._llm.called.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    await engine._watch.settle()
    assert (engine._llm.aborted, engine.aborts.confirmed) == (1, 1)


async def test_an_abort_that_does_nothing_is_told(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.lm.abort.LIMIT_S", 0.2)
    engine = load(deaf=True)
    steps = engine.stream(LONG)
    await anext(steps)
    await steps.aclose()  # type: ignore[attr-defined]
    await engine._watch.settle()
    aborts = engine.aborts
    assert (aborts.confirmed, aborts.unconfirmed, aborts.wasted_tokens) == (0, 1, 99_999)


async def test_a_failure_in_the_middle_is_an_error_and_no_abort(load: Load) -> None:
    engine = load(broken_at=3)
    steps: list[Step] = []
    with pytest.raises(EngineError, match="illegal memory access"):
        async for step in engine.stream(ASK):
            steps.append(step)
    assert ids_in(steps) == ids_after(PROMPT, 3)
    assert engine._llm.aborted == 0


async def test_silence_is_an_error_and_an_abort(load: Load) -> None:
    engine = load(timeout_s=0.1, silent=True)
    with pytest.raises(EngineError, match="no ids within 0.1 s"):
        await collect(engine)
    assert engine._llm.aborted == 1


async def test_an_end_without_a_reason_is_an_error(load: Load) -> None:
    with pytest.raises(EngineError, match="without saying why"):
        await collect(load(says_no_reason=True))


async def test_a_refused_prompt_is_an_error(load: Load) -> None:
    with pytest.raises(EngineError, match="longer than max_seq_len"):
        await collect(load(), Request(parts=(IdsPart(tuple(range(2000))),)))


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Request([{"role": "user", "content": "Hi"}]), "go to a chat engine"),
        (Request(parts=(TextPart("Hi"),)), "prompt_ids"),
        (Request(parts=(IdsPart((1,)), TextPart("Hi"))), "prompt_ids"),
        (Request(parts=ASK.parts, stop=("x",)), "give stop_ids"),
        (Request(), "takes parts"),
    ],
    ids=["messages", "text", "mixed", "stop text", "nothing"],
)
async def test_what_it_cannot_take_is_refused_before_any_work(
    load: Load, request_: Request, told: str
) -> None:
    engine = load()
    with pytest.raises(UsageError, match=told):
        await collect(engine, request_)
    assert not engine._llm.asked


async def test_capabilities(load: Load) -> None:
    expected = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)
    assert load().capabilities == expected


async def test_closing_releases_the_gpu(load: Load) -> None:
    engine = load()
    await engine.close()
    assert engine._llm.shut


def test_without_the_package_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(EngineError, match="pip install tensorrt-llm.*trtllm-serve"):
        TrtLlm("model")


def test_a_model_that_does_not_load_is_an_error(load: Load) -> None:
    with pytest.raises(EngineError, match="cannot load missing: no such checkpoint"):
        TrtLlm("missing")


def test_the_real_package_takes_what_is_sent() -> None:
    """Not run here: the package needs a machine of its own."""
    tensorrt_llm = pytest.importorskip("tensorrt_llm")
    sent = set(inspect.signature(fake_trtllm.SamplingParams).parameters)
    assert sent <= set(inspect.signature(tensorrt_llm.SamplingParams).parameters)
    taken = inspect.signature(tensorrt_llm.LLM.generate_async).parameters
    assert {"inputs", "sampling_params", "streaming"} <= set(taken)
    assert callable(tensorrt_llm.llmapi.RequestOutput.abort)
