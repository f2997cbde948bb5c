"""Tool calls, timers and announcements in whole conversations, in virtual time.

Reports C1, C5, C9.
"""

import asyncio
import json

from pipecat.frames.frames import TTSSpeakFrame

from duologue.config import BotConfig, LmConfig
from duologue.lm.engine import Finish, MalformedCall, ToolCall
from duologue.tools import ToolResult
from tests.conversing import COUNT, WORD_S, dialogue
from tests.fakes import FakeVoice

MODEL = BotConfig(lm=LmConfig(tool_choice="model"))


def test_a_tool_is_called_and_its_result_spoken(converse, say):
    async def scenario(call):
        await call.say(say("What time is it in Tokyo?"))
        await call.wait_for("bot_text")
        await call.wait_for("bot_end", turn=2)
        assert [e["status"] for e in call.of("tool")] == ["requested", "running", "result"]
        roles = [m["role"] for m in call.session.context.messages[1:]]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert "in Tokyo" in call.session.context.messages[-1]["content"]

    converse(scenario)


def test_a_timer_speaks_up_when_it_fires(converse, say):
    async def scenario(call):
        await call.say(say("Set a timer for ten seconds."))
        await call.wait_for("bot_end", turn=2)
        asked_s = call.now_s
        await call.wait_for("bot_text", text="Your timer for 10 seconds is done.", within_s=30)
        assert 5 < call.now_s - asked_s < 11

    converse(scenario)


def test_text_before_a_fast_tool_call_is_in_the_context_and_spoken_once(converse, say):
    async def scenario(call):
        await call.say(say("Do you know how late it is?"))
        await call.wait_for("bot_end", turn=2)
        second = call.engine.requests[1].messages
        assert [m["role"] for m in second[-3:]] == ["user", "assistant", "tool"]
        assert second[-2]["content"] == "Let me look."
        assert json.loads(second[-1]["content"])["data"]
        assert call.voice.said == ["Let me look.", "It is late."]

    converse(
        scenario,
        ["Let me look.", ToolCall("c1", "current_time", "{}"), Finish("tool_calls")],
        ["It is late."],
        config=MODEL,
    )


def test_interruption_while_a_tool_runs_settles_it_and_never_reports_late(converse, say):
    async def scenario(call):
        gate = asyncio.Event()

        @call.session.tools.tool()
        async def lookup():
            """Take for ever."""
            await gate.wait()

        await call.say(say("Please look it up for me."))
        await call.wait_for("tool", status="running")
        await call.say(say("Never mind, tell me your name."))
        await call.wait_for("bot_end", reason="done")
        gate.set()
        await asyncio.sleep(45)
        assert [e["status"] for e in call.of("tool")] == ["requested", "running", "cancelled"]
        assert len(call.engine.requests) == 2
        request = call.engine.requests[1].messages
        calls = [c["id"] for m in request for c in m.get("tool_calls", ())]
        results = [m["tool_call_id"] for m in request if m["role"] == "tool"]
        assert calls == results == ["1_c1"]

    converse(
        scenario,
        ["One moment please, I will look it up.", ToolCall("c1", "lookup", "{}")],
        ["I am Ada."],
        config=MODEL,
    )


def test_a_backchannel_over_a_tools_answer_does_not_cut_it(converse, say):
    """The call's own empty answer ends while the voice still works on the one that tells it."""

    async def scenario(call):
        await call.say(say("Do you know how late it is?"))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(1.0)
        await call.say(say("Okay."))
        await call.wait_for("bot_end", turn=2)
        states = [e["state"] for e in call.of("state")]
        assert "listening" not in states[:-1], states
        assert [e["reason"] for e in call.of("bot_end")] == ["done", "done"]

    call = [ToolCall("c1", "current_time", "{}"), Finish("tool_calls")]
    converse(scenario, call, [COUNT], config=MODEL, voice=FakeVoice(WORD_S, delay_s=0.3))


def test_an_announcement_that_nobody_heard_is_made_again(converse, say):
    async def scenario(call):
        await call.say(say("Please count to forty."))
        await call.wait_for("state", state="speaking")
        await call.session.worker.queue_frame(TTSSpeakFrame("Your timer is done."))
        await asyncio.sleep(1.0)
        await call.say(say("Stop. What is your name?"))
        await call.wait_for("bot_end", reason="done", chars=len("Your timer is done."))
        texts = [text for role, text in dialogue(call) if role == "assistant"]
        assert texts[1:] in (
            ["Your timer is done.", "I am Ada."],
            ["I am Ada.", "Your timer is done."],
        )

    converse(scenario, [COUNT], ["I am Ada."])


def test_a_malformed_call_is_reported_and_not_asked_again(converse, say):
    async def scenario(call):
        await call.say(say("Do you know how late it is?"))
        assert "no JSON" in (await call.wait_for("error"))["message"]
        await call.wait_for("state", state="listening")
        await asyncio.sleep(5)
        assert len(call.engine.requests) == len(call.of("error")) == 1
        assert call.of("tool") == []
        assert [role for role, _ in dialogue(call)] == ["user"]
        call.events[:] = [e for e in call.events if e[1]["type"] != "error"]

    malformed = MalformedCall("no JSON", "current_time {")
    converse(scenario, [malformed, Finish("tool_calls")], config=MODEL)


def test_a_model_that_only_calls_tools_is_stopped(converse, say):
    async def scenario(call):
        await call.say(say("Do you know how late it is?"))
        await call.wait_for("bot_text", text="Sorry, I could not find that out.")
        assert len(call.engine.requests) == 5

    again = [ToolCall("same", "current_time", "{}"), Finish("tool_calls")]
    converse(scenario, *[again] * 9, config=MODEL)


def test_a_result_that_comes_during_a_cough_is_told(converse, say):
    async def scenario(call):
        gate = asyncio.Event()

        @call.session.tools.tool(cancel_on_barge_in=False)
        async def lookup() -> ToolResult:
            """Take a while."""
            await gate.wait()
            return ToolResult("x" * 9000)

        await call.say(say("Please look it up for me."))
        await call.wait_for("tool", status="running")
        turn = asyncio.create_task(call.say(say("Uh, never mind that, go on.")))
        await call.wait_for("state", state="hearing")
        gate.set()
        await turn
        await call.wait_for("bot_end", reason="done")
        assert call.of("tool")[-1]["status"] == "result"
        results = [m for m in call.engine.requests[-1].messages if m["role"] == "tool"]
        assert len(results) == 1
        assert 2000 < len(results[0]["content"]) < 2200
        assert len(call.engine.requests) == 2

    converse(scenario, [ToolCall("c1", "lookup", "{}")], ["Here it is."], config=MODEL)
