"""A real Triton server of this machine for tests: its process and its log."""

import os
import socket
import subprocess
import sys
import threading

import psutil

from tests.deploy.ray_cluster import ROOT, TOKEN, Model


class Triton:
    """`python -m deploy.triton.local` as a process of its own, whose calls need the token."""

    def __init__(self, model: Model):
        self.address = f"127.0.0.1:{_free_port()}"
        options = [
            f"--grpc-port={self.address.rpartition(':')[2]}",
            f"--http-port={_free_port()}",
            f"--metrics-port={_free_port()}",
            f"--grpc-restricted-protocol=inference:authorization=Bearer {TOKEN}",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.triton.local", model.folder / "set-up.yaml", *options],
            cwd=ROOT,
            env={
                **os.environ,
                "DUOLOGUE_VOICES": str(model.folder / "voices"),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._news = threading.Condition()
        self.log, self._over = "", False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait_for("Started GRPCInferenceService")

    def __enter__(self) -> "Triton":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()

    @property
    def url(self) -> str:
        return f"triton://{self.address}"

    def stub(self) -> psutil.Process:
        """The process that the model runs in."""
        [stub] = psutil.Process(self.process.pid).children()
        return stub

    def wait_for(self, words: str) -> None:
        with self._news:
            self._news.wait_for(lambda: words in self.log or self._over, 120)
        assert words in self.log, self.log

    def wait(self) -> int:
        code = self.process.wait(60)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self.log += line
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]
