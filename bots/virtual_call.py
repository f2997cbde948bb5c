"""A scripted caller in this process and in virtual time: the real pipeline, no transport.

Run it on `duologue.rehearsal.virtual.run`: time passes only while everything waits, so a minute of
talk takes seconds and every run decides alike. What models compute takes no virtual time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from pipecat.frames.frames import Frame, InputAudioRawFrame, TTSAudioRawFrame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ, Session, build_session, load_listening
from bots.models import Models
from duologue.audio.pcm import from_int16_bytes, resample, to_int16_bytes
from duologue.config import BotConfig
from duologue.errors import EngineError

FRAME_S = 0.02
NOISE_FLOOR = 3e-4
ECHO_DELAY_S = 0.12


class Ear(FrameProcessor):
    """The pipeline's end: keeps the bot's audio with its time."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[tuple[float, np.ndarray]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Keep audio, pass everything."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            now_s = asyncio.get_running_loop().time()
            self.chunks.append((now_s, from_int16_bytes(frame.audio)))
        await self.push_frame(frame, direction)


class VirtualCall:
    """A call in progress.

    Attributes:
        session: The conversation, for its context and memory.
        events: (seconds, event) as the page would get them.
        ear: The bot's audio.
        echo: Gain at which the microphone hears the bot, ECHO_DELAY_S late; 0 is a headset.
    """

    def __init__(self, session: Session, ear: Ear, events: list[tuple[float, dict[str, Any]]]):
        self.session = session
        self.ear = ear
        self.events = events
        self.news = asyncio.Event()
        self.echo = 0.0
        self._echoed = 0
        self._echo_queue = np.zeros(0, np.float32)
        self._speech = np.zeros(0, np.float32)
        self._silent = asyncio.Event()
        self._noise = np.random.default_rng(0)

    @property
    def now_s(self) -> float:
        """Seconds since the call's loop began."""
        return asyncio.get_running_loop().time()

    async def say(self, samples: np.ndarray) -> float:
        """Say float32 [n] at 16 kHz from now on and wait until it is said; returns the onset."""
        onset_s = self.now_s
        self._speech = samples
        self._silent.clear()
        await self._silent.wait()
        return onset_s

    async def wait_for(self, kind: str, *, within_s: float = 20.0, **fields: Any) -> dict[str, Any]:
        """Wait for an event that is still to come and has these fields.

        Raises:
            TimeoutError: it did not come.
        """
        seen = len(self.events)
        async with asyncio.timeout(within_s):
            while True:
                for _, event in self.events[seen:]:
                    if event["type"] == kind and fields.items() <= event.items():
                        return event
                seen = len(self.events)
                self.news.clear()
                await self.news.wait()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All events of one kind so far."""
        return [event for _, event in self.events if event["type"] == kind]

    def _take_echo(self, size: int) -> np.ndarray:
        """The next `size` samples of what the microphone hears of the bot."""
        while self._echoed < len(self.ear.chunks):
            at_s, chunk = self.ear.chunks[self._echoed]
            if at_s > self.now_s - ECHO_DELAY_S:
                break
            heard = self.echo * resample(chunk, OUT_RATE_HZ, IN_RATE_HZ)
            self._echo_queue = np.concatenate([self._echo_queue, heard])
            self._echoed += 1
        echo, self._echo_queue = self._echo_queue[:size], self._echo_queue[size:]
        return np.pad(echo, (0, size - len(echo)))

    async def microphone(self) -> None:
        """Feed what is said, and the room's noise between."""
        size = round(FRAME_S * IN_RATE_HZ)
        due_s = self.now_s
        while True:
            frame = self._noise.normal(0, NOISE_FLOOR, size).astype(np.float32)
            part, self._speech = self._speech[:size], self._speech[size:]
            frame[: len(part)] += part
            frame += self._take_echo(size)
            audio = to_int16_bytes(frame)
            await self.session.worker.queue_frame(InputAudioRawFrame(audio, IN_RATE_HZ, 1))
            if not len(self._speech):
                self._silent.set()
            due_s += FRAME_S
            await asyncio.sleep(max(0.0, due_s - self.now_s))


@asynccontextmanager
async def virtual_call(models: Models, config: BotConfig) -> AsyncIterator[VirtualCall]:
    """Open a call; errors that the pipeline reports are raised at its end.

    The end-of-turn model reads the wall clock, so in virtual time silence has to end a turn.
    """
    loop = asyncio.get_running_loop()
    turn = config.turn.model_copy(update={"end": "speech-timeout", "silence_s": 0.5})
    config = config.model_copy(update={"turn": turn})
    events: list[tuple[float, dict[str, Any]]] = []

    def note(event: dict[str, Any]) -> None:
        events.append((loop.time(), event))
        call.news.set()

    ear = Ear()
    listening = await load_listening(config)
    session = build_session(
        models, config, listening, inputs=[], outputs=[ear], send=note, clock=loop.time
    )
    call = VirtualCall(session, ear, events)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(session.worker)
    running = asyncio.create_task(runner.run(auto_end=True))
    microphone = asyncio.create_task(call.microphone())
    try:
        yield call
    finally:
        microphone.cancel()
        await session.worker.cancel()
        await running
    if errors := call.of("error"):
        raise EngineError(errors[0]["message"])
