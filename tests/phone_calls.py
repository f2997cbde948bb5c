"""What tests of the phone share: a real server on a real port, and callers."""

import asyncio
import base64
import json
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import numpy as np
from streamdouble import g711
from streamdouble.audio import frame_ulaw
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bots.models import Models
from bots.phone import Gate, Phone, make_server
from bots.phone_auth import SIGNATURE, Secrets, sign
from bots.stopping import DrainingServer
from duologue.audio.pcm import ASR_RATE_HZ, resample
from duologue.config import BotConfig, LimitsConfig, PhoneConfig, TurnConfig
from tests.fakes import FakeEngine, FakeVoice

SILENCE = b"\xff" * 160
PUBLIC = "https://phone.example.org/behind/a/proxy"
SECRETS = Secrets("secret of the account", "secret of the rule")
COUNT = " ".join(f"word{n}" for n in range(1, 31)) + "."
FORM = {"CallSid": "CA1", "From": "+15550100", "To": "+15550199"}
WORD_S = 0.2


def set_up(*, greeting: str | None = None, **limits: Any) -> BotConfig:
    """A set-up in which silence ends a turn."""
    return BotConfig(
        phone=PhoneConfig(public_url=PUBLIC, greeting=greeting),
        limits=LimitsConfig(**limits),
        turn=TurnConfig(end="speech-timeout", silence_s=0.5, speculate=False),
    )


class Line:
    """A phone that takes calls."""

    def __init__(self, phone: Phone, gate: Gate, server: DrainingServer, port: int):
        self.phone, self.gate, self.server, self.port = phone, gate, server, port
        self.http = f"http://127.0.0.1:{port}"
        self.ws = f"ws://127.0.0.1:{port}"
        self.running: asyncio.Task[None]

    def stop(self) -> None:
        """As the first SIGTERM does; a second one would be a hurry."""
        if not self.phone.lines.closing:
            self.server.handle_exit(signal.SIGTERM, None)


@asynccontextmanager
async def open_line(
    asr: Any,
    *answers: Any,
    config: BotConfig | None = None,
    secrets: Secrets | None = None,
    models: Models | None = None,
    voice: Any = None,
) -> AsyncIterator[Line]:
    """Open a line to a bot that gives these answers."""
    config = config or set_up()
    models = models or Models(asr, FakeEngine(*answers), voice or FakeVoice(WORD_S))  # type: ignore[arg-type]
    phone, gate = Phone(models, config), Gate(config.phone, secrets)
    server, sock = make_server(phone, gate), socket.create_server(("127.0.0.1", 0))
    line = Line(phone, gate, server, sock.getsockname()[1])
    line.running = asyncio.create_task(server.serve([sock]))
    try:
        yield line
    finally:
        line.stop()
        await line.running


class Call:
    """A provider's stream.

    Attributes:
        media: (seconds, mu-law) of the bot's audio.
        clears: When each clear came.
        marks: The names of the marks that came.
        closed: Resolves to the code and the reason of the stream's end.
    """

    def __init__(self, line: Any, *, mark_delay_s: float = 0.0, call_id: str = "CA1"):
        self._line = line
        self._delay_s = mark_delay_s
        self._ends_s = 0.0
        self._speech: list[bytes] = []
        self._silent = asyncio.Event()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._stream())]
        self.call_id = call_id
        self.media: list[tuple[float, bytes]] = []
        self.clears: list[float] = []
        self.marks: list[str] = []
        self.closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()

    async def send(self, **message: Any) -> None:
        await self._line.send(json.dumps(message))

    async def say(self, samples: np.ndarray) -> float:
        """Say float32 [n] at 16 kHz; returns when it began, once it is said."""
        frames = frame_ulaw(g711.encode(np.round(resample(samples, ASR_RATE_HZ, 8000) * 32767)))
        began = time.monotonic()
        self._speech, self._silent = frames, asyncio.Event()
        await self._silent.wait()
        return began

    async def heard(self, seconds: float) -> None:
        """Wait until so much of the bot has come."""
        await self.until(lambda: len(self.audio) >= seconds * 8000)

    async def until(self, true: Any, within_s: float = 15.0) -> None:
        async with asyncio.timeout(within_s):
            while not true():
                self.news.clear()
                await self.news.wait()

    async def quiet(self, seconds: float) -> None:
        """Wait until nothing has come for so long."""
        with suppress(TimeoutError):
            while True:
                self.news.clear()
                await asyncio.wait_for(self.news.wait(), seconds)

    @property
    def audio(self) -> bytes:
        return b"".join(chunk for _, chunk in self.media)

    async def hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._line.close()

    async def _stream(self) -> None:
        due_s = time.monotonic()
        try:
            while True:
                frame = self._speech.pop(0) if self._speech else SILENCE
                await self.send(event="media", media={"payload": base64.b64encode(frame).decode()})
                if not self._speech:
                    self._silent.set()
                due_s += 0.02
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        except ConnectionClosed:
            pass

    async def _listen(self) -> None:
        try:
            async for text in self._line:
                self._take(json.loads(text))
                self.news.set()
            self.closed.set_result((self._line.close_code, self._line.close_reason))
        except ConnectionClosed as error:
            frame = error.rcvd
            self.closed.set_result((frame.code, frame.reason) if frame else (1006, ""))
        self.news.set()

    def _take(self, message: dict[str, Any]) -> None:
        now_s = time.monotonic()
        match message["event"]:
            case "media" | "playAudio":
                chunk = base64.b64decode(message["media"]["payload"])
                self.media.append((now_s, chunk))
                self._ends_s = max(self._ends_s, now_s) + len(chunk) / 8000
            case "clear" | "clearAudio":
                self.clears.append(now_s)
                self._ends_s = now_s
            case "mark":
                self.marks.append(message["mark"]["name"])
                wait_s = max(0.0, self._ends_s - now_s) + self._delay_s
                self._tasks.append(asyncio.create_task(self._echo(message, wait_s)))
            case "checkpoint":
                self.marks.append(message["name"])

    async def _echo(self, message: dict[str, Any], wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        with suppress(ConnectionClosed):
            await self.send(**message)


def start(call_id: str = "CA1") -> list[dict[str, Any]]:
    """A stream's first messages."""
    stream = f"MZ{call_id}"
    return [
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {
            "event": "start",
            "streamSid": stream,
            "start": {"streamSid": stream, "callSid": call_id, "accountSid": "AC1"},
        },
    ]


@asynccontextmanager
async def dial(
    url: str, *, opening: list[dict[str, Any]] | None = None, headers: Any = None, **kwargs: Any
) -> AsyncIterator[Call]:
    """Call, and hang up at the end."""
    async with connect(url, additional_headers=headers, max_queue=None) as line:
        for message in opening or start(kwargs.get("call_id", "CA1")):
            await line.send(json.dumps(message))
        call = Call(line, **kwargs)
        try:
            yield call
        finally:
            await call.hang_up()


async def status_of(url: str, headers: dict[str, str] | None = None) -> int:
    """What the upgrade of a stream is answered."""
    try:
        async with connect(url, additional_headers=headers):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


async def ring(line, form=FORM, path="/voice", **headers) -> httpx.Response:
    """The provider's webhook."""
    headers.setdefault(SIGNATURE, sign(SECRETS.auth_token, PUBLIC + path, form.items()))
    async with httpx.AsyncClient() as client:
        return await client.post(line.http + path, data=form, headers=headers)


async def refusal(url: str) -> tuple[int | None, str | None]:
    """How a stream is closed that is let in no farther."""
    async with connect(url) as stream:
        await stream.wait_closed()
        return stream.close_code, stream.close_reason


def late_s(media: list[tuple[float, bytes]]) -> list[float]:
    """For how long the phone had nothing to play before each chunk."""
    ends_s, late = media[0][0], []
    for at_s, chunk in media:
        late.append(max(0.0, at_s - ends_s))
        ends_s = max(ends_s, at_s) + len(chunk) / 8000
    return late
