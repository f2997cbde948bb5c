"""Speculation on a likely end of turn: sooner when right, without a trace when wrong."""

import asyncio

import pytest
from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer, BaseTurnParams, EndOfTurnState

from bots import assembly
from bots.models import Models
from bots.virtual_call import virtual_call
from duologue.asr.whisper import Transcript
from duologue.config import BotConfig
from duologue.rehearsal import virtual
from processors.turns import SmartTurnStop, SpeculativeTurnStop, announces_more
from tests.fakes import FakeEngine, FakeVoice

SILENCE_S = 1.2


class NeverSure(BaseTurnAnalyzer):
    """Says "not finished" to everything, so that silence has to decide."""

    def __init__(self):
        super().__init__()
        self._speech, self._silence_s = False, 0.0

    @property
    def speech_triggered(self) -> bool:
        return self._speech

    @property
    def params(self) -> BaseTurnParams:
        return BaseTurnParams()

    def append_audio(self, buffer: bytes, is_speech: bool) -> EndOfTurnState:
        self._speech = self._speech or is_speech
        self._silence_s = 0.0 if is_speech else self._silence_s + len(buffer) / 2 / 16_000
        if self._speech and self._silence_s >= SILENCE_S:
            self.clear()
            return EndOfTurnState.COMPLETE
        return EndOfTurnState.INCOMPLETE

    async def analyze_end_of_turn(self):
        return EndOfTurnState.INCOMPLETE, None

    def clear(self):
        self._speech, self._silence_s = False, 0.0


@pytest.fixture
def converse(whisper, monkeypatch):
    def run(scenario, *answers, kind=SpeculativeTurnStop, asr=None):
        monkeypatch.setattr(assembly, "_turn_stop", lambda _: kind(turn_analyzer=NeverSure()))
        engine = FakeEngine(*answers)

        async def main():
            async with virtual_call(
                Models(asr or whisper, engine, FakeVoice()), BotConfig()
            ) as call:
                call.engine = engine
                await asyncio.sleep(0.3)
                return await scenario(call)

        return virtual.run(main())

    return run


def texts(call) -> list[str]:
    return [m["content"] for m in call.session.context.messages[1:]]


def test_the_answer_is_ready_when_the_turn_ends(converse, say):
    async def scenario(call):
        await call.say(say("What is your name?"))
        end_s = call.now_s
        await call.engine.asked.wait()
        asked_s = call.now_s - end_s
        await call.wait_for("bot_end", reason="done")
        assert asked_s < 0.5
        (latency,) = call.of("latency")
        assert latency["total_ms"] >= 1000 * SILENCE_S
        assert len(call.engine.requests) == 1
        assert texts(call) == ["What is your name?", "I am Ada."]

    converse(scenario, ["I am Ada."])


def test_without_speculation_the_lm_is_asked_at_the_end(converse, say):
    async def scenario(call):
        await call.say(say("What is your name?"))
        await asyncio.sleep(SILENCE_S - 0.3)
        assert call.engine.requests == []
        await call.wait_for("bot_end", reason="done")

    converse(scenario, ["I am Ada."], kind=SmartTurnStop)


class Deaf:
    """A recogniser that understands long stretches only."""

    pool = None

    def transcribe(self, samples, *, hasty=False):
        long = len(samples) > 1.25 * 16_000
        return Transcript("What is your name?" if long else "", -0.1, 0.0 if long else 1.0)


def test_a_sound_behind_a_sentence_does_not_hold_the_turn_open(converse, say):
    """It is a stretch of its own, and its transcript is empty."""

    async def scenario(call):
        await call.say(say("What is your name?"))
        await asyncio.sleep(0.4)
        await call.say(say("Hm."))
        end_s = call.now_s
        await call.wait_for("bot_text", within_s=4)
        assert call.now_s - end_s < SILENCE_S + 0.8

    converse(scenario, ["I am Ada."], ["I am Ada."], asr=Deaf())


def test_a_wrong_guess_leaves_no_trace(converse, say):
    async def scenario(call):
        await call.say(say("What is the capital"))
        await call.engine.asked.wait()
        await call.say(say("of France and Spain?"))
        await call.wait_for("bot_end", reason="done")
        assert call.engine.closed == len(call.engine.requests) == 2
        last = call.engine.requests[-1].messages[-1]["content"]
        assert last.lower().startswith("what is the capital")
        assert "spain" in last.lower()
        assert texts(call)[1:] == ["Paris and Madrid."]
        assert [e["text"] for e in call.of("bot_text")] == ["Paris and Madrid."]

    converse(scenario, ["A capital", asyncio.Event()], ["Paris and Madrid."])


@pytest.mark.parametrize(
    "text", ["Let me think, hmm", "I would like um...", "Well, and", "I want to", "我想，嗯"]
)
def test_hesitation_announces_more(text):
    assert announces_more(text)


@pytest.mark.parametrize("text", ["What is it?", "I am happy.", "Android", "", "你好。"])
def test_finished_sentences_do_not(text):
    assert not announces_more(text)
