"""The reader of chat-completion chunks, fed whatever servers send."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import EngineError
from duologue.lm.chunks import ChunkReader
from duologue.lm.engine import Finish, MalformedCall, Step, TextDelta, ToolCall


def chunk(content: str | None = None, calls: list[dict] | None = None, finish: str | None = None):
    delta = {"role": "assistant", "content": content, "tool_calls": calls}
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int | None, call_id: str | None = None, name: str | None = None, args: str = ""):
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": args}}


def read(*chunks: dict[str, Any]) -> list[Step]:
    reader = ChunkReader()
    return [step for item in chunks for step in reader.read(item)]


def calls(steps: list[Step]) -> list[tuple[str, str]]:
    return [(step.name, step.arguments) for step in steps if isinstance(step, ToolCall)]


@st.composite
def chunkings(draw: st.DrawFn, text: str) -> list[str]:
    """`text` cut anywhere, empty pieces among them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


ARGUMENTS = [json.dumps({"zone": "Europe/Paris"}), json.dumps({"minutes": 5, "name": '茶 "x"'})]


@given(st.data())
def test_every_chunking_gives_the_same_text_and_calls(data: st.DataObject) -> None:
    words = data.draw(chunkings("Let me look. 你好!"))
    streams = [
        [piece(0, "a", "clock"), *(piece(0, args=args) for args in data.draw(chunkings(arguments)))]
        if index == 0
        else [piece(1, "b", "timer"), *(piece(1, args=a) for a in data.draw(chunkings(arguments)))]
        for index, arguments in enumerate(ARGUMENTS)
    ]
    order = data.draw(st.permutations([0] * len(streams[0]) + [1] * len(streams[1])))
    pieces = [streams[which].pop(0) for which in order]
    together = data.draw(st.booleans())
    packed = [pieces] if together else [[item] for item in pieces]
    steps = read(
        *(chunk(content=word) for word in words),
        *(chunk(calls=group) for group in packed),
        chunk(finish="tool_calls"),
    )
    assert "".join(s.text for s in steps if isinstance(s, TextDelta)) == "Let me look. 你好!"
    assert calls(steps) == [("clock", ARGUMENTS[0]), ("timer", ARGUMENTS[1])]
    assert [s.call_id for s in steps if isinstance(s, ToolCall)] == ["a", "b"]
    assert steps[-1] == Finish("tool_calls")


@given(cut=st.integers(1, len(ARGUMENTS[0]) - 1))
def test_an_answer_that_is_cut_off_yields_no_call(cut: int) -> None:
    """pipecat-ai/pipecat#4203: half the arguments are no call, however the answer ends."""
    begun = chunk(calls=[piece(0, "a", "clock", ARGUMENTS[0][:cut])])
    assert read(begun) == []
    for reason in ["length", "abort", "content_filter", "error"]:
        source = f"clock {ARGUMENTS[0][:cut]}"
        unfinished = MalformedCall("it has no end", source)
        assert read(begun, chunk(finish=reason)) == [unfinished, Finish(reason)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("clock", "{"),
        ("clock", '{"zone": UTC}'),
        ("clock", '["UTC"]'),
        ("clock", "null"),
        ("clock", '{"zone": NaN}'),
        ("clock", '"UTC"'),
        ("clock", json.dumps(json.dumps(ARGUMENTS[0]))),
        ("", "{}"),
        ("the clock", "{}"),
        ("clock", "[" * 100_000),
    ],
)
def test_what_is_no_call_is_told_apart(name: str, arguments: str) -> None:
    bad, good = piece(0, "a", name, arguments), piece(1, "b", "timer", "{}")
    steps = read(chunk(calls=[bad, good]), chunk(finish="tool_calls"))
    assert isinstance(steps[0], MalformedCall) and steps[0].problem
    assert steps[0].source == f"{name} {arguments}"[: len(steps[0].source)]
    assert steps[1:] == [ToolCall("b", "timer", "{}"), Finish("tool_calls")]


def test_arguments_that_are_encoded_twice_are_unwrapped() -> None:
    twice = json.dumps(ARGUMENTS[1])
    steps = read(chunk(calls=[piece(0, "a", "timer", twice)]), chunk(finish="stop"))
    assert calls(steps) == [("timer", ARGUMENTS[1])]


def test_a_server_that_loses_arguments_is_believed_of_tools_without_any() -> None:
    reader = ChunkReader(bare={"clock"})
    pieces = [piece(0, "a", "clock"), piece(1, "b", "timer"), piece(2, "c", "timer", "{}")]
    steps = [*reader.read(chunk(calls=pieces)), *reader.read(chunk(finish="tool_calls"))]
    clock, lost, timer, _ = steps
    assert (clock, timer) == (ToolCall("a", "clock", "{}"), ToolCall("c", "timer", "{}"))
    assert isinstance(lost, MalformedCall) and "without arguments" in lost.problem


def test_a_whole_call_in_the_last_chunk_is_given_out() -> None:
    steps = read(chunk(calls=[piece(0, "a", "clock", "{}")], finish="stop"))
    assert steps == [ToolCall("a", "clock", "{}"), Finish("stop")]


def test_calls_without_index_are_told_apart_by_id() -> None:
    steps = read(
        chunk(calls=[piece(None, "a", "clock", '{"zone"')]),
        chunk(calls=[piece(None, None, None, ': "UTC"}')]),
        chunk(calls=[piece(None, "b", "timer", "{}")]),
        chunk(finish="tool_calls"),
    )
    assert calls(steps) == [("clock", '{"zone": "UTC"}'), ("timer", "{}")]


def test_parallel_calls_under_one_index_are_told_apart_by_id() -> None:
    steps = read(
        chunk(calls=[piece(0, "a", "clock", '{"zone": "UTC"}'), piece(0, "b", "timer", "{}")]),
        chunk(finish="stop"),
    )
    assert calls(steps) == [("clock", '{"zone": "UTC"}'), ("timer", "{}")]


def test_a_name_sent_with_every_piece_is_one_name() -> None:
    steps = read(
        chunk(calls=[piece(0, "", "clock", "{")]),
        chunk(calls=[piece(0, "a", "clock", "}")]),
        chunk(finish="tool_calls"),
    )
    assert steps[0] == ToolCall("a", "clock", "{}")
    assert len(steps) == 2


def test_calls_without_id_get_one_that_no_other_call_has() -> None:
    """The ledger runs an id once: the second answer's call must not look like the first's."""
    answer = [chunk(calls=[piece(0, None, "clock"), piece(1, "", "timer")]), chunk(finish="stop")]
    steps = [*read(*answer), *read(*answer)]
    ids = [step.call_id for step in steps if isinstance(step, ToolCall)]
    assert len(set(ids)) == 4
    # mistral-common takes nothing else.
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
    assert calls(steps) == [("clock", "{}"), ("timer", "{}")] * 2


@pytest.mark.parametrize(
    "empty",
    [
        {},
        {"choices": None},
        {"choices": [], "usage": {"total_tokens": 3}},
        {"choices": [{"index": 0}]},
        {"choices": [{"delta": None, "finish_reason": None}]},
        {"choices": [{"delta": {"tool_calls": None, "reasoning_content": "hm"}}]},
    ],
)
def test_chunks_without_content_are_no_step(empty: dict) -> None:
    assert read(empty, chunk("Hi"), empty, chunk(finish="stop"), empty) == [
        TextDelta("Hi"),
        Finish("stop"),
    ]


def test_nothing_follows_the_last_step() -> None:
    reader = ChunkReader()
    assert list(reader.read(chunk("Hi"))) == [TextDelta("Hi")]
    assert not reader.finished
    assert list(reader.read(chunk(finish="stop"))) == [Finish("stop")]
    assert reader.finished
    assert list(reader.read(chunk("more", finish="stop"))) == []


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"code": 500, "message": "out of memory", "type": "server_error"}},
        {"error": "out of memory"},
        {"object": "error", "message": "out of memory", "code": 500},
    ],
)
def test_an_error_in_the_stream_is_an_engine_error(error: dict) -> None:
    with pytest.raises(EngineError, match="out of memory"):
        read(chunk("Hi"), error)


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": "none"},
        {"choices": [None]},
        {"choices": [{"delta": {"content": [{"type": "text"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {"zone": 1}}}]}}]},
    ],
)
def test_a_chunk_of_another_shape_is_an_engine_error(odd: dict) -> None:
    with pytest.raises(EngineError, match="expected a chat-completion chunk, got"):
        read(odd)
