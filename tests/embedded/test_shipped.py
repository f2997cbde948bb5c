"""The voice that ships: Whisper understands it, alone and at the end of a whole conversation."""

import asyncio
import json
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile
from scipy.signal import find_peaks

from benchmarks.embedded_voice import HELD, plain, read_held
from duologue.audio.pcm import ASR_RATE_HZ, resample
from duologue.embedded.package import CARD, MAX_BYTES, Package
from duologue.embedded.speak import speak
from duologue.talker.config import SOUNDS

ROOT = Path(__file__).parents[2]
EVERY = 25
"""Of the test split's sentences, which are in order of length."""


@pytest.fixture(scope="module")
def shipped() -> Package:
    return Package()


def heard(whisper, samples: np.ndarray, rate_hz: int) -> str:
    quiet = np.zeros(ASR_RATE_HZ // 4, np.float32)
    padded = np.concatenate([quiet, resample(samples, rate_hz, ASR_RATE_HZ), quiet])
    return whisper.transcribe(padded).text


def test_it_is_small_and_says_what_it_is(shipped):
    assert sum(path.stat().st_size for path in shipped.folder.iterdir()) <= MAX_BYTES
    card = (shipped.folder / CARD).read_text()
    assert card == (ROOT / "docs" / "embedded_voice.md").read_text()
    assert set(shipped.manifest.sounds) == set(SOUNDS)


def test_it_is_understood(shipped, whisper):
    said, understood = [], []
    for place, sentence in enumerate(read_held(HELD, "test", None)[::EVERY]):
        spoken = asyncio.run(speak(shipped, sentence.text, seed=place))
        assert not spoken.cut and np.abs(spoken.samples).max() < 1
        said.append(plain(sentence.text))
        understood.append(plain(heard(whisper, spoken.samples, spoken.rate_hz)))
    assert jiwer.wer(said, understood) < 0.12


def test_it_laughs_in_bursts_and_sighs_in_one(shipped):
    for sound, bursts in (("laugh", range(3, 6)), ("sigh", range(1, 2))):
        spoken = asyncio.run(speak(shipped, f"<{sound}>"))
        assert 0.5 < len(spoken.samples) / spoken.rate_hz < 1.5
        pieces = spoken.samples[: len(spoken.samples) // 480 * 480].reshape(-1, 480)
        level = np.convolve(np.sqrt((pieces**2).mean(1)), np.ones(3) / 3, "same")
        peaks, _ = find_peaks(level, prominence=0.2 * level.max())
        assert len(peaks) in bursts


def test_a_conversation_is_had_in_it(whisper, say, run, tmp_path, monkeypatch):
    """Recogniser, LM, talker and token2wav, all real, with no phonemiser at all."""

    def no_voice(*_args, **_options):
        raise AssertionError("the decoupled voice was loaded")

    monkeypatch.setattr("bots.models.PiperVoice", no_voice)
    question, output = tmp_path / "q.wav", tmp_path / "a.wav"
    soundfile.write(question, say("What is the capital of France?"), ASR_RATE_HZ)
    code, out, _ = run("talk", question, "-o", output, "-c", "embedded-voice", "--json")
    assert code == 0
    reply = json.loads(out)["reply"]
    samples, rate_hz = soundfile.read(output, dtype="float32")
    assert jiwer.wer(plain(reply), plain(heard(whisper, samples, rate_hz))) < 0.35
