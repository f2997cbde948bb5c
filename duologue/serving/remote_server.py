"""One speech server as a client sees it, and what its statuses mean."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import grpc

from duologue.errors import (
    CapacityError,
    ConfigError,
    DuologueError,
    EngineError,
    InputError,
    UsageError,
)
from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs

TOKEN = "DUOLOGUE_SERVE_TOKEN"
"""The server's own name for it, whose module a client has no other use for."""
_FINAL: dict[grpc.StatusCode, type[DuologueError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InputError,
    grpc.StatusCode.FAILED_PRECONDITION: UsageError,
    grpc.StatusCode.UNAUTHENTICATED: ConfigError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigError,
    grpc.StatusCode.UNIMPLEMENTED: ConfigError,
}
"""Statuses that every server would answer with."""


class TryElsewhere(Exception):
    """This server cannot, another one may.

    Attributes:
        error: Why, for when no other one can either.
        refused: Whether the server is well and has said no.
    """

    def __init__(self, error: DuologueError, *, refused: bool = False):
        super().__init__(str(error))
        self.error, self.refused = error, refused


class Server:
    """A speech server, or the proxy of a cluster of them.

    Args:
        url: `grpc://HOST:PORT`, or `grpcs://` for TLS.
        environ: Where the token is.

    Raises:
        ConfigError: not a URL of this form.
    """

    schemes = ("grpc", "grpcs")
    """Without and with TLS."""

    def __init__(self, url: str, environ: Mapping[str, str] = os.environ):
        self.url = url
        parts, (plain, tls) = urlsplit(url), self.schemes
        if parts.scheme not in self.schemes or not parts.netloc or parts.path.strip("/"):
            raise ConfigError(f"url {url!r}: expected {plain}://HOST:PORT, or {tls}:// for TLS")
        if parts.scheme == tls:
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(parts.netloc, credentials)
        else:
            self._channel = grpc.aio.insecure_channel(parts.netloc, _OPTIONS)
        self._stub = stubs.SpeechStub(self._channel)
        token = environ.get(TOKEN, "")
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._names: dict[str, str] = {}

    async def connect(self) -> None:
        """Wait for the connection, at most as long as the caller allows.

        Raises:
            TryElsewhere: nobody listens there.
        """
        state = self._channel.get_state(try_to_connect=True)
        while state != grpc.ChannelConnectivity.READY:
            if state == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise TryElsewhere(EngineError(f"{self.url} cannot be reached"))
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)

    def no_place(self, seconds: float) -> TryElsewhere:
        """What it means to have waited so long for a place."""
        if self._channel.get_state() != grpc.ChannelConnectivity.READY:
            return TryElsewhere(EngineError(f"{self.url} cannot be reached within {seconds:g} s"))
        full = f"{self.url} has no place free within {seconds:g} s. {_ADVICE}"
        return TryElsewhere(CapacityError(full), refused=True)

    async def name_of(self, digest: str) -> str:
        """What the server calls the voice of this hash.

        Raises:
            TryElsewhere: it has none, or cannot be asked.
        """
        if digest not in self._names:
            async with self._asking():
                listed = await self._stub.ListVoices(
                    pb.ListVoicesRequest(), metadata=self._metadata
                )
            self._names = {
                voice.digest: voice.name for voice in listed.voices if voice.takes_tokens
            }
        if digest not in self._names:
            known = ", ".join(sorted(self._names.values())) or "none"
            raise TryElsewhere(
                InputError(
                    f"{self.url} has no voice with the hash {digest[:12]} (its voices: {known}); "
                    "copy the file of the voice to the servers' DUOLOGUE_VOICES"
                ),
                refused=True,
            )
        return self._names[digest]

    def forget_names(self) -> None:
        """Ask anew for the names of the voices: some have changed."""
        self._names = {}

    @asynccontextmanager
    async def synthesize(
        self, start: pb.SynthesizeStart
    ) -> AsyncIterator[grpc.aio.StreamStreamCall]:
        """A call that has a place on the server; it is cancelled when the block is left.

        Raises:
            TryElsewhere: the server cannot take it.
            DuologueError: no server would.
        """
        metadata = (*self._metadata, ("session_id", start.voice))
        async with self._asking():
            call = self._stub.Synthesize(metadata=metadata)
            try:
                await call.write(pb.SynthesizeRequest(start=start))
                await call.initial_metadata()
                if call.done():
                    # The status of a refused call.
                    await call.read()
                yield call
            finally:
                call.cancel()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._meaning(error.code(), error.details() or "") from error
        except grpc.aio.UsageError as error:
            # A write or a read on a call that has just ended.
            raise TryElsewhere(EngineError(f"{self.url} ended the call")) from error

    def _meaning(self, code: grpc.StatusCode, details: str) -> Exception:
        # Behind the first line of an actor's death come its address and advice for its keeper.
        text = f"{self.url}: {(details or code.name).splitlines()[0]}"
        if kind := _FINAL.get(code):
            return kind(text)
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TryElsewhere(CapacityError(f"{text.rstrip('.')}. {_ADVICE}"), refused=True)
        if code == grpc.StatusCode.NOT_FOUND:
            # The voice has been deleted, or the cluster has no application yet.
            self.forget_names()
        return TryElsewhere(EngineError(text))


_ADVICE = "Try again later, or let the cluster have more replicas"
_OPTIONS = [
    # A server that is gone is tried again soon: sentences wait for it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
