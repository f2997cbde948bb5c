"""A web server that ends its calls politely before it stops."""

import asyncio
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

from duologue.connections import guard


class DrainingServer(uvicorn.Server):
    """Answers while it drains, so that new callers are told; a second signal stops it at once.

    Connections that do not ask for anything are closed, see `duologue.connections`.

    Args:
        config: uvicorn's.
        drain: Ends the calls.
    """

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]):
        guard(config)
        super().__init__(config)
        self._drain = drain
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._told = False

    async def startup(self, *args, **kwargs) -> None:
        """As uvicorn's; remembers the loop for the signals."""
        self._loop = asyncio.get_running_loop()
        await super().startup(*args, **kwargs)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take SIGTERM or SIGINT. The process ends by itself, so the signal is not raised again."""
        if self._loop is None or self._told:
            self.should_exit = self.force_exit = True
            return
        self._told = True
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._draining = asyncio.create_task(self._stop(), name="drain")

    async def _stop(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True
