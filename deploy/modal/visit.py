"""One caller's stay in a container that is theirs alone."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from duologue.limits import Places

PING_S = 10.0


class OnePlace(Places):
    """A place that tells when it is taken and when it is free again.

    Attributes:
        taken_up: Set while somebody has it.
        left: Set once somebody had it.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.taken_up, self.left = asyncio.Event(), asyncio.Event()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold the place."""
        with super().take():
            self.left.clear()
            self.taken_up.set()
            try:
                yield
            finally:
                self.taken_up.clear()
                self.left.set()


async def stay(place: OnePlace, *, arrive_s: float, again_s: float) -> None:
    """Wait until nobody comes any more.

    Args:
        place: The caller's.
        arrive_s: Wait for a call, the first one or another.
        again_s: After so long no further call begins.
    """
    until_s = asyncio.get_running_loop().time() + again_s
    try:
        while (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait_for(place.taken_up.wait(), min(arrive_s, left_s))
            await place.left.wait()
    except TimeoutError:
        pass
    place.closing = True


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket on a free port; the tunnel is the only way to it."""
    with socket.create_server(("0.0.0.0", 0)) as sock:
        yield sock


async def serve_while(
    app: ASGIApp,
    sock: socket.socket,
    stays: Awaitable[None],
    drain: Callable[[], Awaitable[None]],
    *,
    max_message: int,
) -> None:
    """Serve `app` until `stays` is over and what it held is drained."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        ws_max_size=max_message,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    server.capture_signals = _nothing  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve([sock]), name="serve")
    try:
        await stays
    finally:
        await drain()
        server.should_exit = True
        await serving


@contextmanager
def _nothing() -> Iterator[None]:
    """Modal tells a container to stop in its own way."""
    yield
