"""A real cluster of one machine for tests: its process, its replicas, and what speaks on it."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import numpy as np
import psutil

from duologue.audio.clip import read_clip
from duologue.serving.remote import RemoteBatcher
from duologue.serving.remote_call import Patience
from duologue.token2wav import pipeline
from duologue.token2wav.front_end import VoiceFrontEnd
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.weights import load_preset, save
from duologue.voices import VoiceStore
from tests.voice_models import write_voice_models

ROOT = Path(__file__).parents[2]
TOKEN = "secret"


@dataclass(frozen=True, slots=True)
class Model:
    """The tiny preset on disk, a set-up that names it, and a voice in a store."""

    folder: Path
    places: int
    voice: VoicePrompt

    @classmethod
    def write(cls, folder: Path, places: int) -> "Model":
        save(load_preset("tiny", 1), folder / "model")
        (folder / "front_end").mkdir()
        write_voice_models(folder / "front_end")
        store = VoiceStore(folder / "voices")
        clip = read_clip(ROOT / "tests/data/questions/question_17.ogg")
        store.add("ada", clip, VoiceFrontEnd.load(folder / "front_end"))
        (folder / "set-up.yaml").write_text(
            f"token2wav: {{model: {folder / 'model'}, engine: torch, voice: ada, sessions: 8}}\n"
            f"serve: {{piper: false, sessions: {places}, drain_s: 20}}\n"
        )
        return cls(folder, places, store.get("ada"))

    def batcher(self):
        """The same engine in this process."""
        settings = EngineSettings(sessions=8)
        return pipeline.load(self.folder / "model", "torch", settings).batcher()


class Cluster:
    """`python -m deploy.ray.local` as a process of its own."""

    def __init__(self, model: Model, *arguments: str):
        self.url = f"grpc://127.0.0.1:{_free_port()}"
        environ = {
            **os.environ,
            "DUOLOGUE_VOICES": str(model.folder / "voices"),
            "DUOLOGUE_SERVE_TOKEN": TOKEN,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._log = model.folder / "cluster.log"
        command = [sys.executable, "-m", "deploy.ray.local", str(model.folder / "set-up.yaml")]
        command += ["--grpc-port", self.url.rpartition(":")[2], "--http-port", str(_free_port())]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == self.url:
                return
        raise AssertionError(f"no cluster: {self._log.read_text()[-3000:]}")

    def replicas(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "ServeReplica" in "".join(_title(child))]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Spoken:
    """An utterance and what was heard of it."""

    def __init__(self, batcher, voice: VoicePrompt, seed: int):
        self._said: Queue = Queue()
        self._parts: list[np.ndarray] = []
        self.utterance = batcher.open(voice, seed, self._said.put)

    def hear(self) -> None:
        """One more piece of sound."""
        while not len(self._next().samples):
            pass

    def rest(self) -> np.ndarray:
        """To its end; all samples."""
        self.utterance.finish()
        while not self._next().final:
            pass
        return np.concatenate(self._parts)

    def _next(self):
        said = self._said.get(timeout=60)
        if said.error:
            raise said.error
        self._parts.append(said.samples)
        return said


def speech(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 6561, count, dtype=np.int32)


def whole(batcher, voice: VoicePrompt, seed: int, tokens: np.ndarray) -> np.ndarray:
    spoken = Spoken(batcher, voice, seed)
    spoken.utterance.push(tokens)
    return spoken.rest()


def remote(cluster: Cluster, **patience: float) -> RemoteBatcher:
    """A client that waits for machines as slow as those that run tests."""
    return RemoteBatcher(
        [cluster.url],
        patience=Patience(**{"place_s": 5, "stall_s": 20, "search_s": 40, **patience}),
    )


def _title(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]
