"""A room in this process, and callers who come to it with aiortc. Tests take over its fixtures."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack
from pipecat.frames.frames import TTSSpeakFrame

from bots import room_call
from bots.models import Models
from bots.room import create_app
from duologue.config import BotConfig, LimitsConfig
from tests.fakes import FakeEngine, FakeVoice

CONFIG = BotConfig(limits=LimitsConfig(sessions=2))


@pytest.fixture
def open_room(whisper):
    """A room whose LM and voice are stand-ins; its client has `state.room` as `.room`."""

    @asynccontextmanager
    async def opened(config: BotConfig = CONFIG, **voice: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Models(whisper, FakeEngine(), FakeVoice(**voice)), config)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1"
            ) as client,
        ):
            client.room = app.state.room  # type: ignore[attr-defined]
            yield client

    return opened


@pytest.fixture
def sessions(monkeypatch) -> list[Any]:
    """The sessions that the room builds, for a test that makes the bot speak."""
    built: list[Any] = []
    build = room_call.build_session

    def keep(*args, **kwargs):
        built.append(build(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(room_call, "build_session", keep)
    return built


async def speak(session: Any, text: str) -> None:
    """Make the bot say something of its own accord."""
    await session.worker.queue_frame(TTSSpeakFrame(text))


@pytest.fixture
async def browser():
    """Makes callers, and hangs up for those that a test has left on the line."""
    callers: list[Browser] = []

    def make(**config: Any) -> Browser:
        callers.append(Browser(**config))
        return callers[-1]

    yield make
    for caller in callers:
        await caller.pc.close()


class Browser:
    """A caller: microphone of silence, the data channel, and what arrived on it."""

    def __init__(self, **config: Any):
        self._config = config
        self.messages: asyncio.Queue[dict] = asyncio.Queue()
        self.pc_id = ""
        self.open()

    def open(self) -> None:
        """A fresh connection, with which nothing is agreed yet."""
        self.pc = RTCPeerConnection(RTCConfiguration(**self._config))
        self.pc.addTrack(AudioStreamTrack())
        self.channel = self.pc.createDataChannel("chat")
        self.channel.on("message", lambda text: self.messages.put_nowait(json.loads(text)))

    async def offer(self, client: httpx.AsyncClient, **extra: Any) -> httpx.Response:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        description = self.pc.localDescription
        body = {"sdp": description.sdp, "type": description.type, **extra}
        return await client.post("/api/offer", json=body)

    async def call(self, client: httpx.AsyncClient, **extra: Any) -> str:
        await self.accept((await self.offer(client, **extra)).raise_for_status().json())
        return self.pc_id

    async def accept(self, answer: dict[str, str]) -> None:
        """Take the room's answer."""
        description = RTCSessionDescription(sdp=answer["sdp"], type=answer["type"])
        await self.pc.setRemoteDescription(description)
        self.pc_id = answer["pc_id"]

    async def renew(self, client: httpx.AsyncClient) -> RTCPeerConnection:
        """Offer a new path for the same call, as the page does; returns the old one, open."""
        old = self.pc
        self.open()
        await self.call(client, pc_id=self.pc_id, restart_pc=True)
        return old

    async def next(self, kind: str, **fields: Any) -> dict:
        async with asyncio.timeout(20):
            while True:
                message = await self.messages.get()
                if message["type"] == kind and fields.items() <= message.items():
                    return message


async def active(client: httpx.AsyncClient) -> int:
    return (await client.get("/api/status")).json()["active"]


async def until_active(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(20):
        while await active(client) != count:  # noqa: ASYNC110  (the room has no event to wait for)
            await asyncio.sleep(0.05)
