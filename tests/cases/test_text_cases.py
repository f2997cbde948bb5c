"""Public reports, groups B8 and D, on the whole way of text to speech: scan, split, say."""

import pytest

from duologue.particles import (
    Particle,
    Renderer,
    Scanner,
    Text,
    renderer_for,
)
from duologue.text import Clause, ClauseSplitter, Speaker


class Way:
    """Text to speech as a session does it, turn after turn."""

    def __init__(self, lang: str = "en", renderer: Renderer | None = None):
        self.renderer = renderer or renderer_for("piper")
        self.scanner, self.splitter, self.speaker = Scanner(), ClauseSplitter(lang), Speaker(lang)
        self.shown = ""

    def turn(self, *deltas: str) -> list[Clause]:
        self.shown = ""
        clauses = [clause for delta in deltas for clause in self._pass(self.scanner.feed(delta))]
        return clauses + self._pass(self.scanner.flush()) + self.splitter.flush()

    def said(self, *deltas: str) -> list[str]:
        spoken = [self.speaker.say(clause.text) for clause in self.turn(*deltas)]
        self.speaker.reset()
        return [text for text in spoken if text]

    def _pass(self, events) -> list[Clause]:
        clauses = []
        for event in events:
            if isinstance(event, Text):
                self.shown += event.text
                clauses += self.splitter.feed(event.text)
            elif isinstance(event, Particle) and (text := self.renderer.render(event).text):
                clauses += self.splitter.feed(text)
        return clauses


@pytest.mark.parametrize(
    "text",
    [
        "SQL is a language. 5 < 10 is true. I <3 you.",
        "Card 4111 1111 1111 1111, due 2026-11-30, $5.50.",
        "你好，世界。这是 SQL 吗？",
        "## Title\n**bold** [x](http://a.com) `f(x)` 🎉",
    ],
)
def test_b8_what_is_shown_and_kept_is_the_original_text(text):
    way = Way()
    clauses = way.turn(*text)
    assert way.shown == text
    assert [text[clause.start : clause.end] for clause in clauses] == [
        clause.text for clause in clauses
    ]
    assert (
        "".join(clause.text for clause in clauses).split()
        == "".join(text[clause.start : clause.end] for clause in clauses).split()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SQL", ["SQL"]),
        ("Is 5 < 10 right", ["Is 5 less than 10 right"]),
        ("你好 means hello", ["你好 means hello"]),
    ],
)
def test_b8_what_is_said_keeps_the_words(text, said):
    assert Way().said(text) == said


MARKDOWN = """## Title

This is **bold, and still bold**, with [a link](http://a.com/x_y) and `code`.

| Name | Price |
|------|-------|
| Tea  | $5.50 |

```python
print("never, ever said. Not this.")
```

- ~~old~~ *new*
- last ✅
"""


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_d1_no_markup_is_said_and_link_text_is_kept(size):
    deltas = [MARKDOWN[at : at + size] for at in range(0, len(MARKDOWN), size)]
    assert Way().said(*deltas) == [
        "Title",
        "This is bold, and still bold, with a link and code.",
        "Name, Price",
        "Tea, 5 dollars 50 cents",
        "old new",
        "last",
    ]


@pytest.mark.parametrize("text", ["✅ done ┌─┐", "done ✅", "│ done │", "🚀 done 👩‍👩‍👧 ▶️"])
def test_d2_emoji_and_box_drawing_are_not_said(text):
    assert Way().said(text) == ["done"]


TAGS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<THINK>", "</Think>"),
    ("◁think▷", "◁/think▷"),
]


@pytest.mark.parametrize(("begin", "end"), TAGS)
def test_d3_thoughts_are_not_said_wherever_they_are_split(begin, end):
    text = f"{begin}Secret. Plan.{end}Hello there."
    way = Way()
    for cut in range(len(text)):
        assert way.said(text[:cut], text[cut:]) == ["Hello there."]


@pytest.mark.parametrize(("begin", "_end"), TAGS)
def test_d3_an_unterminated_thought_leaves_the_next_turn_alone(begin, _end):
    way = Way()
    assert way.said("Hm. ", begin, "Secret. Plan.") == ["Hm."]
    assert way.said("Hello there.") == ["Hello there."]


@pytest.mark.parametrize("number", ["4.15", "5.7%", "1,000", "3:45", "1,234.56", "12.5", "10:30"])
@pytest.mark.parametrize("frame", ["融资{}亿美元，增长{}。", "It was {}, then {}. Now {}."])
def test_d4_no_cut_inside_a_number(number, frame):
    text = frame.replace("{}", number)
    clauses = Way().turn(*text)
    assert sum(clause.text.count(number) for clause in clauses) == text.count(number)


def test_d7_full_stops_that_end_no_sentence_make_no_chunk():
    text = (
        "Dr. Smith moved from the U.S. to Kenya. Her router, e.g. the one at 192.168.1.1, broke."
        " See example.com for more."
    )
    assert len(Way().turn(*text)) == 3


@pytest.mark.parametrize(
    "text", ["🎉🎉", "...", "?!", "**", "---", "(laughs)", "<think>x", "", "✅ ✅"]
)
def test_d11_nothing_to_say_makes_no_speech(text):
    assert Way().said(*text) == []
    assert Way("zh").said(*text) == []


@pytest.mark.parametrize(
    "mark", ["(laughs)", "[sigh]", "（哼唱）", "*sighs*", "【轻笑】", "[[laughter]]"]
)
def test_particles_are_not_said_literally(mark):
    text = f"Well, {mark} I suppose that is {mark} fine. {mark}"
    spoken = " ".join(Way().said(*text))
    assert spoken.replace(",", "") == "Well I suppose that is fine."


def test_a_voice_without_marks_says_a_word_in_their_place():
    way = Way(renderer=renderer_for("piper", words="en"))
    assert way.said("(laughs) That is [nods] funny.") == ["haha That is funny."]
