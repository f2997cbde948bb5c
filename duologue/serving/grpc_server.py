"""The server over gRPC, as speech.proto says; with health and reflection."""

import hmac
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from duologue.audio.pcm import to_int16_bytes
from duologue.config import ServeConfig
from duologue.errors import UsageError
from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from duologue.serving.errors import status_of, within
from duologue.serving.speaker import Part, Speaker, Utterance, Wanted
from duologue.serving.voices import VoiceEntry
from duologue.token2wav.front_end import TOKEN_RATE_HZ

SERVICE = pb.DESCRIPTOR.services_by_name["Speech"].full_name
OPEN = "/grpc.health.v1.Health/"
MAX_PCM_BYTES = 96_000
"""Of one message, 2 s at 24 kHz; far below any client's default limit."""

MAX_STREAMS = 100
"""Calls of one connection, and connections of HTTP."""

Context = grpc.aio.ServicerContext


class SpeechServicer(stubs.SpeechServicer):
    """The calls of the service `Speech`.

    Args:
        speaker: What they share.
    """

    def __init__(self, speaker: Speaker):
        self._speaker, self._limits = speaker, speaker.limits

    async def ListVoices(self, request: pb.ListVoicesRequest, context: Context):
        """All voices."""
        async with _answering(context):
            voices = await self._speaker.voices.list()
            return pb.ListVoicesResponse(voices=map(_voice, voices))

    async def AddVoice(self, request: pb.AddVoiceRequest, context: Context):
        """Learn a voice from a clip."""
        async with _answering(context):
            voices = self._speaker.voices
            return _voice(await voices.add(request.name, request.clip, replace=request.replace))

    async def DeleteVoice(self, request: pb.DeleteVoiceRequest, context: Context):
        """Forget a voice."""
        async with _answering(context):
            await self._speaker.voices.delete(request.name)
            return pb.DeleteVoiceResponse()

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context):
        """Sound to speech tokens."""
        async with _answering(context):
            ids = await self._speaker.voices.tokenize(request.audio)
            return pb.TokenizeResponse(ids=ids.tolist(), rate_hz=TOKEN_RATE_HZ)

    async def Synthesize(self, requests: Any, context: Context) -> None:
        """Text or speech tokens to sound, both as they come."""
        async with _answering(context):
            start = await self._read(context)
            if start is None or start.WhichOneof("part") != "start":
                raise UsageError("the first message of a call must be `start`")
            wanted = _wanted(start.start)
            with self._speaker.call("grpc"):
                # A client's deadline cancels this, as its own cancelling does.
                async with within(self._limits.call_s, "the call took longer than"):
                    await context.send_initial_metadata(())
                    await self._synthesize(wanted, context)

    async def _synthesize(self, wanted: Wanted, context: Context) -> None:
        async with aclosing(self._parts(context)) as parts:
            utterance = await self._speaker.speak(wanted, parts)
            async with aclosing(utterance.samples):
                await self._send(utterance, context)

    async def _send(self, utterance: Utterance, context: Context) -> None:
        started: pb.SynthesizeStarted | None = _started(utterance)
        async for samples in utterance.samples:
            for pcm in _messages(samples):
                async with within(self._limits.idle_s, "the client has not read for"):
                    await context.write(pb.SynthesizeResponse(started=started, pcm=pcm))
                started = None

    async def _parts(self, context: Context) -> AsyncGenerator[Part, None]:
        while (request := await self._read(context)) is not None:
            match request.WhichOneof("part"):
                case "text":
                    yield request.text
                case "tokens":
                    yield np.fromiter(request.tokens.ids, np.int32)
                case other:
                    found = other or "an empty message"
                    raise UsageError(f"found {found}, expected text or tokens")

    async def _read(self, context: Context) -> pb.SynthesizeRequest | None:
        async with within(self._limits.idle_s, "the client has sent nothing for"):
            message: Any = await context.read()
        return None if message is grpc.aio.EOF else message  # type: ignore[attr-defined]


class _Auth(grpc.aio.ServerInterceptor):
    """Refuses calls without the token, save those for health."""

    def __init__(self, token: str):
        self._wanted = f"Bearer {token}".encode()

    async def intercept_service(self, continuation, handler_call_details):
        """Let the call through, or answer UNAUTHENTICATED."""
        given = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        given = given if isinstance(given, bytes) else given.encode()
        allowed = hmac.compare_digest(given, self._wanted)
        if allowed or handler_call_details.method.startswith(OPEN):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: Any, context: Context) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "send the metadata `authorization: Bearer TOKEN`"
    )


class GrpcServer:
    """The listening server.

    Args:
        speaker: What it serves.
        config: Address and limits.
        token: Callers need it; empty for none.
        credentials: TLS; None for none.

    Attributes:
        port: Where it listens.

    Raises:
        UsageError: the address cannot be listened on.
    """

    def __init__(
        self,
        speaker: Speaker,
        config: ServeConfig,
        *,
        token: str = "",
        credentials: grpc.ServerCredentials | None = None,
    ):
        options = [
            ("grpc.max_receive_message_length", config.max_message_bytes),
            # Two servers on one port would share its callers at random.
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            # A peer that has vanished holds its place no longer than this.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
        ]
        self._server = grpc.aio.server(
            interceptors=[_Auth(token)] if token else [], options=options
        )
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        stubs.add_SpeechServicer_to_server(SpeechServicer(speaker), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"{host}:{config.grpc_port}"
        try:
            if credentials:
                self.port = self._server.add_secure_port(address, credentials)
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise UsageError(
                f"{address} cannot be listened on; choose another serve.host or serve.grpc_port"
            ) from error

    async def start(self) -> None:
        """Take calls."""
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def refuse(self) -> None:
        """Say that nothing is served any more, so that balancers look elsewhere."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, seconds: float) -> None:
        """Take no call, give the running ones so long to end, then cancel them."""
        await self._server.stop(seconds)


@asynccontextmanager
async def _answering(context: Context):
    """Turns an error into its status."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        code, _, message = status_of(error)
        await context.abort(grpc.StatusCode[code], message)


def _wanted(start: pb.SynthesizeStart) -> Wanted:
    seed = start.seed if start.HasField("seed") else None
    return Wanted(start.voice, seed, start.rate_hz, tuple(start.schedule), start.lang)


def _started(utterance: Utterance) -> pb.SynthesizeStarted:
    return pb.SynthesizeStarted(
        rate_hz=utterance.rate_hz,
        engine=utterance.engine,
        voice=utterance.voice,
        seed=utterance.seed or 0,
        voice_digest=utterance.voice_digest,
        schedule=utterance.schedule,
    )


def _messages(samples: np.ndarray) -> Iterator[bytes]:
    data = to_int16_bytes(samples)
    for start in range(0, len(data), MAX_PCM_BYTES):
        yield data[start : start + MAX_PCM_BYTES]


def _voice(entry: VoiceEntry) -> pb.Voice:
    return pb.Voice(**asdict(entry))
