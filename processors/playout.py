"""The last stage before the transport: releases the bot's audio in real time.

Holding what is not yet due makes duplex possible on any transport: a hold stops the sound at once
and keeps the rest, an interruption drops the rest, and the samples released so far tell which words
have been heard.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pipecat.frames.frames import (
    CancelFrame,
    Frame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    StartFrame,
    SystemFrame,
    TTSAudioRawFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from duologue.memory import Memory
from processors.frames import (
    AnswerDoneFrame,
    FloorFrame,
    HeardFrame,
    HoldFrame,
    ResumeFrame,
    VoiceAudioFrame,
)

CHUNK_S = 0.02
TICK_S = 0.001
"""Closer than this is due: a timer is no finer, and rounding must not make it wait for ever."""
REWIND_S = 0.6
"""The farthest that a resumed answer goes back for a word's beginning; else for a pause."""
MAX_QUEUED_S = 30.0
"""Audio of an answer ahead of the ear; beyond it the voice waits."""


@dataclass(slots=True)
class _Speech:
    """A voice frame on its way out."""

    frame: VoiceAudioFrame
    samples: np.ndarray
    start_s: float  # in the answer's sound
    position: int = 0
    marked: int = 0


@dataclass(frozen=True, slots=True)
class _Mark:
    """At `at_s`, `chars` or `played_s` of `turn` have been heard; neither: the answer's end."""

    at_s: float
    turn: int
    chars: int | None = None
    played_s: float | None = None


class Playout(FrameProcessor):
    """Real-time release with hold, resume and the heard position.

    Args:
        memory: Told what was heard, and cut at an interruption.
        lead_s: Audio released ahead of time. More survives a busy event loop, less stops sooner.
        buffer_s: Delay between release and ear, until the page reports a measured one.
        real_time: False releases everything at once, for work on files.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        lead_s: float = 0.08,
        buffer_s: float = 0.1,
        real_time: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__()
        self._memory = memory
        self._lead_s = lead_s
        self._buffer_s = buffer_s
        self._real_time = real_time
        self._clock = clock
        self._queue: deque[_Speech | Frame] = deque()
        self._queued_s = 0.0
        self._sound_s: dict[int, float] = {}
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._held = False
        self._due_s = 0.0
        self._turn = 0
        self._underway: set[int] = set()
        self._marks: deque[_Mark] = deque()
        self._marked = asyncio.Event()
        self._told = (0, 0)
        self._tasks: list[asyncio.Task[None]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Queue what goes down in order, act at once on system frames."""
        await super().process_frame(frame, direction)
        if isinstance(frame, StartFrame):
            await self.push_frame(frame, direction)
            self._tasks = [
                self.create_task(self._release(), "release"),
                self.create_task(self._report(), "report"),
            ]
        elif isinstance(frame, SystemFrame) or direction is FrameDirection.UPSTREAM:
            await self._act(frame)
            await self.push_frame(frame, direction)
        elif isinstance(frame, VoiceAudioFrame):
            await self._enqueue(frame)
        else:
            if isinstance(frame, LLMFullResponseStartFrame):
                self._underway.add(frame.metadata.get("turn", 0))
                await self.push_frame(FloorFrame(taken=True), FrameDirection.UPSTREAM)
            self._queue.append(frame)
            self._changed.set()

    async def cleanup(self):
        """End the two tasks."""
        await super().cleanup()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await self.cancel_task(task)

    async def _act(self, frame: Frame) -> None:
        if isinstance(frame, HoldFrame):
            self._set_held(True)
        elif isinstance(frame, ResumeFrame):
            self._set_held(False)
        elif isinstance(frame, InterruptionFrame | CancelFrame):
            await self._drop()
        elif isinstance(frame, InputTransportMessageFrame):
            message = frame.message
            if isinstance(message, dict) and message.get("type") == "playback":
                buffer_ms = message.get("buffer_ms")
                if isinstance(buffer_ms, int | float) and 0 <= buffer_ms <= 2000:
                    self._buffer_s = buffer_ms / 1000

    def _set_held(self, held: bool) -> None:
        self._held = held
        self._changed.set()

    async def _enqueue(self, frame: VoiceAudioFrame) -> None:
        # Waiting here holds back the voice and, through it, the LM; an interruption ends the wait.
        while self._queued_s > MAX_QUEUED_S:
            self._drained.clear()
            await self._drained.wait()
        start_s = self._sound_s.get(frame.turn, 0.0)
        speech = _Speech(frame, np.frombuffer(frame.audio, "<i2"), start_s)
        length_s = len(speech.samples) / frame.sample_rate
        self._sound_s[frame.turn] = start_s + length_s
        self._queued_s += length_s
        self._queue.append(speech)
        self._changed.set()

    async def _drop(self) -> None:
        """Forget what was not heard."""
        self._queue = deque(
            item for item in self._queue if isinstance(item, Frame) and not item.interruptible
        )
        self._queued_s = 0.0
        self._sound_s.clear()
        self._marks.clear()
        self._underway.clear()
        self._set_held(False)
        for turn, chars in self._memory.cut().items():
            await self.push_frame(AnswerDoneFrame(turn=turn, chars=chars, interrupted=True))
        await self.push_frame(FloorFrame(taken=False), FrameDirection.UPSTREAM)

    async def _release(self) -> None:
        """Hand out the queue's head whenever it is due."""
        while True:
            if not self._queue or self._held:
                await self._wait(None)
                continue
            item = self._queue[0]
            if not isinstance(item, _Speech):
                self._queue.popleft()
                await self._pass_on(item)
                continue
            self._due_s = max(self._due_s, self._clock())
            ahead_s = self._due_s - self._clock() - self._lead_s
            if ahead_s > TICK_S and self._real_time:
                await self._wait(ahead_s)
                if self._held:
                    await self._fade_out(item)
                continue
            await self._release_chunk(item)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a change of the queue or the hold, or for the time to pass."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _release_chunk(self, item: _Speech) -> None:
        rate = item.frame.sample_rate
        start, item.position = item.position, item.position + round(CHUNK_S * rate)
        chunk = item.samples[start : item.position]
        words = item.frame.words
        while item.marked < len(words) and words[item.marked][0] <= item.position:
            sample, chars = words[item.marked]
            self._mark(self._due_s + max(0, sample - start) / rate, item.frame.turn, chars)
            item.marked += 1
        if self._memory.follows(item.frame.turn):
            played_s = item.start_s + (start + len(chunk)) / rate
            self._mark(self._due_s + len(chunk) / rate, item.frame.turn, played_s=played_s)
        if self._real_time:
            self._due_s += len(chunk) / rate
        self._queued_s -= len(chunk) / rate
        self._drained.set()
        if item.position >= len(item.samples):
            self._queue.popleft()
        await self._push_audio(chunk, rate)

    async def _fade_out(self, item: _Speech) -> None:
        """Let the sound die within one chunk, and go back to where to go on later."""
        rate = item.frame.sample_rate
        chunk = item.samples[item.position : item.position + round(CHUNK_S * rate)]
        await self._push_audio((chunk * np.linspace(1, 0, len(chunk))).astype("<i2"), rate)
        # What was released last may be dropped by the transport: it counts as not said.
        said = max(0, item.position - round((self._lead_s + CHUNK_S) * rate))
        resume = max([0, *(end for end, _ in item.frame.words if end <= said)])
        if said - resume > REWIND_S * rate:
            resume = quietest(item.samples[:said], round(REWIND_S * rate), round(CHUNK_S * rate))
        self._queued_s += (item.position - resume) / rate
        item.position = resume

    async def _push_audio(self, samples: np.ndarray, rate: int) -> None:
        await self.push_frame(TTSAudioRawFrame(samples.tobytes(), rate, 1))

    async def _pass_on(self, frame: Frame) -> None:
        if isinstance(frame, LLMFullResponseStartFrame):
            self._turn = frame.metadata.get("turn", 0)
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._mark(max(self._due_s, self._clock()), self._turn)
        await self.push_frame(frame)

    def _mark(
        self, at_s: float, turn: int, chars: int | None = None, *, played_s: float | None = None
    ) -> None:
        if self._real_time:
            at_s += self._buffer_s
        self._marks.append(_Mark(at_s, turn, chars, played_s))
        self._marked.set()

    async def _report(self) -> None:
        """Report each mark when its time has come."""
        while True:
            while not self._marks:
                self._marked.clear()
                await self._marked.wait()
            mark = self._marks[0]
            wait_s = mark.at_s - self._clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if not self._marks or self._marks[0] is not mark:
                continue
            self._marks.popleft()
            if mark.chars is not None:
                self._memory.heard(mark.turn, mark.chars)
                await self.push_frame(HeardFrame(turn=mark.turn, chars=mark.chars))
            elif mark.played_s is not None:
                await self._played(mark.turn, mark.played_s)
            else:
                await self._finish(mark.turn)

    async def _played(self, turn: int, seconds: float) -> None:
        chars = self._memory.played(turn, seconds)
        if (turn, chars) != self._told and chars:
            self._told = turn, chars
            await self.push_frame(HeardFrame(turn=turn, chars=chars))

    async def _finish(self, turn: int) -> None:
        chars = self._memory.close(turn)
        self._sound_s.pop(turn, None)
        await self.push_frame(AnswerDoneFrame(turn=turn, chars=chars))
        # A tool's answer may have begun, or be about to, without any sound yet.
        self._underway.discard(turn)
        if not self._underway and not self._memory.expects_more:
            await self.push_frame(FloorFrame(taken=False), FrameDirection.UPSTREAM)


def quietest(samples: np.ndarray, back: int, width: int) -> int:
    """Start of the quietest `width` samples among the last `back` of int16 [n]."""
    first = max(0, len(samples) - back)
    tail = samples[first:].astype(np.float32)
    if len(tail) < width:
        return first
    frames = tail[: len(tail) // width * width].reshape(-1, width)
    return first + int(np.argmin((frames**2).mean(axis=1))) * width
