"""Who connects to a web server and asks nothing takes nobody's place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from websockets.asyncio.client import connect

from bots.stopping import DrainingServer
from duologue.addresses import listen
from duologue.connections import guard

LONG_S = 60.0
HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
BODY = b"POST /length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A server whose answers can be held back."""

    def __init__(self, port: int):
        self.port = port
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.connections: list[Pair] = []

    async def open(self, first: bytes = b"") -> Pair:
        pair = await asyncio.open_connection("127.0.0.1", self.port)
        self.connections.append(pair)
        pair[1].write(first)
        return pair

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/health")
        async def health() -> str:
            return "ok"

        @app.get("/slow")
        async def slow() -> str:
            self.reached.set()
            await self.go_on.wait()
            return "ok"

        @app.post("/length")
        async def length(request: Request) -> int:
            return len(await request.body())

        @app.websocket("/ws")
        async def ws(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.send_text(await websocket.receive_text())

        return app


@asynccontextmanager
async def served(**limits) -> AsyncIterator[Served]:
    sock = listen("127.0.0.1", 0)
    this = Served(sock.getsockname()[1])
    config = uvicorn.Config(this.app(), log_level="critical")
    guard(config, **limits)
    server = uvicorn.Server(config)
    # Whoever comes before uvicorn does waits for it.
    sock.listen()
    running = asyncio.create_task(server.serve([sock]))
    try:
        async with asyncio.timeout(30):
            yield this
    finally:
        for _, writer in this.connections:
            writer.close()
        this.go_on.set()
        server.should_exit = True
        await running


async def closed(pair: Pair) -> bool:
    try:
        return not await pair[0].read()
    except ConnectionResetError:
        return True


async def answered(pair: Pair, rest: bytes = HEAD + b"\r\n") -> bool:
    pair[1].write(rest)
    return (await pair[0].readline()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("begun", "rest"), [(b"", HEAD + b"\r\n"), (HEAD, b"\r\n"), (BODY + b"1", b"234")]
)
async def test_whoever_waits_longest_makes_way(begun, rest):
    async with served(most=3, wait_s=LONG_S) as server:
        silent = [await server.open(begun) for _ in range(3)]
        for pair in silent:
            await pair[1].drain()
        assert await answered(await server.open())
        assert await closed(silent[0])
        # Once answered it waits too, and makes way in its turn.
        assert await answered(
            silent[2], rest={b"": HEAD + b"\r\n", HEAD: b"\r\n"}.get(begun, b"234")
        )


async def test_many_at_once_are_no_more_than_most():
    async with served(most=5, wait_s=LONG_S) as server:
        silent = [await server.open() for _ in range(200)]
        assert await answered(await server.open())
        assert all(await asyncio.gather(*map(closed, silent[:190])))


@pytest.mark.parametrize("begun", [b"", HEAD, BODY + b"1", HEAD + b"\r\n" + HEAD])
async def test_a_request_has_its_time(begun):
    async with served(wait_s=0.1) as server:
        pair = await server.open(begun)
        with pytest.raises(asyncio.IncompleteReadError):
            await pair[0].readuntil(b"never")


async def test_answers_and_websockets_take_the_time_that_they_need():
    async with served(most=1, wait_s=0.05) as server:
        slow = await server.open(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await server.reached.wait()
        async with connect(f"ws://127.0.0.1:{server.port}/ws") as call:
            for _ in range(3):
                assert await closed(await server.open())
            await call.send("hello")
            assert await call.recv() == "hello"
        server.go_on.set()
        assert await answered(slow, b"")


def test_room_and_phone_are_guarded():
    config = uvicorn.Config(FastAPI())
    DrainingServer(config, lambda: asyncio.sleep(0))
    assert isinstance(config.http, type) and config.backlog < 256
