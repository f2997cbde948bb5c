"""Models that hear the user: what goes to their server, and when; the pipeline is the real one."""

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest

from bots import assembly
from bots.cli import CONFIGS
from bots.models import load_models
from bots.talk import talk
from duologue.asr.whisper import Transcript
from duologue.audio.pcm import read_audio, write_wav
from duologue.config import load_config
from duologue.errors import DuologueError, EngineError
from duologue.lm.hearing import Hearing
from duologue.rehearsal import virtual
from processors.turns import SpeculativeTurnStop
from tests import hearing_calls
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
from tests.lm.fake_servers import serving
from tests.lm.streams import tokenizer_of
from tests.lm.test_engines_chat import chunk
from tests.test_speech_lm import STORY
from tests.test_turns import NeverSure

hears = hearing_calls.hears


def test_the_model_hears_exactly_what_the_microphone_heard(hears, say):
    async def scenario(call, server):
        onset_s = await call.say(say(SEA))
        ended_s = call.now_s
        await call.wait_for("bot_end")
        (heard,) = server.users(0)
        start_s = call.mic.place_of(heard)
        assert start_s <= onset_s and start_s + len(heard) / 16_000 >= ended_s - 0.1
        assert len(heard) / 16_000 < ended_s - onset_s + 1.5
        assert server.raw(0)[-1] == {"role": "assistant", "content": "<tts_start>", "eot": False}
        # Words stay what is shown and remembered.
        assert call.of("user")[-1]["text"] == SEA
        assert call.session.context.messages[-2] == {"role": "user", "content": SEA}
        assert said(call) == "the clock says it is time"
        assert call.batcher.tokens == [1 + n for n in range(50)]

    hears(scenario, speech("the clock says it is time", 50))


@pytest.mark.parametrize("history", ["words", "sound"])
def test_what_has_been_answered_is_remembered_as_set_up(hears, say, history):
    async def scenario(call, server):
        for turn, text in enumerate([SEA, MORE], 1):
            await call.say(say(text))
            await call.wait_for("bot_end", turn=turn)
        (first,), (past, second) = server.users(0), server.users(1)
        call.mic.place_of(second)
        assert isinstance(past, str) if history == "words" else np.array_equal(past, first)
        answer = next(m for m in server.raw(1) if m["role"] == "assistant")
        assert answer["tts_content"]["tts_text"] == "it is time"

    hears(scenario, speech("it is time", 20), setup=config(history=history))


class Slow:
    """A recogniser that understands nothing before speech has ended."""

    def __init__(self, whisper):
        self.pool, self._whisper = whisper.pool, whisper

    def transcribe(self, samples, *, hasty=False):
        return Transcript("", -1.0, 1.0) if hasty else self._whisper.transcribe(samples)


@pytest.mark.parametrize("slow", [False, True])
def test_an_interruption_is_heard_alone_and_cuts_the_answer(hears, whisper, say, slow):
    async def scenario(call, server):
        await call.say(say(SEA))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(2.0)
        await call.say(say("Mm-hmm."))
        await asyncio.sleep(1.0)
        onset_s = await call.say(say(STOP))
        await call.wait_for("bot_end", turn=2)
        await server.left.wait()
        before, heard = server.users(1)
        assert before == SEA
        assert onset_s - 1.1 < call.mic.place_of(heard) <= onset_s
        assert len(heard) / 16_000 < len(say(STOP)) / 16_000 + 1.5
        kept = next(m for m in server.raw(1) if m["role"] == "assistant")["tts_content"]["tts_text"]
        assert kept and STORY.startswith(kept) and kept != STORY

    story = speech(STORY, 200)
    hears(scenario, [*story[:-1], asyncio.Event()], whisper=Slow(whisper) if slow else whisper)


def test_a_model_that_hears_may_answer_in_text(hears, say):
    async def scenario(call, server):
        await call.say(say(SEA))
        await call.wait_for("bot_end")
        (heard,) = server.users(0)
        call.mic.place_of(heard)
        assert server.raw(0)[-1]["role"] == "user"
        assert call.voice.said == ["It is deep."] and call.batcher.tokens == []

    deltas = [chunk(content="It is "), chunk(content="deep."), chunk("stop")]
    hears(scenario, deltas, setup=config("qwen3-omni", mode="A1-T2"))


def test_a_user_who_goes_on_before_an_answer_is_heard_as_a_whole(hears, say):
    async def scenario(call, server):
        await call.say(say(SEA))
        await server.asked.wait()
        await call.say(say(MORE))
        await call.wait_for("bot_end", reason="done")
        (first,), (whole,) = server.users(0), server.users(-1)
        assert np.array_equal(whole[: len(first)], first)
        rest = whole[len(first) :]
        assert call.mic.place_of(first) < call.mic.place_of(rest)
        assert call.session.context.messages[-1]["role"] == "assistant"

    hears(scenario, [asyncio.Event()], speech("yes", 8))


def test_two_stretches_of_one_turn_are_one_sound(hears, say):
    async def scenario(call, server):
        onset_s = await call.say(say(SEA))
        await asyncio.sleep(0.35)
        await call.say(say("And tell me of the animals in it."))
        ended_s = call.now_s
        await call.wait_for("bot_end")
        (heard,) = server.users(-1)
        start_s = call.mic.place_of(heard)
        assert start_s <= onset_s and start_s + len(heard) / 16_000 >= ended_s - 0.1

    hears(scenario, speech("yes", 8))


def test_an_overlong_turn_is_read(hears, say):
    """Nothing of it is lost, and the next one is heard again."""
    animals = "And tell me of the animals in it."

    async def scenario(call, server):
        await call.say(say(SEA))
        await asyncio.sleep(0.35)
        await call.say(say(animals))
        await call.wait_for("bot_end")
        (read,) = server.users(0)
        assert read.startswith("Tell me about the sea") and read.endswith("animals in it.")
        assert server.raw(0)[-1]["content"] == "<tts_start>"
        assert said(call) == "it is time"
        await call.say(say(SEA))
        await call.wait_for("bot_end", turn=2)
        past, heard = server.users(1)
        assert past == read
        call.mic.place_of(heard)

    hears(scenario, speech("it is time", 20), setup=config(longest_turn_s=3))


def test_old_sound_becomes_words_once_the_prompt_is_too_long(hears, say):
    async def scenario(call, server):
        for turn in range(1, 7):
            await call.say(say(MORE if turn % 2 else SEA))
            await call.wait_for("bot_end", turn=turn)
        kept = [sum(isinstance(user, np.ndarray) for user in server.users(n)) for n in range(6)]
        whole = kept.index(1, 1)
        assert whole > 2 and kept[:whole] == [*range(1, whole + 1)]
        assert kept[whole:] == [*range(1, 7 - whole)]
        for number in range(6):
            call.mic.place_of(server.users(number)[-1])

    hears(scenario, setup=config(history="sound", budget=256))


def test_two_callers_are_heard_apart(whisper, say):
    async def main():
        server = Hearer()
        setup = config()
        async with serving(server), AsyncExitStack() as stack:
            calls = [await enter(stack, whisper, server, setup) for _ in range(2)]
            await asyncio.sleep(0.3)
            texts = [(SEA, MORE), ("What time is it in Tokyo?", STOP)]

            async def talk_of(call, said) -> None:
                for turn, text in enumerate(said, 1):
                    await call.say(say(text))
                    await call.wait_for("bot_end", turn=turn)

            await asyncio.gather(*map(talk_of, calls, texts))
            assert len(server.requests) == 4
            owners = []
            for number in range(4):
                heard = server.users(number)[-1].tobytes()
                (owner,) = [c for c in (0, 1) if heard in calls[c].mic.audio]
                owners.append(owner)
            assert sorted(owners) == [0, 0, 1, 1]

    virtual.run(main())


def test_a_tools_result_is_told_to_whom_was_heard(hears, say):
    async def scenario(call, server):
        await call.say(say("What time is it in Tokyo?"))
        await call.wait_for("bot_end", turn=2)
        (first,), (again,) = server.users(0), server.users(1)
        assert np.array_equal(first, again)
        assert server.raw(1)[-2]["role"] == "input"
        assert said(call).strip() == "it is late"

    piece = {"index": 0, "id": "a", "function": {"name": "current_time", "arguments": "{}"}}
    asks = [*speech("let me look", 20)[:-1], chunk(tool_calls=[piece]), chunk("tool_calls")]
    hears(scenario, asks, speech("it is late", 20))


@pytest.fixture
def never_sure(monkeypatch):
    """Silence ends turns, and the LM is asked as soon as they may be over."""
    stop = lambda _: SpeculativeTurnStop(turn_analyzer=NeverSure())  # noqa: E731
    monkeypatch.setattr(assembly, "_turn_stop", stop)


def test_a_wrong_guess_keeps_nothing_from_the_turn(hears, say, never_sure):
    async def scenario(call, server):
        await call.say(say("What is the capital"))
        await server.asked.wait()
        await call.say(say("of France and Spain?"))
        await call.wait_for("bot_end", reason="done")
        (guess,), (whole,) = server.users(0), server.users(1)
        assert np.array_equal(whole[: len(guess)], guess)
        call.mic.place_of(whole)
        assert len(server.requests) == 2

    hears(scenario, [asyncio.Event()], speech("yes", 8))


def test_a_right_guess_is_asked_once_and_remembered(hears, say, never_sure):
    async def scenario(call, server):
        await call.say(say(SEA))
        await call.wait_for("bot_end")
        assert len(server.requests) == 1
        await call.say(say(MORE))
        await call.wait_for("bot_end", turn=2)
        (first,), (past, second) = server.users(0), server.users(1)
        assert np.array_equal(first, past)
        assert call.mic.place_of(first) < call.mic.place_of(second)

    hears(scenario, setup=config(history="sound"))


def stretch(hearing: Hearing, text: str, count: int, rate_hz: int = 16_000) -> None:
    hearing.hear(text, np.full(count, count, "<i2").tobytes(), rate_hz)


def lengths(hearing: Hearing, *messages: dict, past: bool = True) -> list[int]:
    sounds = hearing.attend(messages, past=past, provisional=False)
    return [len(sound.samples) if sound else 0 for sound in sounds]


def test_words_tell_which_stretches_make_up_a_message():
    hearing = Hearing(10)
    ask, answer = {"role": "user", "content": "Yes, I do. Why?"}, {"role": "assistant"}
    stretch(hearing, "Yes.", 1)
    stretch(hearing, "Yes, I do.", 10)
    stretch(hearing, " Why? ", 100)
    stretch(hearing, "Why?", 1000)
    assert lengths(hearing, ask) == [110]
    again = {"role": "user", "content": "Why?"}
    assert lengths(hearing, ask, answer, again) == [110, 0, 1000]
    assert lengths(hearing, ask, answer, again, past=False) == [0, 0, 1000]
    assert lengths(hearing, ask, answer, again) == [0, 0, 1000]
    # An equal message is not the same one.
    assert lengths(hearing, dict(again)) == [0]


def test_sound_of_a_phone_comes_at_the_models_rate():
    hearing = Hearing(10)
    stretch(hearing, "Yes.", 8_000, rate_hz=8_000)
    assert lengths(hearing, {"role": "user", "content": "Yes."}) == [16_000]


def test_what_waits_is_bounded():
    hearing = Hearing(1)
    for n in range(100):
        stretch(hearing, f"word{n}", 8_000)
    assert sum(len(stretch.samples) for stretch in hearing._stretches) == 16_000
    assert lengths(hearing, {"role": "user", "content": "word98 word99"}) == [16_000]


@pytest.mark.parametrize("when", ["at the start", "in a call"])
def test_a_server_that_takes_no_sound_says_so(hears, say, tmp_path, when):
    refusal = "At most 0 audio(s) may be provided in one prompt."

    async def scenario(call, server):
        await call.say(say(SEA))
        error = await call.wait_for("error")
        assert refusal in error["message"] and "T1-T2A2" in error["message"]

    async def start() -> None:
        server = Hearer(refusal)
        tokenizer_of("step-audio2").save(str(tmp_path / "tokenizer.json"))
        async with serving(server):
            setup = load_config(
                CONFIGS / "step-audio2.yaml",
                flags=[
                    "speech_lm.mode=A1-T2A2",
                    "speech_lm.voice=decoupled",
                    f"speech_lm.base_url={server.url}",
                    f"speech_lm.tokenizer={tmp_path}",
                    "token2wav=null",
                ],
                environ={},
            )
            with pytest.raises(EngineError, match="At most 0 audio.*such as T1-T2A2"):
                await load_models(setup)

    if when == "in a call":
        hears(scenario, refusal, errors=True)
    else:
        asyncio.run(start())


HEARS = "step-audio2 on vllm"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["speech_lm.mode=A1-T1"], "a bot answers: choose one of A1-T2, A1-T2A2"),
        (["speech_lm.mode=T1-A1"], "a bot answers"),
        (["speech_lm.server=sglang"], f"not 'sglang': with step-audio2 only vllm.*{HEARS}"),
        (["speech_lm.family=step-audio2-base", "lm.tool_choice=none"], "given no chat messages"),
        (["speech_lm.family=glm-4-voice", "lm.tool_choice=none"], f"own encoder.*{HEARS}.*T1-T2A2"),
        (["speech_lm.family=step-audio1", "speech_lm.mode=A1-T2", "lm.tool_choice=none"], "T1-T2"),
        (["speech_lm.family=qwen3-omni"], "cannot do A1-T2A2, only"),
        (["speech_lm.family=kimi-audio", "lm.tool_choice=none"], "two streams"),
        (["speech_lm.family=step-audio2-think"], "lm.tool_choice"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
async def test_what_cannot_hear_is_known_before_anything_is_loaded(flags, complaint):
    nothing = ["asr.model=/nowhere", "voice.model=/nowhere", "speech_lm.mode=A1-T2A2"]
    setup = load_config(CONFIGS / "step-audio2.yaml", flags=[*nothing, *flags], environ={})
    with pytest.raises(DuologueError, match=complaint):
        await load_models(setup)


async def test_a_recording_is_heard_from_a_set_up(tmp_path, say):
    server = Hearer(speech("ready", 0), speech("it is time to laugh", 40))
    tokenizer_of("step-audio2").save(str(tmp_path / "tokenizer.json"))
    write_wav(tmp_path / "in.wav", say(SEA), 16_000)
    async with serving(server):
        flags = [
            "speech_lm.mode=A1-T2A2",
            "speech_lm.voice=decoupled",
            f"speech_lm.base_url={server.url}",
            f"speech_lm.tokenizer={tmp_path}",
            "token2wav=null",
        ]
        setup = load_config(CONFIGS / "step-audio2.yaml", flags=flags, environ={})
        result = await talk(tmp_path / "in.wav", tmp_path / "out.wav", setup)
    assert (result.transcript, result.reply) == (SEA, "it is time to laugh")
    assert result.audio_s > 0.5
    (probe,), (heard,) = server.users(0), server.users(1)
    assert not probe.any() and server.requests[0]["max_tokens"] == 1
    samples = read_audio(tmp_path / "in.wav")
    assert len(samples) <= len(heard) < len(samples) + 1.5 * 16_000
    assert np.abs(heard).max() == pytest.approx(np.abs(samples).max() * 32_767, abs=1)
