"""A server whose model hears, scripted with the deltas of Step-Audio 2's vLLM, and calls to it.

Tests take over its fixture.
"""

import asyncio
import base64
import io
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import numpy as np
import pytest
import soundfile
from aiohttp import web
from pipecat.frames.frames import InputAudioRawFrame

from bots.assembly import IN_RATE_HZ
from bots.models import Models, Speech
from bots.virtual_call import virtual_call
from duologue.config import BotConfig, LmConfig, SpeechLmConfig, Token2wavSection
from duologue.errors import EngineError
from duologue.lm.openai_http import OpenAIHttp
from duologue.rehearsal import virtual
from tests.fakes import FakeBatcher, FakeVoice
from tests.lm.fake_servers import FakeVllm, event, serving
from tests.lm.streams import decoding
from tests.lm.test_engines_chat import chunk, spoken
from tests.test_speech_lm import VOICE

SEA, MORE, STOP = "Tell me about the sea.", "And what of the moon?", "Stop, please."


def speech(text: str, audio: int) -> list[dict]:
    """An answer as the server's deltas: a word and four tokens in turns, then the other tokens."""
    words = text.split(" ")
    deltas = []
    for n in range(0, max(audio, len(words)), 4):
        word = (" " if n else "") + words[n // 4] if n // 4 < len(words) else None
        tokens = "".join(f"<audio_{1 + token % 1000}>" for token in range(n, min(n + 4, audio)))
        deltas.append(spoken(**({"tts_text": word} if word else {}), tts_audio=tokens))
    return [*deltas, chunk("stop")]


class Hearer(FakeVllm):
    """Gives its answers in turn; an event among the deltas is waited for, a string is a refusal."""

    def __init__(self, *answers: list[dict | asyncio.Event] | str):
        super().__init__()
        self.answers = list(answers)
        self.left = asyncio.Event()

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/metrics", self._metrics)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        answer = self.answers.pop(0) if self.answers else speech("yes", 8)
        if isinstance(answer, str):
            return web.json_response({"error": {"message": answer}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        self.asked.set()
        try:
            for delta in answer:
                if isinstance(delta, asyncio.Event):
                    await delta.wait()
                else:
                    await response.write(event(delta))
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        finally:
            self.running -= 1
        return response

    def users(self, number: int) -> list[Any]:
        """The user's messages in a request: text as it is, sound as int16 [n]."""
        messages = self.requests[number]["messages"]
        return [_heard(m["content"]) for m in messages if m["role"] == "user"]

    def raw(self, number: int) -> list[dict]:
        return self.requests[number]["messages"]


def _heard(content: str | list[dict]) -> Any:
    if isinstance(content, str):
        return content
    pieces = []
    for part in content:
        assert part["type"] == "input_audio" and part["input_audio"]["format"] == "wav"
        file = io.BytesIO(base64.b64decode(part["input_audio"]["data"]))
        samples, rate_hz = soundfile.read(file, dtype="int16", always_2d=True)
        assert rate_hz == 16_000 and samples.shape[1] == 1
        pieces.append(samples[:, 0])
    assert all(len(piece) <= 25 * 16_000 for piece in pieces)
    return np.concatenate(pieces)


def config(family: str = "step-audio2", **options: Any) -> BotConfig:
    options = {"mode": "A1-T2A2", **options}
    return BotConfig(
        lm=LmConfig(tool_choice="none" if "think" in family else "model"),
        speech_lm=SpeechLmConfig(
            family=family, base_url="http://127.0.0.1/v1", model="m", **options
        ),
        token2wav=Token2wavSection(model="/nowhere", voice="nobody"),  # type: ignore[arg-type]
    )


class Microphone:
    """What a call's microphone has given so far."""

    def __init__(self, call):
        self.audio = bytearray()
        self._queue: Callable = call.session.worker.queue_frame
        call.session.worker.queue_frame = self.queue

    async def queue(self, frame, *rest) -> None:
        if isinstance(frame, InputAudioRawFrame):
            self.audio += frame.audio
        await self._queue(frame, *rest)

    def place_of(self, heard: np.ndarray) -> float:
        """Seconds from the call's start to where exactly these samples stand."""
        found = self.audio.find(heard.tobytes())
        assert found >= 0 and found % 2 == 0
        return found / 2 / IN_RATE_HZ


async def enter(stack: AsyncExitStack, whisper, server: Hearer, setup: BotConfig, engine=None):
    """A call whose model is on this server."""
    family, batcher = setup.speech_lm.family, FakeBatcher()  # type: ignore[union-attr]
    engine = engine or OpenAIHttp(server.url, "m", server="vllm")
    stack.push_async_callback(engine.close)
    decoder = (batcher, VOICE) if setup.speech_lm.mode.audio_out else ()  # type: ignore[union-attr]
    voice, tokens = FakeVoice(0.2), Speech(decoding(family), *decoder)  # type: ignore[arg-type]
    models = Models(whisper, engine, voice, tokens)  # type: ignore[arg-type]
    call = await stack.enter_async_context(virtual_call(models, setup))
    call.mic = Microphone(call)  # type: ignore[attr-defined]
    call.batcher, call.voice = batcher, voice  # type: ignore[attr-defined]
    return call


@pytest.fixture
def hears(whisper):
    """Runs a scenario with a call and the server of its model, in virtual time."""

    def run(scenario, *answers, whisper=whisper, setup: BotConfig | None = None, errors=False):
        """`answers` are the server's; `errors` says whether the call's are as they should be."""

        async def main():
            server = Hearer(*answers)
            async with serving(server), AsyncExitStack() as stack:
                if errors:
                    stack.enter_context(suppress(EngineError))
                call = await enter(stack, whisper, server, setup or config())
                await asyncio.sleep(0.3)
                await scenario(call, server)

        virtual.run(main())

    return run


def said(call) -> str:
    return call.session.context.messages[-1]["content"]
