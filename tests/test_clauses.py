import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import UsageError
from duologue.text import Clause, ClauseSplitter


def split(*deltas: str, **limits: int) -> list[Clause]:
    splitter = ClauseSplitter("en", **limits)
    clauses = [clause for delta in deltas for clause in splitter.feed(delta)]
    return clauses + splitter.flush()


def texts(text: str, **limits: int) -> list[str]:
    return [clause.text for clause in split(text, **limits)]


def sentences(text: str) -> list[str]:
    """Splits with limits at which every sentence end counts and nothing else does."""
    return texts(text, first_min_chars=999, first_max_chars=9999, min_chars=1, max_chars=9999)


SENTENCES = {
    "One here. Two here! Three here? Four.": 4,
    "Dr. Smith met Mrs. Lee vs. Prof. Ng. They spoke.": 2,
    "I live in the U.S. The weather is nice.": 2,
    "The U.S. Army is in the U.S. capital.": 1,
    "Use e.g. this, i.e. that. Fine.": 2,
    "It grew 5.7% to 1,000 at 3:45 by v2.0 on 192.168.1.1. Good.": 2,
    "Open example.com now. Or Node.js. Done.": 3,
    "See Fig. 3 and No. 5. No. I will not.": 3,
    "He left at 5 p.m. Monday. At 6 p.m. She left.": 3,
    "J. R. Smith and I. We came.": 2,
    "It was cats, dogs, etc. in there. Yes.": 2,
    'She said "Go." Then "Stop!" Then left.': 3,
    "**Bold end.** Next one.": 2,
    "Well... maybe not. Hm... Yes.": 3,
    "What?! Really?": 2,
    "你好。今天好吗？很好！走吧；好": 5,
    "他说：“走吧。”然后走了。": 2,
    "融资4.15亿美元，增长5.7%。好。": 2,
    "Mixed 中文。Then English. 然后中文！": 3,
    "1. First thing\n2. Second thing\n\nDone": 3,
    "# Title\nText goes on\nover a soft wrap. End.": 3,
    "- apples\n- pears": 2,
    "$4.15 million. 50 cents.": 2,
}


@pytest.mark.parametrize(("text", "count"), SENTENCES.items())
def test_sentences_end_where_they_end(text, count):
    assert len(sentences(text)) == count, sentences(text)


def test_first_clause_goes_at_the_first_comma_that_follows_enough_words():
    splitter = ClauseSplitter()
    assert splitter.feed("Well, let me think about it,") == []
    (clause,) = splitter.feed(" ")
    assert clause == Clause("Well, let me think about it,", 0, 28, False)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Sure. I can do that for you", "Sure."),
        ("Here is what I found: it rains", "Here is what I found:"),
        ("The answer is simple — it rains", "The answer is simple —"),
        ("The answer is simple - it rains", "The answer is simple -"),
        ("好的，我们来看看吧，然后再说", "好的，我们来看看吧，"),
        (
            "The thing that you asked me for is here because I put it",
            "The thing that you asked me for is here",
        ),
    ],
)
def test_first_clause_stands_early(text, first):
    head, rest = split(text)
    assert head.text == first
    assert head.final_in_sentence == first.endswith("Sure.")
    assert text.endswith(rest.text)
    assert split(*text) == [head, rest]


def test_a_first_clause_without_any_mark_ends_at_a_word():
    splitter = ClauseSplitter()
    words = "nobody there knew whether quick brown foxes jumped over seven lazy dogs near home"
    released = [clause for word in words.split() for clause in splitter.feed(word + " ")]
    assert [clause.text for clause in released] == [words[: words.index(" jumped")]]


def test_later_sentences_are_joined_when_short_and_parted_when_long():
    assert texts("Hello. Yes. No. Maybe, who knows such things. Fine.")[1:] == [
        "Yes. No. Maybe, who knows such things.",
        "Fine.",
    ]
    long = "Ok. " + "and some of these words, " * 20
    parts = texts(long)[1:]
    assert all(100 < len(part) < 150 for part in parts[:-1])
    assert all(part.endswith(",") for part in parts)


def test_words_without_any_mark_are_parted_at_the_limit():
    parts = texts("Ok. " + "lorem ipsum dolor " * 60)
    assert all(len(part) <= 240 for part in parts)
    parts = texts("好。" + "今天天气真好" * 60)
    assert all(len(part) <= 75 for part in parts)


ENDLESS = {
    "letters": "a" * 9999,
    "words that lean on what follows": "of the " * 300,
    "digits": "7" * 999,
    "numbers": "1,234,567 " * 99,
    "signs": "." * 999 + "?!" * 999 + "x" * 999,
    "han and digits": "你1" * 300,
    "an accent": "a" + "\u0301" * 999,
    "blanks": "a" + " " * 999 + "b" + "\n" * 999 + "c",
    "quotes": 'a "' + "'" * 999 + "b",
    "no address": "https://" + "a" * 999,
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_text_without_a_place_to_cut_is_cut_all_the_same(text):
    clauses = split(text)
    assert all(len(clause.text) <= 330 for clause in clauses)
    assert all(sum(map(str.isdigit, clause.text)) <= 66 for clause in clauses)
    assert "".join("".join(clause.text.split()) for clause in clauses) == "".join(text.split())
    assert all(text[clause.start : clause.end] == clause.text for clause in clauses)
    assert split(*text) == clauses


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("I am all for " + "a" * 999, "I am all for"),
        ("of the Dr. Smith of the Dr. " + "b" * 999, "of the Dr. Smith of the"),
        ("lib/python_x/" * 99, "lib/python_x/" * 25 + "lib/"),
        ("1,000/" * 99, "1,000/" * 15),
        ("cafe\u0301s" * 99, "cafe\u0301s" * 55),
        ("x" + "👩\u200d👧" * 199, "x" + "👩\u200d👧" * 109),
    ],
)
def test_such_a_cut_falls_where_it_disturbs_least(text, first):
    assert texts(text)[0] == first


def test_a_long_address_stays_whole():
    """A voice says its host only."""
    address = "https://example.com/" + "a" * 999
    assert texts(f"See {address}?q=1 for more.") == ["See", f"{address}?q=1", "for more."]
    assert texts(f"I see [it]({address}).") == ["I see", f"[it]({address})."]
    splitter = ClauseSplitter()
    assert splitter.feed(address) == []
    assert splitter.flush() == [Clause(address, 0, len(address), True)]


def test_a_full_stop_at_the_end_of_a_delta_waits():
    splitter = ClauseSplitter()
    assert splitter.feed("It costs about 4.") == []
    assert splitter.feed("15 dollars.") == []
    assert [clause.text for clause in splitter.feed(" ")] == ["It costs about 4.15 dollars."]


def test_a_wide_comma_or_colon_between_digits_is_no_place():
    for text in ("现在的比分是3：45了，大家好", "大家一共有1，000个，大家好"):
        assert split(*text)[0].text == text[: text.rindex("，") + 1]


def test_flush_begins_a_new_turn():
    splitter = ClauseSplitter()
    splitter.feed("Half a")
    assert splitter.flush() == [Clause("Half a", 0, 6, True)]
    assert splitter.flush() == []
    splitter.feed("New")
    assert splitter.flush() == [Clause("New", 0, 3, True)]


@pytest.mark.parametrize(
    ("lang", "limits"),
    [
        ("fr", {}),
        ("en", {"min_chars": 0}),
        ("en", {"first_min_chars": 90}),
        ("en", {"max_chars": 5}),
    ],
)
def test_wrong_settings_are_refused(lang, limits):
    with pytest.raises(UsageError):
        ClauseSplitter(lang, **limits)


NUMBERS = [
    "4.15",
    "5.7%",
    "1,000",
    "3:45",
    "192.168.1.1",
    "example.com",
    "v2.0",
    "4.15亿",
    "2026-11-30",
]
ABBREVIATED = ["Dr. Smith", "Mrs. Lee", "e.g. this", "No. 5"]
FRAGMENTS = [
    *NUMBERS,
    *ABBREVIATED,
    *("U.S.", "word", "The", "and", "because", "我们", "所以", "”", "**", "`", "(", ")", "✅"),
    *(
        ". ",
        ".",
        "...",
        "? ",
        "! ",
        ", ",
        ",",
        ": ",
        "; ",
        " — ",
        " - ",
        "--",
        "。",
        "，",
        "；",
        "？",
    ),
    *(" ", "  ", "\n", "\n\n", "- ", "1. ", "a" * 30, "今天天气" * 6),
    *("b" * 70, "7" * 12, " " * 30, '"' * 25, "…" * 25, "e\u0301", "https://a.com/"),
]
turns = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join)
LIMITS = {"first_min_chars": 6, "first_max_chars": 20, "min_chars": 8, "max_chars": 40}


@given(turns, st.data())
def test_any_cut_gives_the_same_clauses(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(*pieces) == split(text) == split(*text)
    assert split(*pieces, **LIMITS) == split(*text, **LIMITS)


@given(turns)
def test_clauses_are_the_text_without_the_blanks_between(text):
    at = 0
    for clause in split(text, **LIMITS):
        assert text[at : clause.start].strip() == ""
        assert text[clause.start : clause.end] == clause.text == clause.text.strip() != ""
        at = clause.end
    assert text[at:].strip() == ""


@given(st.lists(st.sampled_from([*NUMBERS, *ABBREVIATED, "word", "more,"]), max_size=24))
def test_no_cut_falls_inside_a_number_or_behind_an_abbreviation(tokens):
    text = " ".join(tokens)
    found = split(text, **LIMITS)
    for token in tokens:
        assert sum(clause.text.count(token) for clause in found) == text.count(token)
