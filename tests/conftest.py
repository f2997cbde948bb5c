"""Shared fixtures: the embedded models are loaded once for all tests."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from loguru import logger

from duologue.asr.whisper import Whisper
from duologue.audio.pcm import ASR_RATE_HZ, read_audio, resample
from duologue.cli import main
from duologue.models import ensure
from duologue.tts.piper import PiperVoice
from tests.conversing import run_call

logger.remove()

DATA = Path(__file__).with_name("data")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What happens in real time, in a browser, may be late once on a busy machine."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(scope="session")
def whisper() -> Whisper:
    return Whisper(ensure("whisper-tiny.en"))


@pytest.fixture(scope="session")
def piper():
    voice = PiperVoice(ensure("piper-en_US-joe-medium"), lively=False)
    yield voice
    voice.close()


@pytest.fixture(scope="session")
def say(piper):
    """Text to speech at the microphone's rate; one text is one recording."""
    known: dict[str, np.ndarray] = {}

    def speech(text: str) -> np.ndarray:
        if text not in known:
            samples = piper.synthesize(text).samples
            known[text] = resample(samples, piper.rate_hz, ASR_RATE_HZ)
        return known[text]

    return speech


@pytest.fixture(scope="session")
def clip():
    """A recording of tests/data by its path."""
    return lambda name: read_audio(DATA / name)


@pytest.fixture
def converse(whisper):
    """Run a scenario with an engine that gives these answers, as `conversing.run_call` does."""
    return partial(run_call, whisper=whisper)


@pytest.fixture
def run(monkeypatch, capfd):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["duologue", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err  # type: ignore[return-value]

    return call
