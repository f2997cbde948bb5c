"""What keeps one caller's excess from everybody else: places, rates, and a turn's budget.

The figures are `config.limits`; docs/limits.md says what each does. Everything here is made for one
event loop and takes its clock.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duologue.errors import CapacityError

Clock = Callable[[], float]
MAX_KEYS = 1024


class Places:
    """The calls that a process holds at once, and the end of taking more.

    Args:
        capacity: How many.
        what: What is full, in messages: "room", "line".
    """

    def __init__(self, capacity: int, what: str = "room"):
        self.capacity = capacity
        self.taken = 0
        self.closing = False
        self._what = what
        self._empty = asyncio.Event()
        self._empty.set()

    def check(self) -> None:
        """Whether another call may come.

        Raises:
            CapacityError: every place is taken, or the process is about to stop.
        """
        if self.closing:
            raise CapacityError(
                f"The {self._what} is closing and takes no more calls. "
                "Please try again in a minute."
            )
        if self.taken >= self.capacity:
            raise CapacityError(
                f"The {self._what} is full: {self.taken} of {self.capacity} places are taken. "
                "Please try again in a minute."
            )

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold a place.

        Raises:
            CapacityError: as `check`.
        """
        self.check()
        self.taken += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.taken -= 1
            if not self.taken:
                self._empty.set()

    async def drain(self, within_s: float) -> bool:
        """Take no more calls and wait until those that run are over; returns whether they are."""
        self.closing = True
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        return not self.taken


class Rate:
    """A token bucket: `per_s` on average, `burst` at once.

    Args:
        per_s: How often something may happen.
        burst: How often at once after a pause.
        clock: Monotonic seconds.
    """

    def __init__(self, per_s: float, burst: float, *, clock: Clock = time.monotonic):
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._clock = clock
        self._left = self._burst
        self._at_s = clock()

    def admits(self) -> bool:
        """Whether it may happen now; if so, it counts."""
        now_s = self._clock()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Rates:
    """A `Rate` for each key, such as an address; the keys longest unseen are forgotten."""

    def __init__(self, per_s: float, burst: float, *, clock: Clock = time.monotonic):
        self._make = lambda: Rate(per_s, burst, clock=clock)
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    def admits(self, key: str) -> bool:
        """As `Rate.admits`."""
        rate = self._rates.pop(key, None) or self._make()
        self._rates[key] = rate
        if len(self._rates) > MAX_KEYS:
            self._rates.popitem(last=False)
        return rate.admits()


class Messages:
    """Which of a caller's messages are taken: neither too long nor too many.

    Args:
        max_bytes: Of one message.
        per_s: Messages on average; twice as many may come at once.
        clock: Monotonic seconds.

    Attributes:
        refused: So many were not taken.
    """

    def __init__(self, max_bytes: int, per_s: float, *, clock: Clock = time.monotonic):
        self._max_bytes = max_bytes
        self._rate = Rate(per_s, 2 * per_s, clock=clock)
        self.refused = 0

    def admits(self, message: str | bytes) -> bool:
        """Whether this one is taken."""
        size = len(message) if isinstance(message, bytes) else len(message.encode())
        taken = self._rate.admits() and size <= self._max_bytes
        self.refused += not taken
        return taken


class TurnBudget:
    """What is left of a turn's tokens and tool calls, over all the answers that it gets."""

    def __init__(self, tokens: int, tool_calls: int):
        self._full = tokens, tool_calls
        self.tokens, self.tool_calls = self._full

    def renew(self) -> None:
        """A new turn has begun."""
        self.tokens, self.tool_calls = self._full

    def take_tool_call(self) -> bool:
        """Whether another tool may be called; if so, it counts."""
        if self.tool_calls <= 0:
            return False
        self.tool_calls -= 1
        return True
