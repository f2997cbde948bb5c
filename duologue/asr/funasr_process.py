"""The running FunASR process: started with its models, asked, watched, ended."""

import json
import logging
import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from duologue.errors import EngineError

WORKER = Path(__file__).with_name("funasr_worker.py")
LOAD_S = 600.0
NO_NETWORK = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PIP_NO_INDEX": "1"}

_log = logging.getLogger(__name__)


class Died(Exception):
    """The process has ended, or was ended because its answer was `late`."""

    def __init__(self, reason: str, *, late: bool):
        super().__init__(reason)
        self.late = late


class FunasrProcess:
    """One process, its models loaded.

    Args:
        python: The interpreter that has FunASR.
        setup: The worker's first line; see funasr_worker.py.
        offline: Keep its libraries from the network.

    Raises:
        EngineError: it does not start, FunASR is missing, or a model cannot be loaded.
    """

    def __init__(self, python: str, setup: Mapping[str, Any], *, offline: bool):
        self._process = subprocess.Popen(
            [python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(NO_NETWORK if offline else {})},
            # Ctrl-C is for the parent, which closes the pipes.
            start_new_session=True,
        )
        assert self._process.stderr
        self._last_line = deque([""], maxlen=1)
        # A daemon: the exit of a program that does not close must not wait for its worker, which
        # ends when the pipes close.
        self._drain = threading.Thread(
            target=self._read_log, args=(self._process.stderr,), daemon=True
        )
        self._drain.start()
        try:
            self.ask(setup, b"", LOAD_S)
        except (Died, EngineError) as error:
            self.stop()
            raise EngineError(f"{python}: FunASR cannot start: {error}") from error

    def ask(self, request: Mapping[str, Any], pcm: bytes, timeout_s: float) -> dict[str, Any]:
        """One answer.

        Raises:
            EngineError: the worker says what failed; it goes on.
            Died: it says nothing any more.
        """
        late = threading.Event()
        watchdog = threading.Timer(timeout_s, lambda: (late.set(), self._process.kill()))
        watchdog.start()
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n" + pcm)
        finally:
            watchdog.cancel()
        if not line:
            self.stop()
            ended = f"its process ended ({self._process.returncode}) {self._last_line[0]}"
            reason = f"no answer within {timeout_s:g} s" if late.is_set() else ended.strip()
            raise Died(reason, late=late.is_set())
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def stop(self) -> None:
        """End the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        self._drain.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def _exchange(self, message: bytes) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        try:
            stdin.write(message)
            stdin.flush()
            return stdout.readline()
        except (OSError, ValueError):
            return b""

    def _read_log(self, stderr: IO[bytes]) -> None:
        # Unread, a full pipe would stop the process.
        with stderr:
            for line in stderr:
                self._last_line.append(line.decode(errors="replace").strip())
                _log.debug("funasr: %s", self._last_line[0])
