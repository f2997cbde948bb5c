"""What comes out of whole streams, and that it does not depend on how they are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.lm.demux import Demux
from duologue.lm.events import (
    AudioTokens,
    Dropped,
    DropReason,
    EndReason,
    Particle,
    TextDelta,
    Thought,
    ToolCallMalformed,
    ToolCallReady,
    ToolCallStarted,
    ToolCallUndecoded,
    TurnEnd,
)
from tests.lm.streams import (
    audio_of,
    bytes_of,
    cuts,
    decoding,
    demuxed,
    ids_of,
    joined,
    numeric,
    of,
    steady,
    text_of,
)

STEP2 = decoding("step-audio2")
CALL = ["<tool_call>", 'function\nclock\n{"zone": "UTC"}', "</tool_call>"]
QUIET = [6561] * 4


def ta4(*texts: str | bytes) -> list[int]:
    """Each text in a text slot of its own, counted audio behind it."""
    out, n = [], 0
    for text in texts:
        slot = bytes_of(STEP2, text) if isinstance(text, bytes) else ids_of(STEP2, text)
        for token in slot:
            out += [token, *ids_of(STEP2, n, n + 1, n + 2, n + 3)]
            n += 4
    return out


WHOLE = [
    *ids_of(STEP2, "<tts_start>"),
    *ta4("Hi ", "你".encode(), "<tts_pad>", "(laughs)", " 3<5"),
    *ids_of(STEP2, "<tts_pad>", *QUIET, "<tts_end>", *CALL, "<|EOT|>", "more"),
]


def test_a_whole_reply():
    events = joined(demuxed(STEP2, WHOLE, turn_id=7))
    assert {event.turn_id for event in events} == {7}
    assert text_of(events) == "Hi 你 3<5"
    audio = audio_of(events)
    assert audio == list(range(len(audio)))
    assert [e.audio_index for e in of(AudioTokens, events)] == [
        e.tokens[0] for e in of(AudioTokens, events)
    ]
    assert [type(e) for e in events[-3:]] == [ToolCallStarted, ToolCallReady, TurnEnd]
    (call,) = of(ToolCallReady, events)
    assert (call.name, call.arguments) == ("clock", '{"zone": "UTC"}')
    assert (call.text_offset, call.audio_index) == (len("Hi 你 3<5"), len(audio))
    (particle,) = of(Particle, events)
    assert (particle.mark.name, particle.text_offset) == ("laugh", len("Hi 你"))
    (end,) = of(TurnEnd, events)
    assert (end.reason, end.pads, end.dropped) == (EndReason.STOP, 6, {})


def test_text_says_whether_the_stream_voices_it():
    events = demuxed(
        STEP2, ids_of(STEP2, "before", "<tts_start>", "in", 1, "<tts_end>", "after", "<|EOT|>")
    )
    assert [(e.text, e.voiced) for e in joined(events) if isinstance(e, TextDelta)] == [
        ("before", False),
        ("in", True),
        ("after", False),
    ]


@pytest.mark.parametrize("held", ["a (", "a [", "a [sigh"])
def test_what_was_held_back_belongs_before_the_token_that_ends_it(held):
    events = demuxed(STEP2, ids_of(STEP2, "<tts_start>", held, "<tts_end>", "b"))
    voiced = "".join(event.text for event in of(TextDelta, events) if event.voiced)
    assert voiced == held.removesuffix("[sigh")
    assert [event.text for event in of(TextDelta, events) if not event.voiced] == ["b"]


@pytest.mark.parametrize("cut", ["<tts_", "<audio_12", "<|EO", "<tool_call"])
def test_the_beginning_of_framing_is_never_said(cut):
    for end in ("", "<tts_end>", "<|EOT|>"):
        events = demuxed(numeric("step-audio2"), f"<tts_start>ok {cut}{end}")
        assert text_of(events) == "ok "
        assert of(TurnEnd, events)[0].dropped == {DropReason.FRAMING: 1}


@pytest.mark.parametrize("name", ["<think>", "<tts_end>", "<|EOT|>", "<audio_7>", "(laughs)"])
def test_audio_names_inside_a_spelled_name_hide_nothing(name):
    """In a server's text each text token stands between the names of four audio tokens."""
    for at in range(1, len(name)):
        text = f"<tts_start>ok {name[:at]}<audio_5><audio_6561>{name[at:]}"
        events = demuxed(numeric("step-audio2"), text)
        assert text_of(events) == "ok "
        assert audio_of(events) == ([5, 7] if "audio" in name else [5])
        assert joined(demuxed(numeric("step-audio2"), *text)) == joined(events)


def test_a_character_is_whole_though_audio_stands_between_its_bytes():
    events = joined(demuxed(STEP2, ta4("茶".encode()), prefix="tts_start"))
    assert [e for e in events if isinstance(e, TextDelta)] == [
        TextDelta(0, 0, 0, 8, "茶", (), True)
    ]
    assert audio_of(events) == list(range(12))


def test_half_a_character_at_the_end_is_dropped():
    events = demuxed(STEP2, ta4("a茶".encode()[:-1]), prefix="tts_start")
    assert text_of(events) == "a"
    assert of(TurnEnd, events)[0].dropped == {DropReason.UNDECODABLE: 1}


STREAMS = {
    "whole": WHOLE,
    "thinking": ids_of(STEP2, "<think>a <", "tool_call>b</think>\n\n", "<tts_start>", "hi", 0, 1),
    "stray": ids_of(STEP2, "hi", 1, 2, "<tts_start>", "ok", 3, "<audio_start>", 4, "<tts_end>", 5),
    "call in speech": ids_of(STEP2, "<tts_start>", "hi", 1, *CALL, "there", 2, 3, "<|EOT|>"),
    "nested call": ids_of(STEP2, *CALL[:2], *CALL, "x", "<|EOT|>"),
    "cut call": ids_of(STEP2, "hi ", *CALL[:2], "<|EOT|>"),
    "spelled": [*ids_of(STEP2, "<audio_", "5> x <tts_", "end> y <", "|EOT|> z <audio")],
    "broken": [*bytes_of(STEP2, b"a\xe4\xbdb\xffc\xe4"), *ids_of(STEP2, "<tts_start>")],
    "half behind a tag": [
        *ids_of(STEP2, "<think>a</", "think>"),
        *bytes_of(STEP2, "茶".encode()),
        *ids_of(STEP2, "b"),
    ],
    "mark": ta4("(la", "ughs", ") ok (", "sigh"),
    "pads": ids_of(STEP2, "<tts_start>", *["<tts_pad>", *QUIET] * 80, "late", 1),
    "text loop": ids_of(STEP2, *["ha "] * 200),
    "audio loop": ids_of(STEP2, "<tts_start>", *[7, 8, 9] * 200),
    "late loop": ids_of(STEP2, "<tts_start>", *range(300), *[7] * 400),
    "stray flood": ids_of(STEP2, *range(300), "late"),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=list(STREAMS))
@pytest.mark.parametrize("decoded", [True, False])
@steady
@given(data=st.data())
def test_any_chunking_gives_the_same_events(stream, decoded, data):
    vocabulary, ids = (STEP2, stream) if decoded else (numeric("step-audio2"), as_numbers(stream))
    whole = joined(demuxed(vocabulary, ids))
    assert joined(demuxed(vocabulary, *data.draw(cuts(ids)))) == whole


@pytest.mark.parametrize("stream", STREAMS.values(), ids=list(STREAMS))
def test_every_split_point_and_single_ids_give_the_same_events(stream):
    whole = joined(demuxed(STEP2, stream))
    assert joined(demuxed(STEP2, *([token] for token in stream))) == whole
    for at in range(len(stream)):
        assert joined(demuxed(STEP2, stream[:at], stream[at:])) == whole


def as_numbers(stream: list[int]) -> list[int]:
    """The same stream with the ids of the public model: text as it is, the rest by name."""
    number = {
        special.name: special.ids[0]
        for special in STEP2.profile.specials
        if special.name and special.ids
    }
    assert STEP2.vocab
    by_id = {STEP2.vocab.id_of(name): value for name, value in number.items()}
    (book,) = STEP2.books
    assert book.first is not None
    return [by_id.get(i, i - book.first + 151_696 if i >= book.first else i) for i in stream]


SYMBOLS = st.sampled_from(
    ["a", "<", "(sigh", ")", "{}", "\n", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    + ["<tts_start>", "<tts_end>", "<tts_pad>", "<audio_start>", "<|EOT|>", 0, 1, 6560, 6561]
)


BYTES = [bytes_of(STEP2, data) for data in (b"\xe4", b"\xbd", b"\xa0", b"\xff")]
PARTIAL = ["<tts_", "end>", "<au", "dio_5>", "<|", "<", "<|E", "OT|>", "ink>", "</th", "◁", "x"]
SPELLED = [ids_of(STEP2, "<tool", text) for text in ("_call>", "_calls", "")]


@steady
@given(
    parts=st.lists(SYMBOLS | st.sampled_from(BYTES + SPELLED), max_size=25),
    prefix=st.sampled_from([None, "tts_start", "think"]),
    data=st.data(),
)
def test_any_chunking_of_nonsense_gives_the_same_events(parts, prefix, data):
    ids = [i for part in parts for i in (part if isinstance(part, list) else ids_of(STEP2, part))]
    whole = joined(demuxed(STEP2, ids, prefix=prefix))
    assert joined(demuxed(STEP2, *data.draw(cuts(ids)), prefix=prefix)) == whole
    assert isinstance(whole[-1], TurnEnd)
    assert len(of(TurnEnd, whole)) == 1


@steady
@given(parts=st.lists(SYMBOLS | st.sampled_from(PARTIAL), max_size=25), data=st.data())
def test_any_chunking_of_a_servers_text_gives_the_same_events(parts, data):
    text = "".join(part if isinstance(part, str) else f"<audio_{part}>" for part in parts)
    whole = joined(demuxed(numeric("step-audio2"), text))
    assert joined(demuxed(numeric("step-audio2"), *data.draw(cuts(text)))) == whole
    framing = r"<(/?tool_call|tts_\w+|audio_\w+|/?think|\|EOT\|)>"
    assert not [event for event in of(TextDelta, whole) if re.search(framing, event.text)]


def test_a_servers_text_gives_the_events_of_its_ids():
    text = "Hi<tts_start>so<audio_0><audio_6560><audio_6561><tts_end>" + "".join(CALL) + "<|EOT|>"
    ids = ids_of(STEP2, "Hi", "<tts_start>", "so", 0, 6560, 6561, "<tts_end>", *CALL, "<|EOT|>")
    assert joined(demuxed(numeric("step-audio2"), text)) == joined(demuxed(STEP2, ids))


def test_ids_without_a_tokenizer_stay_ids():
    ids = [0, 151_696, 158_256, 151_694, 5, 151_657, 0, 8, 151_658, 151_665]
    events = joined(demuxed(numeric("step-audio2"), ids, prefix="tts_start"))
    assert events == [
        TextDelta(0, 0, 0, 0, "", (0,), True),
        AudioTokens(0, 0, 1, 0, "s3-v2", (0, 6560)),
        TextDelta(0, 0, 1, 2, "", (5,), False),
        ToolCallUndecoded(0, 0, 2, 2, 0, (0, 8)),
        TurnEnd(0, 0, 2, 2, EndReason.STOP, 0, {}),
    ]


def test_ids_out_of_range_and_stray_audio_are_counted_and_never_played():
    ids = [151_696, 151_693, 151_697, 158_258, 10**9, -1, 151_698, 151_694, 151_699]
    events = demuxed(numeric("step-audio2"), ids)
    assert audio_of(events) == [1, 2]
    counts = {DropReason.STRAY_AUDIO: 2, DropReason.OUT_OF_RANGE: 3}
    assert of(TurnEnd, events)[0].dropped == counts
    assert [t for e in of(Dropped, events) for t in e.tokens] == [
        151_696,
        158_258,
        10**9,
        -1,
        151_699,
    ]


def test_names_out_of_range_are_dropped_from_a_servers_text():
    events = demuxed(numeric("step-audio2"), "<tts_start><audio_7000><audio_007><audio_1>")
    assert audio_of(events) == [1]
    dropped = of(TurnEnd, events)[0].dropped
    assert dropped == {DropReason.OUT_OF_RANGE: 1, DropReason.FRAMING: 1}


def test_speech_may_open_twice():
    events = demuxed(STEP2, ids_of(STEP2, "<tts_start>", 1, "<tts_end>", "<tts_start>", 2))
    assert audio_of(events) == [1, 2]


def test_a_thought_reaches_neither_speech_nor_text():
    ids = ids_of(STEP2, "hm", 5, "</think>\n\n", "<tts_start>", "hi", 1)
    events = demuxed(STEP2, ids, prefix="think")
    assert text_of(events) == "hi"
    assert audio_of(events) == [1]
    assert "".join(e.text for e in of(Thought, events)) == "hm"


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (ids_of(STEP2, *["<tts_pad>", *QUIET] * 2000), EndReason.IDLE),
        (ids_of(STEP2, *["ha"] * 5000), EndReason.LOOP),
        (ids_of(STEP2, *[4299] * 5000), EndReason.LOOP),
        (ids_of(STEP2, *[1, 2, 3, 4, 5] * 5000), EndReason.LOOP),
    ],
    ids=["pads", "text", "one code", "five codes"],
)
def test_an_endless_stream_ends(ids, reason):
    demux = Demux(STEP2, prefix="tts_start")
    events = [event for token in ids for event in demux.push([token])]
    assert demux.ended
    assert of(TurnEnd, events)[0].reason == reason
    assert len(events) <= 260
    assert demux.push([1]) == demux.finish() == []


def test_a_long_pause_is_no_loop():
    """Nine seconds of one silence code between words."""
    ids = ids_of(STEP2, "a", *range(20), *[6486] * 225, *range(20), "b")
    events = demuxed(STEP2, ids, prefix="tts_start")
    assert len(audio_of(events)) == 265
    assert text_of(events) == "ab"


def test_pads_between_audio_are_no_idle_stream():
    """Once the text is over, each group still has its pad."""
    groups = [part for n in range(300) for part in ("<tts_pad>", *range(4 * n, 4 * n + 4))]
    events = demuxed(STEP2, ids_of(STEP2, *groups, "<|EOT|>"), prefix="tts_start")
    assert audio_of(events) == [*range(1200)]
    assert of(TurnEnd, events)[0].reason == EndReason.STOP


def test_a_reply_of_pads_only_ends_without_audio():
    ids = ids_of(STEP2, *["<tts_pad>", *QUIET] * 3, "<tts_end>", "<|EOT|>")
    assert demuxed(STEP2, ids, prefix="tts_start") == [TurnEnd(0, 0, 0, 0, EndReason.STOP, 15, {})]


def test_framing_inside_speech_silences_the_rest():
    ids = ids_of(STEP2, "<tts_start>", "ok", 1, *CALL, "secret", 2, 3, "<tts_end>", "<|EOT|>")
    events = demuxed(STEP2, ids)
    assert audio_of(events) == [1]
    assert [e.text for e in of(TextDelta, events) if e.voiced] == ["ok"]
    assert of(ToolCallMalformed, events) and not of(ToolCallReady, events)


def test_framing_spelled_out_in_ids_is_neither_obeyed_nor_said():
    ids = ids_of(STEP2, "<tts_start>", "a<audio_", "5>b<|E", "OT|>c", 1)
    events = demuxed(STEP2, ids)
    assert text_of(events) == "abc"
    assert audio_of(events) == [1]
    assert of(TurnEnd, events)[0].reason == EndReason.CUT


def test_a_call_that_is_spelled_out_in_ids_is_not_run():
    ids = ids_of(STEP2, "say <tool", "_call>function\nclock\n{}</tool", "_call>ok")
    events = demuxed(STEP2, ids)
    assert text_of(events) == "say ok"
    assert not of(ToolCallReady, events) + of(ToolCallStarted, events)
    assert "spelled" in of(ToolCallMalformed, events)[0].problem


def test_turns_know_nothing_of_each_other():
    """An unterminated thought, call or mark must not swallow the session's next turn."""
    for cut in ["<think>hm", "<tool_call>function", "(lau", "<tts_"]:
        demuxed(STEP2, cut)
        assert text_of(demuxed(STEP2, "Hello")) == "Hello"
