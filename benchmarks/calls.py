"""How many calls one core holds: paced callers on one core, the phone or the room on another.

A call holds if no sound of an answer comes more than 100 ms after it had to be played. Kinds:
`echo` is the transport alone; `graph` the whole pipeline with VAD, its models replaced by stubs
that take no time; `embedded` the embedded models. Those are phone calls; `room-echo` and
`room-graph` are WebRTC calls, whose bot says a tone: a real voice's pauses could not be told from
gaps. Callers cut in on every second answer: `stop_ms` is from the onset of their words to the clear
that the phone is sent, or to the first silence in the room. Where `callers_percent` nears 100, the
callers are late, not the server.

    python -m benchmarks.calls [--kind graph] [--calls N ...] [--seconds S] [--json]
"""

import argparse
import asyncio
import base64
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from loguru import logger
from pipecat.frames.frames import Frame, InputAudioRawFrame, OutputAudioRawFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from streamdouble import g711
from streamdouble.audio import frame_ulaw
from websockets.asyncio.client import ClientConnection, connect

from benchmarks import call_rooms
from bots.models import Models, load_models
from bots.phone import Gate, Phone, make_server
from bots.phone_line import RATE_HZ, LineTransport
from duologue.addresses import listen
from duologue.asr.whisper import Transcript
from duologue.audio.pcm import resample
from duologue.config import BotConfig, LimitsConfig, TurnConfig, load_config
from duologue.lm.engine import Request
from duologue.rehearsal.script import read_labels
from duologue.rehearsal.timeline import Clip
from tests.fakes import FakeEngine, FakeVoice

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "tests/data/questions"
FRAME_S = 0.02
UNDERRUN_S = 0.1
QUIET_S = 2.0
BARGE_IN_S = 1.5
ANSWER = "the ocean is large and deep and many animals live there all year long as they always did."
CALLS = {
    "echo": [20, 40, 50],
    "graph": [5, 10, 15, 20],
    "embedded": [1, 2],
    "room-echo": [2, 4, 6, 8],
    "room-graph": [2, 4, 6],
}


class StubAsr:
    """Understands the same at once."""

    pool = ThreadPoolExecutor(1)

    def transcribe(self, samples: np.ndarray, *, hasty: bool = False) -> Transcript:
        """The same text, whatever was said."""
        return Transcript("Tell me about the sea.", 0.0, 0.0)

    def close(self) -> None:
        """Nothing to release."""


class StubLm(FakeEngine):
    """Answers the same for ever."""

    async def stream(self, request: Request):
        """One answer."""
        self.answers, self.requests = [[ANSWER]], []
        async for step in super().stream(request):
            yield step


class Echo(FrameProcessor):
    """Says what it hears."""

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Turn audio round."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            frame = OutputAudioRawFrame(frame.audio, frame.sample_rate, 1)
        await self.push_frame(frame, direction)


class EchoPhone(Phone):
    """A phone whose calls are echoed."""

    async def pipeline(self, transport: LineTransport) -> PipelineWorker:
        """The transport's two ends."""
        rates = PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ)
        pipeline = Pipeline([transport.input(), Echo(), transport.output()])
        return PipelineWorker(pipeline, params=rates, enable_rtvi=False, enable_turn_tracking=False)


async def serve(kind: str, port: int) -> None:
    """The phone or the room, until its process is ended."""
    logger.remove()
    room = kind.startswith("room-")
    if kind == "embedded":
        config = load_config(ROOT / "bots/configs/embedded.yaml").model_copy(
            update={"limits": LimitsConfig(sessions=8)}
        )
        models = await load_models(config)
    else:
        turn = TurnConfig(end="speech-timeout", silence_s=0.5, speculate=False)
        limits = LimitsConfig(sessions=1000, connecting=1000, calls_per_minute=100_000)
        config = BotConfig(limits=limits, turn=turn)
        voice = (call_rooms.ToneVoice if room else FakeVoice)(0.25)
        models = Models(StubAsr(), StubLm(), voice)  # type: ignore[arg-type]
        # As `load_models` does.
        gc.collect()
        gc.freeze()
    if room:
        await call_rooms.serve(models, config, port, echo=kind == "room-echo")
        return
    phone = (EchoPhone if kind == "echo" else Phone)(models, config)
    await make_server(phone, Gate(config.phone, None)).serve([listen("127.0.0.1", port)])


@dataclass
class Heard:
    """What one caller has heard.

    Attributes:
        late_s: By how much each of the late sounds missed its time.
        replies_s: End of the question to first sound.
        stops_s: Onset of an interruption to the bot's silence.
        audio_s: Of the bot.
    """

    late_s: list[float] = field(default_factory=list)
    replies_s: list[float] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    audio_s: float = 0.0


class Caller:
    """Asks, listens, asks again; interrupts every second answer.

    Args:
        clip: The question.
        echo: It is said for ever.
        frames: The question, or what is to be echoed, in pieces of 20 ms; for a phone by default.
        silence: 20 ms of it.
    """

    def __init__(
        self,
        clip: Clip,
        *,
        echo: bool,
        frames: list[bytes] | None = None,
        silence: bytes = b"\xff" * 160,
    ):
        self.heard = Heard()
        samples = resample(clip.samples, 48_000, RATE_HZ)
        self._frames = frames or frame_ulaw(g711.encode(np.round(samples * 32767)))
        self._silence = silence
        self._clip, self._echo = clip, echo
        self._asked: list[bytes] = []
        self._end_s = self._ends_s = self._last_s = 0.0
        self._began_s: float | None = None
        self._stop_s: float | None = None
        self._asks = 0

    def next_frame(self, now_s: float) -> bytes:
        """What to say in the next 20 ms."""
        if self._echo and not self._asked:
            self._asked = list(self._frames)
        if not self._asked and not self._echo and self._may_ask(now_s):
            self._asks += 1
            self._asked = list(self._frames)
            self._end_s = now_s + self._clip.end_s
        return self._asked.pop(0) if self._asked else self._silence

    def _may_ask(self, now_s: float) -> bool:
        if self._began_s and self._asks % 2 and now_s - self._began_s > BARGE_IN_S:
            if now_s - self._last_s > FRAME_S * 2:
                return False
            self._began_s, self._stop_s = None, now_s + self._clip.start_s
            return True
        if now_s - max(self._last_s, self._end_s) > QUIET_S:
            self._began_s = None
            return True
        return False

    def take(self, message: dict[str, Any], now_s: float) -> dict[str, Any] | None:
        """Hear; returns the mark to send back."""
        match message["event"]:
            case "media":
                self.hear(len(base64.b64decode(message["media"]["payload"])) / RATE_HZ, now_s)
            case "clear":
                self.cleared(now_s)
            case "mark":
                return message
        return None

    def interrupts(self, now_s: float) -> bool:
        """Whether words have begun that are to silence the bot, and have not yet."""
        return self._stop_s is not None and now_s >= self._stop_s

    def cleared(self, now_s: float) -> None:
        """The bot is silent, of its own accord."""
        if self._stop_s:
            self.heard.stops_s.append(now_s - self._stop_s)
        self._stop_s = self._began_s = None
        self._ends_s = 0.0

    def hear(self, seconds: float, now_s: float) -> None:
        """So much of the bot has come."""
        late_s = now_s - self._ends_s
        if self._ends_s and UNDERRUN_S < late_s < QUIET_S:
            self.heard.late_s.append(late_s)
        if now_s - self._last_s > QUIET_S:
            # What has not silenced the bot by now no longer will.
            self._began_s, self._stop_s = now_s, None
            if self._end_s and not self._echo:
                self.heard.replies_s.append(now_s - self._end_s)
        self._ends_s = max(self._ends_s, now_s) + seconds
        self._last_s = now_s
        self.heard.audio_s += seconds


async def call(url: str, number: int, caller: Caller, until_s: float) -> None:
    """One paced call."""
    ids = {"streamSid": f"MZ{number}", "callSid": f"CA{number}"}
    async with connect(url, compression=None, max_queue=None) as line:
        await line.send(json.dumps({"event": "connected", "protocol": "Call"}))
        await line.send(json.dumps({"event": "start", "start": ids, "streamSid": ids["streamSid"]}))
        listening = asyncio.create_task(listen_to(line, caller))
        due_s = time.monotonic()
        while due_s < until_s:
            payload = base64.b64encode(caller.next_frame(time.monotonic())).decode()
            await line.send(json.dumps({"event": "media", "media": {"payload": payload}}))
            due_s += FRAME_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await line.send(json.dumps({"event": "stop"}))
        listening.cancel()


async def listen_to(line: ClientConnection, caller: Caller) -> None:
    async for text in line:
        if mark := caller.take(json.loads(text), time.monotonic()):
            await line.send(json.dumps(mark))


def make_caller(kind: str, clip: Clip) -> Caller:
    """A caller for this kind; the echo of a room is one of a tone, whose gaps can be heard."""
    echo = kind.endswith("echo")
    if not kind.startswith("room-"):
        return Caller(clip, echo=echo)
    samples = call_rooms.tone(48_000, 48_000) if echo else clip.samples
    said = call_rooms.frames(samples)
    return Caller(clip, echo=echo, frames=said, silence=call_rooms.SILENCE)


async def measure(kind: str, calls: int, seconds: float, server: psutil.Process, port: int):
    """So many calls at once: what their callers heard, and what the server used."""
    clip = read_labels(QUESTIONS)[1].clip()
    callers = [make_caller(kind, clip) for _ in range(calls)]
    until_s = time.monotonic() + seconds + calls * 0.05
    processes = server, psutil.Process()
    before, began_s = [used_s(process) for process in processes], time.monotonic()
    jobs = []
    for number, caller in enumerate(callers):
        if kind.startswith("room-"):
            job = call_rooms.call(f"http://127.0.0.1:{port}", caller, until_s)
        else:
            job = call(f"ws://127.0.0.1:{port}/ws", number, caller, until_s)
        jobs.append(asyncio.create_task(job))
        await asyncio.sleep(0.05)
    await asyncio.gather(*jobs)
    spent_s = time.monotonic() - began_s
    used = [used_s(process) - then for process, then in zip(processes, before, strict=True)]
    heard = [caller.heard for caller in callers]
    late = [late for one in heard for late in one.late_s]
    return {
        "kind": kind,
        "calls": calls,
        "audio_s": round(sum(one.audio_s for one in heard), 1),
        "silent_calls": sum(not one.audio_s for one in heard),
        "underruns": len(late),
        "worst_underrun_ms": round(1000 * max(late, default=0)),
        "cpu_percent": round(100 * used[0] / spent_s),
        "callers_percent": round(100 * used[1] / spent_s),
        "rss_mb": round(server.memory_info().rss / 1e6),
        "reply_ms": percentiles([x for one in heard for x in one.replies_s]),
        "stop_ms": percentiles([x for one in heard for x in one.stops_s]),
    }


def used_s(process: psutil.Process) -> float:
    """CPU seconds since it began."""
    times = process.cpu_times()
    return times.user + times.system


def percentiles(seconds: list[float]) -> dict[str, float] | None:
    """p50 and p95 in milliseconds."""
    if len(seconds) < 2:
        return None
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return {"n": len(seconds), "p50": round(1000 * cuts[9]), "p95": round(1000 * cuts[18])}


@contextlib.contextmanager
def serving(kind: str, port: int):
    """The server in a process of its own, on the first core; yields its process once it answers."""
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "benchmarks.calls", "--serve", kind, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    os.sched_setaffinity(process.pid, {cores[0]})
    os.sched_setaffinity(0, {cores[-1]})
    try:
        wait_until_open(port, process)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def wait_until_open(port: int, process: subprocess.Popen) -> None:
    import httpx

    transport = httpx.HTTPTransport(retries=10)
    with httpx.Client(transport=transport) as client:
        client.get(f"http://127.0.0.1:{port}/api/status").raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure concurrent calls.")
    parser.add_argument("--kind", choices=list(CALLS), action="append")
    parser.add_argument("--calls", type=int, nargs="+", help="how many at once")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--port", type=int, default=7979)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.port))
        return
    logger.remove()
    found = []
    for kind in options.kind or CALLS:
        with serving(kind, options.port) as server:
            for calls in options.calls or CALLS[kind]:
                result = asyncio.run(measure(kind, calls, options.seconds, server, options.port))
                found.append(result)
                print(json.dumps(result), file=sys.stderr)
    if options.json:
        print(json.dumps(found, indent=2))
    if any(row["underruns"] or row["silent_calls"] for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
