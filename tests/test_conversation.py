"""Whole conversations in virtual time: real VAD and ASR, a scripted LM, a voice of exact words.

Reports A1, A3, A5, A9, A11, B1, B3, B6, C1, C5, C9, D11, G1, G2.
"""

import asyncio
import json

import numpy as np
import pytest
from pipecat.frames.frames import TTSSpeakFrame

from bots.assembly import Models
from bots.virtual_call import virtual_call
from duologue.config import BotConfig, LmConfig
from duologue.duplex import tokens
from duologue.lm.engine import Finish, ToolCall
from duologue.rehearsal import virtual
from duologue.tools import ToolResult
from tests.fakes import FakeEngine, FakeVoice

WORD_S = 0.2
COUNT = " ".join(f"word{n}" for n in range(1, 41)) + "."
RULES = BotConfig()
MODEL = BotConfig(lm=LmConfig(tool_choice="model"))


@pytest.fixture
def converse(whisper):
    """Run a scenario with an engine that gives these answers."""

    def run(scenario, *answers, config: BotConfig = RULES, voice=None):
        engine, voice = FakeEngine(*answers), voice or FakeVoice(WORD_S)

        async def main():
            models = Models(whisper, engine, voice)
            async with virtual_call(models, config) as call:
                call.engine, call.voice = engine, voice
                await asyncio.sleep(0.3)
                return await scenario(call)

        return virtual.run(main())

    return run


def dialogue(call) -> list[tuple[str, str]]:
    opening = 1 + 2 * len(RULES.lm.examples)
    return [(m["role"], m["content"]) for m in call.session.context.messages[opening:]]


def loud_after(call, since_s: float) -> list[float]:
    return [at for at, chunk in call.ear.chunks if at > since_s and np.abs(chunk).max() > 0.05]


def test_a_question_is_answered(converse, say):
    async def scenario(call):
        await call.say(say("What is the capital of France?"))
        end = await call.wait_for("bot_end")
        assert (end["reason"], end["chars"]) == ("done", len("It is Paris."))
        assert dialogue(call) == [
            ("user", "What is the capital of France?"),
            ("assistant", "It is Paris."),
        ]
        assert call.of("bot_text")[-1]["text"] == "It is Paris."
        assert [e["state"] for e in call.of("state")] == [
            "hearing", "thinking", "speaking", "listening",
        ]  # fmt: skip

    converse(scenario, ["It is", " Paris."])


def test_interruption_cuts_sound_and_context_to_what_was_heard(converse, say):
    async def scenario(call):
        await call.say(say("Please count to forty."))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(2.0)
        interruption = asyncio.create_task(call.say(say("Wait, what is your name?")))
        cut = await call.wait_for("bot_end", reason="interrupted")
        cut_at = call.now_s
        await interruption
        await call.wait_for("bot_end", reason="done")
        heard = dialogue(call)[1][1]
        said_s = len(loud_after(call, 0)) * 0.02
        assert COUNT.startswith(heard)
        assert len(heard) == cut["chars"]
        old = [at for at in loud_after(call, 0) if at < cut_at]
        assert abs(len(heard.split()) - len(old) * 0.02 / WORD_S) <= 1, said_s
        assert tokens(dialogue(call)[2][1]) == tokens("Wait, what is your name?")
        assert dialogue(call)[3] == ("assistant", "I am Ada.")

    converse(scenario, [COUNT], ["I am Ada."])


def test_no_sample_and_no_event_of_the_old_turn_comes_after_the_interruption(converse, say):
    async def scenario(call):
        await call.say(say("Please count to forty."))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(1.0)
        question = asyncio.create_task(call.say(say("Stop. Stop it now.")))
        await call.wait_for("bot_end", reason="interrupted")
        cut_at = call.now_s
        await question
        await call.wait_for("bot_text", turn=2)
        answered_at = call.now_s
        assert not [at for at in loud_after(call, cut_at) if at < answered_at]
        late = [e for at, e in call.events if at > cut_at and e.get("turn") == 1]
        assert [e for e in late if e["type"] not in ("state",)] == []

    converse(scenario, [COUNT], ["Fine."])


@pytest.mark.parametrize("sound", ["Okay.", "Right.", "Uh-huh.", "cough", "clap"])
def test_backchannels_and_noises_hold_and_resume_without_losing_a_word(converse, say, sound):
    async def scenario(call):
        await call.say(say("Please count to forty."))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(1.0)
        onset = await call.say(noises()[sound] if sound in noises() else say(sound))
        end = await call.wait_for("bot_end")
        assert (end["reason"], end["chars"]) == ("done", len(COUNT))
        resumed = [at for at, e in call.events if e.get("state") == "speaking" and at > onset]
        held = [at for at, e in call.events if e.get("state") == "held"]
        assert all(at - onset < 2.0 for at in resumed), (held, resumed)
        assert [role for role, _ in dialogue(call)] == ["user", "assistant"]

    converse(scenario, [COUNT])


def noises() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    burst = np.exp(-np.arange(8000) / 900) * rng.normal(0, 0.25, 8000)
    return {
        "clap": burst.astype(np.float32)[:3000],
        "cough": np.convolve(burst, np.ones(12) / 3, "same").astype(np.float32),
    }


def test_the_same_word_to_a_silent_bot_is_an_answer(converse, say):
    async def scenario(call):
        await call.say(say("Okay."))
        await call.wait_for("bot_end")
        assert dialogue(call)[0][0] == "user"

    converse(scenario, ["Good."])


def test_speech_that_goes_on_before_anything_is_heard_is_one_turn(converse, say):
    async def scenario(call):
        await call.say(say("My name is John"))
        await call.wait_for("state", state="thinking")
        await asyncio.sleep(0.1)
        await call.say(say("Doe, and I live in Oslo."))
        await call.wait_for("bot_end", reason="done")
        merged = call.engine.requests[-1].messages[-1]["content"]
        assert merged.startswith("My name is John")
        assert "Oslo" in merged
        assert [role for role, _ in dialogue(call)] == ["user", "user", "assistant"]
        assert loud_after(call, 0)

    converse(scenario, [asyncio.Event(), "Hello John."], ["Hello John."])


def test_who_announces_more_is_waited_for(converse, say):
    """Report G4."""

    async def scenario(call):
        await call.say(say("Let me think, hmm."))
        await asyncio.sleep(3.0)
        assert call.engine.requests == []
        await call.say(say("I would like a pizza."))
        await call.wait_for("bot_end", reason="done")
        (request,) = call.engine.requests
        assert request.messages[-1]["content"].lower().startswith("let me think")
        assert "pizza" in request.messages[-1]["content"]

    converse(scenario, ["A pizza it is."])


def test_three_interruptions_leave_a_valid_context(converse, say):
    async def scenario(call):
        await call.say(say("Please count to forty."))
        for _ in range(3):
            await call.wait_for("state", state="speaking")
            await asyncio.sleep(0.6)
            await call.say(say("Wait, do it again."))
        await call.wait_for("bot_end", reason="done")
        roles = [m["role"] for m in call.engine.requests[-1].messages[1:]]
        assert all(a != b for a, b in zip(roles, roles[1:], strict=False)), roles

    converse(scenario, [COUNT], [COUNT], [COUNT], ["All done."])


@pytest.mark.parametrize("kind", ["silence", "fan", "click"])
def test_no_speech_is_no_turn(converse, kind):
    rng = np.random.default_rng(2)
    sound = {
        "silence": np.zeros(80_000, np.float32),
        "fan": (np.convolve(rng.normal(0, 0.3, 80_000), np.ones(50) / 50, "same")).astype("f4"),
        "click": np.concatenate([np.zeros(4000), [0.9, -0.9] * 8, np.zeros(40_000)]).astype("f4"),
    }[kind]

    async def scenario(call):
        await call.say(sound)
        await asyncio.sleep(4)
        assert dialogue(call) == []
        assert call.engine.requests == []

    converse(scenario)


REPLY = (
    "You could have a large coffee or a small tea with your breakfast, "
    "and there is fresh bread with butter and honey."
)


def test_the_bots_own_echo_does_not_interrupt(converse, say, piper):
    """The microphone hears the bot at -20 dB, 120 ms late."""

    async def scenario(call):
        call.echo = 0.1
        await call.say(say("What do you have for breakfast?"))
        end = await call.wait_for("bot_end")
        assert (end["reason"], end["chars"]) == ("done", len(REPLY))
        assert [role for role, _ in dialogue(call)] == ["user", "assistant"]
        assert len(call.of("state")) < 12, "the bot stutters over its echo"

    converse(scenario, [REPLY], voice=piper)


@pytest.mark.parametrize(
    ("words", "echo"), [("No, wait. What is your name?", 0.1), ("A small tea, a small tea!", 0.0)]
)
def test_a_person_interrupts_over_the_echo_and_in_the_bots_own_words(
    converse, say, piper, words, echo
):
    async def scenario(call):
        call.echo = echo
        await call.say(say("What do you have for breakfast?"))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(2.5)
        await call.say(say(words))
        await call.wait_for("bot_end", reason="done")
        assert dialogue(call)[-1] == ("assistant", "All right.")
        assert [e["reason"] for e in call.of("bot_end")] == ["interrupted", "done"]

    converse(scenario, [REPLY], ["All right."], voice=piper)


def test_nothing_to_say_makes_no_sound_and_no_hang(converse, say):
    async def scenario(call):
        await call.say(say("Show me a smile."))
        await call.wait_for("bot_end")
        assert not call.ear.chunks
        await call.say(say("What is your name?"))
        await call.wait_for("bot_end")
        assert call.voice.said == ["I am Ada."]

    converse(scenario, ["😀 ... !"], ["I am Ada."])


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


def test_two_calls_at_once_do_not_touch_each_other(whisper, say):
    """Two interleaved sessions equal two sequential ones."""
    questions = ["What is your name?", "How old are you?"]
    answers = [["I am Ada."], ["I am two."]]

    async def one(question, answer):
        models = Models(whisper, FakeEngine(answer), FakeVoice(WORD_S))
        async with virtual_call(models, RULES) as call:
            await asyncio.sleep(0.3)
            await call.say(say(question))
            await call.wait_for("bot_end")
            heard = np.concatenate([chunk for _, chunk in call.ear.chunks])
            return dialogue(call), len(heard)

    async def together():
        return await asyncio.gather(*map(one, questions, answers))

    async def in_turn():
        return [await one(q, a) for q, a in zip(questions, answers, strict=True)]

    assert virtual.run(together()) == virtual.run(in_turn())
