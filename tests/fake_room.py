"""A room server without a bot: it answers the page, plays a tone and says what it is told to say.

Run as `python -m tests.fake_room PORT`. `/test/say` sends messages to every page, `/test/room`
changes what `/api/*` answers, `/test/report` waits for a text among all that the pages did.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import uvicorn
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack
from aiortc.sdp import candidate_from_sdp
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

WEB = Path(__file__).parent.parent / "bots" / "web"


class Tone(AudioStreamTrack):
    """440 Hz at -15 dBFS. The base class paces frames of silence; they are filled here."""

    async def recv(self) -> Any:
        frame: Any = await super().recv()
        times = (frame.pts + np.arange(frame.samples)) / frame.sample_rate
        frame.planes[0].update((8192 * np.sin(2 * np.pi * 440 * times)).astype("<i2").tobytes())
        return frame


class FakeRoom:
    """The routes and what stands behind them: peers by id, open channels, what the pages sent."""

    def __init__(self) -> None:
        self.peers: dict[str, RTCPeerConnection] = {}
        self.channels: list[Any] = []
        self.log: list[str] = []
        self.news = asyncio.Event()
        self.ready, self.full = True, False

    def note(self, text: str) -> None:
        self.log.append(text)
        self.news.set()
        self.news = asyncio.Event()

    async def page(self) -> FileResponse:
        return FileResponse(WEB / "index.html")

    async def status(self) -> dict[str, Any]:
        active = len(self.peers)
        room = {"ready": self.ready, "capacity": 4, "active": active, "models": {}}
        return room | {"ice_servers": []}

    async def offer(self, body: dict[str, Any]) -> dict[str, str]:
        if self.full:
            raise HTTPException(503, "The room is full (4 of 4 <b>calls</b>). Try again later.")
        peer = RTCPeerConnection()
        # A new path for a call that is known keeps its id.
        pc_id = body["pc_id"] if body.get("pc_id") in self.peers else f"peer-{uuid4().hex}"
        self.peers[pc_id] = peer

        @peer.on("datachannel")
        def on_channel(channel: Any) -> None:
            assert channel.label == "chat"
            self.channels.append(channel)
            channel.on("message", self.note)

        @peer.on("connectionstatechange")
        def on_state() -> None:
            self.note(f"peer {peer.connectionState}")

        await peer.setRemoteDescription(RTCSessionDescription(body["sdp"], body["type"]))
        assert peer.getTransceivers()[0].kind == "audio"
        peer.addTrack(Tone())
        await peer.setLocalDescription(await peer.createAnswer())
        return {"sdp": peer.localDescription.sdp, "type": "answer", "pc_id": pc_id}

    async def trickle(self, body: dict[str, Any]) -> None:
        for entry in body["candidates"]:
            candidate = candidate_from_sdp(entry["candidate"])
            candidate.sdpMid = entry["sdp_mid"]
            candidate.sdpMLineIndex = entry["sdp_mline_index"]
            await self.peers[body["pc_id"]].addIceCandidate(candidate)
            self.note(entry["candidate"])

    async def say(self, body: dict[str, list[Any]]) -> None:
        # The page may call itself connected before its channel has arrived here.
        async with asyncio.timeout(10):
            while not any(c.readyState == "open" for c in self.channels):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for channel in self.channels:
            for message in body["messages"] if channel.readyState == "open" else []:
                channel.send(message if isinstance(message, str) else json.dumps(message))

    async def change(self, body: dict[str, bool]) -> None:
        self.ready, self.full = body.get("ready", True), body.get("full", False)
        self.log.clear()

    async def report(self, until: str) -> list[str]:
        async with asyncio.timeout(10):
            while not any(until in text for text in self.log):
                await self.news.wait()
        return [text for text in self.log if until in text]


def make_app() -> FastAPI:
    app, room = FastAPI(), FakeRoom()
    app.mount("/web", StaticFiles(directory=WEB))
    for method, path, route in [
        ("GET", "/", room.page),
        ("GET", "/api/status", room.status),
        ("POST", "/api/offer", room.offer),
        ("PATCH", "/api/offer", room.trickle),
        ("POST", "/test/say", room.say),
        ("POST", "/test/room", room.change),
        ("GET", "/test/report", room.report),
    ]:
        app.add_api_route(path, route, methods=[method])
    return app


if __name__ == "__main__":
    uvicorn.run(make_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
