"""A batcher's utterances for an event loop, whose other work goes on meanwhile."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from duologue.errors import UsageError
from duologue.token2wav.batch import Said
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule


class Opened(Protocol):
    """An utterance of a batcher, as `BatchedUtterance`."""

    def push(self, tokens: np.ndarray) -> None: ...  # noqa: D102
    def finish(self) -> None: ...  # noqa: D102
    def cancel(self) -> None: ...  # noqa: D102


class Opens(Protocol):
    """Speaks many utterances: a `Batcher` here, or a `RemoteBatcher` on other machines."""

    rate_hz: int

    def open(
        self,
        voice: VoicePrompt,
        seed: int,
        emit: Callable[[Said], None],
        schedule: Schedule | None = None,
    ) -> Opened:
        """See `Batcher.open`."""
        ...

    def close(self) -> None:
        """End all utterances."""
        ...


class AsyncUtterance:
    """One utterance; made by `open`, and to be cancelled in any case.

    Attributes:
        over: Whether its final result has been taken.
    """

    def __init__(self) -> None:
        self.over = False
        self._loop = asyncio.get_running_loop()
        # As long as what was pushed at most, which whoever pushes bounds.
        self._results: asyncio.Queue[Said | Exception] = asyncio.Queue()
        self._utterance: Opened

    @classmethod
    async def open(
        cls, batcher: Opens, voice: VoicePrompt, seed: int, schedule: Schedule | None = None
    ) -> "AsyncUtterance":
        """Begin, in a thread, since a voice's first use computes its caches.

        Raises:
            CapacityError, InputError, UsageError: as `Batcher.open`.
        """
        self = cls()
        opening = self._loop.run_in_executor(None, batcher.open, voice, seed, self._emit, schedule)
        try:
            self._utterance = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be stopped; what it opens must not stay open.
            opening.add_done_callback(lambda done: done.exception() or done.result().cancel())
            raise
        return self

    def push(self, tokens: np.ndarray) -> None:
        """Add speech tokens, whole numbers [n].

        Raises:
            InputError: a token is outside the codebook; none of them is taken.
        """
        # Where the engine has ended it, the result that says why is on its way.
        with suppress(UsageError):
            self._utterance.push(tokens)

    def finish(self) -> None:
        """No more tokens come; the result that is `final` follows."""
        with suppress(UsageError):
            self._utterance.finish()

    def cancel(self) -> None:
        """Stop here, and free the state; twice is no error."""
        self._utterance.cancel()

    def fail(self, error: Exception) -> None:
        """Have `take` raise this behind the results so far: no more tokens can come."""
        self._results.put_nowait(error)

    async def take(self) -> Said:
        """The next result, in order.

        Raises:
            Exception: what `fail` was given.
        """
        result = await self._results.get()
        if isinstance(result, Exception):
            raise result
        self.over = result.final
        return result

    def _emit(self, said: Said) -> None:
        """Called on the batcher's thread."""
        self._loop.call_soon_threadsafe(self._results.put_nowait, said)
