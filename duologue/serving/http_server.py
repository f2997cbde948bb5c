"""The server over HTTP: OpenAI's speech endpoint, voices, health and metrics."""

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duologue import metrics
from duologue.config import ServeConfig
from duologue.errors import DuologueError, InputError
from duologue.serving.encode import FORMS, RATE_HZ
from duologue.serving.errors import NotLoaded, TooLarge, status_of, within
from duologue.serving.speaker import Part, Speaker, Utterance, Wanted
from duologue.token2wav.front_end import TOKEN_RATE_HZ

OPEN = ("/health", "/ready")


class SpeechRequest(BaseModel):
    """The body of OpenAI's `POST /v1/audio/speech`, and what it leaves out.

    Attributes:
        input: Text, or speech tokens.
        voice: A name of `GET /v1/voices`; empty for the server's choice.
        model: "piper" or "token2wav"; the voice decides, this only insists.
        response_format: Form of the sound.
        stream_format: Sound as it is.
        speed: The set-up decides it.
        seed: Of the noise of token2wav.
        lang: "en" or "zh"; empty for the server's choice.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    input: str | list[Annotated[int, Field(ge=0, lt=1 << 31)]]
    voice: str = ""
    model: str = ""
    response_format: Literal["mp3", "opus", "wav", "pcm"] = "mp3"
    stream_format: Literal["audio"] = "audio"
    speed: float = Field(default=1.0, ge=1.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=1 << 64)
    lang: str = ""


class _Api:
    """The endpoints."""

    def __init__(self, speaker: Speaker):
        self._speaker, self._limits = speaker, speaker.limits

    async def health(self, _: Request) -> Response:
        """Whether the process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Whether it would take a call."""
        speaker = self._speaker
        facts = {
            "ready": not speaker.full,
            "reason": speaker.full,
            "active": speaker.active,
            "capacity": self._limits.sessions,
            "loaded": speaker.engines.loaded,
        }
        return JSONResponse(facts, 503 if speaker.full else 200)

    async def metrics(self, _: Request) -> Response:
        """For Prometheus."""
        return Response(metrics.render(), media_type=metrics.CONTENT_TYPE)

    async def voices(self, _: Request) -> Response:
        """All voices."""
        return JSONResponse({"voices": [asdict(v) for v in await self._speaker.voices.list()]})

    async def add_voice(self, request: Request) -> Response:
        """Learn a voice: the body is the clip; `?replace=true` takes the place of another one."""
        replace = request.query_params.get("replace") == "true"
        clip = await _body(request, self._limits)
        name = request.path_params["name"]
        return JSONResponse(asdict(await self._speaker.voices.add(name, clip, replace=replace)))

    async def delete_voice(self, request: Request) -> Response:
        """Forget a voice."""
        await self._speaker.voices.delete(request.path_params["name"])
        return Response(status_code=204)

    async def tokenize(self, request: Request) -> Response:
        """Sound to speech tokens: the body is an audio file."""
        ids = await self._speaker.voices.tokenize(await _body(request, self._limits))
        return JSONResponse({"ids": ids.tolist(), "rate_hz": TOKEN_RATE_HZ})


class _Speech:
    """`POST /v1/audio/speech`: text or speech tokens to sound, sent as it is made."""

    def __init__(self, speaker: Speaker):
        self._speaker, self._limits = speaker, speaker.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak until all is sent or the client has gone."""
        asked = _parse(await _body(Request(scope, receive), self._limits))
        speaking = asyncio.create_task(self._speak(asked, send), name="speak")
        gone = asyncio.create_task(_gone(receive), name="watch the client")
        try:
            await asyncio.wait([speaking, gone], return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                speaking.result()
        finally:
            speaking.cancel()
            gone.cancel()
            await asyncio.gather(speaking, gone, return_exceptions=True)

    async def _speak(self, asked: SpeechRequest, send: Send) -> None:
        with self._speaker.call("http"):
            async with (
                within(self._limits.call_s, "the call took longer than"),
                aclosing(_parts(asked)) as parts,
            ):
                wanted = Wanted(asked.voice, asked.seed, RATE_HZ, (), asked.lang)
                utterance = await self._speaker.speak(wanted, parts)
                if asked.model not in ("", utterance.engine):
                    raise NotLoaded(
                        f"model {asked.model!r} does not speak voice {utterance.voice!r}, "
                        f"{utterance.engine!r} does; loaded is {self._speaker.engines.loaded}"
                    )
                async with aclosing(utterance.samples):
                    await self._stream(utterance, asked.response_format, send)

    async def _stream(self, utterance: Utterance, form: str, send: Send) -> None:
        async def write(message: Message) -> None:
            async with within(self._limits.idle_s, "the client has not read for"):
                await send(message)

        encoder, begun = FORMS[form].encoder(), False
        async for samples in utterance.samples:
            # With the status sent, nothing can be refused any more: not before there is sound.
            if not begun:
                begun = True
                headers = [(b"content-type", FORMS[form].media_type.encode())]
                await write({"type": "http.response.start", "status": 200, "headers": headers})
            if data := encoder.push(samples):
                await write({"type": "http.response.body", "body": data, "more_body": True})
        await write({"type": "http.response.body", "body": encoder.finish()})


def create_app(speaker: Speaker, token: str = "") -> Starlette:
    """The web application.

    Args:
        speaker: What it serves.
        token: Callers need it, save for /health and /ready; empty for none, and then requests
            must name this machine: a page of another site cannot under a name of its own.
    """
    api = _Api(speaker)
    routes = [
        Route("/health", api.health),
        Route("/ready", api.ready),
        Route("/metrics", api.metrics),
        Route("/v1/voices", api.voices),
        Route("/v1/voices/{name}", api.add_voice, methods=["PUT"]),
        Route("/v1/voices/{name}", api.delete_voice, methods=["DELETE"]),
        Route("/v1/audio/tokens", api.tokenize, methods=["POST"]),
        Route("/v1/audio/speech", _Speech(speaker), methods=["POST"]),
    ]
    kinds = (DuologueError, TimeoutError, HTTPException, Exception)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _refuse))
    if token:
        app.add_middleware(_Auth, token=token)
    else:
        names = ["localhost", "127.0.0.1", "[::1]", speaker.limits.host]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    return app


class _Auth:
    """ASGI middleware: refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        allowed = hmac.compare_digest(given, self._wanted)
        if scope["type"] != "http" or allowed or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        answer = _error(401, "send the header `Authorization: Bearer TOKEN`")
        answer.headers["WWW-Authenticate"] = "Bearer"
        await answer(scope, receive, send)


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail)
    _, status, message = status_of(error)
    answer = _error(status, message)
    if status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


def _error(status: int, message: str) -> JSONResponse:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def _parse(body: bytes) -> SpeechRequest:
    try:
        return SpeechRequest.model_validate_json(body)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".removeprefix(": ")
            for problem in error.errors()
        ]
        raise InputError("; ".join(problems)[:1000]) from error


async def _parts(asked: SpeechRequest) -> AsyncGenerator[Part, None]:
    """What is to be said; nothing for an empty input."""
    if asked.input:
        said = asked.input
        yield said if isinstance(said, str) else np.array(said, np.int32)


async def _body(request: Request, limits: ServeConfig) -> bytes:
    most, body = limits.max_message_bytes, bytearray()
    async with within(limits.idle_s, "the body did not arrive within"):
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise TooLarge(f"found a body of more than {most} bytes; send less at once")
    return bytes(body)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
