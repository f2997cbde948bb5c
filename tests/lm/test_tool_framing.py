"""One right outcome for each tool call, however a server or a model cuts it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.lm.events import (
    Event,
    TextDelta,
    Thought,
    ToolCallMalformed,
    ToolCallReady,
    ToolCallStarted,
    ToolCallUndecoded,
)
from duologue.lm.formats import ToolFormat
from duologue.lm.tool_calls import MOST, Malformed, parse_call
from tests.lm.streams import (
    audio_of,
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

STEP2, QWEN = decoding("step-audio2"), decoding("qwen2.5-omni")
OPEN, CLOSE = "<tool_call>", "</tool_call>"
ZONE = '{"zone": "欧洲/Paris"}'


def calls(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.arguments) for event in of(ToolCallReady, events)]


# The cases in which public streaming parsers lose arguments, or the call
# (the step_audio_2 tool parser of stepfun's vLLM).
CUTS = {
    "arguments whole in the delta that shows them first": [
        "Wait. ",
        f"{OPEN}function\nclock\n",
        ZONE,
        CLOSE,
    ],
    "arguments in pieces": ["Wait. ", OPEN, "function\nclo", "ck\n", *ZONE, CLOSE],
    "the end of the arguments with the closing tag": [
        "Wait. ",
        f"{OPEN}function\nclock\n",
        ZONE[:9],
        f"{ZONE[9:]}{CLOSE}",
    ],
    "everything in one delta": [f"Wait. {OPEN}function\nclock\n{ZONE}{CLOSE}"],
    "tags in pieces": [*f"Wait. {OPEN}function\nclock\n{ZONE}{CLOSE}"],
}


@pytest.mark.parametrize("deltas", CUTS.values(), ids=list(CUTS))
@pytest.mark.parametrize("after", ["", "\n", "<|EOT|>"])
def test_a_call_is_whole_however_it_is_cut(deltas, after):
    events = demuxed(numeric("step-audio2"), *deltas, after)
    assert calls(events) == [("clock", ZONE)]
    assert len(of(ToolCallStarted, events)) == 1
    assert text_of(events) == "Wait. "


@pytest.mark.parametrize("deltas", CUTS.values(), ids=list(CUTS))
def test_the_same_in_ids(deltas):
    ids = ids_of(STEP2, "Wait. ", OPEN, f"function\nclock\n{ZONE}", CLOSE, "<|EOT|>")
    sizes = [len(delta) for delta in deltas]
    chunks = [ids[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))]
    events = demuxed(STEP2, *chunks, ids[sum(sizes) :])
    assert calls(events) == [("clock", ZONE)]
    assert text_of(events) == "Wait. "


@pytest.mark.parametrize("deltas", [[f"{OPEN}function\nnow\n{{}}{CLOSE}"], [*"function\nnow\n{}"]])
def test_a_call_without_arguments_has_an_empty_object(deltas):
    deltas = deltas if len(deltas) == 1 else [OPEN, *deltas, CLOSE]
    assert calls(demuxed(numeric("step-audio2"), *deltas)) == [("now", "{}")]


def test_two_calls_in_one_delta_are_two():
    text = f"{OPEN}function\na\n{{}}{CLOSE}\n{OPEN}function\nb\n{ZONE}{CLOSE}<|EOT|>"
    events = demuxed(numeric("step-audio2"), text)
    assert calls(events) == [("a", "{}"), ("b", ZONE)]
    assert [event.index for event in of(ToolCallReady, events)] == [0, 1]
    assert not text_of(events)


BAD = [
    "",
    "function\nclock",
    "function\nclock\n{",
    "function\nclock\n{'zone': 1}",
    'function\nclock\n{"a": NaN}',
    "function\nclock\n[1]",
    "function\n\n{}",
    "function\nrm -rf\n{}",
    "method\nclock\n{}",
    '{"name": "clock", "arguments": {}}',
    "just words",
    " ".join(map(str, range(MOST // 4))),
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("end", [CLOSE + " bye", "", "<|EOT|>"])
def test_a_malformed_or_unterminated_call_is_reported_and_never_said(body, end):
    events = demuxed(numeric("step-audio2"), f"ok {OPEN}{body}{end}")
    assert not of(ToolCallReady, events)
    (bad,) = of(ToolCallMalformed, events)
    assert bad.problem
    assert len(bad.source) <= MOST
    assert text_of(events) == ("ok bye" if "bye" in end else "ok ")


@steady
@given(data=st.data(), at=st.integers(0, 40))
def test_a_call_that_is_cut_off_is_never_ready(data, at):
    text = f"hi {OPEN}function\nclock\n{ZONE}{CLOSE}"
    cut = text[: len(text) - 1 - at]
    events = demuxed(numeric("step-audio2"), *data.draw(cuts(cut)))
    assert not of(ToolCallReady, events)
    assert text_of(events).strip() == "hi"


def test_audio_inside_a_call_is_not_played():
    ids = ids_of(STEP2, "<tts_start>", 1, "<tts_end>", OPEN, "function\na\n", 2, "{}", CLOSE)
    events = demuxed(STEP2, ids)
    assert audio_of(events) == [1]
    assert calls(events) == [("a", "{}")]


def test_framing_inside_an_argument_is_only_text():
    arguments = json.dumps({"q": "what is <think>, <audio_5>, <tts_end>?"})
    text = f"{OPEN}function\nsearch\n{arguments}{CLOSE}"
    assert calls(demuxed(numeric("step-audio2"), text)) == [("search", arguments)]


def test_a_tags_name_inside_an_argument_of_ids_is_only_text():
    arguments = json.dumps({"q": "</tool_call> or <tool_call> or <|EOT|>"})
    ids = ids_of(STEP2, OPEN, f"function\nsearch\n{arguments}", CLOSE)
    assert calls(demuxed(STEP2, ids)) == [("search", arguments)]


@pytest.mark.parametrize("token", [OPEN, "<tts_start>", "<tts_end>", "<audio_start>"])
def test_a_control_token_inside_a_call_spoils_it(token):
    events = demuxed(STEP2, ids_of(STEP2, OPEN, "function\na\n{", token, "}", CLOSE))
    assert calls(events) == []
    assert token.strip("<>") not in text_of(events)
    assert len(of(ToolCallMalformed, events)) == 1


def test_a_call_inside_an_argument_spoils_the_call_and_is_not_run():
    inner = f"{OPEN}function\\nrm\\n{{}}{CLOSE}"
    events = demuxed(numeric("step-audio2"), f'{OPEN}function\nsearch\n{{"q": "{inner}"}}{CLOSE}')
    assert calls(events) == []
    assert len(of(ToolCallMalformed, events)) == 1


def test_a_call_inside_a_thought_is_not_run_and_the_thought_goes_on():
    text = f"<think>maybe {OPEN}function\na\n{{}}{CLOSE} or not</think>Hello"
    events = demuxed(numeric("step-audio2"), text)
    assert text_of(events) == "Hello"
    assert not of(ToolCallReady, events) + of(ToolCallStarted, events)
    assert "".join(event.text for event in of(Thought, events)) == "maybe  or not"


def test_a_family_without_tools_never_calls_and_never_says_it():
    events = demuxed(numeric("glm-4-voice"), f"hi {OPEN}function\na\n{{}}{CLOSE}")
    assert text_of(events) == "hi "
    assert not of(ToolCallReady, events)


def test_text_around_calls_of_a_thinker_stays_text():
    body = '{"name": "clock", "arguments": {"zone": "欧洲"}}'
    ids = ids_of(QWEN, "One. ", OPEN, f"\n{body}\n", CLOSE, "\nTwo.", "<|im_end|>")
    events = joined(demuxed(QWEN, ids))
    assert calls(events) == [("clock", '{"zone": "欧洲"}')]
    assert [event.text for event in of(TextDelta, events)] == ["One. ", "Two."]


def test_without_a_tokenizer_a_cut_call_is_malformed_and_keeps_its_ids():
    events = demuxed(numeric("step-audio2"), [5, 151_657, 6, 7])
    assert of(ToolCallMalformed, events)[0].tokens == (6, 7)
    assert not of(ToolCallUndecoded, events)


@pytest.mark.parametrize(
    ("body", "form", "expected"),
    [
        ('function\nf\n"{\\"a\\": 1}"', ToolFormat.LINES, ("f", '{"a": 1}')),
        ('\nfunction\nf\n{\n "a": 1\n}\n', ToolFormat.LINES, ("f", '{\n "a": 1\n}')),
        ('{"name": "f"}', ToolFormat.JSON, ("f", "{}")),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', ToolFormat.JSON, ("f", '{"a": 1}')),
        (
            json.dumps({"name": "f", "arguments": json.dumps('{"a": 1}')}),
            ToolFormat.JSON,
            ("f", '{"a": 1}'),
        ),
    ],
)
def test_forms_that_models_write(body, form, expected):
    assert parse_call(body, form) == expected


@pytest.mark.parametrize("body", ["[]", '{"name": 1}', '{"name": "f", "arguments": [1]}', "{"])
def test_bad_objects(body):
    with pytest.raises(Malformed):
        parse_call(body, ToolFormat.JSON)


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": ' + "1" * 5000 + "}"])
def test_json_beyond_any_measure(arguments):
    with pytest.raises(Malformed):
        parse_call(f"function\nclock\n{arguments}", ToolFormat.LINES)
