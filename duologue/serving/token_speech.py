"""Speech tokens as they come to sound, on a batcher that calls share."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from duologue.errors import UsageError
from duologue.metrics import QUEUE_WAIT
from duologue.serving.errors import EngineGone
from duologue.token2wav.async_utterance import AsyncUtterance
from duologue.token2wav.batch import Batcher
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
    async with aclosing(tokens):
        try:
            utterance = await AsyncUtterance.open(batcher, voice, seed, schedule)
        except UsageError as error:
            raise EngineGone(f"token2wav: {error}") from error
        pace = _Pace(batcher.samples_per_token, ahead)
        feeding = asyncio.create_task(_feed(utterance, tokens, pace), name="feed tokens")
        try:
            while not utterance.over:
                said = await utterance.take()
                if said.error is not None:
                    raise said.error
                QUEUE_WAIT.labels("token2wav").observe(said.queue_s)
                if len(said.samples):
                    yield said.samples
                    pace.read(len(said.samples))
        finally:
            utterance.cancel()
            feeding.cancel()
            await asyncio.wait([feeding])


async def _feed(utterance: AsyncUtterance, tokens: Tokens, pace: "_Pace") -> None:
    """Push everything, at the pace of the reader, who is told what goes wrong."""
    try:
        async for some in tokens:
            for start in range(0, len(some), PUSHED_AT_ONCE):
                few = some[start : start + PUSHED_AT_ONCE]
                await pace.admit(len(few))
                utterance.push(few)
        utterance.finish()
    except Exception as error:
        utterance.fail(error)


class _Pace:
    """How far tokens may run ahead of the reader, in samples."""

    def __init__(self, samples_per_token: int, ahead: int):
        self._samples_per_token, self._ahead = samples_per_token, ahead
        self._unread = 0
        self._has_room = asyncio.Event()

    async def admit(self, tokens: int) -> None:
        """Wait until the reader has come near enough; then these tokens count."""
        while self._unread > self._ahead:
            self._has_room.clear()
            await self._has_room.wait()
        self._unread += tokens * self._samples_per_token

    def read(self, samples: int) -> None:
        """The reader has taken so many of them."""
        self._unread -= samples
        self._has_room.set()
