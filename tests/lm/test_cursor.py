"""What of a text counts as heard (reports B1, B3 and D11)."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.lm.cursor import HeardCursor
from duologue.lm.events import AudioTokens, EndReason, Event, TextDelta, Thought, TurnEnd
from duologue.lm.formats import find_family
from duologue.lm.spoken import spoken_words
from duologue.lm.turn import TurnWriter
from duologue.lm.vocabulary import Vocabulary
from tests.lm.streams import cuts, decoding, demuxed, ids_of, steady

BOOK = find_family("step-audio2").codebooks[-1]
QUIET = 6486
# The clauses of a public answer of Step-Audio 2: tokens of sound and of the pause behind them, as
# measured; the words are other ones of as many characters.
CHINESE = [
    ("当然，", 10, 7),
    ("这个问题我可以慢慢讲给你听：", 59, 14),
    ("很久以前的冬天，", 30, 9),
    ("山脚下的村子里住着一位木匠。", 53, 10),
    ("有一天，", 16, 6),
    ("他在林子里遇见一只小鹿，", 44, 7),
    ("它的腿好像受了伤。", 37, 6),
    ("木匠并没有走开，", 36, 2),
    ("而是撕下自己的衣角替它把伤口包扎好。", 77, 6),
    ("从那以后小鹿每天清晨都来敲门，", 74, 4),
    ("有时候还带来几颗红果子，", 54, 3),
    ("村里人听说以后都觉得奇怪。", 59, 11),
    ("后来，", 14, 3),
    ("他就用最好的木头给它做了一个暖和的窝、一扇小门，", 120, 9),
    ("从此不管外面的风雪下得有多大小鹿都不用再害怕，", 118, 2),
    ("这就是我想讲给你听的故事。", 63, 6),
]


def speech(*parts: int) -> list[int]:
    """Tokens of sound and of silence in turn."""
    numbers, out = count(), []
    for n, length in enumerate(parts):
        out += [QUIET] * length if n % 2 else [next(numbers) % 6000 for _ in range(length)]
    return out


def interleaved(
    text: str, tokens: list[int], *, chars: int = 4, end: EndReason | None = EndReason.STOP
) -> list[Event]:
    """The events of a turn: some characters, four audio tokens, and so on."""
    turn = TurnWriter(1, Vocabulary(find_family("step-audio2")).books)
    for group in range(max(-(-len(text) // chars), -(-len(tokens) // 4))):
        if piece := text[chars * group : chars * (group + 1)]:
            turn.text(piece, (), True)
        turn.audio(0, tokens[4 * group : 4 * (group + 1)])
    if end:
        turn.end(end)
    return turn.take()


def following(events: list[Event], known: float = 1e9, **options) -> HeardCursor:
    """A cursor that knows what was generated before token `known`."""
    cursor = HeardCursor(BOOK, **options)
    for event in events:
        if event.audio_index < known:
            cursor.feed(event)
    return cursor


@pytest.mark.parametrize("known", [0, 8, 1e9], ids=["no event", "some audio", "all"])
def test_nothing_is_heard_before_the_first_word(known: float):
    cursor = following(interleaved("Yes, of course.", speech(2, 12, 20)), known)
    assert [cursor.chars_at(at) for at in (-1, 0, 3.5, 14)] == [0, 0, 0, 0]


@pytest.mark.parametrize("slowness", [1.0, 1.5], ids=["usual pace", "slow"])
@pytest.mark.parametrize("ahead", [1, 2, 50])
@pytest.mark.parametrize("number", [1, 5, 13, 19])
def test_a_count_that_is_cut_ends_with_the_number_that_was_heard(
    number: int, ahead: int, slowness: float
):
    text = ", ".join(map(str, range(1, 21))) + "."
    lengths = [round((9 if n < 10 else 14) * slowness) for n in range(1, 21)]
    events = interleaved(text, speech(*(x for length in lengths for x in (length, 5))))
    at = sum(lengths[:number]) + 5 * number - 2
    cursor = following(events, ahead * at + 28)
    assert text[: cursor.chars_at(at)] == ", ".join(map(str, range(1, number + 1))) + ","


@pytest.mark.parametrize("pace", [0.85, 1.0, 1.2])
@pytest.mark.parametrize("ahead", [2, 50])
def test_each_pause_stands_behind_its_clause(ahead: int, pace: float):
    text = "".join(clause for clause, _, _ in CHINESE)
    tokens = speech(2, 17, *(x for _, sound, pause in CHINESE for x in (sound, pause)))
    events = interleaved(text, tokens, chars=2)
    at, end = 19, 0
    for clause, sound, pause in CHINESE:
        at, end = at + sound + pause, end + len(clause)
        middle = at - pause / 2
        cursor = following(events, ahead * middle + 28, pace=pace)
        assert text[: cursor.chars_at(middle)] == text[:end]


def test_in_real_time_each_clause_is_known_but_for_a_few_characters():
    text = "".join(clause for clause, _, _ in CHINESE)
    tokens = speech(2, 17, *(x for _, sound, pause in CHINESE for x in (sound, pause)))
    events = interleaved(text, tokens, chars=2)
    at, end, off = 19, 0, []
    for clause, sound, pause in CHINESE:
        at, end = at + sound + pause, end + len(clause)
        off.append(following(events, at + 28).chars_at(at - pause / 2) - end)
    assert max(map(abs, off)) <= 5
    assert sum(map(bool, off)) <= 3


def test_the_end_settles_which_mark_a_pause_was():
    text = "A violin has four strings, a guitar usually has six, and a piano has over two hundred."
    events = interleaved(text, speech(54, 6, 90, 7))
    assert text[: following(events, 88).chars_at(57)].endswith(" has six,")
    assert text[: following(events).chars_at(57)] == "A violin has four strings,"


def test_silence_says_nothing():
    cursor = following(interleaved("One moment, please. I am looking.", speech(25, 60, 22, 10)))
    assert {cursor.chars_at(at) for at in (26, 40, 84)} == {len("One moment, please.")}


@pytest.mark.parametrize(
    ("reason", "heard"),
    [
        (EndReason.STOP, "First the onions, then the garlic, and last the rice."),
        (EndReason.CUT, "First the onions,"),
        (EndReason.IDLE, "First the onions,"),
        (EndReason.LOOP, "First the onions,"),
    ],
)
def test_only_an_answer_that_has_ended_is_heard_to_the_end_of_its_text(
    reason: EndReason, heard: str
):
    text = "First the onions, then the garlic, and last the rice."
    cursor = following(interleaved(text, speech(25, 10), end=reason))
    assert text[: cursor.chars_at(35)] == heard


PIECES = [
    ("plain", "Good day, Mr. Poe!|".replace("day", "|day").replace("Mr", "|Mr").replace("P", "|P")),
    ("decimal", "It |costs |4.15 |euros."),
    ("thousands", "About |1,250 |left"),
    ("spaced thousands", "About |1 250 000 |left"),
    ("money", "$27.50, |please"),
    ("time", "at |7:45|，|好"),
    ("address", "192.168.1.1 |and |a@b.com"),
    ("Chinese number", "融|资|4.15亿|美|元，|增|长|5.7%"),
    ("Chinese numeral", "一|共|二百五十|个，|三点一四|！"),
    ("full width", "共|４．１５|元"),
    ("mixed scripts", "用|Python3|写，|好|吗？"),
    ("brackets", "他|说|（笑）|“不|行”|。"),
    ("apostrophe", "Don’t |stop—|now"),
    ("emoji", "好👩🏽‍🚀|的|👍🏽 |yes |👍"),
    ("combining", "cafe\u0301 |か\u3099|き"),
    ("variation", "葛\U000e0100|城|1\ufe0f\u20e3"),
    ("kana", "そ|う|で|す|ね"),
    ("Hangul", "안녕 |하세요"),
]


@pytest.mark.parametrize("pieces", [p for _, p in PIECES], ids=[name for name, _ in PIECES])
def test_cuts_are_clean(pieces: str):
    text = pieces.replace("|", "")
    allowed = {len(part.rstrip()) for part in _prefixes(pieces)}
    cursor = following(interleaved(text, speech(12 * len(text), 6)))
    found = {cursor.chars_at(at / 4) for at in range(4 * 12 * len(text) + 24)}
    assert found - {0} <= allowed
    assert max(found) == len(text)
    assert {word.end for word in spoken_words(text)} <= allowed


def _prefixes(pieces: str) -> list[str]:
    parts = pieces.split("|")
    return ["".join(parts[: n + 1]) for n in range(len(parts))]


STEP2 = decoding("step-audio2")
ANSWER = "Well, it is 4.15 km。你好，世界！ Bye."


def _ids() -> list[int]:
    tokens = iter([1499, *speech(0, 9, 30, 6, 50, 5, 40, 4, 12, 6)[1:]])
    text, out = ids_of(STEP2, ANSWER), ids_of(STEP2, "<tts_start>")
    for slot in [*text, *ids_of(STEP2, *["<tts_pad>"] * 30)]:
        out += [slot, *ids_of(STEP2, *(token for _, token in zip(range(4), tokens, strict=False)))]
    return [*out, *ids_of(STEP2, "<tts_end>", "<|EOT|>")]


@steady
@given(st.data())
def test_it_does_not_matter_how_a_stream_is_cut(data: st.DataObject):
    ids = _ids()
    stop = data.draw(st.integers(0, len(ids)))
    chunks = data.draw(cuts(ids[:stop]))
    whole, cut = (following(demuxed(STEP2, *parts)) for parts in ([ids[:stop]], chunks))
    assert [cut.chars_at(at) for at in range(170)] == [whole.chars_at(at) for at in range(170)]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=12))
@steady
def test_what_was_heard_only_grows_with_the_position(lengths: list[tuple[int, int]]):
    tokens = speech(*(x for pair in lengths for x in pair))
    events = interleaved(ANSWER * 2, tokens, end=None)
    for known in (len(tokens) // 2, len(tokens)):
        cursor = following(events, known)
        heard = [cursor.chars_at(at / 2) for at in range(2 * len(tokens))]
        assert heard == sorted(heard)


def test_audio_that_is_not_generated_has_not_been_heard():
    events = interleaved("One two three four five six seven eight nine ten.", speech(200))
    cursor = following(events, 40)
    assert 0 < cursor.chars_at(40) == cursor.chars_at(1000) < 40


def _clauses(*parts: tuple[str, bool, int], end: bool = True) -> list[Event]:
    """Events of (text, whether the audio says it, tokens of audio)."""
    turn = TurnWriter(1, Vocabulary(find_family("step-audio2")).books)
    for text, voiced, tokens in parts:
        turn.text(text, (), voiced)
        if tokens:
            turn.audio(0, speech(tokens))
    if end:
        turn.end(EndReason.STOP)
    return turn.take()


def test_aligned_text_is_heard_by_the_end_of_its_own_audio():
    slow, fast = "No, ", "but I can tell you who knows all about it."
    events = _clauses((slow, True, 60), (fast, True, 20))
    cursor = following(events, aligned=True)
    assert cursor.chars_at(59.5) == len("No,") < cursor.chars_at(70) < len(slow + fast)
    assert cursor.chars_at(80) == len(slow + fast)
    assert following(events).chars_at(40) > len("No,")


def test_text_that_no_audio_says_does_not_count():
    events = _clauses(
        ("Let me see. ", False, 0), ("It is noon.", True, 40), (" See the page.", False, 0)
    )
    cursor = following(events)
    assert cursor.chars_at(0) == 0
    assert cursor.chars_at(15) in (len("It"), len("It is"))
    assert cursor.chars_at(40) == len("It is noon.")


def test_speech_that_opens_again_goes_on_with_new_text():
    events = _clauses(("It is noon.", True, 40), (" (map) ", False, 0), ("Turn left.", True, 30))
    cursor = following(events)
    assert cursor.chars_at(40) == len("It is noon.")
    assert cursor.chars_at(41) == len("It is noon.")
    assert cursor.chars_at(70) == len("It is noon.Turn left.")


def test_other_codebooks_and_thoughts_are_no_time():
    events = [
        TextDelta(1, 0, 0, 0, "It is noon.", (), True),
        Thought(1, 1, 11, 0, "Is it?", ()),
        AudioTokens(1, 2, 11, 0, "another", tuple(range(500))),
        AudioTokens(1, 3, 11, 0, BOOK.name, tuple(range(40))),
        TurnEnd(1, 4, 11, 40, EndReason.STOP, 0, {}),
    ]
    cursor = following(events)
    assert 0 < cursor.chars_at(20) < 11 == cursor.chars_at(40)


def test_silence_alone_says_no_text():
    assert following(interleaved("Yes, of course.", speech(0, 40))).chars_at(40) == 0


def test_letters_that_are_spelled_take_longer_than_a_word():
    spelled, word = spoken_words("SQL sql")
    assert spelled.length_s > 2 * word.length_s


@pytest.mark.parametrize("text", ["👍", "...", "—", "", " \n"], ids=repr)
def test_text_without_a_sound_is_not_heard(text: str):
    cursor = following(interleaved(text, speech(200, 10)))
    assert cursor.chars_at(210) == 0
    assert 0.5 <= cursor.pace <= 2.0


def test_where_silence_does_not_show_a_mark_stands_for_a_pause():
    text = (
        "One, two, three, four, five, six, seven, eight nine ten eleven twelve thirteen fourteen."
    )
    hidden, shown = (following(interleaved(text, speech(0, n, 150))) for n in (0, 3))
    assert hidden.chars_at(75) < text.index(" eight") < shown.chars_at(78)


@pytest.mark.parametrize("slowness", [0.7, 1.0, 1.5])
def test_a_turn_teaches_the_voices_pace(slowness: float):
    text = "This voice takes its time, or is in a hurry, and so will it be the next time."
    length_s = sum(word.length_s for word in spoken_words(text))
    tokens = speech(round(length_s * slowness * BOOK.rate_hz), 6)
    assert following(interleaved(text, tokens)).pace == pytest.approx(slowness, rel=0.3)
    assert (following(interleaved(text, tokens)).pace > 1.05) == (slowness > 1.05)
