"""Scripted stand-ins for what a test must control."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, Future

import numpy as np

from duologue.lm.engine import Capabilities, Finish, Message, Request, Step, TextDelta
from duologue.token2wav.batch import Emit, Said
from duologue.tts.piper import Speech
from duologue.tts.words import spread, word_spans


class FakeEngine:
    """An LM that says what the script says; an item that is an Event is waited for."""

    capabilities = Capabilities(token_ids=True, prompt_ids=True)

    def __init__(self, *answers: Sequence[Step | str | asyncio.Event | Exception]):
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        self.requests.append(request)
        self.asked.set()
        answer = self.answers.pop(0) if self.answers else ["Yes."]
        try:
            for item in answer:
                if isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield TextDelta(item) if isinstance(item, str) else item
            if not (answer and isinstance(answer[-1], Finish)):
                yield Finish("stop")
        finally:
            self.closed += 1

    async def prewarm(self, messages: list[Message]) -> None:
        pass

    async def close(self) -> None:
        pass


class DelayedPool(Executor):
    """Runs work at once, and says so after a while on the running loop's clock."""

    def __init__(self, delay_s: float):
        self._delay_s = delay_s

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        loop = asyncio.get_running_loop()
        loop.call_later(self._delay_s, lambda: future.set_result(fn(*args, **kwargs)))
        return future


class FakeVoice:
    """A voice whose every word takes `word_s` seconds of a constant level."""

    rate_hz = 24_000

    def __init__(self, word_s: float = 0.2, delay_s: float = 0.0):
        self.word_s = word_s
        self.pool = DelayedPool(delay_s) if delay_s else None
        self.said: list[str] = []

    def synthesize(self, text: str) -> Speech:
        self.said.append(text)
        count = len(word_spans(text))
        step = round(self.word_s * self.rate_hz)
        samples = np.full(count * step, 0.5, np.float32)
        return Speech(samples, spread(text, [step * (n + 1) for n in range(count)]))


class FakeBatcher:
    """Speaks tokens the moment they come, each as 40 ms of a constant level."""

    rate_hz = 24_000
    samples_per_token = 960

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.cancelled = 0

    def open(self, voice, seed: int, emit: Emit, schedule=None) -> "_FakeUtterance":
        return _FakeUtterance(self, emit)

    def close(self) -> None:
        pass


class _FakeUtterance:
    def __init__(self, batcher: FakeBatcher, emit: Emit):
        self._batcher, self._emit = batcher, emit

    def push(self, tokens: np.ndarray) -> None:
        self._batcher.tokens += tokens.tolist()
        self._emit(Said(np.full(len(tokens) * 960, 0.1, np.float32), False, 0.0, 0.0))

    def finish(self) -> None:
        self._emit(Said(np.zeros(0, np.float32), True, 0.0, 0.0))

    def cancel(self) -> None:
        self._batcher.cancelled += 1


class ManualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
