"""A model that thinks first is asked twice; the pipeline is the real one."""

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest
from pipecat.frames.frames import (
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
)

from duologue.lm.engine import Ids
from duologue.rehearsal import virtual
from services.speech_lm import SpeechLM
from tests import hearing_calls
from tests.fakes import FakeEngine
from tests.hearing_calls import (
    MORE,
    SEA,
    STOP,
    Hearer,
    config,
    enter,
    said,
    speech,
)
from tests.lm.streams import decoding, ids_of
from tests.lm.test_engines_chat import chunk, spoken
from tests.test_speech_lm import STORY, ta4

hears = hearing_calls.hears
THINK = "step-audio2-think"
THOUGHT = "They ask for the sea.\nIt is deep."


@pytest.fixture
def thoughts(monkeypatch):
    """The frames of thoughts that leave the model, a list for each thought."""
    seen: list[list[str]] = []
    push = SpeechLM.push_frame

    async def tap(self, frame, *rest):
        if isinstance(frame, LLMThoughtStartFrame):
            seen.append([])
        elif isinstance(frame, LLMThoughtTextFrame):
            seen[-1].append(frame.text)
        elif isinstance(frame, LLMThoughtEndFrame):
            seen[-1].append("END")
        await push(self, frame, *rest)

    monkeypatch.setattr(SpeechLM, "push_frame", tap)
    return seen


def thought(text: str = THOUGHT, finish: str = "stop") -> list[dict]:
    words = text.split(" ")
    return [chunk(content=w if n == 0 else f" {w}") for n, w in enumerate(words)] + [chunk(finish)]


def opened(server: Hearer, number: int) -> str:
    last = server.raw(number)[-1]
    assert last["role"] == "assistant" and last["eot"] is False
    return last["content"]


def test_a_model_thinks_and_then_speaks(hears, say, thoughts):
    async def scenario(call, server):
        await call.say(say(SEA))
        await call.wait_for("bot_end")
        assert opened(server, 0) == "\n<think>\n"
        assert server.requests[0]["stop"] == ["</think>"]
        assert server.requests[0]["max_tokens"] == 512
        assert opened(server, 1) == f"\n<think>\n{THOUGHT}</think>\n\n<tts_start>"
        assert "stop" not in server.requests[1]
        assert np.array_equal(*(server.users(n)[0] for n in (0, 1)))
        assert ["".join(t) for t in thoughts] == [f"{THOUGHT}END"]
        assert [(e["turn"], e["text"]) for e in call.of("thought")][-1:] == [(1, THOUGHT)]
        assert call.of("bot_text")[-1]["text"] == said(call) == "it is deep"
        assert call.batcher.tokens == [1 + n for n in range(20)]
        await call.say(say(MORE))
        await call.wait_for("bot_end", turn=2)
        assert len(server.requests) == 4
        past = next(m for m in server.raw(2) if m["role"] == "assistant")
        assert past["tts_content"]["tts_text"] == "it is deep"
        assert "deep." not in str(past)

    hears(scenario, thought(), speech("it is deep", 20), thought(), setup=config(THINK))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (thought("so " * 400), "</think>"),
        (thought(finish="length"), f"{THOUGHT}</think>"),
        ([chunk(content="Hm.</think>\n\nThe sea"), asyncio.Event()], "Hm.</think>"),
        ([chunk(content="Hm."), spoken(tts_audio="<audio_5>"), chunk("stop")], "Hm.</think>"),
        ([chunk("stop")], "</think>"),
    ],
    ids=["a loop", "too long", "a server that goes on", "speech in it", "no thought"],
)
def test_a_thought_always_ends(hears, say, thoughts, first, second):
    async def scenario(call, server):
        await call.say(say(SEA))
        await call.wait_for("bot_end")
        assert opened(server, 1) == f"\n<think>\n{second}\n\n<tts_start>"
        assert len(server.requests) == 2
        assert call.batcher.tokens == [1 + n for n in range(20)]
        assert said(call) == "it is deep"

    hears(scenario, first, speech("it is deep", 20), setup=config(THINK))


@pytest.mark.parametrize("step", ["thinking", "speaking"])
def test_a_user_may_cut_in_while_it_thinks_or_speaks(hears, say, thoughts, step):
    async def scenario(call, server):
        await call.say(say(SEA))
        if step == "thinking":
            await server.asked.wait()
        else:
            await call.wait_for("state", state="speaking")
            await asyncio.sleep(2.0)
        await call.say(say(STOP))
        await server.left.wait()
        await call.wait_for("bot_end", reason="done")
        *_, first, last = (opened(server, n) for n in range(len(server.requests)))
        assert first == "\n<think>\n" and "<tts_start>" in last
        users = server.users(-1)
        assert len(users) == (1 if step == "thinking" else 2)
        assert said(call) == "it is deep"
        if step == "speaking":
            kept = call.session.context.messages[-3]["content"]
            assert kept and STORY.startswith(kept) and kept != STORY

    waits = asyncio.Event()
    cut = {
        "thinking": [[*thought()[:-1], waits]],
        "speaking": [thought(), [*speech(STORY, 200)[:-1], waits]],
    }
    hears(scenario, *cut[step], thought(), speech("it is deep", 20), setup=config(THINK))


def test_what_another_model_thinks_is_shown_as_well(hears, say, thoughts):
    """It thinks of its own accord, in its one answer."""

    async def scenario(call, server):
        await call.say(say(SEA))
        await call.wait_for("bot_end")
        assert len(server.requests) == 1
        assert ["".join(t) for t in thoughts] == ["Hm.END"]
        assert call.voice.said == ["It is deep."] and said(call) == "It is deep."

    deltas = [chunk(content="<think>Hm."), chunk(content="</think>\n\nIt is deep."), chunk("stop")]
    hears(scenario, deltas, setup=config("qwen3-omni", mode="A1-T2"))


def test_a_raw_prompt_is_thought_about_as_well(whisper, say, thoughts):
    """Think with the recogniser's words, on a server of ids."""
    family = decoding(THINK)
    ids = lambda *parts: ids_of(family, *parts)  # noqa: E731
    speech_ids = ta4("it is deep", 20)
    engine = FakeEngine([Ids(tuple(ids("so it is")))], [Ids((*speech_ids, *ids("<|EOT|>")))])

    async def main():
        async with AsyncExitStack() as stack:
            setup = config(THINK, mode="T1-T2A2")
            call = await enter(stack, whisper, Hearer(), setup, engine)
            await asyncio.sleep(0.3)
            await call.say(say(SEA))
            await call.wait_for("bot_end")
            assert said(call) == "it is deep"
            first, second = engine.requests
            assert (first.stop, second.stop) == (("</think>",), ())
            start = list(first.parts[0].ids)
            assert start[-len(ids("\n<think>\n")) :] == ids("\n<think>\n")
            rest = list(second.parts[0].ids)[len(start) :]
            assert rest == [*ids("so it is</think>\n\n"), *ids("<tts_start>")]
            assert ["".join(t) for t in thoughts] == ["so it isEND"]

    virtual.run(main())
