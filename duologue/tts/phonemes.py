"""The phonemiser's client: one helper process, started on first use, restarted when it dies."""

import contextlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

from duologue.errors import EngineError

ANSWER_S = 5.0
WORKER = Path(__file__).with_name("espeak_worker.py")
_LONGEST_WORD = re.compile(r"(\w{80})(?=\w)")  # espeak-ng drops what comes behind 160 bytes


class Phonemizer:
    """IPA through espeak-ng, out of process (see espeak_worker.py); safe across threads."""

    def __init__(self, voice: str):
        self._voice = voice
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def clauses(self, text: str) -> list[tuple[str, str]]:
        """(IPA, closing punctuation) of each clause of `text`.

        Raises:
            EngineError: espeak-ng is missing, or cannot read this text.
        """
        with self._lock:
            for attempt in (1, 2):
                try:
                    answer = self._ask(_LONGEST_WORD.sub(r"\1 ", text))
                    break
                except (OSError, ValueError) as error:
                    self._stop()
                    if attempt == 2:
                        raise EngineError(f"the phonemiser died twice over {text!r}") from error
        if "error" in answer:
            raise EngineError(f"espeak-ng cannot phonemise {text!r}: {answer['error']}")
        return [(ipa, mark) for ipa, mark in answer["clauses"]]

    def close(self) -> None:
        """End the helper process."""
        with self._lock:
            self._stop()

    def _ask(self, text: str) -> dict:
        process = self._process or self._start()
        assert process.stdin and process.stdout
        # A helper that hangs would hold up every session.
        watchdog = threading.Timer(ANSWER_S, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps({"voice": self._voice, "text": text}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        finally:
            watchdog.cancel()

    def _start(self) -> subprocess.Popen[str]:
        # -P keeps this folder off the worker's path: it must see the standard library alone.
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        assert process.stdout
        started = json.loads(process.stdout.readline() or '{"error": "no answer"}')
        if "error" in started:
            self._stop()
            raise EngineError(
                f"the phonemiser did not start ({started['error']}); install Debian's espeak-ng, "
                "or `pip install -e '.[espeak]'` (GPL-3.0)"
            )
        return process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                # Closing flushes what a dead process no longer reads.
                with contextlib.suppress(BrokenPipeError):
                    if pipe:
                        pipe.close()
            process.wait()
