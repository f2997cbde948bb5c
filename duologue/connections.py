"""Keeps a web server's connections below what a process may open, whoever opens them.

uvicorn waits for ever for the end of a request that has begun, or for one that never comes. Each
holds a file, and without files nobody is let in.
"""

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_WAITING = 256
REQUEST_S = 10.0
BACKLOG = 128
"""Connections that are taken in one go; they count before the first of them can be closed."""

_Protocol: Any = AutoHTTPProtocol


def guard(config: uvicorn.Config, *, most: int = MOST_WAITING, wait_s: float = REQUEST_S) -> None:
    """Bound the connections that wait for a request, or for the rest of one.

    Of more than `most` the one that has waited longest is closed, and so is any that has waited for
    `wait_s`. Websockets and requests that are being answered do not count.

    Args:
        config: uvicorn's, not used by a server yet.
        most: Connections that wait.
        wait_s: Seconds that a request may take to arrive whole.
    """
    lobby = _Lobby(most, wait_s)
    config.http = type("Guarded", (_Guarded,), {"lobby": lobby})
    config.backlog = BACKLOG


class _Lobby:
    """Transports that wait, the oldest first, each with the timer that ends its wait."""

    def __init__(self, most: int, wait_s: float):
        self._most, self._wait_s = most, wait_s
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def enter(self, transport: asyncio.Transport) -> None:
        """Wait, or go on waiting."""
        if transport in self._timers:
            return
        if len(self._timers) >= self._most:
            self._close(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[transport] = loop.call_later(self._wait_s, self._close, transport)

    def leave(self, transport: asyncio.Transport) -> None:
        """Wait no more."""
        if timer := self._timers.pop(transport, None):
            timer.cancel()

    def _close(self, transport: asyncio.Transport) -> None:
        self.leave(transport)
        transport.abort()


class _Guarded(_Protocol):
    lobby: _Lobby

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.lobby.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lobby.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def _note(self) -> None:
        cycle, upgraded = self.cycle, self.transport.get_protocol() is not self
        answering = cycle and not (cycle.response_complete or cycle.more_body)
        if answering or upgraded or self.transport.is_closing():
            self.lobby.leave(self.transport)
        else:
            self.lobby.enter(self.transport)
