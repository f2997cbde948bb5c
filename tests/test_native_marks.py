"""Particles in a served voice's own marks: a text LM's answers through a talker."""

import asyncio
import re

import numpy as np
import pytest
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.tests.utils import run_test

from bots.models import Models, Speech
from bots.virtual_call import virtual_call
from duologue.config import BotConfig, TalkerSection, Token2wavSection
from duologue.lm.conversation import Reference, Style, System
from duologue.lm.cursor import HeardCursor
from duologue.lm.demux import Demux
from duologue.lm.engine import Capabilities, Ids, Request
from duologue.lm.events import AudioTokens, EndReason, Particle, TextDelta, TurnEnd
from duologue.lm.formats import FAMILIES
from duologue.lm.modes import Mode
from duologue.memory import Memory
from duologue.particles import NOTATIONS, renderer_for, talker_renderer
from duologue.rehearsal import virtual
from duologue.token2wav.step import VoicePrompt
from duologue.tools import ToolRegistry
from processors.frames import ParticleFrame
from processors.side_branch import SideBranch
from services.talker import Talker
from tests.fakes import FakeBatcher, FakeEngine, FakeVoice
from tests.lm.streams import decoding, ids_of
from tests.particle_texts import particles

FAMILY = decoding("cosyvoice2-merged")
CLIP_TEXT = "the clip. "
VOICE = VoicePrompt(
    np.zeros(2, np.int32), np.zeros((4, 80), np.float32), np.zeros(192, np.float32), "nobody"
)
SETUP = BotConfig(
    talker=TalkerSection(
        family="cosyvoice2-merged",
        base_url="http://127.0.0.1/v1",
        model="m",
        clip_text=CLIP_TEXT,
    ),
    token2wav=Token2wavSection(model="/nowhere", voice="nobody"),  # type: ignore[arg-type]
)


def speech(count: int) -> list[Ids]:
    """No two in a row are equal: nothing is silent."""
    return [Ids(tuple(ids_of(FAMILY, *range(1, count + 1), "<|eos1|>")))]


@pytest.fixture
def converse(whisper):
    def run(scenario, *answers, talker: FakeEngine):
        async def main():
            voice = FakeVoice(0.2)
            speech = Speech(FAMILY, FakeBatcher(), VOICE, talker)  # type: ignore[arg-type]
            models = Models(whisper, FakeEngine(*answers), voice, speech)  # type: ignore[arg-type]
            async with virtual_call(models, SETUP) as call:
                await asyncio.sleep(0.3)
                await scenario(call)

        virtual.run(main())

    return run


def asked(talker: FakeEngine) -> list[str]:
    """The text of each request, the clip's words with it if its tokens are there, too."""
    out = []
    for request in talker.requests:
        (part,) = request.parts
        ids = list(part.ids)
        assert ids[0] == ids_of(FAMILY, "<|sos|>")[0]
        end = ids.index(ids_of(FAMILY, "<|task_id|>")[0])
        out.append(b"".join(FAMILY.vocab.pieces[token] for token in ids[1:end]).decode())
        assert bool(ids[end + 1 :]) == out[-1].startswith(CLIP_TEXT)
    return out


def shown(call) -> list[tuple[str, bool]]:
    return [(event["text"], event["rendered"]) for event in call.of("particle")]


def test_marks_are_said_in_the_voices_own_way_and_neither_shown_nor_remembered(converse, say):
    talker = FakeEngine(speech(40), speech(60))

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end")
        assert asked(talker) == [
            f"{CLIP_TEXT}[laughter] That is funny!",
            f"{CLIP_TEXT}I will <strong>never</strong> forget it [sigh], you know.",
        ]
        told = "That is funny!  I will never forget it , you know."
        assert call.session.context.messages[-1]["content"].strip() == told
        assert call.of("bot_text")[-1]["text"].strip() == told
        assert shown(call) == [
            ("(laughs)", True),
            ("(nods)", False),
            ("<strong>", True),
            ("(sighs)", True),
        ]

    answer = (
        "(laughs) That is funny! (nods) I will <strong>never</strong> forget it (sighs), you know."
    )
    converse(scenario, [answer], talker=talker)


def test_a_mood_is_an_instruction_in_place_of_the_speaker_until_the_next(converse, say):
    talker = FakeEngine(*[speech(10)] * 3)

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end")
        assert asked(talker) == [
            "用开心的语气说<|endofprompt|>You did it at last!",
            "用开心的语气说<|endofprompt|>But I have to go,",
            "用伤心的语气说<|endofprompt|>I am sorry.",
        ]
        assert shown(call) == [("(happily)", True), ("[sad]", True), ("(shyly)", False)]

    converse(
        scenario,
        ["(happily) You did it at last! But I have to go, [sad] I am sorry. (shyly)"],
        talker=talker,
    )


def test_a_laugh_behind_the_last_word_is_heard(converse, say):
    talker = FakeEngine(speech(30), speech(20))

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        end = await call.wait_for("bot_end")
        assert asked(talker) == [f"{CLIP_TEXT}That is funny.", f"{CLIP_TEXT}[laughter]"]
        assert call.session.context.messages[-1]["content"].strip() == "That is funny."
        assert end["reason"] == "done"
        assert sum(len(chunk) for _, chunk in call.ear.chunks) == 50 * 960

    converse(scenario, ["That is funny. ", "(laughs)"], talker=talker)


def test_who_is_interrupted_while_laughing_has_said_nothing(converse, say):
    talker = FakeEngine(speech(100), speech(10))

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end", turn=2)
        assert "Oh" not in str(call.session.context.messages)

    async def cut_in(call):
        talking = asyncio.create_task(scenario(call))
        await call.wait_for("state", state="speaking")
        await asyncio.sleep(0.6)
        await call.say(say("Stop, please."))
        await talking

    converse(cut_in, ["(laughs) Oh, so very funny!"], ["Yes."], talker=talker)


async def spoken(family: str, *answers: list[str], speaker=()):
    """What is asked of a talker, and what the page hears, for answers that come in pieces."""
    profile = FAMILIES[family]
    books = [profile.codebooks[n] for n in profile.frame or (-1,)]
    sound = "".join((book.token or "").format(book.first_number) for book in books)
    engine, memory = FakeEngine(*[[sound]] * 1000), Memory([])
    talker = Talker(engine, decoding(family), Request(), memory, speaker=speaker)
    branch = SideBranch(memory, ToolRegistry(), renderer_for("piper"))
    frames = []
    for pieces in answers:
        frames += [LLMFullResponseStartFrame(), *map(LLMTextFrame, pieces)]
        frames.append(LLMFullResponseEndFrame())
    down, _ = await run_test(Pipeline([branch, talker]), frames_to_send=frames)
    told = [(f.particle.source, f.rendered) for f in down if isinstance(f, ParticleFrame)]
    prompts = ["".join(part.text for part in request.parts) for request in engine.requests]
    return prompts, told


async def test_it_does_not_matter_how_an_answer_is_cut(monkeypatch):
    monkeypatch.setattr(FakeEngine, "capabilities", Capabilities())
    answer = (
        "(laughs) Well, <happy> that is *sighs* fun! <laughter>So</laughter> (nods) it is. [mn]"
    )
    cuts = [[answer[:n], answer[n:]] for n in range(1, len(answer))]
    whole, told = await spoken("cosyvoice2-merged", [answer])
    assert whole == [
        "<|sos|>[laughter] Well,<|task_id|>",
        "<|sos|>用开心的语气说<|endofprompt|>that is [sigh] fun!<|task_id|>",
        "<|sos|>用开心的语气说<|endofprompt|><laughter>So</laughter> it is.<|task_id|>",
        "<|sos|>用开心的语气说<|endofprompt|>[mn]<|task_id|>",
    ]
    assert told[-2:] == [("(nods)", False), ("[mn]", True)]
    assert await spoken("cosyvoice2-merged", *cuts, list(answer)) == (
        whole * (len(cuts) + 1),
        told * (len(cuts) + 1),
    )


async def test_a_described_voice_changes_for_a_clause(monkeypatch):
    monkeypatch.setattr(FakeEngine, "capabilities", Capabilities())
    prompts, told = await spoken(
        "spark-tts", ["(fast) Run, run. <slow>Wait."], speaker=[Style("female", speed="low")]
    )
    assert [re.search(r"speed_label_(\d)", prompt)[1] for prompt in prompts] == ["3", "1"]  # type: ignore[index]
    assert told == [("(fast)", True), ("<slow>", True)]


async def test_what_a_speakers_prompt_cannot_say_is_told(monkeypatch):
    """Rap needs another checkpoint of Step-Audio-TTS; a cloned voice of Spark-TTS has no labels."""
    monkeypatch.setattr(FakeEngine, "capabilities", Capabilities())
    clip = Reference(((1, 2), (3, 4, 5)), "the clip")
    prompts, told = await spoken(
        "step-audio-tts", ["(RAP) One. <fast>Two."], speaker=[System("speak"), clip]
    )
    assert [
        prompt.partition("<|BOT|> human\n")[2].rpartition(" human\n")[2] for prompt in prompts
    ] == [
        "One.<|EOT|><|BOT|> assistant\n",
        "（快速1）Two.<|EOT|><|BOT|> assistant\n",
    ]
    assert told == [("(RAP)", False), ("<fast>", True)]
    assert not talker_renderer("spark-tts").render(particles("(fast)")[0]).governs


@pytest.mark.parametrize("family", [f for f, p in FAMILIES.items() if Mode.T1_A1 in p.modes])
def test_a_family_has_the_marks_of_its_notation_or_none(family):
    laugh = talker_renderer(family).render(particles("[laughs]")[0])
    known = NOTATIONS.get(family.removesuffix("-merged"))
    assert laugh.text == (known.points.get("laugh") if known else None)


def test_a_sound_takes_time_and_no_words():
    book = FAMILY.profile.codebooks[-1]
    (laugh,) = particles("[laughs]")
    plain, laughing = (HeardCursor(book, aligned=True) for _ in range(2))
    for cursor in (plain, laughing):
        cursor.feed(TextDelta(1, 0, 0, 0, "Oh,", (), True))
        if cursor is laughing:
            cursor.feed(Particle(1, 0, 3, 0, laugh))
        cursor.feed(TextDelta(1, 0, 3, 0, " how very funny that is.", (), True))
        cursor.feed(AudioTokens(1, 0, 0, 0, book.name, tuple(range(50))))
        cursor.feed(TurnEnd(1, 0, 0, 0, EndReason.STOP, 0, {}))

    def when(cursor: HeardCursor, words: str) -> float:
        return next(at / 2 for at in range(101) if cursor.chars_at(at / 2) >= len(words))

    assert when(laughing, "Oh,") < when(plain, "Oh,")
    # A laugh in two seconds of sound: what stands behind it is heard that much later.
    assert when(laughing, "Oh, how") - when(plain, "Oh, how") > 0.3 * 25
    assert laughing.chars_at(50) == len("Oh, how very funny that is.")


def test_the_speech_text_lms_own_tags_are_those_of_its_family():
    """Step-Audio 1 writes its tags anywhere and means singing where others hum."""
    said = Demux(decoding("step-audio1")).push_text("Well (fast) go, （哼唱）la")
    assert [event.mark.name for event in said if isinstance(event, Particle)] == ["fast", "singing"]
    said = Demux(decoding("step-audio2")).push_text("Well (fast) go, （哼唱）la")
    assert [event.mark.name for event in said if isinstance(event, Particle)] == ["hum"]
