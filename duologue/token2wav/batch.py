"""Many utterances at once: sessions join and leave between the steps of one engine.

A thread runs the engine whenever a chunk is ready, over those that are ready by then, the one whose
listener runs out of sound first going first. Nothing waits for a batch to fill.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from duologue.errors import CapacityError, ConfigError, DuologueError, EngineError, UsageError
from duologue.token2wav.checks import check_samples
from duologue.token2wav.layout import check_front_end
from duologue.token2wav.step import (
    FlowStep,
    FlowWork,
    FrontEndId,
    Handle,
    VocoderStep,
    VocoderWork,
    VoicePrompt,
)
from duologue.token2wav.stream import Chunk, Chunker, Schedule

log = logging.getLogger(__name__)

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Said:
    """What one chunk of an utterance came to.

    Attributes:
        samples: float32 [n], n may be 0.
        final: Whether the utterance is over.
        queue_s: How long the chunk waited for the engine, seconds.
        step_s: How long the engine worked on the batch that it was in, seconds.
        error: Why the utterance ended early; there are no samples then.
    """

    samples: np.ndarray
    final: bool
    queue_s: float
    step_s: float
    error: DuologueError | None = None


Emit = Callable[[Said], None]
"""Gets each result, in order, on the batcher's thread; must not block."""


@dataclass(eq=False, slots=True)
class _Session:
    flow: Handle
    vocoder: Handle
    chunker: Chunker
    emit: Emit
    ready: deque[tuple[float, Chunk]] = field(default_factory=deque)
    heard_until_s: float | None = None
    finished: bool = False
    open: bool = True

    @property
    def late_since_s(self) -> float:
        """Since when a ready chunk is late: the listener needs it, and it has come."""
        return max(self.due_s, self.ready[0][0])

    @property
    def due_s(self) -> float:
        """When the listener has nothing left to hear, or began to wait for the first sound."""
        return self.ready[0][0] if self.heard_until_s is None else self.heard_until_s


class BatchedUtterance:
    """One utterance among many; made by `Batcher.open`. Its calls return at once."""

    def __init__(self, batcher: "Batcher", session: _Session):
        self._batcher = batcher
        self._session = session

    def push(self, tokens: np.ndarray) -> None:
        """Add speech tokens, whole numbers [n].

        Raises:
            InputError: a token is outside the codebook; none of them is taken.
            UsageError: the utterance is finished or cancelled.
        """
        self._batcher._push(self._session, tokens)

    def finish(self) -> None:
        """No more tokens come; the result that is `final` follows.

        Raises:
            UsageError: the utterance is finished or cancelled.
        """
        self._batcher._finish(self._session)

    def cancel(self) -> None:
        """Stop here: nothing more is emitted, and the state is freed; twice is no error."""
        self._batcher._end(self._session)


class Batcher:
    """Continuous batching over a flow and a vocoder.

    Args:
        flow: Engine of the flow.
        vocoder: Engine of the vocoder.
        max_batch: Sessions in one step.
        max_late_s: How far the engine may be behind before new sessions are refused, seconds.
        front_end: The models whose voices are taken; None for all.
        clock: Monotonic seconds.

    Attributes:
        rate_hz: Samples a second.
        samples_per_token: Samples of sound for one token.

    Raises:
        ConfigError: `max_batch` is less than 1.
    """

    def __init__(
        self,
        flow: FlowStep,
        vocoder: VocoderStep,
        *,
        max_batch: int = 64,
        max_late_s: float = 0.5,
        front_end: FrontEndId | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if max_batch < 1:
            raise ConfigError(f"max_batch: found {max_batch}, expected at least 1")
        self._flow = flow
        self._vocoder = vocoder
        self._max_batch = max_batch
        self._max_late_s = max_late_s
        self._front_end = front_end
        self._clock = clock
        self.rate_hz = flow.config.hift.sample_rate_hz
        self.samples_per_token = flow.config.samples_per_token
        # A dict for its order: of two that are equally urgent the older one goes first.
        self._sessions: dict[_Session, None] = {}
        self._changed = threading.Condition()
        self._running = True
        self._thread = threading.Thread(target=self._run, name="token2wav", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self, voice: VoicePrompt, seed: int, emit: Emit, schedule: Schedule | None = None
    ) -> BatchedUtterance:
        """Begin an utterance; a voice's first one computes its caches and takes that long.

        Raises:
            CapacityError: every slot is taken, or the engine is too far behind.
            InputError: the voice does not fit the model.
            UsageError: the batcher is closed.
        """
        check_front_end(voice, self._front_end)
        with self._changed:
            self._expect_running()
            self._refuse_if_late()
        config = self._flow.config
        chunker = Chunker(schedule or Schedule(), config.look_ahead, config.flow.vocab_size)
        flow = self._flow.open(voice, seed)
        try:
            session = _Session(flow, self._vocoder.open(seed), chunker, emit)
        except BaseException:
            self._flow.close(flow)
            raise
        with self._changed:
            self._sessions[session] = None
            try:
                self._expect_running()
            except UsageError:
                self._end(session)
                raise
        return BatchedUtterance(self, session)

    @property
    def is_running(self) -> bool:
        """Whether its thread still works; only a new batcher has another one."""
        return self._running

    @property
    def queued_audio_s(self) -> float:
        """Seconds of sound in the whole chunks that wait for the engine, look-aheads included."""
        with self._changed:
            tokens = sum(len(chunk.tokens) for s in self._sessions for _, chunk in s.ready)
        return tokens * self.samples_per_token / self.rate_hz

    def close(self) -> None:
        """End every utterance and the thread; nothing is emitted after it."""
        self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _stop(self) -> None:
        with self._changed:
            self._running = False
            self._changed.notify()
            for session in list(self._sessions):
                self._end(session)

    def _expect_running(self) -> None:
        if not self._running:
            raise UsageError("this batcher is closed; open another one")

    def _refuse_if_late(self) -> None:
        waiting = [session.late_since_s for session in self._sessions if session.ready]
        late_s = self._clock() - min(waiting, default=self._clock())
        if late_s > self._max_late_s:
            raise CapacityError(
                f"the engine is {late_s:.1f} s behind its {len(self._sessions)} sessions; "
                "try again later"
            )

    def _push(self, session: _Session, tokens: np.ndarray) -> None:
        with self._changed:
            self._expect_open(session)
            self._add(session, session.chunker.push(tokens))

    def _finish(self, session: _Session) -> None:
        with self._changed:
            self._expect_open(session)
            session.finished = True
            self._add(session, [session.chunker.finish()])

    def _add(self, session: _Session, chunks: list[Chunk]) -> None:
        now_s = self._clock()
        session.ready.extend((now_s, chunk) for chunk in chunks)
        self._changed.notify()

    def _expect_open(self, session: _Session) -> None:
        if session.finished or not session.open:
            raise UsageError("this utterance is over; open another one")

    def _end(self, session: _Session) -> None:
        with self._changed:
            session.open = False
            session.ready.clear()
            self._sessions.pop(session, None)
        self._flow.close(session.flow)
        self._vocoder.close(session.vocoder)

    def _run(self) -> None:
        try:
            while batch := self._wait():
                self._step(batch)
        finally:
            # Whatever ends the thread, nobody must wait for it.
            self._stop()

    def _wait(self) -> list[tuple[_Session, float, Chunk]]:
        """The most urgent chunks, one of a session; none when the batcher is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._running or any(session.ready for session in self._sessions)
            )
            if not self._running:
                return []
            waiting = sorted((s for s in self._sessions if s.ready), key=lambda s: s.due_s)
            now_s = self._clock()
            batch = []
            for session in waiting[: self._max_batch]:
                since_s, chunk = session.ready.popleft()
                batch.append((session, now_s - since_s, chunk))
            return batch

    def _step(self, batch: Sequence[tuple[_Session, float, Chunk]]) -> None:
        started_s = self._clock()
        chunks = [FlowWork(session.flow, c.tokens, c.final) for session, _, c in batch]
        mels = each(self._flow.step, chunks)
        work = [
            VocoderWork(session.vocoder, mel, chunk.final)
            for (session, _, chunk), mel in zip(batch, mels, strict=True)
            if not isinstance(mel, Exception)
        ]
        spoken = iter(each(self._vocoder.step, work))
        step_s = self._clock() - started_s
        for (session, queue_s, chunk), mel in zip(batch, mels, strict=True):
            result = mel if isinstance(mel, Exception) else next(spoken)
            try:
                if isinstance(result, Exception):
                    raise result
                said = Said(check_samples(result), chunk.final, queue_s, step_s)
            except Exception as reason:
                known = isinstance(reason, DuologueError)
                error = reason if known else EngineError(f"token2wav: {reason}")
                said = Said(np.zeros(0, np.float32), True, queue_s, step_s, error)
            self._deliver(session, said)

    def _deliver(self, session: _Session, said: Said) -> None:
        # Under the lock, so that nothing is emitted once `cancel` has returned.
        with self._changed:
            if not session.open:
                return
            if said.final:
                self._end(session)
            if len(said.samples):
                from_s = max(self._clock(), session.heard_until_s or 0.0)
                session.heard_until_s = from_s + len(said.samples) / self.rate_hz
            try:
                session.emit(said)
            except Exception:
                log.exception("an utterance ends: its listener failed")
                self._end(session)


def each(step: Callable[[Sequence[W]], list[R]], work: Sequence[W]) -> Sequence[R | Exception]:
    """The result of each piece of work, or why it has none; one that fails spares the others."""
    try:
        results = list(step(work))
        if len(results) != len(work):
            raise EngineError(f"the engine gave {len(results)} results for {len(work)} chunks")
        return results
    except Exception as error:
        if len(work) == 1:
            return [error]
        return [result for one in work for result in each(step, [one])]
