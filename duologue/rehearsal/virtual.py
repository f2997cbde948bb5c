"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

Minutes of conversation run in the time that their computation takes, and always in the same order.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while every task waits; work in threads stops the clock until it is done."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._in_threads = 0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any):
        """As in any loop, but with the clock stopped until the thread has finished."""
        future = super().run_in_executor(executor, func, *args)
        if executor is None or isinstance(executor, ThreadPoolExecutor):
            self._in_threads += 1
            future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: Any) -> None:
        self._in_threads -= 1

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not self._ready and not self._in_threads:  # type: ignore[attr-defined]
            # The heap's head may be cancelled; its time must not be jumped to.
            due = min((t.when() for t in timers if not t.cancelled()), default=self._now_s)
            self._now_s = max(self._now_s, due)
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
