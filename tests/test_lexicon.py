"""What stands inside a mark: names, amounts, attributes, and what may still become one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.errors import UsageError
from duologue.particles import LEXICON, Kind, lexicon_for
from duologue.particles.aliases import ALIASES
from duologue.particles.taxonomy import MAX_PAUSE_MS, TAXONOMY
from tests.particle_texts import names, particles


@pytest.mark.parametrize(
    ("text", "intensity"),
    {
        "[happy] x": 0,
        "（高兴1）x": 1,
        "（高兴2）x": 2,
        "（高兴9）x": 3,
        "(slightly sad) x": 1,
        "(very sad) x": 3,
        "（有点难过）x": 1,
        "（非常难过）x": 3,
        "(laughs softly) x": 1,
        "（大笑）x": 3,
        "[happy:0.3] x": 1,
        "[happy: 0.5] x": 2,
        "[happy=1] x": 3,
        "(loudly) x": 0,
        "(short pause) x": 1,
    }.items(),
)
def test_a_mark_says_how_much(text, intensity):
    assert [particle.intensity for particle in particles(text)] == [intensity]


@pytest.mark.parametrize(
    ("text", "value"),
    {
        "[pause]": "",
        "[pause 500ms]": "500",
        "[pause:0.5s]": "500",
        "(pause for 2 seconds)": "2000",
        "（停顿1秒）": "1000",
        "[break 300]": "300",
        "[pause 3]": "3000",
        '<break time="1.5s"/>': "1500",
        "<break time='250ms'>": "250",
        '<break strength="weak"/>': "",
        "[silence 9999 s]": str(MAX_PAUSE_MS),
        '<phoneme alphabet="ipa" ph="pika">': "pika",
    }.items(),
)
def test_a_mark_says_how_long_or_how_it_sounds(text, value):
    assert [particle.value for particle in particles(text)] == [value]


def test_each_form_of_the_lexicon_is_a_mark_in_its_strongest_bracket():
    for form, entry in LEXICON.forms.items():
        assert names(f"[{form}] x") == [entry.name], form


def test_no_form_is_written_twice():
    forms = [form for rows in TAXONOMY.values() for row in rows.values() for form in row.split()]
    assert sorted(forms) == sorted(set(forms))


def test_a_family_adds_its_own_spellings():
    lexicon = LEXICON.extended({"Gluckser": "giggle"})
    assert lexicon.match("gluckser").name == "giggle"
    assert LEXICON.match("gluckser") is None
    with pytest.raises(UsageError, match="no such name"):
        LEXICON.extended({"x": "no such name"})


SHARED_NAMES = {
    Kind.EVENT: "laugh chuckle giggle sigh breath_in breath_out quick_breath cough clear_throat"
    " sniffle sob gasp yawn groan lipsmack click hiss hum noise",
    Kind.INTERJECTION: "uhm oh ah wa confirm question dissatisfied haha",
    Kind.EMOTION: "happy sad angry fear surprise disgust calm excited coy empathy shy",
    Kind.STYLE: "whisper shout soft loud fast slow singing rap child older news story",
    Kind.LANGUAGE: "zh en ja ko yue sichuan",
    Kind.PROSODY: "pause emphasis",
    Kind.STAGE: "smile nod",
}


@pytest.mark.parametrize("kind", SHARED_NAMES)
def test_the_taxonomy_has_the_names_that_engines_and_models_share(kind):
    assert set(SHARED_NAMES[kind].split()) <= set(TAXONOMY[kind])


@pytest.mark.parametrize("family", ALIASES)
def test_what_a_family_writes_is_a_mark_wherever_it_stands(family):
    for form, name in ALIASES[family].items():
        assert names(f"he said （{form}1） so", family) == [name]


def test_a_family_has_its_own_meanings_and_another_the_common_ones():
    assert lexicon_for("step-audio1").match("哼唱").name == "singing"
    assert lexicon_for("qwen2.5-omni").match("哼唱").name == "hum"


AMOUNTS = ["", "1", "2！", ":0.5", ": 1", "=0.8", " 500", " 1.5s", " 20 ms", "：3", " 2 seconds."]


def contents() -> st.SearchStrategy[str]:
    words = st.sampled_from(sorted(LEXICON.forms) + ["softly", "a", "轻轻地", "了", "pause"])
    runs = st.lists(words, min_size=1, max_size=4).map(" ".join)
    return st.tuples(runs, st.sampled_from(AMOUNTS)).map("".join)


@settings(deadline=None)
@given(contents())
def test_what_can_match_is_viable_at_every_prefix(content):
    if LEXICON.match(content):
        assert all(LEXICON.viable(content[:n]) for n in range(len(content) + 1))


def tags() -> st.SearchStrategy[str]:
    elements = st.sampled_from(["break", "prosody", "Emotion", "phoneme", "say-as", "laugh", "b"])
    names = st.sampled_from([" time", "  rate", " x:y", " level "])
    values = st.sampled_from(['"500ms"', "'slow'", '"a b"', "x", '""', "'"])
    pairs = st.tuples(names, st.sampled_from(["=", " = "]), values).map("".join)
    return st.tuples(elements, st.lists(pairs, max_size=3).map("".join)).map("".join)


@settings(deadline=None)
@given(tags())
def test_a_tag_that_can_match_is_viable_at_every_prefix(content):
    if LEXICON.match_tag(content):
        assert all(LEXICON.viable_tag(content[:n]) for n in range(1, len(content) + 1))
