"""What became of aborted requests: found out beside the conversation, and counted."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from duologue import metrics
from duologue.errors import EngineError

LIMIT_S = 0.5
"""An abort that is not confirmed by then counts as unconfirmed."""


@dataclass(slots=True)
class Aborts:
    """Counters of one engine, for metrics.

    Attributes:
        confirmed: Aborts after which the server was seen to have stopped.
        unconfirmed: Those after which it was not, within `LIMIT_S`.
        wasted_tokens: Tokens generated after an abort, as the server counts them; where it was not
            seen to stop, all that the request could still have brought.
        slowest_s: Longest time until an abort was confirmed.
    """

    confirmed: int = 0
    unconfirmed: int = 0
    wasted_tokens: int = 0
    slowest_s: float = 0.0


class AbortWatch:
    """Owns the tasks that see aborts through; whoever aborts does not wait for them.

    Attributes:
        aborts: What they found.
    """

    def __init__(self) -> None:
        self.aborts = Aborts()
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, stopped: Coroutine[Any, Any, int], at_most: int) -> None:
        """See one abort through.

        Args:
            stopped: Returns the number of wasted tokens once the server has stopped.
            at_most: Tokens that the request could still bring.
        """
        task = asyncio.create_task(self._follow(stopped, at_most))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until every abort so far is confirmed or given up."""
        await asyncio.gather(*self._tasks)

    async def _follow(self, stopped: Coroutine[Any, Any, int], at_most: int) -> None:
        begin, aborts, seen = time.monotonic(), self.aborts, True
        try:
            async with asyncio.timeout(LIMIT_S):
                wasted = await stopped
        except (TimeoutError, EngineError):
            seen, wasted = False, at_most
            aborts.unconfirmed += 1
        else:
            aborts.confirmed += 1
            aborts.slowest_s = max(aborts.slowest_s, time.monotonic() - begin)
        aborts.wasted_tokens += wasted
        metrics.LM_ABORTS.labels("yes" if seen else "no").inc()
        metrics.LM_WASTED.inc(wasted)
