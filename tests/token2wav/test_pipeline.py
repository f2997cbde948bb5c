"""The main path on a tiny model: offline, streamed, replayed, and many at once."""

import subprocess
import sys
from queue import Queue

import numpy as np
import pytest

from duologue.engines.torch_model import engine_of
from duologue.errors import ConfigError, EngineError, InputError, UsageError
from duologue.token2wav.config import TINY
from duologue.token2wav.pipeline import EngineSettings, Token2wav, load
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule, replay
from duologue.token2wav.weights import load_preset, save
from tests.token2wav.flows import make_tokens as speech
from tests.token2wav.flows import make_voice as voice

SCHEDULE = Schedule((4, 6))


@pytest.fixture(scope="module")
def model() -> Token2wav:
    return engine_of(load_preset("tiny", 3), EngineSettings(sessions=4, window=20))


def stream(model: Token2wav, tokens: np.ndarray, who: VoicePrompt, seed: int, step: int = 3):
    with model.utterance(who, seed, SCHEDULE) as utterance:
        parts = [utterance.push(tokens[i : i + step]) for i in range(0, len(tokens), step)]
        parts.append(utterance.finish())
    return np.concatenate(parts), utterance.log


def test_streams_are_as_long_as_their_tokens_and_replay_to_the_same_samples(model):
    tokens, who = speech(1, 17), voice(1)
    samples, log = stream(model, tokens, who, 9)
    assert len(samples) == 17 * TINY.samples_per_token
    assert np.abs(samples).max() > 0.01
    again = replay(log, model.flow, model.vocoder, who)
    np.testing.assert_allclose(again, samples, atol=1e-5)


def test_offline_gives_each_utterance_what_it_gets_alone(model):
    utterances = [(speech(n, 5 + 4 * n), voice(n % 2), n) for n in range(3)]
    together = model.offline(utterances)
    for utterance, samples in zip(utterances, together, strict=True):
        [alone] = model.offline([utterance])
        assert len(alone) == len(utterance[0]) * TINY.samples_per_token
        np.testing.assert_allclose(samples, alone, atol=1e-4)


def test_many_at_once_sound_as_each_alone(model):
    parts = [(speech(n, 11 + n), voice(n % 2), n) for n in range(4)]
    ears = [Queue() for _ in parts]
    with model.batcher() as batcher:
        begun = [
            batcher.open(who, seed, ear.put, SCHEDULE)
            for (_, who, seed), ear in zip(parts, ears, strict=True)
        ]
        for start in range(0, 16, 2):
            for (tokens, _, _), utterance in zip(parts, begun, strict=True):
                utterance.push(tokens[start : start + 2])
        for utterance in begun:
            utterance.finish()
        for (tokens, who, seed), ear in zip(parts, ears, strict=True):
            said = [ear.get(timeout=30)]
            while not said[-1].final:
                said.append(ear.get(timeout=30))
            together = np.concatenate([part.samples for part in said])
            np.testing.assert_allclose(together, stream(model, tokens, who, seed)[0], atol=1e-4)


def test_an_utterance_that_lost_a_chunk_is_over(model, monkeypatch):
    def fails(self, work):
        raise EngineError("out of memory")

    with model.utterance(voice(1), 1, SCHEDULE) as utterance:
        utterance.push(speech(1, 8))
        with monkeypatch.context() as patch:
            patch.setattr(type(model.vocoder), "step", fails)
            with pytest.raises(EngineError):
                utterance.push(speech(2, 12))
        with pytest.raises(UsageError, match="over"):
            utterance.finish()
    assert not utterance.log.finished


def test_a_checkpoint_is_loaded_by_the_engines_name(tmp_path, model):
    save(load_preset("tiny", 3), tmp_path)
    loaded = load(tmp_path, "torch", EngineSettings(sessions=4, window=20))
    [samples] = loaded.offline([(speech(1, 4), voice(1), 1)])
    [expected] = model.offline([(speech(1, 4), voice(1), 1)])
    np.testing.assert_allclose(samples, expected, atol=1e-5)
    with pytest.raises(ConfigError, match="did you mean 'torch'"):
        load(tmp_path, "troch")


@pytest.mark.parametrize("name", ["sessions", "batch", "window", "voices", "max_prompt", "threads"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
def test_settings_that_are_no_number(name, value):
    with pytest.raises(ConfigError, match=f"{name}: found {value!r}, expected a whole number"):
        EngineSettings(**{name: value})


def test_an_unknown_mode():
    with pytest.raises(ConfigError, match="mode: found 'erly', expected exact or early"):
        EngineSettings(mode="erly")  # pyright: ignore


def test_the_longest_prompt_is_a_setting():
    model = engine_of(load_preset("tiny", 3), EngineSettings(max_prompt=14))
    with pytest.raises(InputError, match="found 16 frames, expected at most 14"):
        model.utterance(voice(1), 1)


def test_an_engine_that_is_not_installed_names_the_extra():
    script = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from duologue.errors import EngineError
from duologue.token2wav.pipeline import ENGINES, load
for engine in set(ENGINES) - {"onnx", "embedded"}:
    try:
        load(Path("."), engine)
    except EngineError as error:
        assert str(error) == f"the engine {engine!r} needs torch; run: pip install -e '.[torch]'"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
