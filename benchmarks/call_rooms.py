"""The rooms of benchmarks/calls.py: callers with aiortc, and the room that they come to."""

import asyncio
import fractions
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import httpx
import numpy as np
import uvicorn
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker

from bots import room_call
from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ
from bots.models import Models
from bots.room import create_app
from bots.stopping import DrainingServer
from bots.webrtc import hear_sooner
from duologue.addresses import listen
from duologue.audio.pcm import to_int16_bytes
from duologue.config import BotConfig
from duologue.tts.piper import Speech
from tests.fakes import FakeVoice

if TYPE_CHECKING:
    from benchmarks.calls import Caller

RATE_HZ = 48_000
FRAME = RATE_HZ // 50
SILENCE = bytes(2 * FRAME)
TONE_HZ = 300
QUIET_S = 0.1
AUDIBLE = 1000
"""Of 32767; the tone has 16000, and Opus makes next to nothing of silence."""


class ToneVoice(FakeVoice):
    """A stand-in whose words are a tone: Opus takes away a constant level."""

    def synthesize(self, text: str) -> Speech:
        """As long as the words are."""
        speech = super().synthesize(text)
        return replace(speech, samples=tone(len(speech.samples), self.rate_hz))


def tone(count: int, rate_hz: int) -> np.ndarray:
    """float32 [count], of amplitude 0.5."""
    turns = TONE_HZ * np.arange(count) / rate_hz
    return (0.5 * np.sin(2 * np.pi * turns)).astype(np.float32)


def frames(samples: np.ndarray) -> list[bytes]:
    """float32 [n] at 48 kHz in pieces of 20 ms."""
    audio = to_int16_bytes(np.pad(samples, (0, -len(samples) % FRAME)))
    return [audio[at : at + 2 * FRAME] for at in range(0, len(audio), 2 * FRAME)]


async def serve(models: Models, config: BotConfig, port: int, *, echo: bool) -> None:
    """The room, until its process is ended; `echo` leaves the transport's two ends only."""
    app = create_app(models, config)
    settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    server = DrainingServer(settings, app.state.room.drain)
    with patch.object(room_call, "build_session", echoing if echo else room_call.build_session):
        await server.serve([listen("127.0.0.1", port)])


def echoing(*_: Any, inputs: list[Any], outputs: list[Any], **__: Any) -> SimpleNamespace:
    """A session that says what it hears."""
    from benchmarks.calls import Echo

    rates = PipelineParams(audio_in_sample_rate=IN_RATE_HZ, audio_out_sample_rate=OUT_RATE_HZ)
    pipeline = Pipeline([*inputs, Echo(), *outputs])
    worker = PipelineWorker(pipeline, params=rates, enable_rtvi=False, enable_turn_tracking=False)
    return SimpleNamespace(worker=worker)


class Microphone(MediaStreamTrack):
    """What a caller says, 20 ms every 20 ms."""

    kind = "audio"

    def __init__(self, caller: "Caller"):
        super().__init__()
        self._caller = caller
        self._due_s: float | None = None
        self._sent = 0

    async def recv(self) -> AudioFrame:
        """The next 20 ms, at their time."""
        self._due_s = time.monotonic() if self._due_s is None else self._due_s + 0.02
        await asyncio.sleep(max(0.0, self._due_s - time.monotonic()))
        frame = AudioFrame("s16", "mono", FRAME)
        frame.planes[0].update(self._caller.next_frame(time.monotonic()))
        frame.sample_rate, frame.pts = RATE_HZ, self._sent
        frame.time_base = fractions.Fraction(1, RATE_HZ)
        self._sent += FRAME
        return frame


async def call(url: str, caller: "Caller", until_s: float) -> None:
    """One paced call over the room's own way in."""
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    try:
        pc.addTrack(Microphone(caller))
        pc.createDataChannel("chat")
        await pc.setLocalDescription(await pc.createOffer())
        offer = {"sdp": pc.localDescription.sdp, "type": "offer"}
        async with httpx.AsyncClient(timeout=30) as client:
            answer = (await client.post(f"{url}/api/offer", json=offer)).raise_for_status().json()
        await pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
        # As a browser's, the caller's buffer is not to add to what is measured.
        hear_sooner(SimpleNamespace(pc=pc))  # type: ignore[arg-type]
        async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
            await listen_to(pc.getReceivers()[0].track, caller)
    except (TimeoutError, MediaStreamError):
        pass
    finally:
        await pc.close()


async def listen_to(track: MediaStreamTrack, caller: "Caller") -> None:
    """Hear the bot; it has stopped once QUIET_S are silent, at their beginning."""
    quiet_s: float | None = None
    while True:
        frame = await track.recv()
        assert isinstance(frame, AudioFrame)
        now_s = time.monotonic()
        if int(np.abs(frame.to_ndarray()).max()) > AUDIBLE:
            quiet_s = None
            caller.hear(frame.samples / frame.sample_rate, now_s)
            continue
        quiet_s = quiet_s or now_s
        if now_s - quiet_s > QUIET_S and caller.interrupts(quiet_s):
            caller.cleared(quiet_s)
