"""Kinds of faults that public reports tell of, at the demultiplexer."""

import pytest

from duologue.lm.events import DropReason, EndReason, Thought, TurnEnd
from tests.lm.streams import (
    audio_of,
    decoding,
    demuxed,
    ids_of,
    joined,
    numeric,
    of,
    spelled,
    text_of,
)
from tests.lm.streams import tokenizer_of as tokenizer

TAGS = [("<think>", "</think>"), ("<THINKING>", "</Thinking>"), ("◁think▷", "◁/think▷")]
TAGS += [("<reasoning>", "</reasoning>"), ("<thought>", "</thought>")]


@pytest.mark.parametrize("opens, closes", TAGS)
def test_thoughts_are_never_said_wherever_a_delta_ends(opens, closes):
    """amica#174, hermes#77079, wyoming-piper#26."""
    text = f"Yes.{opens}is 3<5? sure{closes}No."
    for at in range(len(text) + 1):
        events = demuxed(numeric("qwen3-omni"), text[:at], text[at:])
        assert text_of(events) == "Yes.No."
        assert "".join(event.text for event in of(Thought, events)) == "is 3<5? sure"


@pytest.mark.parametrize("opens, closes", TAGS)
def test_thoughts_in_ids_are_never_said(opens, closes):
    """Step-Audio 2 Think spells its tags in pieces, though it has ids for its other framing."""
    ids = spelled(tokenizer("step-audio2"), f"Yes.{opens}hm{closes}No.")
    assert len(ids) > 4
    assert text_of(demuxed(decoding("step-audio2"), *([token] for token in ids))) == "Yes.No."


@pytest.mark.parametrize("opens, closes", TAGS)
def test_an_unterminated_thought_is_never_said(opens, closes):
    for cut in (f"Yes.{opens}hm", f"Yes.{opens}hm{closes[:-1]}", f"Yes.{opens[:-1]}"):
        events = demuxed(numeric("qwen3-omni"), cut)
        assert text_of(events) == "Yes."


@pytest.mark.parametrize("text", ["3 < 5", "I <3 you", "a<b", "x <y> z", "<b>so</b>", "f(x)"])
def test_ordinary_brackets_are_text_wherever_a_delta_ends(text):
    """pipecat#4976: what looks like the beginning of a tag swallows the rest."""
    for at in range(len(text) + 1):
        assert text_of(demuxed(numeric("step-audio2"), text[:at], text[at:])) == text


@pytest.mark.parametrize("tag", ["<think>", "<tool_call>", "</tts_end>"])
@pytest.mark.parametrize("mark", ["(laughs)", "[sigh]", "（哼唱）"])
def test_a_mark_that_is_taken_out_of_a_tag_leaves_none(tag, mark):
    """vllm-omni#7055: framing is never spoken, wherever a delta ends."""
    text = f"a {tag[:5]}{mark}{tag[5:]} b"
    for at in range(len(text) + 1):
        events = demuxed(numeric("qwen3-omni"), text[:at], text[at:])
        assert tag not in text_of(events)
        assert joined(events) == joined(demuxed(numeric("qwen3-omni"), text))


@pytest.mark.parametrize("text", ["SQL: 5 < 10", "I <3 you", "4111 1111 1111 1111", "你好，世界"])
def test_text_is_shown_and_kept_as_it_was_written(text):
    """pipecat#4976, 5002, 4424, 4517: B8 in the stream of a model that speaks."""
    groups = [part for n, char in enumerate(text) for part in (char, n, n + 1)]
    vocabulary = decoding("step-audio2")
    stream = ids_of(vocabulary, "<tts_start>", *groups, "<tts_end>", "<|EOT|>")
    assert text_of(demuxed(vocabulary, stream)) == text
    assert len(audio_of(demuxed(vocabulary, stream))) == 2 * len(text)


@pytest.mark.parametrize("text", ["", "🙂🙂", "…", "?!"])
def test_a_reply_with_nothing_to_say_ends_without_audio(text):
    """pipecat#5106: success without a sample, and the pipeline hangs."""
    for events in (
        demuxed(numeric("step-audio2"), f"<tts_start>{text}<tts_end><|EOT|>"),
        demuxed(
            decoding("step-audio2"),
            ids_of(decoding("step-audio2"), "<tts_start>", text, "<tts_end>", "<|EOT|>"),
        ),
    ):
        assert text_of(events) == text
        assert audio_of(events) == []
        assert of(TurnEnd, events)[0].reason == EndReason.STOP


def test_a_server_that_repeats_itself_is_cut():
    """The loop is one of text, of words or of audio names; tags alone are no text."""
    for text in ("ha " * 2000, "Let me think about that again. " * 200):
        events = demuxed(numeric("qwen3-omni"), *text)
        assert of(TurnEnd, events)[0].reason == EndReason.LOOP
        assert len(text_of(events)) < 700
    quiet = "<tts_start>" + "<audio_4299>" * 100 + "<audio_1>"
    events = demuxed(numeric("step-audio2"), quiet)
    assert len(audio_of(events)) == 101
    events = demuxed(numeric("step-audio2"), "<tts_start>" + "<audio_4299>" * 1000)
    assert of(TurnEnd, events)[0].reason == EndReason.LOOP
    assert len(audio_of(events)) <= 250


def test_characters_that_a_server_broke_are_not_said():
    """Servers that decode each id alone give U+FFFD for half a character."""
    events = demuxed(numeric("step-audio2"), "a\ufffd", "\ufffdb")
    assert text_of(events) == "ab"
    assert of(TurnEnd, events)[0].dropped == {DropReason.UNDECODABLE: 2}
