"""Whole conversations in virtual time: real VAD and ASR, a scripted LM, a voice of exact words.

Reports A1, A3, A5, A9, A11, B1, B3, B6, D11, G1, G2.
"""

import asyncio

import numpy as np
import pytest

from bots.models import Models
from bots.virtual_call import virtual_call
from duologue.duplex import tokens
from duologue.rehearsal import virtual
from tests.conversing import COUNT, RULES, WORD_S, dialogue
from tests.fakes import FakeEngine, FakeVoice


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
