"""One WAV in, one WAV out: a turn through the same pipeline, not in real time."""

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pipecat.frames.frames import Frame, InputAudioRawFrame, TTSAudioRawFrame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ, build_session, load_listening
from bots.models import load_models
from duologue.audio.pcm import check_target, from_int16_bytes, read_audio, to_int16_bytes, write_wav
from duologue.config import BotConfig, TurnConfig
from duologue.errors import EngineError, InputError

MAX_INPUT_S = 120.0
FRAME_SAMPLES = IN_RATE_HZ // 50
TRAILING_S = 2.0
FEED_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True)
class Talk:
    """What came of it."""

    transcript: str
    reply: str
    audio_s: float
    timings_ms: dict[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


class Recorder(FrameProcessor):
    """The pipeline's end: keeps the bot's audio, and tells when input has come through."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[bytes] = []
        self.came_through = asyncio.Semaphore(0)

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Keep audio, pass everything."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.chunks.append(frame.audio)
        elif isinstance(frame, InputAudioRawFrame):
            self.came_through.release()
        await self.push_frame(frame, direction)


async def talk(source: Path, target: Path, config: BotConfig) -> Talk:
    """Answer the recording `source` with the recording `target`.

    Raises:
        InputError: no usable audio, or no speech in it.
        EngineError: a model failed.
    """
    check_target(target)
    samples = read_audio(source, rate_hz=IN_RATE_HZ, max_s=MAX_INPUT_S)
    # The whole file is one turn: it is fed faster than any pause in it can end the turn.
    config = config.model_copy(
        update={"turn": TurnConfig(end="speech-timeout", silence_s=0.6, speculate=False)}
    )
    models = await load_models(config)
    recorder, events = Recorder(), []
    heard, done = asyncio.Event(), asyncio.Event()

    def note(event: dict[str, Any]) -> None:
        events.append(event)
        # An answer that only calls a tool is followed by the one that tells its result.
        over = event["type"] == "bot_end" and not session.memory.expects_more
        if over or event["type"] == "error":
            done.set()
        if event["type"] in ("user", "error"):
            heard.set()

    session = build_session(
        models,
        config,
        await load_listening(config),
        inputs=[],
        outputs=[recorder],
        send=note,
        real_time=False,
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(session.worker)
    running = asyncio.create_task(runner.run(auto_end=True))
    try:
        async with asyncio.timeout(FEED_TIMEOUT_S):
            await _feed(session.worker, recorder, samples)
        async with asyncio.timeout(SILENCE_TIMEOUT_S):
            await heard.wait()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await done.wait()
    except TimeoutError:
        if any(event["type"] == "user" for event in events):
            raise EngineError(f"no whole answer within {ANSWER_TIMEOUT_S:g} s") from None
        raise InputError(f"{source}: found no speech that could be understood") from None
    finally:
        await session.worker.cancel()
        await running
        await models.close()
    return _result(target, events, recorder)


async def _feed(worker: PipelineWorker, recorder: Recorder, samples: np.ndarray) -> None:
    """Feed frame by frame: the VAD's verdict on one must be in place before the next one comes."""
    silence = np.zeros(round(TRAILING_S * IN_RATE_HZ), np.float32)
    audio = to_int16_bytes(np.concatenate([silence, samples, silence]))
    for start in range(0, len(audio), FRAME_SAMPLES * 2):
        chunk = audio[start : start + FRAME_SAMPLES * 2]
        await worker.queue_frame(InputAudioRawFrame(chunk, IN_RATE_HZ, 1))
        await recorder.came_through.acquire()


def _result(target: Path, events: list[dict[str, Any]], recorder: Recorder) -> Talk:
    if errors := [event["message"] for event in events if event["type"] == "error"]:
        raise EngineError(errors[0])
    audio = from_int16_bytes(b"".join(recorder.chunks))
    write_wav(target, audio, OUT_RATE_HZ)
    said = [event["text"] for event in events if event["type"] == "user" and event["final"]]
    texts = {event["turn"]: event["text"] for event in events if event["type"] == "bot_text"}
    latency = next((event for event in events if event["type"] == "latency"), {})
    return Talk(
        transcript=" ".join(said),
        reply=" ".join(texts.values()),
        audio_s=round(len(audio) / OUT_RATE_HZ, 3),
        timings_ms={key: latency[key] for key in latency if key.endswith("_ms")},
    )
