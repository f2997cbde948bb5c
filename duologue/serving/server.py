"""Both servers over one speaker, from the first call to the last one's end."""

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvicorn

from duologue.addresses import is_loopback, listen
from duologue.config import BotConfig, ServeConfig
from duologue.connections import guard
from duologue.errors import ConfigError, UsageError
from duologue.serving.grpc_server import MAX_STREAMS, GrpcServer
from duologue.serving.http_server import create_app
from duologue.serving.load import load_speaker
from duologue.serving.speaker import Speaker

TOKEN = "DUOLOGUE_SERVE_TOKEN"
LAST_WORDS_S = 1
"""What calls that outlast the drain get before they are cancelled."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the servers listen."""

    grpc: int
    http: int


class _Http(uvicorn.Server):
    """uvicorn without signal handlers of its own: `serve` stops both servers together."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    config: BotConfig,
    *,
    ready: Callable[[Ports], None] = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Load the models, then serve until SIGTERM or SIGINT, and let calls end.

    Args:
        config: The set-up.
        ready: Called when callers can come.
        environ: Where the token is.

    Raises:
        EngineError: a model or an engine of the set-up is missing.
        UsageError: an address cannot be listened on, TLS files that do not fit, no token.
    """
    token = check_token(config.serve, environ)
    check_tls(config.serve)
    host, port = config.serve.host, config.serve.http_port
    sock = listen(host, port, settings="serve.host or serve.http_port")
    try:
        speaker = await load_speaker(config)
    except BaseException:
        sock.close()
        raise
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    try:
        await run(speaker, sock, stop, token=token, ready=ready)
    finally:
        await speaker.close()


async def run(
    speaker: Speaker,
    sock: socket.socket,
    stop: asyncio.Event,
    *,
    token: str = "",
    ready: Callable[[Ports], None] = lambda _: None,
) -> None:
    """Serve until `stop`, then refuse new calls and give the running ones `drain_s` to end.

    Args:
        speaker: What is served; it stays open.
        sock: Where HTTP listens.
        stop: Set from outside.
        token: Callers need it; empty for none.
        ready: Called when callers can come.
    """
    limits = speaker.limits
    grpc_server = GrpcServer(speaker, limits, token=token, credentials=_credentials(limits))
    settings = uvicorn.Config(
        create_app(speaker, token),
        log_level="warning",
        ssl_certfile=limits.tls_cert,
        ssl_keyfile=limits.tls_key,
        timeout_graceful_shutdown=LAST_WORDS_S,
        limit_concurrency=MAX_STREAMS,
    )
    # A body that comes too slowly is answered before its connection is closed.
    guard(settings, most=MAX_STREAMS // 2, wait_s=limits.idle_s + LAST_WORDS_S)
    http = _Http(settings)
    await grpc_server.start()
    serving = asyncio.create_task(http.serve([sock]), name="http")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        # Whoever comes before uvicorn does is to wait for it.
        sock.listen()
        ready(Ports(grpc_server.port, sock.getsockname()[1]))
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        await grpc_server.refuse()
        await speaker.drain(limits.drain_s)
        http.should_exit = True
        await asyncio.gather(grpc_server.stop(LAST_WORDS_S), serving)


def check_token(config: ServeConfig, environ: Mapping[str, str]) -> str:
    """The token that callers need; none on this machine alone.

    Raises:
        UsageError: others can reach the server, and there is no token.
    """
    token = environ.get(TOKEN, "")
    if not token and not is_loopback(config.host):
        raise UsageError(
            f"serve.host {config.host} can be reached by others: set {TOKEN} to a secret that "
            "callers send, or listen on 127.0.0.1"
        )
    if token and not token.isascii():
        raise UsageError(f"{TOKEN}: expected ASCII characters, found others")
    if not config.tls_cert and not is_loopback(config.host):
        log.warning(
            "the token crosses the network in plain text: set serve.tls_cert and serve.tls_key, or "
            "put a server with TLS in front"
        )
    return token


def check_tls(config: ServeConfig) -> None:
    """Whether certificate and key can be used.

    Raises:
        ConfigError: only one is named, one cannot be read, or they do not belong together.
    """
    cert, key = config.tls_cert, config.tls_key
    if (cert is None) != (key is None):
        raise ConfigError("serve.tls_cert and serve.tls_key: found one, expected both or neither")
    if cert is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"serve.tls_cert {cert} and serve.tls_key {key}: expected PEM files of a certificate "
            f"and its key ({error.strerror or error})"
        ) from error


def _credentials(config: ServeConfig) -> grpc.ServerCredentials | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    key, cert = (Path(path).read_bytes() for path in (config.tls_key, config.tls_cert))
    return grpc.ssl_server_credentials([(key, cert)])
