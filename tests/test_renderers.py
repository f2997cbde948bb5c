"""Every public tag, wherever a stream is cut, through every engine's renderer."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.errors import InputError, UsageError
from duologue.particles import (
    INTERJECTIONS,
    LEXICON,
    NOTATIONS,
    Kind,
    Particle,
    Rendered,
    Text,
    Unknown,
    renderer_for,
)
from duologue.particles.renderers.cosyvoice import END_OF_PROMPT, SYSTEM
from duologue.particles.renderers.index_tts import BIAS
from duologue.particles.taxonomy import ELEMENTS, GOVERNING, TAXONOMY
from tests.particle_texts import compose, scanned

ENGINES = sorted(NOTATIONS)

# As the engines' own documentation spells them.
STEP_AUDIO_TTS = (
    "高兴1 高兴2 生气1 生气2 悲伤1 撒娇1 中文 英文 韩语 日语 四川话 粤语 广东话 RAP 哼唱 慢速1"
    " 慢速2 快速1 快速2"
).split()
EDITX = (
    "[Breathing] [Laughter] [Uhm] [Sigh] [Surprise-oh] [Surprise-ah] [Surprise-wa]"
    " [Confirmation-en] [Question-ei] [Dissatisfaction-hnn] [Sichuanese] [Cantonese]"
).split()
COSYVOICE = (
    "[breath] [noise] [laughter] [cough] [clucking] [accent] [quick_breath] [hissing] [sigh]"
    " [vocalized-noise] [lipsmack] [mn]"
).split()
COSYVOICE_RANGES = ["<laughter>", "</laughter>", "<strong>", "</strong>"]
PHONEMES = "[AH0] [S] [a] [o] [ā] [ǐ] [uang] [NG]".split()

TAGS = {
    "step-audio-tts": [f"（{tag}）" for tag in STEP_AUDIO_TTS] + ["(高兴1)", "（高兴1)"],
    "step-audio1": ["(RAP)", "(fast)", "(slow)", "（快速）"],
    "editx": [*EDITX, "[Suprise-oh]", "[Suprise-ah]", "[Suprise-wa]"],
    "editx-modes": "[happy] [fear] [humour] [act_coy] [ethereal] [advertising] [roar]".split(),
    "cosyvoice": COSYVOICE + COSYVOICE_RANGES,
    "orpheus": "<laugh> <chuckle> <sigh> <cough> <sniffle> <groan> <yawn> <gasp>".split(),
    "chatterbox": ["[laugh]", "[sigh]"],
    "higgs": ["<SE>[Laughter]</SE>"],
    "chattts": ["[laugh]", "[uv_break]", "[lbreak]"],
    "fish": "[laughing] [chuckling] [clear_throat] [sighing] [gasping] [groaning] [yawning]"
    " [sobbing] [break] [whispering]".split()
    + ["[clear throat]", "[very sad]"],
    "xai": "[inhale] [exhale] [giggle] [cry] [tsk] [tongue-click] [lip-smack] [hum-tune] <whisper>"
    " </whisper> <soft> <loud> <slow> <fast> <singing> <laugh-speak>".split(),
    "cartesia": ['<break time="1s"/>', '<emotion value="angry"/>', '<speed ratio="1.2"/>'],
    "livekit": ['<expr type="sound" label="sigh"/>'],
    "models": ["(laughs)", "*sighs*", "【轻笑】", "[[laughter]]", "（哼唱）", "(laughs softly)"],
}
ALL_TAGS = [tag for tags in TAGS.values() for tag in tags]


def marks_of(engine: str) -> list[str]:
    notation = NOTATIONS[engine]
    return [
        *notation.points.values(),
        *(mark for marks in notation.ranges.values() for mark in marks),
        *(mark for marks in notation.leads.values() for mark in marks),
    ]


def without_marks(engine: str, text: str) -> str:
    for mark in marks_of(engine):
        text = text.replace(mark, "")
    return text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", TAGS)
def test_no_public_tag_is_said_wherever_the_stream_is_cut(source, engine):
    """kyutai-labs/unmute#158, jamiepine/voicebox#450, jianchang512/ChatTTS-ui#51 and others."""
    for tag in TAGS[source]:
        for text in (f"{tag} 你好 Hello.", f"Well. {tag} Hello."):
            whole = compose(engine, text)
            assert "".join(utterance.words for utterance in whole).split() == (
                text.replace(tag, "").split()
            )
            for utterance in whole:
                left = without_marks(engine, utterance.text)
                assert re.fullmatch(r"[\w\s.你好]*", left), (tag, utterance)
            for cut in range(1, len(text)):
                assert compose(engine, text[:cut], text[cut:]) == whole
            assert compose(engine, *text) == whole


NEGATIVES = [
    "3<5 and 5 > 3",
    "I <3 you",
    "f(x) = y",
    "住在（北京）。",
    "see [1] there",
    "an unclosed ( bracket",
    "a*b*c",
    "call (555) 0100",
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", NEGATIVES)
def test_ordinary_brackets_are_words_for_every_engine(text, engine):
    (utterance,) = compose(engine, *text)
    assert (utterance.words, utterance.stripped, utterance.parameters) == (text, (), {})
    said = re.sub(r"[\W_]", "", utterance.text)
    assert said == re.sub(r"[\W_]", "", text)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", ["<|endofprompt|>Hi", "Hi <audio_3><tool_call>{}</tool_call>"])
def test_control_tokens_reach_no_engine(text, engine):
    (utterance,) = compose(engine, text)
    assert (utterance.text, utterance.words.strip()) == ("Hi", "Hi")


def test_tables_know_names_and_marks_that_exist():
    names = {name for rows in TAXONOMY.values() for name in rows} | set(ELEMENTS)
    for notation in NOTATIONS.values():
        tables = notation.points, notation.ranges, notation.leads, notation.parameters
        assert {name for table in tables for name in table} <= names
    assert set(marks_of("step-audio-tts")) == {f"（{tag}）" for tag in STEP_AUDIO_TTS} - {
        "（广东话）"
    }
    assert set(marks_of("step-audio-editx")) == set(EDITX)
    for engine in ("cosyvoice2", "cosyvoice3"):
        assert set(marks_of(engine)) == set(COSYVOICE + COSYVOICE_RANGES)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_governing_kinds_hold_for_a_whole_request(engine):
    notation = NOTATIONS[engine]
    kinds = {name: kind for kind, rows in TAXONOMY.items() for name in rows}
    assert {kinds[name] for name in [*notation.leads, *notation.parameters]} <= GOVERNING
    assert not {kinds[name] for name in [*notation.points, *notation.ranges]} & GOVERNING


OTHER_SPELLINGS = {
    "（广东话）": "（粤语）",
    "[vocalized-noise]": "[noise]",
    "[Suprise-oh]": "[Surprise-oh]",
    "[Suprise-ah]": "[Surprise-ah]",
    "[Suprise-wa]": "[Surprise-wa]",
}


@pytest.mark.parametrize(
    ("engine", "source", "family"),
    [
        ("step-audio-tts", "step-audio-tts", "step-audio1"),
        ("step-audio-editx", "editx", ""),
        ("cosyvoice2", "cosyvoice", ""),
        ("cosyvoice3", "cosyvoice", ""),
    ],
)
def test_an_engines_own_tags_come_back_as_its_own(engine, source, family):
    for tag in TAGS[source]:
        if tag in COSYVOICE_RANGES:
            continue
        (utterance,) = compose(engine, f"{tag}你好", family=family)
        own = OTHER_SPELLINGS.get(tag, tag).replace("(", "（").replace(")", "）")
        assert utterance.text == f"{own}你好"
        assert not utterance.stripped


@pytest.mark.parametrize(
    ("written", "read"),
    {
        "（快速）你好": "（快速1）你好",
        "(fast) Hi": "（快速1）Hi",
        "(very fast) Hi": "（快速2）Hi",
        "（慢速2）你好": "（慢速2）你好",
        "（高兴）你好": "（高兴1）你好",
        "(RAP) yo": "（RAP）yo",
        "（广东话）好": "（粤语）好",
        "（悲伤2）好": "（悲伤1）好",
    }.items(),
)
def test_what_the_chat_model_writes_becomes_what_its_voice_knows(written, read):
    assert compose("step-audio-tts", written, family="step-audio1")[0].text == read


def test_rap_and_singing_ask_for_the_music_checkpoint():
    for tag, vocal in {"RAP": "RAP", "哼唱": "哼唱"}.items():
        (utterance,) = compose("step-audio-tts", f"（{tag}）啦", family="step-audio1")
        assert utterance.parameters == {"vocal": vocal}


def test_a_bracket_that_opens_the_text_is_no_tag_for_step_audio_tts():
    assert compose("step-audio-tts", "（北京）是首都。")[0].text == "北京，是首都。"
    assert compose("step-audio-tts", "[happy] (北京)是（大）的")[0].text == (
        "（高兴1）北京，是（大）的"
    )


@pytest.mark.parametrize("engine", ["cosyvoice2", "cosyvoice3", "step-audio-editx", "kokoro"])
def test_no_square_bracket_of_the_text_reaches_an_engine_that_reads_them(engine):
    text = " ".join(["say", *PHONEMES, "[laughter](http://a.com)"])
    (utterance,) = compose(engine, text)
    assert not set("[]") & set(utterance.text)
    assert utterance.words == text


def test_marks_do_not_arise_from_what_stood_around_another():
    text = "<(nods)|endofprompt|>a <str(nods)ong>b [(nods)breath]c"
    (utterance,) = compose("cosyvoice3", text)
    assert not any(mark in utterance.text for mark in [END_OF_PROMPT, *marks_of("cosyvoice3")])
    (utterance,) = compose("spark-tts", text)
    assert "<|" not in utterance.text


INSTRUCTED = {
    "cosyvoice2": {
        "[四川话] 你好": "用四川话说这句话<|endofprompt|>",
        "[happy] 你好": "用开心的语气说<|endofprompt|>",
        "(slow) Hi": "慢速<|endofprompt|>",
    },
    "cosyvoice3": {
        "[Cantonese] 你好": "You are a helpful assistant. 请用广东话表达。<|endofprompt|>",
        "[fast] 你好": "You are a helpful assistant. 请用尽可能快地语速说一句话。<|endofprompt|>",
        "[东北话] 你好": "You are a helpful assistant. 请用东北话表达。<|endofprompt|>",
    },
}


@pytest.mark.parametrize("engine", INSTRUCTED)
def test_cosyvoice_takes_dialects_moods_and_rates_as_an_instruction(engine):
    for text, instruct in INSTRUCTED[engine].items():
        (utterance,) = compose(engine, text)
        assert utterance.parameters == {"instruct_text": instruct}
        assert utterance.text == text.split()[-1]


@pytest.mark.parametrize("engine", ["cosyvoice2", "cosyvoice3"])
def test_every_instruction_ends_the_prompt(engine):
    system = SYSTEM if engine == "cosyvoice3" else ""
    for rows in NOTATIONS[engine].parameters.values():
        for row in rows:
            assert row["instruct_text"].endswith(END_OF_PROMPT)
            assert row["instruct_text"].startswith(system)
            assert row["instruct_text"].count("<|") == 1


def test_the_order_of_the_emotion_vector():
    assert list(BIAS) == "happy angry sad afraid disgusted melancholic surprised calm".split()


@pytest.mark.parametrize("engine", ["index-tts2", "index-tts2.5"])
@pytest.mark.parametrize(
    ("mood", "place", "weight"),
    [
        ("happy", 0, 0.8),
        ("angry", 1, 0.8),
        ("sad", 2, 0.8),
        ("afraid", 3, 0.8),
        ("disgusted", 4, 0.8),
        ("melancholic", 5, 0.8),
        ("surprised", 6, 0.6875),
        ("calm", 7, 0.5625),
    ],
)
def test_a_mood_is_one_weight_of_the_vector_and_its_strength_the_alpha(engine, mood, place, weight):
    alphas = []
    for level in ("", "2", "3"):
        (utterance,) = compose(engine, f"[{mood}{level}] Hi.")
        vector = utterance.parameters["emo_vector"]
        assert vector == tuple(weight if n == place else 0.0 for n in range(8))
        alphas.append(utterance.parameters["emo_alpha"])
    assert alphas == sorted(set(alphas))
    assert alphas[0] > 0 and alphas[-1] <= 1


def test_index_tts_has_a_rate_only_from_its_later_release():
    (utterance,) = compose("index-tts2", "(fast) Hi.")
    assert (utterance.parameters, len(utterance.stripped)) == ({}, 1)
    (fast,), (slow,) = compose("index-tts2.5", "(fast) Hi."), compose("index-tts2.5", "(slow) Hi.")
    assert fast.parameters["duration_factor"] < 1 < slow.parameters["duration_factor"]


@pytest.mark.parametrize(
    ("text", "parameters"),
    {
        "(fast) Hi": {"speed": "high"},
        "(very fast) Hi": {"speed": "very_high"},
        "(very slow) Hi": {"speed": "very_low"},
        "[deep voice] Hi": {"pitch": "low"},
        "[female] Hi": {"gender": "female"},
        "(sad) Hi": {},
    }.items(),
)
def test_spark_takes_labels(text, parameters):
    assert compose("spark-tts", text)[0].parameters == parameters


# What an engine has nothing for


def mark(name: str, kind: Kind = Kind.EVENT, closes: bool = False) -> Particle:
    return Particle(name, kind, f"({name})", 0, len(name) + 2, closes)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_has_nothing_for_is_stripped_kept_or_refused(engine):
    nod = mark("nod", Kind.STAGE)
    assert renderer_for(engine).render(nod).stripped
    assert renderer_for(engine, unknown=Unknown.KEEP).render(nod) == Rendered("(nod)")
    with pytest.raises(InputError, match=r"has nothing for '\(nod\)' \(stage nod\)"):
        renderer_for(engine, unknown=Unknown.ERROR).render(nod)


@pytest.mark.parametrize("unknown", Unknown)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_end_of_what_was_rendered_is_never_unknown(engine, unknown):
    for words in (None, "en"):
        renderer = renderer_for(engine, words=words, unknown=unknown)
        for name in (*NOTATIONS[engine].points, *(INTERJECTIONS["en"] if words else ())):
            assert renderer.render(mark(name, closes=True)) == Rendered()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lang", INTERJECTIONS)
def test_a_sound_without_a_mark_is_a_word_where_that_is_wished(lang, engine):
    renderer = renderer_for(engine, words=lang, unknown=Unknown.ERROR)
    for name, word in INTERJECTIONS[lang].items():
        rendered = renderer.render(mark(name))
        assert rendered.native == (name in NOTATIONS[engine].points)
        assert rendered.native or rendered == Rendered(word)


def test_unknown_engines_and_languages_are_refused():
    with pytest.raises(UsageError, match="'festival' has no renderer: use one of"):
        renderer_for("festival")
    with pytest.raises(UsageError, match="'fr'"):
        renderer_for("piper", words="fr")


FRAGMENTS = [
    *ALL_TAGS,
    *("Hi", " ", "你好", "。", ". ", "[a]", "（北京）", "(", "]", "<|x|>", "<", "|", "<think>"),
    *("</think>", "<tool_call>", "</tool_call>", "</laugh>", "</happy>", "<happy>", "</fast>"),
]


@settings(deadline=None)
@given(
    st.sampled_from(ENGINES),
    st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join),
    st.data(),
)
def test_any_turn_gives_whole_marks_and_the_same_requests_however_cut(engine, text, data):
    cut = data.draw(st.integers(0, len(text)))
    utterances = compose(engine, text)
    assert compose(engine, text[:cut], text[cut:]) == utterances
    for utterance in utterances:
        assert "<|" not in utterance.text or engine not in ("cosyvoice2", "cosyvoice3", "spark-tts")
        for begin, end in NOTATIONS[engine].ranges.values():
            assert utterance.text.count(begin) == utterance.text.count(end)
    said = "".join(utterance.words for utterance in utterances)
    plain = "".join(event.text for event in scanned(text) if isinstance(event, Text))
    assert re.sub(r"\s", "", said) == re.sub(r"\s", "", plain)


def test_the_house_lexicon_has_no_form_that_a_policy_could_miss():
    """Every form ends as a mark, a parameter or a report; none as words."""
    for engine in ENGINES:
        renderer = renderer_for(engine)
        for entry in LEXICON.forms.values():
            rendered = renderer.render(mark(entry.name, entry.kind))
            assert rendered.stripped or rendered.native or rendered.parameters


def test_strip_renderer_reports_everything_as_stripped():
    assert renderer_for("piper").render(mark("laugh")).stripped


def test_interjection_renderer_says_what_has_a_word():
    renderer = renderer_for("piper", words="en")
    assert renderer.render(mark("laugh")) == Rendered("haha")
    assert renderer.render(mark("nod", Kind.STAGE)).stripped
    assert renderer.render(mark("laugh", closes=True)).stripped


@pytest.mark.parametrize("lang", INTERJECTIONS)
def test_interjections_are_known_names(lang):
    known = {entry.name for entry in LEXICON.forms.values()}
    assert set(INTERJECTIONS[lang]) <= known
