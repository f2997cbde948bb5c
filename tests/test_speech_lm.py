"""Conversations with a speech-text LM: Step-Audio 2's stream, in virtual time."""

import asyncio
from itertools import zip_longest

import numpy as np
import pytest

from bots.cli import CONFIGS
from bots.models import Models, Speech, load_models
from bots.virtual_call import virtual_call
from duologue.config import (
    BotConfig,
    LmConfig,
    SpeechLmConfig,
    TalkerSection,
    Token2wavSection,
    load_config,
)
from duologue.errors import ConfigError, DuologueError, EngineError
from duologue.lm.engine import Finish, Ids
from duologue.lm.formats import find_family
from duologue.lm.modes import Mode
from duologue.rehearsal import virtual
from duologue.token2wav.step import VoicePrompt
from tests.fakes import FakeBatcher, FakeEngine, FakeVoice
from tests.lm.streams import decoding, ids_of

FAMILY = decoding("step-audio2")
VOICE = VoicePrompt(
    np.zeros(2, np.int32), np.zeros((4, 80), np.float32), np.zeros(192, np.float32), "nobody"
)
COSYVOICE2 = decoding("cosyvoice2-merged")
TALKER = TalkerSection(
    family="cosyvoice2-merged",
    base_url="http://127.0.0.1/v1",
    model="m",
    clip_text="hello",
    instruction=None,
)
ANSWER = "The sea is deep. Many animals live in all of it there and nobody knows them."
STORY = "the clock says it is time to laugh and sigh and to laugh and sigh and to look at it"
TOKENS = 140
GROUP = 4


def ids(*parts: str | int) -> list[int]:
    return ids_of(FAMILY, *parts)


def ta4(text: str, audio: int) -> list[int]:
    """Behind `<tts_start>`: text, four audio tokens, and so on; what ends first is padded.

    Three text tokens go for one, because a tiny tokenizer's are short: text runs ahead of speech as
    in public streams. No two audio tokens in a row are equal: nothing is silent.
    """
    tokens = ids(text)
    words = [tokens[n : n + 3] for n in range(0, len(tokens), 3)]
    codes = [ids(1 + n % 1000) for n in range(audio)]
    groups = [codes[n : n + GROUP] for n in range(0, audio, GROUP)]
    pad = ids("<tts_pad>")
    stream: list[int] = []
    for word, group in zip_longest(words, groups):
        stream += word or pad
        stream += [token for code in group or [] for token in code]
        stream += ids("<audio_6561>") * (GROUP - len(group or []))
    return [*stream, *ids("<tts_end>")]


def answer(*streams: list[int]) -> list[Ids]:
    """As a server gives it, a few ids at a time."""
    whole = [*(token for stream in streams for token in stream), *ids("<|EOT|>")]
    return [Ids(tuple(whole[n : n + 7])) for n in range(0, len(whole), 7)]


def config(mode: Mode = Mode.T1_T2A2) -> BotConfig:
    return BotConfig(
        lm=LmConfig(tool_choice="model"),
        speech_lm=SpeechLmConfig(
            family="step-audio2", mode=mode, base_url="http://127.0.0.1/v1", model="m"
        ),
        token2wav=Token2wavSection(model="/nowhere", voice="nobody"),  # type: ignore[arg-type]
    )


@pytest.fixture
def converse(whisper):
    def run(scenario, *answers, mode: Mode = Mode.T1_T2A2, decoded: bool = True, talker=None):
        async def main():
            engine, batcher, voice = FakeEngine(*answers), FakeBatcher(), FakeVoice(0.2)
            decoder = (batcher, VOICE) if decoded and mode.audio_out else ()
            setup = config(mode)
            if talker:
                setup = BotConfig(talker=TALKER, token2wav=setup.token2wav)
                speech = Speech(COSYVOICE2, batcher, VOICE, talker)  # type: ignore[arg-type]
            else:
                speech = Speech(FAMILY, *decoder)  # type: ignore[arg-type]
            models = Models(whisper, engine, voice, speech)  # type: ignore[arg-type]
            async with virtual_call(models, setup) as call:
                call.engine, call.batcher, call.voice = engine, batcher, voice
                await asyncio.sleep(0.3)
                await scenario(call)

        virtual.run(main())

    return run


def said(call) -> str:
    return call.session.context.messages[-1]["content"]


def prompt(call, number: int) -> list[int]:
    (part,) = call.engine.requests[number].parts
    return list(part.ids)


def test_the_stream_is_shown_spoken_and_remembered(converse, say):
    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        end = await call.wait_for("bot_end")
        assert end["reason"] == "done"
        assert said(call) == "the clock says it is time"
        assert call.of("bot_text")[-1]["text"] == "the clock says it is time"
        assert call.batcher.tokens == [1 + n for n in range(50)]
        assert sum(len(chunk) for _, chunk in call.ear.chunks) == 50 * 960
        assert call.voice.said == []
        await call.say(say("Tell me more."))
        await call.wait_for("bot_end", turn=2)
        assert prompt(call, 0)[-1:] == ids("<tts_start>")
        first = prompt(call, 0)
        assert prompt(call, 1)[: len(first)] == first
        assert [token for token in prompt(call, 1) if token in ids(*range(1, 51))] == ids(
            *range(1, 51)
        )

    converse(scenario, answer(ta4("the clock says it is time", 50)), answer(ta4("yes", 8)))


def test_an_interruption_keeps_the_words_and_the_speech_that_were_heard(converse, say):
    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("state", state="speaking")
        started_s = call.now_s
        await asyncio.sleep(2.5)
        await call.say(say("Stop, please."))
        await call.wait_for("bot_end", turn=2)
        ((ended_s, end),) = (
            (at, e) for at, e in call.events if e["type"] == "bot_end" and e["turn"] == 1
        )
        assert end["reason"] == "interrupted"
        kept = call.session.context.messages[-3]["content"]
        assert STORY.startswith(kept) and len(kept) == end["chars"]
        share = (ended_s - started_s) / (TOKENS / 25)
        assert abs(len(kept) / len(STORY) - share) < 0.12
        speech = [token for token in prompt(call, 1) if token in set(ids(*range(1, TOKENS + 1)))]
        assert speech == ids(*range(1, len(speech) + 1))
        assert abs(len(speech) / TOKENS - share) < 0.12

    converse(scenario, answer(ta4(STORY, TOKENS)), answer(ta4("yes", 8)))


def test_a_tool_runs_while_the_speech_before_its_call_is_playing(converse, say):
    call_text = 'function\ncurrent_time\n{"place": "Tokyo"}'

    async def scenario(call):
        await call.say(say("What time is it in Tokyo?"))
        await call.wait_for("tool", status="result")
        known_s = call.now_s
        await call.wait_for("bot_end", turn=1)
        assert call.now_s - known_s > 3
        await call.wait_for("bot_end", turn=2)
        assert ids("<tool_call>")[0] in prompt(call, 1)
        texts = [event["text"] for event in call.of("bot_text")]
        assert texts[-1] == "it is late"
        assert not any("function" in text or "tool_call" in text for text in texts)

    converse(
        scenario,
        answer(ta4("let me look", 100), ids("<tool_call>"), ids(call_text), ids("</tool_call>")),
        answer(ta4("it is late", 20)),
    )


def test_two_calls_in_one_answer_are_told_together(converse, say):
    def call_of(place: str) -> list[int]:
        body = f'function\ncurrent_time\n{{"place": "{place}"}}'
        return [*ids("<tool_call>"), *ids(body), *ids("</tool_call>")]

    async def scenario(call):
        await call.say(say("What time is it in Tokyo and in Paris?"))
        await call.wait_for("bot_end", turn=2)
        assert [e["status"] for e in call.of("tool")].count("result") == 2
        await asyncio.sleep(3)
        assert len(call.engine.requests) == 2
        assert said(call) == "it is late"

    first = answer(ta4("let me look", 40), call_of("Tokyo"), call_of("Paris"))
    converse(scenario, first, answer(ta4("it is late", 20)))


@pytest.mark.parametrize("fails", [True, False], ids=["an error", "no more tokens"])
def test_what_no_sound_has_said_is_not_remembered(converse, say, fails):
    """Text runs ahead of speech: what an unfinished stream has not said was never heard."""
    stream = ta4(STORY, TOKENS)
    cut = [Ids(tuple(stream[n : n + 7])) for n in range(0, 70, 7)]
    end = EngineError("the server is gone") if fails else Finish("length")

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        ended = await call.wait_for("bot_end")
        assert 0 < ended["chars"] < len(STORY) / 2
        assert said(call) == STORY[: ended["chars"]]
        call.events[:] = [e for e in call.events if e[1]["type"] != "error"]

    converse(scenario, [*cut, end])


def test_a_malformed_call_is_reported_and_never_said_or_remembered(whisper, say, converse):
    async def scenario(call):
        await call.say(say("What time is it?"))
        error = await call.wait_for("error")
        assert "tool call" in error["message"]
        await call.wait_for("bot_end")
        assert said(call) == "let me look"
        assert "tool_calls" not in call.session.context.messages[-1]
        call.events[:] = [e for e in call.events if e[1]["type"] != "error"]

    converse(
        scenario,
        answer(ta4("let me look", 20), ids("<tool_call>"), ids("clock {"), ids("</tool_call>")),
    )


def test_what_no_speech_token_says_is_said_behind_them(converse, say):
    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end", turn=2)
        assert call.voice.said == ["it is late."]
        texts = [m["content"].strip() for m in call.session.context.messages[-2:]]
        assert texts == ["let me look", "it is late."]

    converse(scenario, answer(ta4("let me look", 40), ids("it is late.")))


def test_an_answer_in_text_alone_goes_to_the_decoupled_voice(converse, say):
    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end")
        assert call.voice.said == ["it is time to laugh."]
        assert call.batcher.tokens == []

    converse(scenario, answer(ids("it is time to laugh.")), mode=Mode.T1_T2)


def test_without_a_decoder_the_decoupled_voice_says_what_the_stream_says(converse, say):
    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end")
        assert call.voice.said == ["it is time to laugh."]
        await call.say(say("Tell me more."))
        await call.wait_for("bot_end", turn=2)
        speech = ids(*range(1, 41))
        assert [token for token in prompt(call, 1) if token in set(speech)] == speech

    converse(
        scenario, answer(ta4("it is time to laugh.", 40)), answer(ta4("yes", 8)), decoded=False
    )


def test_a_talker_speaks_another_models_text_clause_by_clause(converse, say):
    def speech(first: int, count: int) -> list[Ids]:
        tokens = ids_of(COSYVOICE2, *range(first, first + count), "<|eos1|>")
        return [Ids(tuple(tokens[n : n + 15])) for n in range(0, len(tokens), 15)]

    talker = FakeEngine(speech(1, 40), speech(101, 75), speech(301, 10))

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(2.4)
        await call.say(say("Stop, please."))
        await call.wait_for("bot_end", turn=2)
        assert call.batcher.tokens == [*range(1, 41), *range(101, 176), *range(301, 311)]
        asked = [COSYVOICE2.vocab.encode(text) for text in ("helloThe sea is deep.", "helloYes.")]
        prompts = [list(request.parts[0].ids) for request in talker.requests]
        for words, prompt_ids in zip(asked, (prompts[0], prompts[2]), strict=True):
            assert prompt_ids[1 : 1 + len(words)] == words
            assert prompt_ids[-2:] == ids_of(COSYVOICE2, 0, 0)
        kept = call.session.context.messages[-3]["content"]
        assert kept.startswith("The sea is deep. Many") and kept != ANSWER
        assert call.voice.said == []

    converse(scenario, [ANSWER], ["Yes."], talker=talker)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_set_up_is_valid_and_its_family_can_do_what_it_asks(path):
    setup = load_config(path, environ={})
    if setup.speech_lm is not None:
        find_family(setup.speech_lm.family).check_mode(setup.speech_lm.mode)
    if setup.talker is not None:
        find_family(setup.talker.family).check_mode(Mode.T1_A1)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["lm.tool_choice=rules"], "lm.tool_choice"),
        (["token2wav=null"], "speech_lm.voice to decoupled"),
        (["talker={family: a, base_url: b, model: c}"], "leave speech_lm out"),
        (["speech_lm.famly=x"], "did you mean family?"),
        (["speech_lm.mode=T3-T4"], "A1-T2A2"),
    ],
)
def test_a_set_up_that_cannot_speak_is_refused(flags, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_config(CONFIGS / "step-audio2.yaml", flags=flags, environ={})


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["speech_lm.family=glm-5"], "glm-4-voice"),
        (["speech_lm.family=spark-tts"], "T1-A1"),
        (["speech_lm.tokenizer=/nowhere"], "tokenizer.json"),
        (["speech_lm.tokenizer=null"], "speech_lm.tokenizer"),
    ],
)
async def test_what_does_not_fit_is_known_before_anything_is_loaded(flags, complaint):
    nothing = ["asr.model=/nowhere", "voice.model=/nowhere"]
    config = load_config(CONFIGS / "step-audio2.yaml", flags=[*flags, *nothing], environ={})
    with pytest.raises(DuologueError, match=complaint):
        await load_models(config)
