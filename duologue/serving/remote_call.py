"""One utterance, spoken by whichever server lives: its log is replayed where another one fails."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from duologue.audio.pcm import from_int16_bytes
from duologue.errors import ConfigError, DuologueError, EngineError, InputError
from duologue.serving import speech_pb2 as pb
from duologue.serving.remote_server import Server, TryElsewhere
from duologue.token2wav.batch import Emit, Said
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.stream import UtteranceLog

log = logging.getLogger(__name__)

HELD_BACK_TOKENS = 25
"""What an engine may keep of the sound of its tokens, and then some."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.25
"""Between two rounds over all servers."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an utterance waits for servers.

    Attributes:
        place_s: For one to take it; for the first one to do so, over all of them.
        stall_s: For sound that is due.
        search_s: For one that goes on with it.
        tries: Servers that may fail on it without any new sound: it may be what breaks them.
    """

    place_s: float = 2.0
    stall_s: float = 4.0
    search_s: float = 15.0
    tries: int = 3


class RemoteSpeech:
    """An utterance and the servers that speak it; lives on one event loop.

    Args:
        servers: To be tried in this order, over and over.
        config: Sizes and rates of the model that they run.
        log: The utterance, without tokens yet.
        emit: Gets the results.
        patience: Limits.
        clock: Monotonic seconds.

    Attributes:
        placed: Done when a server has taken the utterance; else why none has.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        config: Token2wavConfig,
        log: UtteranceLog,
        emit: Emit,
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._servers, self._config, self._log, self._emit = servers, config, log, emit
        self._patience, self._clock = patience, clock
        self._heard = 0
        self._taken = False
        self._news = asyncio.Event()
        self.placed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def push(self, tokens: np.ndarray) -> None:
        """Add checked tokens, int32 [n]."""
        self._log.tokens.extend(tokens.tolist())
        self._news.set()

    def finish(self) -> None:
        """No more tokens come."""
        self._log.finished = True
        self._news.set()

    async def run(self) -> None:
        """Speak to the end; what goes wrong for good is `placed`'s error, or the last result's."""
        error = None
        try:
            await self._speak()
        except Exception as reason:
            known = isinstance(reason, DuologueError)
            error = reason if known else EngineError(f"token2wav: {reason}")
        if error is not None and not self.placed.done():
            self.placed.set_exception(error)
        else:
            self._emit(_said(np.zeros(0, np.float32), error, final=True))

    async def _speak(self) -> None:
        hope = _Hope(self._patience, len(self._servers), self._clock)
        for server in cycle(self._servers):
            heard, self._taken = self._heard, False
            try:
                await self._speak_on(server)
                return
            except TryElsewhere as failure:
                hope.check(failure, progress=self._heard > heard, taken=self._taken)
                if hope.fresh:
                    log.warning("token2wav moves, %.1f s were heard: %s", self._heard_s, failure)
                pause_s = hope.pause_s
            await asyncio.sleep(pause_s)

    @property
    def _heard_s(self) -> float:
        return self._heard / self._config.hift.sample_rate_hz

    async def _speak_on(self, server: Server) -> None:
        try:
            async with asyncio.timeout(self._patience.place_s) as limit:
                await server.connect()
                name = await server.name_of(self._log.voice_digest)
                start = pb.SynthesizeStart(
                    voice=name, seed=self._log.seed, schedule=self._log.schedule.sizes
                )
                async with server.synthesize(start) as call:
                    self._taken = True
                    if not self.placed.done():
                        self.placed.set_result(None)
                    limit.reschedule(None)
                    if await self._has_tokens():
                        await self._talk(server, call, limit)
        except TimeoutError as error:
            if self._taken:
                late = EngineError(f"{server.url} owes sound for {self._patience.stall_s:g} s")
                raise TryElsewhere(late) from error
            raise server.no_place(self._patience.place_s) from error

    async def _has_tokens(self) -> bool:
        """Whether any come; a server would take none at all for a mistake."""
        while not self._log.tokens and not self._log.finished:
            self._news.clear()
            await self._news.wait()
        return bool(self._log.tokens)

    async def _talk(self, server: Server, call, limit: asyncio.Timeout) -> None:
        """Send the whole log and what is added to it; hear all but what was heard before."""
        watch = _Watch(self._log, self._config, self._patience.stall_s, limit)
        feeding = asyncio.create_task(self._feed(call, watch), name="feed tokens")
        try:
            async for answer in call:
                if answer.HasField("started"):
                    self._check(server, answer.started)
                samples = from_int16_bytes(answer.pcm)
                known = min(self._heard - watch.heard, len(samples))
                watch.hear(len(samples))
                if known < len(samples):
                    self._heard += len(samples) - known
                    self._emit(_said(samples[known:]))
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        self._check_whole(server)

    async def _feed(self, call, watch: "_Watch") -> None:
        while True:
            self._news.clear()
            if ids := self._log.tokens[watch.sent :]:
                await call.write(pb.SynthesizeRequest(tokens=pb.Tokens(ids=ids)))
                watch.send(len(ids))
            if self._log.finished and watch.sent == len(self._log.tokens):
                await call.done_writing()
                watch.finish()
                return
            if watch.sent == len(self._log.tokens):
                await self._news.wait()

    def _check(self, server: Server, started: pb.SynthesizeStarted) -> None:
        if started.voice_digest != self._log.voice_digest:
            server.forget_names()
            found = InputError(
                f"{server.url} speaks with {started.voice_digest[:12]}, "
                f"expected {self._log.voice_digest[:12]}: its voice {started.voice!r} was replaced"
            )
            raise TryElsewhere(found, refused=True)
        if started.rate_hz != (rate_hz := self._config.hift.sample_rate_hz):
            raise ConfigError(
                f"{server.url} speaks at {started.rate_hz} samples/s, expected {rate_hz}; "
                "load the same model on all servers"
            )

    def _check_whole(self, server: Server) -> None:
        expected = len(self._log.tokens) * self._config.samples_per_token
        if not self._log.finished or self._heard != expected:
            raise TryElsewhere(
                EngineError(f"{server.url} ended at sample {self._heard} of {expected}")
            )


class _Watch:
    """How far one server has come, and since when its sound is late."""

    def __init__(
        self, log: UtteranceLog, config: Token2wavConfig, stall_s: float, limit: asyncio.Timeout
    ):
        self.sent = self.heard = 0
        self._finished = False
        self._token = config.samples_per_token
        self._slack = max(log.schedule.sizes) + config.look_ahead + HELD_BACK_TOKENS
        self._stall_s, self._limit = stall_s, limit
        self._loop = asyncio.get_running_loop()

    def send(self, tokens: int) -> None:
        self.sent += tokens
        self._look(began=False)

    def finish(self) -> None:
        self._finished = True
        self._look(began=False)

    def hear(self, samples: int) -> None:
        self.heard += samples
        self._look(began=True)

    def _look(self, *, began: bool) -> None:
        """Let the limit run while sound is due, from the last sound on."""
        due = self._finished or self.sent - self.heard / self._token > self._slack
        if not due:
            self._limit.reschedule(None)
        elif began or self._limit.when() is None:
            self._limit.reschedule(self._loop.time() + self._stall_s)


class _Hope:
    """Whether another server may still go on with an utterance, and when to ask it."""

    def __init__(self, patience: Patience, servers: int, clock: Callable[[], float]):
        self._patience, self._servers, self._clock = patience, servers, clock
        self._since_s: float | None = None
        self._refused = self._failed = self._asked = 0
        self._begun = False

    def check(self, failure: TryElsewhere, *, progress: bool, taken: bool) -> None:
        """Count a server that could not.

        Args:
            failure: Why.
            progress: Whether there was new sound before.
            taken: Whether it had given the utterance a place.

        Raises:
            DuologueError: the failure's; there is no hope.
        """
        now_s = self._clock()
        if progress or self._since_s is None:
            self._since_s, self._refused, self._failed, self._asked = now_s, 0, 0, 0
        self._asked += 1
        self._refused += failure.refused
        self._failed += taken and not failure.refused
        self._begun = self._begun or progress or self._failed > 0
        refused_by_all = not self._begun and self._refused >= self._servers
        too_often = self._failed >= self._patience.tries
        longest_s = self._patience.search_s if self._begun else self._patience.place_s
        too_long = now_s - self._since_s > longest_s
        if refused_by_all or too_often or too_long:
            raise failure.error

    @property
    def fresh(self) -> bool:
        """Whether the search has just begun."""
        return self._asked == 1

    @property
    def pause_s(self) -> float:
        """0 until every server, and a single one twice, was asked; then longer and longer."""
        rounds = self._asked // max(self._servers, 2)
        return min(FIRST_PAUSE_S * 2 ** (rounds - 1), LONGEST_PAUSE_S) if rounds else 0.0


def _said(samples: np.ndarray, error: DuologueError | None = None, *, final: bool = False) -> Said:
    """A result; how long the engine took is known to the server alone."""
    return Said(samples, final, 0.0, 0.0, error)
