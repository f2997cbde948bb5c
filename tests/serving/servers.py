"""Speakers and real servers for tests, and what clients of theirs send."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import numpy as np

from duologue.config import ServeConfig
from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from duologue.serving.server import Ports, run
from duologue.serving.speaker import Speaker

CLIP = Path(__file__).parents[1] / "data/questions/question_17.ogg"
TOKEN = 960
"""Samples of a token."""


class WatchedSpeaker(Speaker):
    """Says how each call ended."""

    def __init__(self, *args):
        super().__init__(*args)
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.stopping = asyncio.Event()

    @contextmanager
    def call(self, kind):
        session = None
        try:
            with super().call(kind) as session:
                yield session
        except BaseException as error:
            outcome = session.outcome if session else ""
            self.ended.put_nowait(outcome or type(error).__name__)
            raise
        self.ended.put_nowait("done")

    async def drain(self, seconds):
        self.stopping.set()
        await super().drain(seconds)

    async def outcome(self) -> str:
        async with asyncio.timeout(20):
            return await self.ended.get()


@asynccontextmanager
async def served(speaker: Speaker, token: str = "") -> AsyncIterator[Ports]:
    """Both servers on ports of their own, until the block is over."""
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(run(speaker, sock, stop, token=token, ready=ports.set_result))
    try:
        await asyncio.wait([running, ports], return_when=asyncio.FIRST_COMPLETED)
        yield ports.result() if ports.done() else await running
    finally:
        stop.set()
        await running


@asynccontextmanager
async def client(ports: Ports) -> AsyncIterator[stubs.SpeechStub]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        yield stubs.SpeechStub(channel)


def limits(**own) -> ServeConfig:
    return ServeConfig(**{"grpc_port": 0, "http_port": 0, "drain_s": 1, "idle_s": 20, **own})


def start(**fields) -> pb.SynthesizeRequest:
    return pb.SynthesizeRequest(start=pb.SynthesizeStart(**fields))


def tokens(ids) -> pb.SynthesizeRequest:
    return pb.SynthesizeRequest(tokens=pb.Tokens(ids=[int(n) for n in ids]))


def text(words: str) -> pb.SynthesizeRequest:
    return pb.SynthesizeRequest(text=words)


async def heard(call) -> np.ndarray:
    """Samples int16 of a whole call."""
    pcm = b""
    while (answer := await call.read()) is not grpc.aio.EOF:
        pcm += answer.pcm
    return np.frombuffer(pcm, "<i2")
