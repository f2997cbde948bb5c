"""The browser room: our page over WebRTC, one pipeline per caller."""

import asyncio
import gc
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from loguru import logger
from pipecat.transports.base_transport import TransportParams
from pipecat.transports.smallwebrtc.connection import IceServer, SmallWebRTCConnection
from pipecat.transports.smallwebrtc.request_handler import (
    IceCandidate,
    SmallWebRTCPatchRequest,
    SmallWebRTCRequest,
    SmallWebRTCRequestHandler,
)
from pipecat.workers.runner import WorkerRunner
from pydantic import Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ, build_session, load_listening
from bots.models import Models, load_models
from bots.webrtc import RoomTransport, hear_sooner
from duologue.config import BotConfig, Section
from duologue.errors import UsageError

WEB = Path(__file__).with_name("web")
CONNECT_TIMEOUT_S = 10.0
PING_CHECK_S = 1.0
MAX_BODY_BYTES = 128_000
MAX_SDP_CHARS = 64_000


class Offer(Section):
    """A browser's offer."""

    sdp: str = Field(max_length=MAX_SDP_CHARS)
    type: str
    pc_id: str | None = None
    restart_pc: bool | None = None


class Candidate(Section):
    """A trickled ICE candidate; an empty one ends the candidates (RFC 8840)."""

    candidate: str = Field(max_length=2000)
    sdp_mid: str | None = None
    sdp_mline_index: int | None = None


class Candidates(Section):
    """Trickled ICE candidates of one connection."""

    pc_id: str
    candidates: list[Candidate] = Field(max_length=100)


class Room:
    """The sessions of one process.

    Args:
        models: What they share.
        config: The set-up.
    """

    def __init__(self, models: Models, config: BotConfig):
        self.config = config
        self._models = models
        self._handler = SmallWebRTCRequestHandler(
            ice_servers=[IceServer(urls=url) for url in config.room.ice_servers] or None
        )
        self._pending = 0
        self._sessions: dict[str, asyncio.Task[None]] = {}
        self._connections: dict[str, SmallWebRTCConnection] = {}

    @property
    def active(self) -> int:
        """Sessions that run."""
        return len(self._sessions)

    async def offer(self, offer: Offer) -> dict[str, str] | None:
        """Answer an offer, with a new session unless it renews a connection we know.

        Raises:
            HTTPException: 503 when every place is taken, 400 when the offer is no SDP.
        """
        known = offer.pc_id in self._sessions
        if not known and self.active + self._pending >= self.config.room.capacity:
            raise HTTPException(
                503,
                f"The room is full: {self.active} of {self.config.room.capacity} places are taken. "
                "Please try again in a minute.",
            )
        wanted = ("m=audio", "a=fingerprint:", "a=ice-ufrag:", "opus/48000")
        if offer.type != "offer" or not all(part in offer.sdp for part in wanted):
            raise HTTPException(
                400, "Expected an SDP offer with opus audio over DTLS, got something else."
            )
        request = SmallWebRTCRequest(
            offer.sdp, offer.type, offer.pc_id if known else None, offer.restart_pc
        )
        self._pending += not known
        try:
            return await self._handler.handle_web_request(request, self._start)
        except Exception as error:
            logger.warning(f"an offer cannot be answered: {error}")
            raise HTTPException(400, "The offer cannot be answered.") from error
        finally:
            self._pending -= not known

    async def trickle(self, patch: Candidates) -> None:
        """Add ICE candidates.

        Raises:
            HTTPException: 404 for a connection that is not ours, 400 for what is no candidate.
        """
        candidates = [
            IceCandidate(c.candidate, c.sdp_mid or "0", c.sdp_mline_index or 0)
            for c in patch.candidates
        ]
        try:
            request = SmallWebRTCPatchRequest(patch.pc_id, candidates)
            await self._handler.handle_patch_request(request)
        except HTTPException:
            raise
        except Exception as error:
            raise HTTPException(400, "A candidate cannot be read.") from error

    async def close(self) -> None:
        """End every session."""
        sessions = list(self._sessions.values())
        for connection in self._connections.values():
            _say_goodbye(connection, "The room is closing.")
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        await self._handler.close()

    async def _start(self, connection: SmallWebRTCConnection) -> None:
        task = asyncio.create_task(self._run(connection), name=f"session {connection.pc_id}")
        self._sessions[connection.pc_id] = task
        self._connections[connection.pc_id] = connection
        task.add_done_callback(lambda _: self._forget(connection.pc_id))

    def _forget(self, pc_id: str) -> None:
        self._sessions.pop(pc_id, None)
        self._connections.pop(pc_id, None)

    async def _run(self, connection: SmallWebRTCConnection) -> None:
        connected, gone = asyncio.Event(), asyncio.Event()

        async def leave(*_: Any) -> None:
            gone.set()

        # The caller may leave while the session is still being built.
        connection.add_event_handler("closed", leave)
        connection.add_event_handler("failed", leave)
        # A peer that never connects fires no event at all (pipecat-ai/pipecat#3140).
        deadline = asyncio.get_running_loop().call_later(
            CONNECT_TIMEOUT_S, lambda: connected.is_set() or gone.set()
        )
        try:
            await self._converse(connection, connected, gone)
        except Exception:
            logger.exception(f"session {connection.pc_id} failed")
            _say_goodbye(connection, "The call could not be held. The server's log says why.")
        finally:
            deadline.cancel()
            await connection.disconnect()
            # A session is full of cycles that hold models' memory; do not wait for it to add up.
            gc.collect()

    async def _converse(
        self, connection: SmallWebRTCConnection, connected: asyncio.Event, gone: asyncio.Event
    ) -> None:
        params = TransportParams(
            audio_in_enabled=True,
            audio_in_sample_rate=IN_RATE_HZ,
            audio_out_enabled=True,
            audio_out_sample_rate=OUT_RATE_HZ,
            audio_out_10ms_chunks=2,
        )
        transport = RoomTransport(connection, params)
        hear_sooner(connection)
        session = build_session(
            self._models,
            self.config,
            await load_listening(self.config),
            inputs=[transport.input()],
            outputs=[transport.output()],
            send=lambda event: connection.send_app_message(public(event)),
        )

        async def on_connected(*_: Any) -> None:
            connected.set()
            connection.send_app_message({"type": "state", "turn": 0, "state": "listening"})

        async def on_disconnected(*_: Any) -> None:
            gone.set()

        async def on_idle(*_: Any) -> None:
            _say_goodbye(connection, "Nobody has spoken for a while.")

        async def end_when_gone() -> None:
            # A page that vanishes says nothing, but its pings end.
            while not gone.is_set() and (connection.is_connected() or not connected.is_set()):
                with suppress(TimeoutError):
                    await asyncio.wait_for(gone.wait(), PING_CHECK_S)
            await session.worker.cancel()

        transport.add_event_handler("on_client_connected", on_connected)
        transport.add_event_handler("on_client_disconnected", on_disconnected)
        session.worker.add_event_handler("on_idle_timeout", on_idle)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(session.worker)
        watch = asyncio.create_task(end_when_gone())
        try:
            await runner.run(auto_end=True)
        finally:
            watch.cancel()


def _say_goodbye(connection: SmallWebRTCConnection, reason: str) -> None:
    connection.send_app_message({"type": "bye", "turn": 0, "reason": reason})


def public(event: dict[str, Any]) -> dict[str, Any]:
    """What a caller may see of an event: the addresses and folders in errors stay in the log."""
    if event["type"] != "error":
        return event
    return event | {"message": "Something went wrong while answering. Please try again."}


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a body without sending it back."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return JSONResponse({"detail": "; ".join(problems)[:1000]}, 422)


class BodyLimit:
    """ASGI middleware: refuses bodies beyond MAX_BODY_BYTES while they arrive."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BODY_BYTES:
                raise HTTPException(413, f"At most {MAX_BODY_BYTES} bytes are taken.")
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)


def create_app(models: Models, config: BotConfig) -> FastAPI:
    """The room's web application."""
    room = Room(models, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        yield
        await room.close()

    app = FastAPI(title="duologue room", lifespan=lifespan, docs_url=None, redoc_url=None)
    # A page of another site must not reach a room on this machine under a name of its own.
    names = ["localhost", "127.0.0.1", "[::1]", config.room.host]
    anywhere = config.room.host in ("0.0.0.0", "::")
    app.add_middleware(BodyLimit)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["*"] if anywhere else names)
    app.add_exception_handler(RequestValidationError, refuse)
    app.mount("/web", StaticFiles(directory=WEB), name="web")

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(WEB / "index.html")

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        return {
            "ready": True,
            "capacity": config.room.capacity,
            "active": room.active,
            "ice_servers": config.room.ice_servers,
            "models": {"asr": config.asr.model, "lm": config.lm.model, "voice": config.voice.model},
        }

    @app.post("/api/offer")
    async def offer(body: Annotated[Offer, Body()]) -> dict[str, str] | None:
        return await room.offer(body)

    @app.patch("/api/offer")
    async def trickle(body: Annotated[Candidates, Body()]) -> dict[str, str]:
        await room.trickle(body)
        return {"status": "ok"}

    return app


async def serve(config: BotConfig, *, ready: Callable[[], None] = lambda: None) -> None:
    """Load the models, then run the room until it is stopped.

    Args:
        config: The set-up.
        ready: Called when callers can come.

    Raises:
        EngineError: a model or an engine of the set-up is missing.
        UsageError: the address cannot be listened on.
    """
    sock = listen(config.room.host, config.room.port)
    await load_listening(config)
    models = await load_models(config)
    server = uvicorn.Server(
        uvicorn.Config(create_app(models, config), log_level="warning", timeout_graceful_shutdown=2)
    )
    ready()
    try:
        await server.serve([sock])
    finally:
        await models.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, before the models are loaded for nothing.

    Raises:
        UsageError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise UsageError(
            f"{host}:{port} cannot be listened on ({error.strerror}); "
            "choose another with --host and --port"
        ) from error
    return sock
