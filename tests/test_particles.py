from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import UsageError
from duologue.particles import (
    INTERJECTIONS,
    LEXICON,
    MAX_HELD,
    InterjectionRenderer,
    Kind,
    Particle,
    Rendered,
    Scanner,
    StripRenderer,
    Text,
    Thought,
)

Event = Text | Particle | Thought


def joined(events: Iterable[Event]) -> list[Event]:
    """Joins neighbouring texts and neighbouring thoughts, which a delta's edge may part."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + event.text, last.start, event.end)
        elif isinstance(event, Thought) and isinstance(last, Thought):
            out[-1] = Thought(last.text + event.text, last.start, event.end)
        else:
            out.append(event)
    return out


def scan(*deltas: str) -> list[Event]:
    scanner = Scanner()
    events = [event for delta in deltas for event in scanner.feed(delta)]
    return joined(events + scanner.flush())


def said(*deltas: str) -> str:
    return "".join(event.text for event in scan(*deltas) if isinstance(event, Text))


def names(text: str) -> list[str]:
    return [event.name for event in scan(text) if isinstance(event, Particle)]


MARKS = {
    "(laughs) Hi": "laugh",
    "So [sigh] yes": "sigh",
    "（哼唱）啦啦": "hum",
    "Well *sighs* fine": "sigh",
    "Ha <laugh> ha": "laugh",
    "【轻笑】好": "chuckle",
    "[[laughter]] ok": "laugh",
    "（笑) mixed widths": "laugh",
    "No (laughs softly) no": "laugh",
    "*takes a deep breath* Right": "breath",
    "he (Clears Throat) said": "clear_throat",
    "[Dissatisfaction-hnn], no": "dissatisfied",
    "[Suprise-oh] you": "oh",
    "[quick_breath] go": "quick_breath",
    "（快速）你好": "fast",
    "（高兴1）你好": "happy",
    "Fine. (sad) It rained.": "sad",
    "（轻轻地叹了口气）算了": "sigh",
    "(laughs, then sighs) ok": "laugh",
    "(sighs...) ok": "sigh",
    "a <laugh/> b": "laugh",
    "text *nods* text": "nod",
    "<strong>word": "emphasis",
    "[uv_break] so": "pause",
}

ORDINARY = [
    "f(x)",
    "3 < 5",
    "a<b and c>d",
    "(北京)",
    "住在（北京）。",
    "[1]",
    "<3",
    "I <3 you",
    "a*b*c",
    "2 * 3 * 4",
    "(I laughed a lot yesterday)",
    "call (555) 0100",
    "You make me *laugh* so much",
    "this is *very* important",
    "**Breathing**: in and out",
    "* sighs are a list item",
    "[laughter](http://example.com)",
    "the car is (fast) or not",
    "the [a] sound",
    "no (click) here",
    "Is it zero (oh)?",
    "\\*sighs\\*",
    "an unclosed ( bracket",
    "((((((",
    "[[x]] [] () <> ** 【】",
    "（了）",
    "《笑》是一本书",
]


@pytest.mark.parametrize(("text", "name"), MARKS.items())
def test_a_mark_is_taken_out_and_named(text, name):
    assert names(text) == [name]
    mark = next(event for event in scan(text) if isinstance(event, Particle))
    assert mark.source == text[mark.start : mark.end]
    assert said(text) == text[: mark.start] + text[mark.end :]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_brackets_survive(text):
    assert scan(text) == [Text(text, 0, len(text))]


def test_a_range_has_two_ends_and_keeps_its_words():
    begin, words, end = scan("<laughter>too funny</laughter>")
    assert (begin.closes, words.text, end.closes) == (False, "too funny", True)
    assert begin.name == end.name == "laugh"


def test_each_form_of_the_lexicon_is_a_mark_in_its_strongest_bracket():
    for form, entry in LEXICON.forms.items():
        assert names(f"[{form}] x") == [entry.name], form


def test_no_form_is_written_twice():
    from duologue.particles.taxonomy import TAXONOMY

    forms = [form for rows in TAXONOMY.values() for row in rows.values() for form in row.split()]
    assert sorted(forms) == sorted(set(forms))


def test_a_family_adds_its_own_spellings():
    lexicon = LEXICON.extended({"Gluckser": "giggle"})
    assert lexicon.match("gluckser").name == "giggle"
    assert LEXICON.match("gluckser") is None
    with pytest.raises(UsageError, match="no such name"):
        LEXICON.extended({"x": "no such name"})


def contents() -> st.SearchStrategy[str]:
    words = st.sampled_from(sorted(LEXICON.forms) + ["softly", "a", "轻轻地", "了"])
    return st.lists(words, min_size=1, max_size=4).map(" ".join)


@given(contents())
def test_what_can_match_is_viable_at_every_prefix(content):
    if LEXICON.match(content):
        assert all(LEXICON.viable(content[:n]) for n in range(len(content) + 1))


FRAGMENTS = [
    *(
        "(",
        ")",
        "（",
        "）",
        "[",
        "]",
        "[[",
        "]]",
        "【",
        "】",
        "<",
        ">",
        "</",
        "/>",
        "*",
        "**",
        "\n",
    ),
    *("laugh", "laughs", "softly", "sigh", " ", "笑", "叹了口气", "高兴1", "fast", "x", "5", ". "),
    *("<think>", "</think>", "<THINKING>", "</Reasoning>", "◁think▷", "◁/think▷", "◁", "thin"),
    *("(laughs)", "*sighs*", "[[laughter]]", "a" * 41, "\\"),
]
turns = st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join)


@given(turns, st.data())
def test_any_cut_gives_the_same_events(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert scan(*pieces) == scan(text) == scan(*text)


@given(turns)
def test_events_tile_the_text(text):
    at = 0
    for event in scan(text):
        assert event.start == at
        at = event.end
        if not isinstance(event, Thought):
            source = event.text if isinstance(event, Text) else event.source
            assert source == text[event.start : event.end]
    assert at == len(text)


@given(turns)
def test_held_text_is_bounded(text):
    scanner = Scanner()
    given_out = 0
    for fed, char in enumerate(text, 1):
        for event in scanner.feed(char):
            given_out = event.end
        assert fed - given_out <= MAX_HELD


def test_the_bound_is_reached_by_the_longest_mark():
    scanner = Scanner()
    mark = "[[laughs softly softly softly softly again]]"
    assert len(mark) == MAX_HELD
    assert scanner.feed(mark) == []
    assert len(scanner.feed("a")) == 2


@pytest.mark.parametrize("text", ["(北", "(I ", "<3", "3 < ", "* ", "*very", "f(x", "[1]"])
def test_text_goes_at_once_when_no_mark_can_be_open(text):
    assert "".join(event.text for event in Scanner().feed(text)) == text


THOUGHTS = {
    "<think>no</think>yes": "yes",
    "<thinking>no</thinking>yes": "yes",
    "<REASONING>no (laughs)</reasoning>yes": "yes",
    "a◁think▷no◁/think▷b": "ab",
    "<think>no</thinking>yes": "yes",
    "stray</think> end": "stray end",
    "x<think>never ends": "x",
    "x<think>never ends</thi": "x",
    "cut <thin": "cut ",
}


@pytest.mark.parametrize(("text", "expected"), THOUGHTS.items())
def test_thoughts_are_never_said_however_split(text, expected):
    for cut in range(len(text) + 1):
        assert said(text[:cut], text[cut:]) == expected
    assert said(*text) == expected


def test_an_unterminated_thought_does_not_reach_the_next_turn():
    scanner = Scanner()
    assert joined(scanner.feed("<think>hm")) == [Thought("hm", 0, 9)]
    assert scanner.flush() == []
    assert scanner.feed("Next turn") == [Text("Next turn", 0, 9)]


def test_a_mark_cut_off_by_the_end_is_not_said():
    assert said("Bye (laughs") == "Bye "
    assert said("Bye (laughs at you") == "Bye (laughs at you"


def mark(name: str, kind: Kind = Kind.EVENT, closes: bool = False) -> Particle:
    return Particle(name, kind, f"({name})", 0, len(name) + 2, closes)


def test_strip_renderer_reports_everything_as_stripped():
    assert StripRenderer().render(mark("laugh")).stripped


def test_interjection_renderer_says_what_has_a_word():
    renderer = InterjectionRenderer("en")
    assert renderer.render(mark("laugh")) == Rendered("haha")
    assert renderer.render(mark("nod", Kind.STAGE)).stripped
    assert renderer.render(mark("laugh", closes=True)).stripped


def test_interjection_renderer_refuses_a_language_without_words():
    with pytest.raises(UsageError, match="'fr'"):
        InterjectionRenderer("fr")


@pytest.mark.parametrize("lang", INTERJECTIONS)
def test_interjections_are_known_names(lang):
    known = {entry.name for entry in LEXICON.forms.values()}
    assert set(INTERJECTIONS[lang]) <= known


@pytest.mark.timeout(30)
@pytest.mark.parametrize("size", [64, 1_600_000])
def test_the_work_grows_with_the_text_and_not_faster(size):
    """Quadratic scanning of this text takes hours."""
    text = "Hello there, this is plain text with (some) brackets and *stress*. " * 6_000
    scanner = Scanner()
    found = [
        item for at in range(0, len(text), size) for item in scanner.feed(text[at : at + size])
    ]
    assert "".join(item.text for item in [*found, *scanner.flush()]) == text
