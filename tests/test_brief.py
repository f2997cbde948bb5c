"""An answer ends behind its n-th sentence, however its text comes in pieces."""

import asyncio

import pytest

from duologue.lm.brief import Brief
from duologue.lm.engine import Finish, Request, TextDelta, ToolCall
from tests.fakes import FakeEngine

TEXT = "It is 3.5 km, Dr. Smith says. That is far! You could take a bus. Or walk."


async def answer(engine, sentences: int) -> tuple[str, list]:
    steps = [step async for step in Brief(engine, sentences).stream(Request([]))]
    return "".join(s.text for s in steps if isinstance(s, TextDelta)), steps


@pytest.mark.parametrize("width", [1, 2, 3, 7, 200])
@pytest.mark.parametrize(
    ("sentences", "kept"),
    [
        (1, "It is 3.5 km, Dr. Smith says."),
        (2, "It is 3.5 km, Dr. Smith says. That is far!"),
        (9, TEXT),
    ],
)
async def test_sentences_are_counted_not_dots(width, sentences, kept):
    pieces = [TEXT[i : i + width] for i in range(0, len(TEXT), width)]
    engine = FakeEngine(pieces)
    text, steps = await answer(engine, sentences)
    assert text.rstrip() == kept
    assert isinstance(steps[-1], Finish)
    assert engine.closed == 1


async def test_the_request_is_aborted_not_awaited():
    text, _ = await answer(FakeEngine(["One. Two. ", "Three", asyncio.Event()]), 1)
    assert text == "One."


async def test_calls_pass():
    call = ToolCall("a", "b", "{}")
    _, steps = await answer(FakeEngine(["One.", call]), 1)
    assert call in steps
