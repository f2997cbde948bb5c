"""Speech tokens as they come to sound, on a batcher that calls share."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import numpy as np

from duologue.errors import UsageError
from duologue.metrics import QUEUE_WAIT
from duologue.serving.errors import EngineGone
from duologue.token2wav.batch import BatchedUtterance, Batcher, Said
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule

Tokens = AsyncGenerator[np.ndarray, None]
"""Speech tokens, whole numbers [n] at a time."""

PUSHED_AT_ONCE = 25
"""Tokens between two looks at how far the reader has come."""
MARGIN_S = 1.0
"""What an engine may hold back of the sound of its tokens."""


async def token_speech(
    batcher: Batcher,
    voice: VoicePrompt,
    seed: int,
    schedule: Schedule,
    tokens: Tokens,
    *,
    ahead_s: float,
) -> AsyncGenerator[np.ndarray, None]:
    """Samples float32 [n] at `batcher.rate_hz`, as they are ready.

    Tokens are taken while the sound that nobody has asked for yet is shorter than `ahead_s`, or
    than two chunks of the schedule if these are longer, so an utterance's memory is bounded however
    slow its reader is. Closing it ends the session at once, and closes `tokens`.

    Raises:
        CapacityError: every session is taken, or the engine is too far behind.
        InputError: the voice does not fit, or a token is outside the codebook.
        EngineError: the engine failed.
        EngineGone: it has ended.
    """
    chunks_s = 2 * max(schedule.sizes) * batcher.samples_per_token / batcher.rate_hz
    ahead = round((max(ahead_s, chunks_s) + MARGIN_S) * batcher.rate_hz)
    pipe = _Pipe(batcher.samples_per_token, ahead)
    async with aclosing(tokens):
        utterance = await _open(batcher, voice, seed, pipe, schedule)
        feeding = asyncio.create_task(pipe.feed(utterance, tokens), name="feed tokens")
        try:
            while not pipe.over:
                samples = await pipe.take()
                if len(samples):
                    yield samples
                    pipe.read(len(samples))
        finally:
            utterance.cancel()
            feeding.cancel()
            await asyncio.wait([feeding])


async def _open(
    batcher: Batcher, voice: VoicePrompt, seed: int, pipe: "_Pipe", schedule: Schedule
) -> BatchedUtterance:
    """Begin, in a thread, since a voice's first use computes its caches."""
    opening = asyncio.get_running_loop().run_in_executor(
        None, batcher.open, voice, seed, pipe.emit, schedule
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread cannot be stopped; what it opens must not stay open.
        opening.add_done_callback(lambda done: done.exception() or done.result().cancel())
        raise
    except UsageError as error:
        raise EngineGone(f"token2wav: {error}") from error


class _Pipe:
    """Tokens into an utterance, and its results on their way from the batcher's thread."""

    def __init__(self, samples_per_token: int, ahead: int):
        self.over = False
        self._samples_per_token, self._ahead = samples_per_token, ahead
        self._unread = 0
        self._has_room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Said | Exception] = asyncio.Queue()

    def emit(self, said: Said) -> None:
        """Hand a result over to the event loop; called on the batcher's thread."""
        self._loop.call_soon_threadsafe(self._results.put_nowait, said)

    async def feed(self, utterance: BatchedUtterance, tokens: Tokens) -> None:
        """Push everything, at the pace of the reader; what goes wrong is a result."""
        try:
            async for some in tokens:
                for start in range(0, len(some), PUSHED_AT_ONCE):
                    await self._push(utterance, some[start : start + PUSHED_AT_ONCE])
            # Where the engine has ended it, the result that says why is on its way.
            with suppress(UsageError):
                utterance.finish()
        except Exception as error:
            self._results.put_nowait(error)

    async def _push(self, utterance: BatchedUtterance, tokens: np.ndarray) -> None:
        while self._unread > self._ahead:
            self._has_room.clear()
            await self._has_room.wait()
        self._unread += len(tokens) * self._samples_per_token
        with suppress(UsageError):
            utterance.push(tokens)

    async def take(self) -> np.ndarray:
        """The next samples, float32 [n], n may be 0."""
        result = await self._results.get()
        if isinstance(result, Exception):
            raise result
        self.over = result.final
        if result.error is not None:
            raise result.error
        QUEUE_WAIT.labels("token2wav").observe(result.queue_s)
        return result.samples

    def read(self, samples: int) -> None:
        """The reader has taken so many of them."""
        self._unread -= samples
        self._has_room.set()
