"""A Triton server with the model token2wav (deploy/triton) as a client sees it.

Its calls are those of speech.proto: an utterance is a sequence of Triton's on a stream of its own.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from tritonclient.grpc import InferResult
from tritonclient.grpc import service_pb2 as triton
from tritonclient.grpc import service_pb2_grpc as triton_stubs

from duologue.errors import ConfigError, DuologueError, EngineError, InputError
from duologue.serving import speech_pb2 as pb
from duologue.serving.remote_server import TOKEN, Server, TryElsewhere

MODEL = "token2wav"
END_S = 0.5
"""For a server to take note that an utterance is not gone on with."""


class TritonServer(Server):
    """A Triton server, as `Server`.

    Args:
        url: `triton://HOST:PORT` of its gRPC, or `tritons://` for TLS.
        environ: Where the token is.

    Raises:
        ConfigError: not a URL of this form.
    """

    schemes = ("triton", "tritons")

    def __init__(self, url: str, environ: Mapping[str, str] = os.environ):
        super().__init__(url, environ)
        # Where a server with `--grpc-restricted-protocol` looks for them.
        self._metadata = tuple((f"triton-grpc-protocol-{k}", v) for k, v in self._metadata)

    async def name_of(self, digest: str) -> str:
        """The hash: the model takes it in place of a name."""
        return digest

    @asynccontextmanager
    async def synthesize(self, start: pb.SynthesizeStart) -> AsyncIterator["TritonCall"]:
        """As `Server.synthesize`."""
        # 0 would be no sequence.
        call = TritonCall(self, self._stream(), secrets.randbelow(2**63 - 1) + 1)
        async with self._asking():
            try:
                await call.begin(start)
                yield call
            except grpc.RpcError:
                call.open = False
                raise
            finally:
                call.cancel()
                if call.open:
                    await self._end(call)

    async def _end(self, call: "TritonCall") -> None:
        """Give the place of a sequence back, which Triton else keeps until it has been idle."""
        ending = TritonCall(self, self._stream(), call.sequence)
        trouble = (grpc.RpcError, grpc.aio.UsageError, TimeoutError, TryElsewhere, DuologueError)
        with suppress(*trouble):
            async with asyncio.timeout(END_S):
                await ending.done_writing()
                async for _ in ending:
                    pass

    def _stream(self) -> Any:
        stub = triton_stubs.GRPCInferenceServiceStub(self._channel)
        return stub.ModelStreamInfer(metadata=self._metadata)

    def _meaning(self, code: grpc.StatusCode, details: str) -> Exception:
        if code == grpc.StatusCode.NOT_FOUND:
            return TryElsewhere(InputError(f"{self.url}: {details}"), refused=True)
        if "protocol is restricted" in details:
            return ConfigError(f"{self.url}: {details}; set {TOKEN} to the token of the server")
        return super()._meaning(code, details)


class TritonCall:
    """An utterance's stream, with the calls of grpc.aio's that `Server.synthesize` gives.

    Args:
        server: Whose stream it is.
        stream: Of ModelStreamInfer.
        sequence: Its number, from 1 up, that no other caller has.

    Attributes:
        open: Whether Triton waits for the sequence's end.
        sequence: As given.
    """

    def __init__(self, server: TritonServer, stream: Any, sequence: int):
        self._server, self._stream, self.sequence = server, stream, sequence
        self.open = False

    async def begin(self, start: pb.SynthesizeStart) -> None:
        """Ask for a place, and wait for it."""
        inputs = []
        if start.HasField("seed"):
            inputs.append(_input("SEED", "UINT64", uint64_contents=[start.seed]))
        if start.schedule:
            inputs.append(_input("SCHEDULE", "INT32", int_contents=start.schedule))
        self.open = True
        await self._send([], *inputs, sequence_start=True, voice=start.voice)
        if await self._read() is None:
            ended = f"{self._server.url} ended the stream without an answer"
            raise TryElsewhere(EngineError(ended))

    async def write(self, request: pb.SynthesizeRequest) -> None:
        """Send tokens."""
        await self._send(request.tokens.ids)

    async def done_writing(self) -> None:
        """No more tokens come."""
        await self._send([], sequence_end=True)
        self.open = False
        await self._stream.done_writing()

    def cancel(self) -> None:
        """Stop here and on the server."""
        self._stream.cancel()

    async def __aiter__(self) -> AsyncIterator[pb.SynthesizeResponse]:
        while (answer := await self._read()) is not None:
            yield answer

    async def _read(self) -> pb.SynthesizeResponse | None:
        answer: Any = await self._stream.read()
        if answer is grpc.aio.EOF:  # type: ignore[attr-defined]
            return None
        if answer.error_message:
            raise self._failure(answer.error_message)
        result = InferResult(answer.infer_response)
        started, rate_hz = None, result.as_numpy("RATE_HZ")
        if rate_hz is not None:
            digest = result.as_numpy("VOICE_DIGEST").tobytes().hex()
            started = pb.SynthesizeStarted(rate_hz=rate_hz[0], voice_digest=digest)
        return pb.SynthesizeResponse(started=started, pcm=result.as_numpy("PCM").tobytes())

    def _failure(self, message: str) -> Exception:
        """The model's errors begin with a status, Triton's own do not."""
        name, _, details = message.partition(": ")
        if code := grpc.StatusCode.__members__.get(name):
            return self._server._meaning(code, details)
        self.open = False
        return TryElsewhere(EngineError(f"{self._server.url}: {message}"))

    async def _send(self, ids: Sequence[int], *inputs: Any, voice: str = "", **flags: bool) -> None:
        request = triton.ModelInferRequest(
            model_name=MODEL, inputs=[_input("TOKENS", "INT32", int_contents=ids), *inputs]
        )
        request.parameters["sequence_id"].int64_param = self.sequence
        request.parameters["voice"].string_param = voice
        for flag, value in flags.items():
            request.parameters[flag].bool_param = value
        await self._stream.write(request)


def _input(name: str, kind: str, **contents: Sequence) -> Any:
    """An input of one dimension."""
    [values] = contents.values()
    return triton.ModelInferRequest.InferInputTensor(
        name=name,
        datatype=kind,
        shape=[len(values)],
        contents=triton.InferTensorContents(**contents),
    )
