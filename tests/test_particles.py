import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.particles import MAX_HELD, Control, Particle, Scanner, Span, Text, Thought
from tests.particle_texts import joined, names, particles, said, scan

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
    "and then (whispers) he came": "whisper",
    "她说（耳语）你好": "whisper",
    "[surprise-yo] you": "oh",
    "(nervously) I see": "nervous",
    "（很开心）你好": "happy",
    "[happy:0.8] hi": "happy",
    "no (pause for 2 seconds) no": "pause",
    "好（停顿1秒）好": "pause",
    'so <break time="500ms"/> yes': "pause",
    "<emphasis level='strong'>word": "emphasis",
    '<prosody rate="slow" volume="x-loud">word': "slow",
    '<prosody rate="+10%">word': "markup",
    '<emotion value="sad"/> word': "sad",
    '<expr type="sound" label="soft laughter"/> ok': "laugh",
    '<say-as interpret-as="characters">ABC': "spell",
    "<SE>word": "markup",
    "<laugh-speak>word": "laugh",
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
    "\\(laughs) is what he typed",
    "\\[sigh] \\<laugh> \\（哼唱）",
    "the model (Whisper) is small",
    "(laughs 5 times)",
    "(happy 5)",
    "(5 ms)",
    "[volume]",
    "<b>bold</b>",
    "(laughs at you)",
    "a<bc",
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


@pytest.mark.parametrize(
    ("text", "span"),
    {
        "[laugh] x": Span.POINT,
        "<laugh/> x": Span.POINT,
        "<laugh> x": Span.RANGE,
        "</laugh> x": Span.RANGE,
        "[happy] x": Span.PREFIX,
        "<happy/> x": Span.PREFIX,
        "(Cantonese) x": Span.PREFIX,
        "*sighs* x": Span.POINT,
    }.items(),
)
def test_a_mark_says_what_of_the_text_it_is_about(text, span):
    assert [particle.span for particle in particles(text)] == [span]


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
    *("<|", "|>", "im_end", "<audio_", "12", "<tts_start>", "<tool_call>", "</tool_call>", "{"),
    *("pause", " 500 ms", ' time="1s"', "break", "prosody", "=", '"', ":0.5", "停顿"),
]
turns = st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join)


@settings(deadline=None)
@given(turns, st.data())
def test_any_cut_gives_the_same_events(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert scan(*pieces) == scan(text) == scan(*text)


@pytest.mark.parametrize(
    "text", ["one \\(laughs) two", "one two  (sad) three", "a b*sighs*", "go.  (sad) so"]
)
def test_what_stands_before_a_mark_counts_in_another_piece_too(text):
    for cut in range(len(text)):
        assert scan(text[:cut], text[cut:]) == scan(text)
        assert scan(text[:cut], " ", text[cut:]) == scan(f"{text[:cut]} {text[cut:]}")


@settings(deadline=None)
@given(turns)
def test_events_tile_the_text(text):
    at = 0
    for event in scan(text):
        assert event.start == at
        at = event.end
        if not isinstance(event, Thought):
            source = event.source if isinstance(event, Particle) else event.text
            assert source == text[event.start : event.end]
    assert at == len(text)


@settings(deadline=None)
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


@pytest.mark.parametrize("text", ["(北", "(I ", "<3", "3 < ", "* ", "*most", "f(x", "[1]"])
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


CONTROLS = {
    "a<|im_end|>b": "ab",
    "a<|EOT|>": "a",
    "<audio_12><audio_0>Hi": "Hi",
    "Hi<tts_end></tts_pad>": "Hi",
    'Wait.<tool_call>function\nx\n{"a": 1}</tool_call> Done': "Wait. Done",
    "Wait.<TOOL_CALL>{}</Tool_Call>Done": "Wait.Done",
    "Wait.<tool_call>{} never ends": "Wait.",
    "Wait.<tool_call>{} never ends</tool": "Wait.",
    "stray</tool_call> end": "stray end",
    "<think><tool_call>no</tool_call> still</think>yes": "yes",
    "<tool_response>{}</tool_response>yes": "yes",
    "cut <|im_e": "cut ",
    "cut <audio_1": "cut ",
    "a <| b |> c": "a <| b |> c",
    "f <| g": "f <| g",
    "<audio> <tts> x": " <tts> x",
    "an <au": "an ",
}


@pytest.mark.parametrize(("text", "expected"), CONTROLS.items())
def test_control_tokens_and_calls_are_never_said_however_split(text, expected):
    for cut in range(len(text) + 1):
        assert said(text[:cut], text[cut:]) == expected
    assert said(*text) == expected


def test_control_is_reported_with_its_text():
    events = scan("a<|x|><tool_call>{}</tool_call>")
    assert events == [Text("a", 0, 1), Control("<|x|><tool_call>{}</tool_call>", 1, 31)]


def test_a_mark_cut_off_by_the_end_is_not_said():
    assert said("Bye (laughs") == "Bye "
    assert said("Bye (laughs at you") == "Bye (laughs at you"


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
