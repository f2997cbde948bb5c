"""Answers of a speech-text LM that are none, and calls that are none: told, and never remembered.

The pipeline is the real one, in virtual time.
"""

import asyncio
import json

import pytest

from bots import assembly
from duologue.errors import EngineError
from duologue.lm.engine import Finish, Ids
from duologue.lm.modes import Mode
from duologue.tools import ToolRegistry, ToolResult
from tests import hearing_calls, test_speech_lm
from tests.hearing_calls import SEA, speech
from tests.lm.test_engines_chat import chunk
from tests.test_speech_lm import answer, ids, said

converse = test_speech_lm.converse
hears = hearing_calls.hears


def calling(name: str, arguments: str | None, finish: str = "tool_calls") -> list[dict]:
    """The deltas of an answer that speaks and calls; None if the arguments are never sent."""
    function = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    piece = {"index": 0, "id": "a", "function": function}
    return [*speech("let me look", 20)[:-1], chunk(tool_calls=[piece]), chunk(finish)]


def forget_errors(call) -> None:
    """They are as they should be."""
    call.events[:] = [e for e in call.events if e[1]["type"] != "error"]


@pytest.mark.parametrize(
    "asks",
    [
        calling("current_time", '{"place": '),
        calling("current_time", '{"place": "Tok', finish="length"),
        calling("current_time", '["Tokyo"]'),
        calling("the time", "{}"),
    ],
    ids=["no JSON", "no end", "no object", "no name"],
)
def test_a_chats_malformed_call_is_reported_once_and_ends_the_turn(hears, say, asks):
    async def scenario(call, server):
        await call.say(say("What time is it in Tokyo?"))
        error = await call.wait_for("error")
        assert "tool call" in error["message"]
        await call.wait_for("state", state="listening")
        await asyncio.sleep(5)
        assert len(server.requests) == 1 and len(call.of("error")) == 1
        assert call.of("tool") == []
        assert not any(m.get("tool_calls") or m["role"] == "tool" for m in messages(call))
        await call.say(say(SEA))
        await call.wait_for("bot_end", turn=2)
        assert "current_time" not in json.dumps(server.raw(1)[1:])

    hears(scenario, asks, speech("it is deep", 20), errors=True)


def messages(call) -> list[dict]:
    return call.session.context.messages[call.session.memory._fixed :]


def test_arguments_that_a_chat_encodes_twice_reach_the_tool(hears, say):
    async def scenario(call, server):
        await call.say(say("What time is it in Tokyo?"))
        await call.wait_for("bot_end", turn=2)
        assert call.of("tool")[-1]["status"] == "result"
        assert call.of("tool")[-1]["arguments"] == '{"place": "Tokyo"}'

    asks = calling("current_time", json.dumps('{"place": "Tokyo"}'))
    hears(scenario, asks, speech("it is late", 20))


@pytest.mark.parametrize("lost", [True, False])
def test_a_call_whose_arguments_were_lost_is_not_run(hears, say, monkeypatch, lost):
    """Step-Audio 2's vLLM sends the name, and may never send what came with it."""
    ran: list[str] = []

    def tools(*_) -> ToolRegistry:
        registry = ToolRegistry()

        @registry.tool()
        async def dim(room: str = "every room") -> ToolResult:
            """Dim the light."""
            ran.append(room)
            return ToolResult(1)

        @registry.tool()
        async def wave() -> ToolResult:
            """Wave a hand."""
            ran.append("wave")
            return ToolResult(1)

        return registry

    monkeypatch.setattr(assembly, "room_tools", tools)

    async def scenario(call, server):
        await call.say(say(SEA))
        if lost:
            assert "without arguments" in (await call.wait_for("error"))["message"]
        await call.wait_for("bot_end", turn=1 if lost else 2)
        await asyncio.sleep(5)
        assert ran == ([] if lost else ["wave"])
        assert len(server.requests) == (1 if lost else 2)

    asks = calling("dim" if lost else "wave", None)
    hears(scenario, asks, speech("it is done", 20), errors=lost)


PAD = ids("<tts_pad>", *["<audio_6561>"] * 4)


@pytest.mark.parametrize(
    ("nothing", "mode"),
    [
        ([], Mode.T1_T2A2),
        ([Finish("length")], Mode.T1_T2A2),
        (answer(PAD * 3, ids("<tts_end>")), Mode.T1_T2A2),
        ([Ids(tuple(PAD * 100))], Mode.T1_T2A2),
        ([Ids((200_000,) * 9)], Mode.T1_T2A2),
        (answer(ids("<tts_end>", " \n")), Mode.T1_T2A2),
        (answer(ids(" \n")), Mode.T1_T2),
        (answer(ids(1, 2, 3, 4)), Mode.T1_T2),
    ],
    ids=["empty", "cut", "pads", "pads for ever", "unknown ids", "blank", "text is blank", "stray"],
)
def test_an_answer_of_nothing_is_told(converse, say, nothing, mode):
    async def scenario(call):
        await call.say(say(SEA))
        error = await call.wait_for("error")
        assert "no answer" in error["message"]
        await call.wait_for("state", state="listening")
        await asyncio.sleep(5)
        assert len(call.of("error")) == 1 and len(call.engine.requests) == 1
        assert call.of("state")[-1]["state"] == "listening"
        assert [m["role"] for m in messages(call)] == ["user"]
        assert call.voice.said == call.batcher.tokens == []
        forget_errors(call)

    converse(scenario, nothing, mode=mode)


def test_speech_that_nothing_decodes_is_no_answer_without_its_text(converse, say):
    async def scenario(call):
        await call.say(say(SEA))
        assert "no answer" in (await call.wait_for("error"))["message"]
        forget_errors(call)

    converse(scenario, answer(ids(1, 2, 3, 4, "<tts_end>")), decoded=False)


def test_an_error_instead_of_an_answer_is_told_once(converse, say):
    async def scenario(call):
        await call.say(say(SEA))
        assert "is gone" in (await call.wait_for("error"))["message"]
        await call.wait_for("state", state="listening")
        await asyncio.sleep(5)
        assert len(call.of("error")) == 1
        assert said(call) == SEA
        forget_errors(call)

    converse(scenario, [EngineError("the server is gone")])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("current_time", '{"place": 1}'), ("no_such_tool", "{}")],
    ids=["wrong arguments", "no tool"],
)
def test_a_model_that_only_ever_calls_is_told_why_and_stopped(converse, say, name, arguments):
    async def scenario(call):
        await call.say(say("What time is it in Tokyo?"))
        await call.wait_for("bot_text", text="Sorry, I could not find that out.")
        asked = [test_speech_lm.prompt(call, n) for n in range(len(call.engine.requests))]
        assert len(asked) == 5
        assert [len(prompt) for prompt in asked] == sorted({len(prompt) for prompt in asked})
        await call.wait_for("state", state="listening")

    body = ids("<tool_call>", f"function\n{name}\n{arguments}", "</tool_call>")
    converse(scenario, *[answer(ids("<tts_end>"), body)] * 9)
