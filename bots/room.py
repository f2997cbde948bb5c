"""The browser room: our page over WebRTC, one pipeline per caller."""

import asyncio
import gc
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException
from fastapi.responses import FileResponse
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

from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ, Models, build_session, load_models
from bots.webrtc import RoomTransport, hear_sooner
from duologue.config import BotConfig, Section

WEB = Path(__file__).with_name("web")
CONNECT_TIMEOUT_S = 20.0
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
        if not known and self.active >= self.config.room.capacity:
            raise HTTPException(
                503,
                f"The room is full: {self.active} of {self.config.room.capacity} places are taken. "
                "Please try again in a minute.",
            )
        if offer.type != "offer" or "m=audio" not in offer.sdp:
            raise HTTPException(
                400, "Expected an SDP offer with an audio line; got something else."
            )
        request = SmallWebRTCRequest(
            offer.sdp, offer.type, offer.pc_id if known else None, offer.restart_pc
        )
        try:
            return await self._handler.handle_web_request(request, self._start)
        except Exception as error:
            raise HTTPException(400, f"The offer cannot be answered: {error}") from error

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
            raise HTTPException(400, f"A candidate cannot be read: {error}") from error

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
            inputs=[transport.input()],
            outputs=[transport.output()],
            send=connection.send_app_message,
        )
        connected = asyncio.Event()

        async def on_connected(*_: Any) -> None:
            connected.set()
            connection.send_app_message({"type": "state", "turn": 0, "state": "listening"})

        async def end(*_: Any) -> None:
            await session.worker.cancel()

        async def on_idle(*_: Any) -> None:
            _say_goodbye(connection, "Nobody has spoken for a while.")

        transport.add_event_handler("on_client_connected", on_connected)
        transport.add_event_handler("on_client_disconnected", end)
        session.worker.add_event_handler("on_idle_timeout", on_idle)
        # A peer that never connects fires no transport event (pipecat-ai/pipecat#3140).
        connection.add_event_handler("closed", end)
        connection.add_event_handler("failed", end)
        watchdog = asyncio.create_task(self._end_unless(connected, end))
        runner = WorkerRunner(handle_sigint=False)
        try:
            await runner.add_workers(session.worker)
            await runner.run(auto_end=True)
        except Exception:
            logger.exception(f"session {connection.pc_id} failed")
        finally:
            watchdog.cancel()
            await connection.disconnect()
            # A session is full of cycles that hold models' memory; do not wait for it to add up.
            gc.collect()

    @staticmethod
    async def _end_unless(connected: asyncio.Event, end: Any) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connected.wait()
        except TimeoutError:
            await end()


def _say_goodbye(connection: SmallWebRTCConnection, reason: str) -> None:
    connection.send_app_message({"type": "bye", "turn": 0, "reason": reason})


def create_app(config: BotConfig) -> FastAPI:
    """The room's web application; models are loaded when it starts."""
    rooms: list[Room] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        models = await load_models(config)
        rooms.append(Room(models, config))
        yield
        await rooms.pop().close()
        await models.close()

    app = FastAPI(title="duologue room", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.mount("/web", StaticFiles(directory=WEB), name="web")

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(WEB / "index.html")

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        return {
            "ready": bool(rooms),
            "capacity": config.room.capacity,
            "active": rooms[0].active if rooms else 0,
            "ice_servers": config.room.ice_servers,
            "models": {"asr": config.asr.model, "lm": config.lm.model, "voice": config.voice.model},
        }

    @app.post("/api/offer")
    async def offer(body: Annotated[Offer, Body()]) -> dict[str, str] | None:
        return await rooms[0].offer(body)

    @app.patch("/api/offer")
    async def trickle(body: Annotated[Candidates, Body()]) -> dict[str, str]:
        await rooms[0].trickle(body)
        return {"status": "ok"}

    return app


def serve(config: BotConfig) -> None:
    """Run the room until it is stopped."""
    import uvicorn

    uvicorn.run(
        create_app(config),
        host=config.room.host,
        port=config.room.port,
        log_level="warning",
        timeout_graceful_shutdown=2,
    )
