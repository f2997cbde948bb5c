"""A speaker over tiny models with random weights, and a voice made by the tiny front end."""

import numpy as np
import pytest

from duologue.audio.clip import read_clip
from duologue.engines.torch_model import engine_of
from duologue.serving.speaker import Engines
from duologue.serving.voices import Voices
from duologue.token2wav.front_end import VoiceFrontEnd
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.weights import load_preset
from duologue.voices import VoiceStore
from tests.fakes import FakeBatcher, FakeVoice
from tests.serving.servers import CLIP, WatchedSpeaker, limits
from tests.voice_models import write_voice_models


@pytest.fixture(scope="session")
def front_end(tmp_path_factory):
    folder = tmp_path_factory.mktemp("front_end")
    write_voice_models(folder)
    return VoiceFrontEnd.load(folder)


@pytest.fixture(scope="session")
def ada(front_end, tmp_path_factory):
    """The file of a stored voice."""
    store = VoiceStore(tmp_path_factory.mktemp("voices"))
    store.add("ada", read_clip(CLIP), front_end)
    return store.folder / "ada.safetensors"


@pytest.fixture(scope="session")
def batcher():
    model = engine_of(load_preset("tiny", 3), EngineSettings(sessions=8, window=20))
    with model.batcher() as batcher:
        yield batcher


@pytest.fixture
def store(ada, tmp_path):
    """A store that holds ada."""
    store = VoiceStore(tmp_path / "voices")
    store.folder.mkdir()
    (store.folder / ada.name).write_bytes(ada.read_bytes())
    return store


@pytest.fixture
def make_speaker(store, front_end):
    """A speaker of these engines; limits by name."""

    def make(*, batcher=None, piper=None, talker=None, listens=True, **own) -> WatchedSpeaker:
        engines = Engines(
            piper=piper,
            piper_name="joe" if piper else "",
            batcher=batcher,
            talker=talker,
            default_voice="ada" if batcher else "",
        )
        voices = Voices(
            store,
            builtin=engines.piper_name,
            front_end=front_end if listens else None,
            decodes=batcher is not None,
            talks=talker is not None,
        )
        return WatchedSpeaker(engines, voices, limits(**own))

    return make


@pytest.fixture
def speaker(make_speaker, batcher):
    """The tiny token2wav, and a voice of a constant level."""
    return make_speaker(batcher=batcher, piper=FakeVoice())


@pytest.fixture
def instant():
    return FakeBatcher()


@pytest.fixture(scope="session")
def speech():
    """Speech tokens int32 [n]."""
    return lambda seed, n: np.random.default_rng(seed).integers(0, 6561, n, dtype=np.int32)
