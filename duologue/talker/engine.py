"""The talker as an `lm.Engine`: a clause's text in, its speech tokens out, in this process.

One thread runs the model for all requests, a token of each in turn, so that none waits for another
to end. A request ends at the token behind which it is closed.
"""

import asyncio
import math
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from duologue.engines.graph import Graph, Port
from duologue.errors import (
    CapacityError,
    ConfigError,
    DuologueError,
    EngineError,
    InputError,
    UsageError,
)
from duologue.lm.engine import Capabilities, Finish, Ids, Message, Request, Step
from duologue.lm.prompt import IdsPart, Part, TextPart
from duologue.metrics import STATE
from duologue.talker.config import END, FIRST_CODE, TalkerConfig, prompts
from duologue.talker.sampling import Sampling, draw, lengths, uniforms
from duologue.token2wav.ports import Signature

TOP_K = 20
PIECES = 8
"""Of a text that does not fit beside its own speech; they are said one after another."""


def signature(config: TalkerConfig) -> Signature:
    """The graph `talker`: ids behind `past` to the logits of the id that comes next.

    `past` holds keys (0) and values (1) of all ids before, `new_past` these and the new ones.
    """
    cache = ("batch", config.layers, 2, config.heads)
    return Signature(
        (
            Port("ids", "int64", ("batch", "ids")),
            Port("past", "float32", (*cache, "past", config.head_size)),
        ),
        (
            Port("logits", "float32", ("batch", config.vocab_size)),
            Port("new_past", "float32", (*cache, "all", config.head_size)),
        ),
    )


class TalkerEngine:
    """Answers raw prompts: the text of one clause, or its ids as `text_ids` makes them.

    A text that is long for the model's positions is said in up to `PIECES` pieces. A sound that is
    no word, such as "[laugh]" in a text, is said as it is known.

    Args:
        graph: See `signature`.
        config: Its sizes.
        capacity: Requests at once; a further one is refused.
        top_k: Likeliest tokens that are drawn from.
        sounds: Codes of the sounds of `SOUNDS`.

    Raises:
        ConfigError: `top_k` is not between 1 and the number of codes.
    """

    capabilities = Capabilities(token_ids=True)

    def __init__(
        self,
        graph: Graph,
        config: TalkerConfig,
        *,
        capacity: int = 8,
        top_k: int = TOP_K,
        sounds: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ):
        if not 1 <= top_k <= config.vocab_size - FIRST_CODE:
            raise ConfigError(f"top_k: found {top_k}, expected 1 up to the number of codes")
        self._graph, self._config, self._sounds = graph, config, sounds
        self._capacity, self._top_k = capacity, top_k
        self._jobs: deque[_Job] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="talker", daemon=True)
        STATE.watch("talker", self)

    @property
    def state_bytes(self) -> dict[str, int]:
        """Memory of the keys and values of the requests under way."""
        with self._changed:
            return {"sessions": sum(job.state_bytes for job in self._jobs)}

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`.

        The answer is codes, then `END`; its `Finish` says "length" where the clause had run on.

        Raises:
            UsageError: anything but one raw prompt, or sampling that means nothing.
            InputError: a prompt that is too long or has unknown ids, or a seed out of range.
            CapacityError: as many requests as can be are under way.
            EngineError: the model failed, or is closed.
        """
        job = self._job(request)
        self._add(job)
        try:
            while not isinstance(step := await job.steps.get(), Finish):
                if isinstance(step, DuologueError):
                    raise step
                yield step
            yield step
        finally:
            self._remove(job)

    async def prewarm(self, messages: list[Message]) -> None:
        """Run the model once.

        Raises:
            UsageError: messages, which a talker cannot read.
        """
        if messages:
            raise UsageError("a talker takes no messages; prewarm it without any")
        request = Request(parts=(TextPart("hello."),), max_tokens=2)
        async for _ in self.stream(request):
            pass

    async def close(self) -> None:
        """End every request and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        for job in self._jobs:
            job.hand_over([_closed()])

    def _job(self, request: Request) -> "_Job":
        if request.messages or request.tools or not request.parts:
            raise UsageError("a talker takes a raw prompt: one clause, without messages and tools")
        if request.stop:
            raise UsageError(f"a talker's answer has no text to stop at, such as {request.stop[0]}")
        for name, value, least in (
            ("temperature", request.temperature, 0),
            ("repeat_penalty", request.repeat_penalty, 1),
        ):
            if not (math.isfinite(value) and value >= least):
                raise UsageError(f"{name}: found {value}, expected a number from {least} up")
        pieces = [self._piece(prompt, request) for prompt in self._prompts(request.parts)]
        most = min(request.max_tokens, sum(piece.sampling.most for piece in pieces))
        seed = secrets.randbits(64) if request.seed is None else request.seed
        past = np.zeros(self._graph.inputs[1].size({"batch": 1, "past": 0}), np.float32)
        return _Job(pieces, past, uniforms(seed, most), {END, *request.stop_ids})

    def _piece(self, prompt: list[int] | str, request: Request) -> "_Piece":
        if isinstance(prompt, str):
            codes = self._sound(prompt)
            return _Piece([], Sampling(0, 1, 1, 0, len(codes)), codes)
        least, most = lengths(len(prompt) - 2)
        most = min(most, request.max_tokens, self._config.max_positions - len(prompt))
        sampling = Sampling(
            request.temperature, self._top_k, request.repeat_penalty, min(least, most), most
        )
        return _Piece(prompt, sampling)

    def _sound(self, name: str) -> list[int]:
        if name not in self._sounds:
            raise InputError(f"[{name}]: found a sound that this voice has not; leave it out")
        return [*(FIRST_CODE + code for code in self._sounds[name]), END]

    def _prompts(self, parts: tuple[Part, ...]) -> Sequence[list[int] | str]:
        size, positions = self._config.vocab_size, self._config.max_positions
        found: Sequence[list[int] | str]
        match parts:
            case (TextPart(text=text),):
                # Speech has up to three ids for each of the text.
                found, room = prompts(text, positions // 4), PIECES * (positions // 4)
            case (IdsPart(ids=ids),):
                found, room = [list(ids)], positions // 2
            case _:
                raise UsageError(f"a talker takes the text of one clause, found {len(parts)} parts")
        ids = [token for prompt in found if not isinstance(prompt, str) for token in prompt]
        if wrong := [token for token in ids if not 0 <= token < size]:
            raise InputError(f"prompt: found the id {wrong[0]}, expected 0 to {size - 1}")
        if not found:
            raise InputError("prompt: found no English letter, digit or sound; give some to say")
        count, sounds = len(ids), any(isinstance(prompt, str) for prompt in found)
        if not (sounds or count > 2) or count > room:
            raise InputError(
                f"prompt: found {count} ids, expected 3 to {room}; give one clause at a time"
            )
        return found

    def _add(self, job: "_Job") -> None:
        with self._changed:
            if self._closed:
                raise _closed()
            if len(self._jobs) >= self._capacity:
                raise CapacityError(
                    f"all {self._capacity} requests of the talker are taken; try again later"
                )
            self._jobs.append(job)
            self._changed.notify()
            if self._thread.ident is None:
                self._thread.start()

    def _remove(self, job: "_Job") -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)

    def _work(self) -> None:
        while job := self._next():
            try:
                steps = job.advance(self._graph)
            except DuologueError as error:
                steps = [error]
            except Exception as error:
                steps = [EngineError(f"the talker failed: {error!r}")]
            if not isinstance(steps[-1], Ids):
                self._remove(job)
            job.hand_over(steps)

    def _next(self) -> "_Job | None":
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return None
            self._jobs.rotate(-1)
            return self._jobs[-1]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Either a prompt, or ids that need no model."""

    prompt: list[int]
    sampling: Sampling
    known: Sequence[int] = ()


class _Job:
    """One answer on its way, made in the talker's thread and read in the caller's event loop."""

    def __init__(
        self, pieces: list[_Piece], past: np.ndarray, uniforms: np.ndarray, ends: set[int]
    ):
        # As long as the answer at most, for each of whose ids there is one of `uniforms`.
        self.steps: asyncio.Queue[Step | DuologueError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._pieces, self._empty = deque(pieces), past
        self._uniforms, self._ends = uniforms, ends
        self._count, self._ran_on = 0, False
        self._begin()

    def _begin(self) -> None:
        piece, self._past = self._pieces.popleft(), self._empty
        self._new, self._sampling, self._known = piece.prompt, piece.sampling, deque(piece.known)
        self._said: list[int] = []

    @property
    def state_bytes(self) -> int:
        """Bytes of the keys and values so far."""
        return self._past.nbytes

    def advance(self, graph: Graph) -> list[Step | DuologueError]:
        """The next token, and the end if it is the last."""
        token = self._known.popleft() if self._known else self._drawn(graph)
        if token == END and self._pieces:
            self._begin()
            return self.advance(graph)
        self._new = [token]
        self._said.append(token)
        self._count += 1
        steps: list[Step | DuologueError] = [Ids((token,))]
        full = self._count >= len(self._uniforms)
        if token in self._ends:
            steps.append(Finish("length" if self._ran_on else "stop", self._count))
        elif full or (len(self._said) >= self._sampling.most and not self._pieces):
            steps.append(Finish("length", self._count))
        elif len(self._said) >= self._sampling.most:
            self._ran_on = True
            self._begin()
        return steps

    def _drawn(self, graph: Graph) -> int:
        ids = np.array([self._new], np.int64)
        out = graph.run({"ids": ids, "past": self._past})
        [logits], self._past = out["logits"], out["new_past"]
        if not np.isfinite(logits).all():
            raise EngineError("the talker's logits are no numbers; install the voice again")
        return draw(logits, self._said, self._sampling, self._uniforms[self._count])

    def hand_over(self, steps: Sequence[Step | DuologueError]) -> None:
        """Give steps to the event loop; one that is gone needs none."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, steps)

    def _take(self, steps: Sequence[Step | DuologueError]) -> None:
        for step in steps:
            self.steps.put_nowait(step)


def _closed() -> EngineError:
    return EngineError("the talker is closed; load it again")
