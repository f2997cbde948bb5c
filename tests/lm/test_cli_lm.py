"""`duologue lm` on standard input and output."""

import json

import pytest
from typer.testing import CliRunner

from duologue.cli_lm import lm_app
from duologue.errors import DuologueError, EngineError, InputError, ModelError, UsageError
from tests.lm.streams import decoding, ids_of, tokenizer_of


def run(*arguments: str, stdin: str | bytes = "") -> str:
    result = CliRunner().invoke(lm_app, arguments, input=stdin)
    if isinstance(result.exception, DuologueError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def demux(stdin: str | bytes, *options: str) -> list[dict]:
    arguments = ("demux", "--family", "step-audio2", "--json", *options)
    return [json.loads(line) for line in run(*arguments, stdin=stdin).splitlines()]


def test_ids_one_a_line():
    ids = [0, 151_696, 158_256, 158_257, 151_694, 151_657, 7, 8, 151_658, 158_300, 151_665, 3]
    lines = demux("\n".join(map(str, ids)) + "\n\n", "--assume-prefix", "tts_start")
    assert [line["type"] for line in lines] == [
        "text",
        "audio",
        "audio",
        "tool_call",
        "error",
        "end",
    ]
    assert [line["seq"] for line in lines] == list(range(6))
    assert [line["audio_index"] for line in lines] == [0, 0, 1, 2, 2, 2]
    assert {line["turn_id"] for line in lines} == {0}
    assert [line.get("tokens") for line in lines[:5]] == [[0], [0], [6560], [7, 8], [158_300]]
    assert lines[3]["status"] == "undecoded"
    assert lines[4]["code"] == "out_of_range"
    assert (lines[5]["reason"], lines[5]["pads"]) == ("stop", 1)


def test_without_the_prefix_audio_is_stray():
    lines = demux("151696\n")
    assert [line["type"] for line in lines] == ["error", "end"]
    assert lines[0]["code"] == "stray_audio"


def test_the_mode_knows_the_prefix():
    assert [line["type"] for line in demux("151696\n", "--mode", "T1-A2")] == ["audio", "end"]
    assert [line["type"] for line in demux("151696\n", "--mode", "T1-T2")] == ["error", "end"]


def test_a_tokenizer_decodes(tmp_path):
    vocabulary = decoding("step-audio2")
    tokenizer_of("step-audio2").save(str(tmp_path / "tokenizer.json"))
    parts = ["<think>hm</think>", "Hi (laughs)", "<tool_call>", "function\nf\n{}", "</tool_call>"]
    ids = ids_of(vocabulary, *parts, "<tool_call>", "x", "<|EOT|>")
    lines = demux("\n".join(map(str, ids)), "--tokenizer", str(tmp_path), "--turn-id", "4")
    assert "".join(line["text"] for line in lines if line["type"] == "text") == "Hi "
    assert "".join(line["text"] for line in lines if line["type"] == "thought") == "hm"
    (particle,) = [line for line in lines if line["type"] == "particle"]
    assert (particle["name"], particle["text_offset"]) == ("laugh", 3)
    calls = [line for line in lines if line["type"] == "tool_call"]
    assert [call["status"] for call in calls] == ["started", "ready", "started"]
    assert (calls[1]["name"], calls[1]["arguments"]) == ("f", "{}")
    (error,) = [line for line in lines if line["type"] == "error"]
    assert (error["code"], error["text"]) == ("tool_call_malformed", "x")
    assert {line["turn_id"] for line in lines} == {4}


def sse(*chunks: dict) -> str:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([": a comment\n\n", "event: message\n", *lines, "data: [DONE]\n\n"])


CHUNKS = {
    "vLLM": [{"choices": [{"delta": {"content": ""}, "token_ids": [0, 151_696]}]}],
    "completions": [{"choices": [{"text": "x", "token_ids": [0, 151_696]}]}],
    "llama.cpp": [{"content": "x", "tokens": [0, 151_696]}],
    "one by one": [{"token_id": 0, "token": "x"}, {"token_id": 151_696}],
    "odd ones between": [{"choices": []}, {"choices": [{"delta": {}, "token_ids": [0, 151_696]}]}],
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=list(CHUNKS))
def test_ids_of_servers(chunks):
    done = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    lines = demux(sse(*chunks, done), "--assume-prefix", "tts_start")
    assert [line["type"] for line in lines] == ["text", "audio", "end"]
    assert [line.get("tokens") for line in lines] == [[0], [0], None]
    assert lines[-1]["reason"] == "stop"


def test_plain_json_lines_are_chunks_too():
    assert demux('{"choices": [{"token_ids": [5]}]}\n')[0]["tokens"] == [5]


def test_text_of_servers():
    spoken = {"choices": [{"delta": {"tts_content": {"tts_text": "Hi "}}}]}
    audio = {"choices": [{"delta": {"tts_content": {"tts_audio": "<audio_0><audio_9>"}}}]}
    rest = {"choices": [{"delta": {"content": "<tts_end>bye"}, "finish_reason": "length"}]}
    lines = demux(sse(spoken, audio, rest), "--assume-prefix", "tts_start")
    assert [(line["type"], line.get("text"), line.get("tokens")) for line in lines] == [
        ("text", "Hi ", None),
        ("audio", None, [0]),
        ("audio", None, [9]),
        ("text", "bye", None),
        ("end", None, None),
    ]
    assert lines[-1]["reason"] == "cut"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("hello", "line 2 is 'hello'"),
        ("1.5", "line 2"),
        ("true", "line 2"),
        ("[1]", "line 2"),
        ('{"choices": 1}', "line 2"),
        ('{"choices": [null]}', "line 2"),
        ('{"detail": "Not Found"}', "line 2"),
        ("{}", "line 2"),
        ('{"choices": [{"token_ids": ["1"]}]}', "line 2"),
        ("1" * 5000, "line 2 is '1{80}', and so on; expected an id of at most 64 bits"),
        ("1" * 4000, "line 2 is '1{80}', and so on; expected an id of at most 64 bits"),
        (str(2**63), "at most 64 bits"),
        (f'{{"choices": [{{"token_ids": [-{"1" * 400}]}}]}}', "at most 64 bits"),
        ("[" * 100_000, "line 2"),
    ],
)
def test_another_line_is_an_input_error(line, problem):
    with pytest.raises(InputError, match=problem):
        demux(f"5\n{line}\n")


def test_a_byte_order_mark_is_skipped():
    assert demux(b"\xef\xbb\xbf5\n6\n") == demux("5\n6\n")
    assert demux(b"\xef\xbb\xbf" + sse({"choices": [{"token_ids": [5]}]}).encode())[0]["tokens"]
    with pytest.raises(InputError, match="line 2"):
        demux(b"5\n\xef\xbb\xbf6\n")


def test_bytes_that_are_no_text_are_an_input_error():
    with pytest.raises(InputError, match="UTF-8"):
        demux(b"5\n\xff\xfe\n")


@pytest.mark.parametrize(
    "error",
    [{"error": {"message": "out of memory"}}, {"object": "error", "message": "out of memory"}],
)
def test_an_error_of_the_server_is_told(error):
    with pytest.raises(EngineError, match="out of memory"):
        demux(sse(error))


def test_what_a_server_puts_apart_ends_where_other_text_follows():
    spoken = {"choices": [{"delta": {"tts_content": {"tts_text": "Hi", "tts_audio": "<audio_0>"}}}]}
    call = {"choices": [{"delta": {"content": '<tool_call>function\nf\n{"a": 1}</tool_call>'}}]}
    lines = demux(sse(spoken, call), "--assume-prefix", "tts_start")
    assert [line["type"] for line in lines] == ["text", "audio", "tool_call", "tool_call", "end"]
    assert lines[3]["arguments"] == '{"a": 1}'


def test_calls_that_a_server_puts_apart_are_events():
    def pieces(*functions: tuple[str, str]) -> dict:
        calls = [
            {"index": n, "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(functions)
        ]
        return {"choices": [{"delta": {"tool_calls": calls}}]}

    text = {"choices": [{"delta": {"content": "Hi"}}]}
    begun = pieces(("clock", '{"zone": '), ("timer", "{"))
    done = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    lines = demux(sse(text, begun, pieces(("", '"UTC"}')), done))
    assert [(line["type"], line.get("status")) for line in lines] == [
        ("text", None),
        ("tool_call", "started"),
        ("tool_call", "ready"),
        ("error", "malformed"),
        ("end", None),
    ]
    assert (lines[2]["name"], lines[2]["arguments"]) == ("clock", '{"zone": "UTC"}')
    assert [line["index"] for line in lines[1:4]] == [0, 0, 1]
    assert [line["seq"] for line in lines] == list(range(5))
    assert lines[2]["text_offset"] == 2 and lines[3]["text"] == "timer {"
    # Ids hold the call as well.
    spelled = {"choices": [{"delta": begun["choices"][0]["delta"], "token_ids": [151_657, 7]}]}
    tail = {"choices": [{"token_ids": [151_658]}]}
    told = demux(sse(spelled, begun, tail, done))
    assert [(line["type"], line.get("status")) for line in told[:-1]] == [
        ("tool_call", "undecoded")
    ]
    (error, end) = demux(sse(begun))[-2:]
    assert (error["problem"], end["reason"]) == ("it has no end", "cut")


def test_half_a_surrogate_pair_is_no_character():
    """JSON may hold one; no output can."""
    lines = demux(r'{"choices": [{"delta": {"content": "a\ud83d"}}]}')
    assert [line.get("text") for line in lines if line["type"] == "text"] == ["a"]
    assert lines[-1]["dropped"] == {"undecodable": 1}


def test_nothing_at_all_is_a_turn_that_was_cut():
    (end,) = demux("")
    assert (end["type"], end["reason"]) == ("end", "cut")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--mode", "A1-T3"], UsageError),
        (["--assume-prefix", "nothing"], UsageError),
        (["--tokenizer", "/nowhere"], ModelError),
    ],
)
def test_wrong_options_fail_before_anything_is_read(options, error):
    with pytest.raises(error):
        demux("not even ids", *options)


def test_without_json_it_prints_a_table():
    out = run("demux", "--family", "glm-4-voice", stdin="5\n152353\n151336\n")
    assert [line.split()[5] for line in out.splitlines()] == ["text", "audio", "end"]


def test_modes():
    rows = {row["family"]: row for row in json.loads(run("modes", "--json"))}
    assert rows["step-audio2"]["modes"] == [
        "A1-T1",
        "A1-T2",
        "A1-T2A2",
        "T1-T2",
        "T1-T2A2",
        "T1-A1",
        "T1-A2",
    ]
    assert rows["step-audio2"]["codebooks"] == [{"name": "s3-v2", "size": 6561, "rate_hz": 25}]
    assert rows["spark-tts"]["modes"] == ["T1-A1"]
    table = run("modes", "--mode", "a1-t1").splitlines()
    assert table[0].split()[:3] == ["FAMILY", "A1-T1", "A1-T2"]
    assert "spark-tts" not in "".join(table)


def test_an_impossible_pair_is_refused_and_the_possible_named():
    with pytest.raises(UsageError, match="only T1-A1"):
        run("modes", "--family", "spark-tts", "--mode", "A1-T2")
    with pytest.raises(UsageError, match="only T1-A1"):
        run("demux", "--family", "spark-tts", "--mode", "A1-T2", stdin="5")
