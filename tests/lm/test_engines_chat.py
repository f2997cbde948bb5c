"""Chats with models that hear and speak: what goes out, and the deltas of Step-Audio 2's vLLM."""

import base64
import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import UsageError
from duologue.lm.chunks import ChunkReader
from duologue.lm.engine import Capabilities, Finish, Message, Request, Step, TextDelta, ToolCall
from duologue.lm.events import TextDelta as Text
from duologue.lm.openai_http import OpenAIHttp
from duologue.lm.prompt import AudioPart, IdsPart, TextPart
from tests.lm.fake_servers import Scripted, event, serving
from tests.lm.streams import audio_of, decoding, demuxed, of


def chunk(finish: str | None = None, **delta) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def spoken(**parts: str) -> dict:
    return chunk(tts_content=parts)


TURN = [
    chunk(role="assistant", content=""),
    spoken(tts_text="Let me "),
    spoken(tts_audio="<audio_0><audio_1>"),
    spoken(tts_text="look.", tts_audio="<audio_2><audio_3>"),
    chunk(content="Done"),
    chunk(content="."),
    chunk("stop"),
]
ASK: Message = {"role": "user", "content": "What time is it?"}
SAID = "Let me <audio_0><audio_1>look.<audio_2><audio_3><tts_end>Done."


def text_in(steps: list[Step]) -> str:
    return "".join(step.text for step in steps if isinstance(step, TextDelta))


async def ask(fake: Scripted, *messages: Message, **options) -> list[Step]:
    async with serving(fake):
        engine = OpenAIHttp(fake.url, "small", **options)
        try:
            return [step async for step in engine.stream(Request(list(messages)))]
        finally:
            await engine.close()


async def test_speech_that_the_server_puts_apart_comes_as_the_model_wrote_it() -> None:
    steps = await ask(
        Scripted(*map(event, TURN), event("[DONE]")), {"role": "user", "content": "?"}
    )
    assert text_in(steps) == SAID
    assert steps[-1] == Finish("stop")


async def test_it_can_be_demultiplexed() -> None:
    """The server drops the framing: what follows speech must not be taken for spoken."""
    steps = await ask(
        Scripted(*map(event, TURN), event("[DONE]")), {"role": "user", "content": "?"}
    )
    pieces = [step.text for step in steps if isinstance(step, TextDelta)]
    events = demuxed(decoding("step-audio2"), *pieces, prefix="<tts_start>")
    assert audio_of(events) == [0, 1, 2, 3]
    said = [(event.text, event.voiced) for event in of(Text, events)]
    assert "".join(text for text, voiced in said if voiced) == "Let me look."
    assert "".join(text for text, voiced in said if not voiced) == "Done."


@given(st.lists(st.sampled_from(["text", "audio", "both", "plain", "none"]), max_size=12))
def test_framing_is_spelled_out_once_behind_each_speech(kinds: list[str]) -> None:
    fields = {
        "text": {"tts_content": {"tts_text": "a"}},
        "audio": {"tts_content": {"tts_audio": "<audio_1>"}},
        "both": {"tts_content": {"tts_text": "b", "tts_audio": "<audio_2>"}},
        "plain": {"content": "c"},
        "none": {"tts_content": {"tts_text": None}, "content": None},
    }
    reader = ChunkReader()
    said = text_in([step for kind in kinds for step in reader.read(chunk(**fields[kind]))])
    runs = "".join({"plain": "c", "none": ""}.get(kind, "s") for kind in kinds)
    assert said.count("<tts_end>") == runs.count("sc")
    assert said.startswith("<tts_end>") is False


async def test_a_call_behind_speech_is_a_call() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "clock", "arguments": "{}"}}
    pieces = [spoken(tts_text="Wait."), chunk(tool_calls=[call]), chunk("tool_calls")]
    steps = await ask(Scripted(*map(event, pieces)), ASK)
    assert steps == [TextDelta("Wait."), ToolCall("a", "clock", "{}"), Finish("tool_calls")]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000])
async def test_sound_goes_out_as_a_wav_file_made_in_memory(rate_hz: int) -> None:
    samples = np.array([0, 0.5, -0.5, 1.5, -2], np.float32)
    part = AudioPart(np.concatenate([samples, np.zeros(1000, np.float32)]), rate_hz)
    fake = Scripted(event(chunk("stop")))
    extra = {"type": "text", "text": "as it is"}
    await ask(fake, {"role": "user", "content": [part, TextPart("What is this?"), extra]})
    sound, *texts = fake.requests[0]["messages"][0]["content"]
    assert texts == [{"type": "text", "text": "What is this?"}, extra]
    assert sound["type"] == "input_audio" and sound["input_audio"]["format"] == "wav"
    file = io.BytesIO(base64.b64decode(sound["input_audio"]["data"]))
    heard, rate = soundfile.read(file, dtype="float32")
    assert rate == rate_hz and heard.shape == part.samples.shape
    assert np.abs(heard - np.clip(part.samples, -1, 1)).max() < 1e-4


async def test_messages_are_left_as_they_were() -> None:
    message: Message = {"role": "user", "content": [AudioPart(np.zeros(9, np.float32), 16_000)]}
    await ask(Scripted(event(chunk("stop"))), message)
    assert isinstance(message["content"][0], AudioPart)


@pytest.mark.parametrize("eot", [None, True, False])
async def test_an_open_answer_is_left_for_the_model_to_go_on_with(eot: bool | None) -> None:
    fake = Scripted(event(chunk("stop")))
    opened: Message = {"role": "assistant", "content": "<tts_start>"}
    opened |= {} if eot is None else {"eot": eot}
    await ask(fake, {"role": "user", "content": "Hi"}, opened)
    body = fake.requests[0]
    assert body["messages"][-1] == opened
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    assert (body.items() >= flags.items()) == (eot is False)


@pytest.mark.parametrize(
    ("kind", "field"), [("vllm", "request_id"), ("sglang", "rid"), ("openai", None)]
)
async def test_the_request_says_what_was_asked(kind: str, field: str | None) -> None:
    request = Request(
        [{"role": "user", "content": "Hi"}], stop=("\n",), stop_ids=(5,), seed=3, request_id="turn4"
    )
    fake = Scripted(event(chunk("stop")))
    async with serving(fake):
        engine = OpenAIHttp(fake.url, "small", server=kind)
        assert [step async for step in engine.stream(request)] == [Finish("stop")]
        await engine.close()
    body = fake.requests[0]
    assert (body["stop"], body["stop_token_ids"], body["seed"]) == (["\n"], [5], 3)
    assert [name for name in ("request_id", "rid") if name in body] == ([field] if field else [])
    assert field is None or body[field].startswith("turn4-")


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Request(parts=(IdsPart((1,)),)), "goes to Completions"),
        (Request([{"role": "user", "content": [IdsPart((1,))]}]), "takes no ids"),
    ],
    ids=["raw prompt", "ids in a message"],
)
async def test_what_a_chat_cannot_take_is_refused_before_any_work(
    request_: Request, told: str
) -> None:
    engine = OpenAIHttp("http://127.0.0.1:9/v1", "small")
    with pytest.raises(UsageError, match=told):
        await anext(engine.stream(request_))
    await engine.close()


async def test_capabilities() -> None:
    engine = OpenAIHttp("http://127.0.0.1:9/v1", "small")
    assert engine.capabilities == Capabilities(audio_in=True)
    await engine.close()
