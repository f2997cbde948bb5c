"""A listener, servers that die, and servers that say what a script says."""

import asyncio
from contextlib import asynccontextmanager
from queue import Queue

import grpc
import numpy as np

from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from duologue.serving.grpc_server import GrpcServer
from tests.serving.servers import WatchedSpeaker


class Ear:
    """A listener: what was said, and a wait for it."""

    def __init__(self):
        self.said = []
        self._queue = Queue()

    def emit(self, said):
        self._queue.put(said)

    def next(self):
        said = self._queue.get(timeout=30)
        self.said.append(said)
        return said

    async def sound(self):
        """Until there is a sample more."""
        while not len((await asyncio.to_thread(self.next)).samples):
            pass

    async def rest(self) -> np.ndarray:
        """To the end; all samples since the beginning."""
        while not (self.said and self.said[-1].final):
            await asyncio.to_thread(self.next)
        if self.said[-1].error:
            raise self.said[-1].error
        return np.concatenate([said.samples for said in self.said])

    @property
    def samples(self) -> int:
        return sum(len(said.samples) for said in self.said)

    @property
    def silent(self) -> bool:
        return self._queue.empty()


class Killable:
    """A real server that dies without a word."""

    def __init__(self, speaker: WatchedSpeaker, token: str = ""):
        self.speaker = speaker
        self._server = GrpcServer(speaker, speaker.limits, token=token)
        self.url = f"grpc://127.0.0.1:{self._server.port}"

    async def start(self):
        await self._server.start()

    async def kill(self):
        await self._server.stop(0)


class Scripted(stubs.SpeechServicer):
    """A server that says what the script says."""

    def __init__(self, digest: str, script):
        self.calls = 0
        self._digest, self._script = digest, script

    async def ListVoices(self, request, context):
        voice = pb.Voice(name="ada", digest=self._digest, takes_tokens=True)
        return pb.ListVoicesResponse(voices=[voice])

    async def Synthesize(self, requests, context):
        self.calls += 1
        await context.send_initial_metadata(())
        async for answer in self._script(requests, context):
            yield answer


@asynccontextmanager
async def scripted(digest, script):
    server, servicer = grpc.aio.server(), Scripted(digest, script)
    stubs.add_SpeechServicer_to_server(servicer, server)
    servicer.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(0)
