"""Any server that speaks OpenAI's streaming chat completions (vLLM, SGLang, llama.cpp, ...)."""

import base64
import io
import wave
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

import numpy as np

from duologue.errors import EngineError, UsageError
from duologue.lm.abort import Aborts
from duologue.lm.chunks import ChunkReader
from duologue.lm.engine import Capabilities, Message, Request, Step
from duologue.lm.exchange import Exchange, wire_name
from duologue.lm.http_client import HttpClient
from duologue.lm.prompt import AudioPart, IdsPart, TextPart
from duologue.lm.server import Call


class OpenAIHttp:
    """A chat-completions endpoint.

    A last message with `"eot": False`, as Step-Audio 2's vLLM knows it, is left open for the model
    to go on with. Where nothing shows that an abort works (`server` is "openai"), every abort
    counts as unconfirmed.

    Args:
        base_url: Up to and including /v1.
        model: The name under which the server knows the model.
        api_key: Sent as a bearer token; local servers ignore it.
        timeout_s: Longest wait for the next piece of an answer.
        server: What it is, for its way to abort: see `Completions`.

    Raises:
        ConfigError: `base_url` is no http(s) address, the key cannot be sent, or an unknown kind of
            server.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        timeout_s: float = 20.0,
        server: str = "openai",
    ):
        self._http = HttpClient(base_url, model, api_key=api_key, timeout_s=timeout_s)
        self._exchange = Exchange(self._http, server)

    @property
    def capabilities(self) -> Capabilities:
        """See `Engine.capabilities`."""
        verified = self._exchange.server.capabilities.verified_abort
        return Capabilities(audio_in=True, verified_abort=verified)

    @property
    def aborts(self) -> Aborts:
        """What became of aborted requests."""
        return self._exchange.watch.aborts

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`."""
        if request.parts:
            raise UsageError("a chat takes messages; a raw prompt goes to Completions")
        call = Call(request, name=wire_name(request), limit=request.max_tokens)
        answer = self._http.chat(self._body(call))
        reader = ChunkReader(_bare(request.tools) if request.loses_arguments else None)
        try:
            async with aclosing(self._exchange.steps(call, answer, reader)) as steps:
                async for step in steps:
                    yield step
        except EngineError as error:
            if _refused(error) and any(map(_has_sound, request.messages)):
                raise EngineError(f"{error}; the request holds sound: {_SOUND}") from error
            raise

    async def prewarm(self, messages: list[Message]) -> None:
        """Let the server read the prompt once; it keeps the prefix if it can."""
        async for _ in self.stream(Request(messages, max_tokens=1)):
            pass

    async def close(self) -> None:
        """See the last aborts through and close the connection pool."""
        await self._exchange.close()

    def _body(self, call: Call) -> dict[str, Any]:
        request, extra = call.request, self._exchange.server.identity(call)
        body: dict[str, Any] = {
            "model": self._http.model,
            "messages": [_wire(message) for message in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.tools:
            body["tools"] = request.tools
        if request.stop:
            body["stop"] = list(request.stop)
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop_ids:
            extra["stop_token_ids"] = list(request.stop_ids)
        if request.repeat_penalty != 1.0:
            # Not in OpenAI's API: the first name is vLLM's and SGLang's, the second llama.cpp's.
            penalty = request.repeat_penalty
            extra |= {"repetition_penalty": penalty, "repeat_penalty": penalty}
        if request.messages and request.messages[-1].get("eot") is False:
            extra |= {"continue_final_message": True, "add_generation_prompt": False}
        return body | ({"extra_body": extra} if extra else {})


_SOUND = (
    "a server takes it if it says so of input_audio; to another one give the words alone, by a "
    "mode such as T1-T2A2"
)


def _refused(error: EngineError) -> bool:
    """Whether the server has found fault with the request itself."""
    return getattr(error.__cause__, "status_code", 0) in (400, 415, 422, 500, 501)


def _bare(tools: Iterable[dict[str, Any]]) -> set[str]:
    """Names of the tools that take no arguments."""
    functions = [tool["function"] for tool in tools]
    return {f["name"] for f in functions if not f.get("parameters", {}).get("properties")}


def _has_sound(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(part, AudioPart) for part in content)


def _wire(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_content_part(part) for part in content]}


def _content_part(part: Any) -> Any:
    match part:
        case AudioPart():
            data = base64.b64encode(_wav(part)).decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        case TextPart():
            return {"type": "text", "text": part.text}
        case IdsPart():
            raise UsageError("a chat message takes no ids; a prompt with ids goes to Completions")
    return part


def _wav(audio: AudioPart) -> bytes:
    """The sound as a WAV file of 16-bit samples, made in memory; beyond -1..1 it is clipped."""
    samples = np.clip(np.rint(audio.samples * 32_768), -32_768, 32_767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setparams((1, 2, audio.rate_hz, 0, "NONE", ""))
        wav.writeframes(samples.tobytes())
    return file.getvalue()
