"""What a cluster asks of a replica's engine."""

import threading
from queue import Queue

import pytest

from duologue.engines.torch_model import engine_of
from duologue.token2wav.config import TINY
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.stream import Schedule
from duologue.token2wav.weights import load_preset


@pytest.fixture(scope="module")
def model():
    return engine_of(load_preset("tiny", 3), EngineSettings(sessions=2, window=20))


def test_only_whole_chunks_that_wait_are_counted(model, store, speech, monkeypatch):
    busy, free = threading.Event(), threading.Event()
    step = type(model.flow).step

    def held(self, work):
        busy.set()
        assert free.wait(30)
        return step(self, work)

    monkeypatch.setattr(type(model.flow), "step", held)
    said = Queue()
    with model.batcher() as batcher:
        assert batcher.queued_audio_s == 0
        utterance = batcher.open(store.get("ada"), 1, said.put, Schedule((5,)))
        utterance.push(speech(1, 5 + TINY.look_ahead))
        assert busy.wait(30)
        # The engine has it: it waits no more. Behind it come two whole chunks and a part.
        assert batcher.queued_audio_s == 0
        utterance.push(speech(2, 12))
        assert batcher.queued_audio_s == pytest.approx(2 * (5 + TINY.look_ahead) / 25)
        free.set()
        utterance.finish()
        while not said.get(timeout=30).final:
            pass
        assert batcher.queued_audio_s == 0


def test_an_engine_that_is_closed_does_not_run(model):
    batcher = model.batcher()
    assert batcher.is_running
    batcher.close()
    assert not batcher.is_running
