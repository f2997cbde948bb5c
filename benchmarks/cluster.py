"""What a cluster of token2wav costs a chunk, and what a listener hears of replicas that die.

The tiny preset with random weights, on two replicas of Ray Serve on this machine. Every sound is
compared with what one engine says in process.

    python -m benchmarks.cluster --json
    python -m benchmarks.cluster --parts overhead

`overhead`: one session, one chunk of 1 s after another, each from its last token to its sound: in
process, through a server of `duologue serve`'s, and through the cluster.

`kill`: sessions speak 8 s each, heard in real time, over and over, while one replica after another
is killed; the next one is as soon as all are there again. `lost` sentences broke off, `refused`
ones never began. `resume` is from the kill to the next sound of a session that was on it, `resume
behind the replacement` what of it comes after the dead replica's successor is there, `gap` the
silence that a listener hears in an utterance that was moved.
"""

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import psutil

from duologue.audio.clip import read_clip
from duologue.config import load_config
from duologue.errors import CapacityError
from duologue.serving.remote import RemoteBatcher
from duologue.token2wav import pipeline
from duologue.token2wav.batch import Batcher
from duologue.token2wav.front_end import VoiceFrontEnd
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule
from duologue.token2wav.weights import load_preset, save
from duologue.voices import VoiceStore
from tests.voice_models import write_voice_models

CLIP = Path(__file__).parents[1] / "tests/data/questions/question_17.ogg"
CHUNK, TOKENS = 25, 200
SAME = 1e-3
LEAD, PIECE = 2, 5
"""How much faster than speech tokens come, and how many at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a cluster.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    # Ray tells of dead workers on standard output, where the figures go.
    with tempfile.TemporaryDirectory() as aside, redirect_stdout(sys.stderr):
        bench = prepare(Path(aside), options.sessions)
        with cluster(bench, options.replicas) as url:
            figures = {name: PARTS[name](bench, url, options) for name in options.parts}
    print(json.dumps(figures, indent=1) if options.json else table(figures))
    if figures.get("kill", {}).get("lost"):
        sys.exit("sentences were lost")


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the set-up lies, and the model and voice that it names."""

    setup: Path
    voice: VoicePrompt
    batcher: Batcher


def prepare(folder: Path, sessions: int) -> Bench:
    save(load_preset("tiny", 1), folder / "model")
    (folder / "front_end").mkdir()
    write_voice_models(folder / "front_end")
    os.environ["DUOLOGUE_VOICES"] = str(folder / "voices")
    store = VoiceStore.default()
    store.add("ada", read_clip(CLIP), VoiceFrontEnd.load(folder / "front_end"))
    setup = folder / "set-up.yaml"
    setup.write_text(
        f"token2wav: {{model: {folder / 'model'}, engine: torch, voice: ada, "
        f"sessions: {sessions}}}\n"
        f"serve: {{piper: false, sessions: {sessions}, grpc_port: 0, http_port: 0}}\n"
    )
    model = pipeline.load(folder / "model", "torch", EngineSettings(sessions=sessions))
    return Bench(setup, store.get("ada"), model.batcher())


@contextmanager
def cluster(bench: Bench, replicas: int):
    from deploy.ray import local
    from deploy.ray.app import Arguments

    arguments = Arguments(setup=bench.setup, min_replicas=replicas, max_replicas=replicas)
    url = local.start(arguments, grpc_port=free_port(), http_port=free_port())
    try:
        yield url
    finally:
        local.stop()


@contextmanager
def one_server(bench: Bench):
    """`duologue serve` on a thread of this process."""
    from duologue.serving.load import load_speaker
    from duologue.serving.server import run

    sock, stop, ready = socket.create_server(("127.0.0.1", 0)), asyncio.Event(), Queue()

    async def serve() -> None:
        speaker = await load_speaker(load_config(bench.setup))
        loop = asyncio.get_running_loop()
        await run(speaker, sock, stop, ready=lambda ports: ready.put((loop, ports.grpc)))
        await speaker.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, port = ready.get(timeout=60)
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def speech(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 6561, TOKENS, dtype=np.int32)


def whole(batcher: Any, voice: VoicePrompt, seed: int) -> np.ndarray:
    """An utterance with all tokens at once."""
    said: Queue = Queue()
    utterance = batcher.open(voice, seed, said.put)
    utterance.push(speech(seed))
    utterance.finish()
    parts = []
    while not (parts and parts[-1].final):
        parts.append(said.get(timeout=60))
        if parts[-1].error:
            raise parts[-1].error
    return np.concatenate([part.samples for part in parts])


def overhead(bench: Bench, url: str, options: argparse.Namespace) -> dict[str, Any]:
    with RemoteBatcher([url]) as far, one_server(bench) as server, RemoteBatcher([server]) as near:
        ways = {"in process": bench.batcher, "server": near, "cluster": far}
        opening: dict[str, list[float]] = {way: [] for way in ways}
        chunks: dict[str, list[float]] = {way: [] for way in ways}
        for batcher in ways.values():
            chunk_times(batcher, bench.voice, 0)
        for seed in range(1, 21):
            # In turn, so that what else the machine does meets all of them.
            for way, batcher in ways.items():
                opened, *rest = chunk_times(batcher, bench.voice, seed)
                opening[way].append(opened)
                chunks[way] += rest
        expected = whole(bench.batcher, bench.voice, 1)
        found = [whole(batcher, bench.voice, 1) for batcher in (near, far)]
    base = np.array(chunks["in process"])
    return {
        **{way: {"open": spread(opening[way]), "chunk": spread(chunks[way])} for way in ways},
        # Of the same chunk, which the engine computes in the same way.
        "added to a chunk, p50_ms": {
            way: float(np.median(np.array(chunks[way]) - base)) * 1e3 for way in list(ways)[1:]
        },
        "largest difference": float(max(np.abs(samples - expected).max() for samples in found)),
    }


def chunk_times(batcher: Any, voice: VoicePrompt, seed: int) -> list[float]:
    """Seconds to open an utterance, then from each chunk's last token to its sound."""
    said: Queue = Queue()
    times, since = [], time.perf_counter()
    utterance = batcher.open(voice, seed, said.put, Schedule((CHUNK,)))
    times.append(time.perf_counter() - since)
    # The look-ahead of a chunk comes with it.
    tokens = np.concatenate([speech(seed), speech(seed)[:3]])
    ends = [3 + CHUNK * n for n in range(1, TOKENS // CHUNK + 1)]
    for begin, end in zip([0, *ends], ends, strict=False):
        utterance.push(tokens[begin:end])
        while not len(said.get(timeout=60).samples):
            pass
        times.append(time.perf_counter() - since)
        since = time.perf_counter()
    utterance.cancel()
    return times


@dataclass(slots=True)
class Session:
    """One listener after another on one client, and what was wrong for them.

    Attributes:
        sounds: When sound came, seconds.
        spoken: Whole utterances that were as they should be.
        lost: What went wrong with the others.
        refused: Why some never began.
        gaps: Silence in the middle of each utterance, seconds, and whether it was moved.
        moves: When an utterance lost its replica.
    """

    client: RemoteBatcher
    sounds: list[float] = field(default_factory=list)
    spoken: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    gaps: list[tuple[float, bool]] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)

    def run(
        self, voice: VoicePrompt, seed: int, expected: np.ndarray, over: threading.Event
    ) -> None:
        """Speak the same until it is over."""
        while not over.is_set():
            moves, since = len(self.moves), time.perf_counter()
            try:
                samples, gap_s, until = self.listen(voice, seed)
                difference = np.abs(samples - expected).max()
                assert difference < SAME, f"differs by {difference}"
            except CapacityError as error:
                begun = self.sounds and self.sounds[-1] > since
                (self.lost if begun else self.refused).append(str(error))
                continue
            except Exception as error:
                self.lost.append(str(error) or repr(error))
                continue
            self.spoken += 1
            self.gaps.append((gap_s, len(self.moves) > moves))
            over.wait(until - time.perf_counter())

    def listen(self, voice: VoicePrompt, seed: int) -> tuple[np.ndarray, float, float]:
        """One utterance: its samples, its silence in seconds, and when it will have been heard."""
        said: Queue = Queue()
        utterance = self.client.open(voice, seed, said.put)
        feeding = threading.Thread(target=self.feed, args=(utterance, speech(seed)))
        feeding.start()
        parts, until, gap_s = [], None, 0.0
        try:
            while not (parts and parts[-1].final):
                parts.append(said.get(timeout=60))
                if parts[-1].error:
                    raise parts[-1].error
                now = time.perf_counter()
                if not len(parts[-1].samples):
                    continue
                self.sounds.append(now)
                gap_s += max(0.0, now - until) if until else 0.0
                until = max(until or now, now) + len(parts[-1].samples) / 24_000
        finally:
            utterance.cancel()
            feeding.join()
        return np.concatenate([part.samples for part in parts]), gap_s, until or 0.0

    @staticmethod
    def feed(utterance: Any, tokens: np.ndarray) -> None:
        """Push the tokens as they come."""
        try:
            for at in range(0, len(tokens), PIECE):
                utterance.push(tokens[at : at + PIECE])
                time.sleep(PIECE / 25 / LEAD)
            utterance.finish()
        except Exception:
            # Why it is over is in its last result.
            return


class Moves(logging.Handler):
    """Hears of utterances that lose their server, by the thread of their client."""

    def __init__(self, sessions: list[Session]):
        super().__init__()
        self._sessions = {session.client._thread.ident: session for session in sessions}

    def emit(self, record: logging.LogRecord) -> None:
        """Note a move."""
        if "moves" in record.getMessage() and (session := self._sessions.get(record.thread)):
            session.moves.append(time.perf_counter())


def kill(bench: Bench, url: str, options: argparse.Namespace) -> dict[str, Any]:
    sessions = [Session(RemoteBatcher([url])) for _ in range(options.sessions)]
    logger = logging.getLogger("duologue.serving.remote_call")
    handler = Moves(sessions)
    logger.addHandler(handler)
    logger.propagate = False
    over = threading.Event()
    threads = []
    for seed, session in enumerate(sessions, 1):
        expected = whole(bench.batcher, bench.voice, seed)
        arguments = (bench.voice, seed, expected, over)
        threads.append(threading.Thread(target=session.run, args=arguments))
    for thread in threads:
        thread.start()
    kills, back = [], []
    for number in range(options.kills):
        time.sleep(1.5)
        victims = sorted(replicas(), key=lambda process: process.create_time())
        # The older one: it has had the most sessions given to it.
        victims[0].kill()
        kills.append(time.perf_counter())
        back.append(wait_for_replicas(options.replicas) - kills[-1])
        print(f"kill {number + 1}: replaced after {back[-1]:.1f} s", file=sys.stderr)
    over.set()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.client.close()
    logger.removeHandler(handler)
    return judged(sessions, kills, back)


def judged(sessions: list[Session], kills: list[float], back: list[float]) -> dict[str, Any]:
    resumed, behind = [], []
    for session in sessions:
        for moved in session.moves:
            number = max((n for n, at in enumerate(kills) if at <= moved), default=0)
            sound = min((at for at in session.sounds if at > moved), default=moved)
            resumed.append(sound - kills[number])
            behind.append(max(0.0, sound - kills[number] - back[number]))
    gaps = [gap for session in sessions for gap in session.gaps]
    lost = [reason for session in sessions for reason in session.lost]
    return {
        "kills": len(kills),
        "utterances": sum(session.spoken for session in sessions),
        "moved": len(resumed),
        "lost": len(lost),
        "refused": sum(len(session.refused) for session in sessions),
        "why": sorted(set(lost))[:5],
        "resume": spread(resumed),
        "resume behind the replacement": spread(behind),
        "gap": spread([gap for gap, moved in gaps if moved]),
        "gap of the others": spread([gap for gap, moved in gaps if not moved]),
        "replaced": spread(back),
    }


def replicas() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "ServeReplica" in title(p)]


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def wait_for_replicas(count: int) -> float:
    """Until so many can be called; when they could."""
    from ray import serve

    while True:
        states = serve.status().applications["default"].deployments["Speech"].replica_states
        if states.get("RUNNING", 0) >= count and len(replicas()) >= count:
            return time.perf_counter()
        time.sleep(0.1)


def spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ms = np.array(seconds) * 1e3
    return {
        "p50_ms": float(np.median(ms)),
        "p95_ms": float(np.percentile(ms, 95)),
        "max_ms": float(ms.max()),
    }


def table(figures: dict[str, Any]) -> str:
    return "\n".join(
        f"{part} | {name}: {value}"
        for part, rows in figures.items()
        for name, value in rows.items()
    )


PARTS = {"overhead": overhead, "kill": kill}

if __name__ == "__main__":
    main()
