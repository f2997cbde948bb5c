"""The browser room: our page over WebRTC, one pipeline per caller."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from loguru import logger

from bots.assembly import load_listening
from bots.models import Models, load_models
from bots.ops import add_ops
from bots.room_call import RoomCall
from bots.room_connection import RoomConnection
from bots.room_http import BodyLimit, Candidates, Offer, refuse
from bots.room_ice import IceServers
from bots.stopping import DrainingServer
from duologue import metrics
from duologue.addresses import listen
from duologue.config import BotConfig
from duologue.errors import CapacityError
from duologue.limits import Places, Rates

WEB = Path(__file__).with_name("web")
CLOSE_S = 1.0


class Room:
    """The calls of one process.

    Args:
        models: What they share.
        config: The set-up.

    Raises:
        ConfigError: a TURN server has no credential.
    """

    def __init__(self, models: Models, config: BotConfig):
        self.ice = IceServers(config.room)
        self.places = Places(config.limits.sessions)
        self._config = config
        self._models = models
        per_minute = config.limits.calls_per_minute
        self._rates = Rates(per_minute / 60, per_minute / 2)
        self._calls: dict[str, RoomCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def offer(self, offer: Offer, address: str) -> dict[str, str]:
        """Answer an offer: a new path for a call that runs, or else a new call.

        Raises:
            HTTPException: 400 for what is no usable offer, 429 for an address that tries too often,
                503 when every place is taken.
        """
        if not offer.usable:
            raise HTTPException(
                400, "Expected an SDP offer with opus audio over DTLS, got something else."
            )
        if not self._rates.admits(address):
            raise HTTPException(
                429, "Too many attempts. Please wait a moment.", headers={"Retry-After": "5"}
            )
        if offer.pc_id in self._calls:
            return await self._answer(self._calls[offer.pc_id], offer)
        try:
            self.places.check()
        except CapacityError as error:
            metrics.refused("room")
            raise HTTPException(503, str(error), headers={"Retry-After": "60"}) from error
        self._make_way()
        connection = RoomConnection(self.ice.for_aiortc(), self._config.limits)
        call = RoomCall(connection, self._models, self._config, self.places)
        pc_id = connection.pc_id
        self._calls[pc_id] = call
        try:
            answer = await self._answer(call, offer)
        except BaseException:
            del self._calls[pc_id]
            await connection.disconnect()
            raise
        task = asyncio.create_task(call.run(), name=f"call {pc_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._calls.pop(pc_id, None))
        return answer

    async def trickle(self, patch: Candidates) -> None:
        """Add ICE candidates.

        Raises:
            HTTPException: 404 for a connection that is not ours, 400 for what is no candidate.
        """
        if (call := self._calls.get(patch.pc_id)) is None:
            raise HTTPException(404, "The call is over. Please call again.")
        try:
            for c in patch.candidates:
                await call.connection.trickle(c.candidate, c.sdp_mid, c.sdp_mline_index)
        except Exception as error:
            raise HTTPException(400, "A candidate cannot be read.") from error

    async def drain(self) -> None:
        """Take no more calls, let those that run go on for their time, then end them politely."""
        limits = self._config.limits
        await self.places.drain(limits.drain_s)
        await asyncio.gather(*(c.end("The room is closing.") for c in list(self._calls.values())))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()

    async def _answer(self, call: RoomCall, offer: Offer) -> dict[str, str]:
        try:
            return await call.answer(offer.sdp)
        except Exception as error:
            logger.warning(f"an offer cannot be answered: {error}")
            raise HTTPException(400, "The offer cannot be answered.") from error

    def _make_way(self) -> None:
        """Of the callers on their way, give up the oldest when there are too many."""
        waiting = [call for call in self._calls.values() if call.waiting]
        if len(waiting) >= self._config.limits.connecting:
            waiting[0].connection.gone.set()


def create_app(models: Models, config: BotConfig) -> FastAPI:
    """The room's web application; its `state.room` is the room."""
    room = Room(models, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        try:
            yield
        finally:
            await room.drain()

    app = FastAPI(title="duologue room", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.room = room
    # A page of another site must not reach a room on this machine under a name of its own.
    names = ["localhost", "127.0.0.1", "[::1]", config.room.host]
    anywhere = config.room.host in ("0.0.0.0", "::")
    app.add_middleware(BodyLimit, max_bytes=config.limits.body_bytes)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["*"] if anywhere else names)
    app.add_exception_handler(RequestValidationError, refuse)
    app.mount("/web", StaticFiles(directory=WEB), name="web")
    add_ops(app, lambda: room.places)

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(WEB / "index.html")

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        return {
            "ready": True,
            "capacity": room.places.capacity,
            "active": room.places.taken,
            "ice_servers": room.ice.for_browser(),
            "models": {"asr": config.asr.model, "lm": config.lm.model, "voice": config.speaks},
        }

    @app.post("/api/offer")
    async def offer(body: Annotated[Offer, Body()], request: Request) -> dict[str, str]:
        return await room.offer(body, request.client.host if request.client else "")

    @app.patch("/api/offer")
    async def trickle(body: Annotated[Candidates, Body()]) -> dict[str, str]:
        await room.trickle(body)
        return {"status": "ok"}

    return app


async def serve(config: BotConfig, *, ready: Callable[[], None] = lambda: None) -> None:
    """Load the models, then run the room until it is told to stop.

    Args:
        config: The set-up.
        ready: Called when callers can come.

    Raises:
        ConfigError: a TURN server has no credential.
        EngineError: a model or an engine of the set-up is missing.
        UsageError: the address cannot be listened on.
    """
    IceServers(config.room)
    sock = listen(config.room.host, config.room.port)
    await load_listening(config)
    models = await load_models(config)
    app = create_app(models, config)
    settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    ready()
    try:
        await DrainingServer(settings, app.state.room.drain).serve([sock])
    finally:
        await models.close()
