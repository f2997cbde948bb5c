"""token2wav on other machines, with the calls of a `Batcher`.

    batcher = RemoteBatcher(["grpc://10.0.0.5:9000"])

The servers are `duologue serve`, the proxies of a cluster (deploy/ray) or Triton's (deploy/triton).
An utterance outlives the one that speaks it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from duologue.errors import ConfigError, EngineError, UsageError
from duologue.serving.remote_call import Patience, RemoteSpeech
from duologue.serving.remote_server import Server
from duologue.token2wav.batch import Emit, Said
from duologue.token2wav.checks import check_tokens
from duologue.token2wav.config import FULL, Token2wavConfig
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule, UtteranceLog

T = TypeVar("T")
log = logging.getLogger(__name__)


class RemoteUtterance:
    """One utterance; made by `RemoteBatcher.open`. Its calls return at once."""

    def __init__(
        self, batcher: "RemoteBatcher", servers: Sequence[Server], record: UtteranceLog, emit: Emit
    ):
        self._batcher, self._listener = batcher, emit
        self._lock = threading.RLock()
        self._finished = self._over = False
        patience = batcher._patience
        self._speech = RemoteSpeech(servers, batcher.config, record, self._emit, patience)
        self._task = asyncio.create_task(self._speech.run(), name="utterance")

    def push(self, tokens: np.ndarray) -> None:
        """Add speech tokens, whole numbers [n].

        Raises:
            InputError: a token is outside the codebook; none of them is taken.
            UsageError: the utterance is finished or cancelled.
        """
        tokens = check_tokens(tokens, self._batcher.config.flow.vocab_size)
        with self._lock:
            self._expect_open()
            self._batcher._soon(self._speech.push, tokens)

    def finish(self) -> None:
        """No more tokens come; the result that is `final` follows.

        Raises:
            UsageError: the utterance is finished or cancelled.
        """
        with self._lock:
            self._expect_open()
            self._finished = True
            self._batcher._soon(self._speech.finish)

    def cancel(self) -> None:
        """Stop here and on the server: nothing more is emitted; twice is no error."""
        with self._lock:
            self._over = True
        self._batcher._soon(self._task.cancel)

    async def _placed(self) -> "RemoteUtterance":
        await asyncio.wait([self._task, self._speech.placed], return_when=asyncio.FIRST_COMPLETED)
        if self._task.cancelled():
            raise UsageError("this batcher is closed; open another one")
        self._speech.placed.result()
        return self

    def _expect_open(self) -> None:
        if self._finished or self._over:
            raise UsageError("this utterance is over; open another one")

    def _emit(self, said: Said) -> None:
        # Under the lock, so that nothing is emitted once `cancel` has returned.
        with self._lock:
            if self._over:
                return
            self._over = said.final
            try:
                self._listener(said)
            except Exception:
                log.exception("an utterance ends: its listener failed")
                self.cancel()


class RemoteBatcher:
    """token2wav by URL; to be used where a `Batcher` is.

    A server that dies, hangs or stops in mid-sentence is left: voice, seed, schedule and tokens go
    to the next one, which says the same samples, and those that were emitted before are dropped.
    Opening refuses at once if every server is full.

    `Said.queue_s` and `step_s` are 0: the servers' own metrics have them.

    Args:
        urls: `grpc://HOST:PORT` each, or `triton://HOST:PORT` of a Triton server; `grpcs://` and
            `tritons://` for TLS. Utterances begin on them in turn.
        config: Sizes and rates of the model that they run.
        patience: How long to wait for them.

    Attributes:
        config: As given.
        rate_hz: Samples a second.
        samples_per_token: Samples of sound for one token.

    Raises:
        ConfigError: no URL, or one of another form.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        config: Token2wavConfig = FULL,
        patience: Patience | None = None,
    ):
        if not urls:
            raise ConfigError("urls: found none, expected grpc://HOST:PORT of a speech server")
        self.config = config
        self.rate_hz = config.hift.sample_rate_hz
        self.samples_per_token = config.samples_per_token
        self._patience = patience or Patience()
        self._turn = 0
        self._utterances: set[RemoteUtterance] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="remote token2wav", daemon=True
        )
        self._thread.start()
        try:
            self._servers = self._wait(_connect(urls))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> "RemoteBatcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self, voice: VoicePrompt, seed: int, emit: Emit, schedule: Schedule | None = None
    ) -> RemoteUtterance:
        """Begin an utterance, on a server that has a place for it.

        Args:
            voice: The servers have it in their store, under whatever name.
            seed: Of the noise.
            emit: Gets each result, in order, on a thread of its own; must not block.
            schedule: Sizes of the chunks.

        Raises:
            CapacityError: every server is full.
            InputError: no server has the voice.
            EngineError: no server can be reached.
            UsageError: the batcher is closed.
        """
        if self._closed:
            raise UsageError("this batcher is closed; open another one")
        return self._wait(
            self._open(UtteranceLog(voice.digest, seed, schedule or Schedule(), []), emit)
        )

    def close(self) -> None:
        """End every utterance and the thread; nothing is emitted after it."""
        if not self._closed:
            self._closed = True
            self._wait(self._end())
            self._stop()

    async def _open(self, record: UtteranceLog, emit: Emit) -> RemoteUtterance:
        first = self._turn % len(self._servers)
        self._turn += 1
        servers = [*self._servers[first:], *self._servers[:first]]
        utterance = RemoteUtterance(self, servers, record, emit)
        self._utterances.add(utterance)
        utterance._task.add_done_callback(lambda _: self._utterances.discard(utterance))
        return await utterance._placed()

    async def _end(self) -> None:
        tasks = [utterance._task for utterance in self._utterances]
        for utterance in list(self._utterances):
            utterance.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers))

    def _soon(self, call: Callable[..., object], *args: object) -> None:
        # A batcher that is closed has ended its utterances.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("called by a listener, whose thread must not wait; use another thread")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _connect(urls: Sequence[str]) -> list[Server]:
    """Channels belong to the loop that makes them."""
    return [_server(url) for url in urls]


def _server(url: str) -> Server:
    if not url.startswith("triton"):
        return Server(url)
    try:
        from duologue.serving.remote_triton import TritonServer
    except ModuleNotFoundError as error:
        raise EngineError(f"{url} needs {error.name}; run: pip install -e '.[triton]'") from error
    return TritonServer(url)
