"""token2wav for Triton's Python backend: config.pbtxt says how an utterance comes and goes.

DUOLOGUE_TRITON_SETUP names the set-up, the same as for `duologue serve`.
"""

import asyncio
import ctypes
import json
import os
import threading
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from duologue.audio.pcm import to_int16_bytes
from duologue.config import load_config
from duologue.errors import ConfigError, UsageError
from duologue.serving.errors import UnknownVoice, status_of, within
from duologue.serving.load import load_speaker
from duologue.serving.speaker import Utterance, Wanted

SETUP = "DUOLOGUE_TRITON_SETUP"
LOOK_S = 0.2
"""Between two looks for clients that have gone: the backend tells of them only when asked."""
DIGEST_CHARS = 64
"""Of a voice's hash, which is longer than any name."""
TAKEN = b"used_dltensor"
"""The name of a DLPack capsule whose memory somebody else frees."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """A request of Triton's, read while it may be: it is gone when `execute` has returned."""

    sender: Any
    sequence: int
    first: bool
    last: bool
    tokens: np.ndarray
    voice: str
    seed: int | None
    schedule: tuple[int, ...]

    @classmethod
    def read(cls, request: Any) -> "Request":
        """Copy what a request holds."""
        seed = _array(request, "SEED", np.uint64)
        return cls(
            sender=request.get_response_sender(),
            sequence=request.correlation_id(),
            first=bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            last=bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
            tokens=_array(request, "TOKENS", np.int32),
            voice=str(json.loads(request.parameters() or "{}").get("voice", "")),
            seed=int(seed[0]) if len(seed) else None,
            schedule=tuple(_array(request, "SCHEDULE", np.int32).tolist()),
        )


@dataclass(slots=True)
class Call:
    """An utterance and the tokens that wait for it.

    Attributes:
        sender: Takes its sound.
        room: Tokens that it may still have: one more than the limit, at which the speaker ends it.
    """

    sender: Any
    room: int
    task: asyncio.Task[None] = field(init=False)
    _waiting: asyncio.Queue[np.ndarray | None] = field(default_factory=asyncio.Queue)

    def add(self, tokens: np.ndarray, *, last: bool) -> None:
        """Add tokens int32 [n]; beyond `room` they are dropped."""
        tokens = tokens[: self.room]
        self.room -= len(tokens)
        if len(tokens):
            self._waiting.put_nowait(tokens)
        if last:
            self._waiting.put_nowait(None)

    async def tokens(self, idle_s: float) -> AsyncGenerator[np.ndarray, None]:
        """The tokens to the last one.

        Raises:
            TimeoutError: none came for so long.
        """
        while True:
            async with within(idle_s, "the client has sent nothing for"):
                tokens = await self._waiting.get()
            if tokens is None:
                return
            yield tokens


class TritonPythonModel:
    """What Triton makes, once a server."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the models of the set-up.

        Raises:
            DuologueError: the set-up, or something that it names, cannot be used.
        """
        if not (setup := os.environ.get(SETUP)):
            raise ConfigError(f"{SETUP} is not set: give the YAML file of a set-up")
        # Whose voice says text, for which there is no input.
        config = load_config(Path(setup), flags=["serve.piper=false"])
        if config.token2wav is None:
            raise ConfigError(f"{setup}: found no section token2wav, expected the one to be served")
        self._calls: dict[int, Call] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="calls", daemon=True)
        self._thread.start()
        self._speaker = self._wait(load_speaker(config))
        self._loop.call_soon_threadsafe(self._look)

    def execute(self, requests: list[Any]) -> None:
        """Hand requests over, in their order; sound goes out as it is ready."""
        for request in map(Request.read, requests):
            self._loop.call_soon_threadsafe(self._take, request)

    def finalize(self) -> None:
        """End all calls and release the models."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _take(self, request: Request) -> None:
        call = self._calls.get(request.sequence)
        if request.first:
            if call:
                # Triton lets a client begin its sequence anew.
                call.task.cancel()
            call = self._calls[request.sequence] = self._begin(request)
        error = None
        if call:
            call.add(request.tokens, last=request.last)
        elif len(request.tokens):
            error = UsageError("this utterance is over; begin another one, with sequence_start")
        if not request.first:
            _end(request.sender, error)

    def _begin(self, request: Request) -> Call:
        call = Call(request.sender, self._speaker.limits.max_tokens + 1)
        call.task = self._loop.create_task(self._speak(call, request), name="call")
        # Also called for a task that is cancelled before its first step.
        call.task.add_done_callback(lambda _: self._over(call, request.sequence))
        return call

    def _over(self, call: Call, sequence: int) -> None:
        # Unless the client has begun anew under the same number.
        if self._calls.get(sequence) is call:
            del self._calls[sequence]
        error = None if call.task.cancelled() else call.task.exception()
        _end(call.sender, error if isinstance(error, Exception) else None)

    async def _speak(self, call: Call, request: Request) -> None:
        """A call from its first request to its last sound."""
        limits = self._speaker.limits
        with self._speaker.call("triton"):
            async with within(limits.call_s, "the call took longer than"):
                _send(call.sender, PCM=np.zeros(0, np.int16))
                voice = await self._voice(request.voice)
                wanted = Wanted(voice, request.seed, schedule=request.schedule)
                async with aclosing(call.tokens(limits.idle_s)) as tokens:
                    utterance = await self._speaker.speak(wanted, tokens)
                    started = _started(utterance)
                    async with aclosing(utterance.samples) as parts:
                        async for samples in parts:
                            pcm = np.frombuffer(to_int16_bytes(samples), "<i2").copy()
                            _send(call.sender, PCM=pcm, **started)
                            started = {}

    async def _voice(self, voice: str) -> str:
        """The name of a voice that is named, or given by its hash."""
        if len(voice) != DIGEST_CHARS:
            return voice
        known = await self._speaker.voices.list()
        name = next((entry.name for entry in known if entry.digest == voice), None)
        if name is None:
            names = ", ".join(entry.name for entry in known if entry.takes_tokens) or "none"
            raise UnknownVoice(f"no voice has the hash {voice[:12]}; known: {names}")
        return name

    def _look(self) -> None:
        self._loop.call_later(LOOK_S, self._look)
        for call in self._calls.values():
            if call.sender.is_cancelled():
                call.task.cancel()

    async def _close(self) -> None:
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._speaker.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _array(request: Any, name: str, kind: type) -> np.ndarray:
    """A copy of an input; empty if it was not sent.

    By DLPack both ways: a backend built for numpy 1 misreads the arrays of numpy 2.
    """
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return np.zeros(0, kind) if tensor is None else np.from_dlpack(tensor).copy()


def _started(utterance: Utterance) -> dict[str, np.ndarray]:
    return {
        "RATE_HZ": np.array([utterance.rate_hz], np.int32),
        "SEED_USED": np.array([utterance.seed], np.uint64),
        "VOICE_DIGEST": np.frombuffer(bytes.fromhex(utterance.voice_digest), np.uint8).copy(),
    }


def _send(sender: Any, **outputs: np.ndarray) -> None:
    sender.send(pb_utils.InferenceResponse([_tensor(*output) for output in outputs.items()]))


def _tensor(name: str, array: np.ndarray) -> Any:
    capsule = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    # The backend, which owns the memory now, says so by a name that numpy takes for an error.
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), TAKEN)
    return tensor


def _end(sender: Any, error: Exception | None = None) -> None:
    """No more responses come; an error's text begins with its gRPC status, which Triton lacks."""
    if error is None:
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return
    code, _, message = status_of(error)
    response = pb_utils.InferenceResponse([], error=pb_utils.TritonError(f"{code}: {message}"))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
