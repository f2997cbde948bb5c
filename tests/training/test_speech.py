"""The data set, and the teacher that makes it."""

import json
import lzma

import numpy as np
import onnxruntime
import pytest
import soxr
import torch

from duologue.audio.mel import flow_mel
from duologue.errors import ModelError
from duologue.models import ensure
from duologue.training.latents import LATENT
from duologue.training.pitch import cents, pitch
from duologue.training.speech import HOP, RATE_HZ, LogMel, load_speech, save_speech, windows
from duologue.training.teacher import (
    Back,
    Text,
    phones_of_frames,
    read_texts,
    resample,
    synthesize,
)
from duologue.tts.piper import DURATIONS, PhonemeIds, with_output
from tests.training.made import CPU, made_speech


def voice_folder():
    return ensure("piper-en_US-joe-medium")


def test_log_mel_is_the_products():
    samples = np.random.default_rng(0).normal(0, 0.1, 9600).astype(np.float32)
    mel = LogMel()(torch.from_numpy(samples)[None])[0].numpy()
    np.testing.assert_allclose(mel, flow_mel(samples), atol=2e-4)


def test_a_data_set_comes_back_as_it_was(tmp_path):
    speech = made_speech()
    save_speech(speech, tmp_path)
    again = load_speech(tmp_path, CPU)
    for name in ("audio", "mel", "f0", "phones", "starts"):
        assert torch.equal(getattr(again, name), getattr(speech, name)), name
    assert (again.texts, again.splits) == (speech.texts, speech.splits)
    assert load_speech(tmp_path, CPU, audio=False).audio.numel() == 0
    with pytest.raises(ModelError, match="duologue train speech.*duologue train tokenizer"):
        load_speech(tmp_path, CPU, codes=True)


def test_windows_stay_within_their_stretch():
    at = windows(10, 40, 8, 500, 2, CPU)
    assert at.min() == 10 and at.max() == 39
    assert (at[:, 0] % 2 == 0).all() and (at.diff(dim=1) == 1).all()


def test_pitch_follows_a_glide_and_knows_silence():
    rate, hop = 24_000, 480
    seconds = torch.arange(2 * rate) / rate
    hz = 90 + 60 * seconds
    wave = sum(torch.sin(2 * torch.pi * k * (hz / rate).cumsum(0)) / k for k in range(1, 10))
    wave = torch.cat([0.2 * wave, torch.zeros(rate // 2)])
    found = pitch(wave[None], rate, hop)[0]
    inner = slice(3, 95)
    assert cents(found[inner], hz[hop // 2 :: hop][inner]).max() < 30
    assert (found[103:] == 0).all()


def test_phonemes_share_the_pauses_between_them():
    # ^ _ a _ b _ $ in frames of 20 ms: edges are in samples at 22.05 kHz.
    ids, frames = [1, 0, 40, 0, 50, 0, 2], np.array([1, 0, 4, 2, 4, 0, 1])
    edges = np.cumsum(frames) * 441
    assert phones_of_frames(ids, edges, 14).tolist() == [0] + 5 * [40] + 5 * [50] + 3 * [0]


def test_resampling_is_right():
    noise = np.random.default_rng(1).normal(0, 0.1, 22_050).astype(np.float32)
    low = soxr.resample(soxr.resample(noise, 22_050, 8000), 8000, 22_050)
    ours = resample(torch.from_numpy(low)[None])[0].numpy()
    theirs = soxr.resample(low, 22_050, 24_000)
    middle = slice(500, min(len(ours), len(theirs)) - 500)
    assert np.abs(ours[middle] - theirs[middle]).max() < 2e-3


@pytest.fixture(scope="module")
def phoneme_ids():
    config = next(voice_folder().glob("*.onnx.json")).read_text(encoding="utf-8")
    ids = PhonemeIds(json.loads(config))
    yield ids
    ids.close()


def test_the_halves_of_the_teacher_are_the_whole(phoneme_ids):
    [model] = voice_folder().glob("*.onnx")
    whole = with_output(with_output(model.read_bytes(), LATENT), DURATIONS)
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    ids, _ = phoneme_ids("Good morning.")
    feed = {
        "input": np.array([ids], np.int64),
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": np.array([0.5, 1.0, 0.5], np.float32),
    }
    sound, latent = session.run(["output", LATENT], feed)
    ours = Back(model)(torch.from_numpy(latent)).numpy()
    np.testing.assert_allclose(ours.ravel(), sound.ravel(), atol=2e-4)


def test_the_teacher_speaks_each_split(phoneme_ids, whisper):
    said = {"train": "Where is the station?", "dev": "Good morning.", "test": "I am tired."}
    said["short"] = "Yes."
    texts = [Text(text, phoneme_ids(text)[0], split) for split, text in said.items()]
    speech = synthesize(texts, voice_folder(), CPU, minutes=1, jobs=1, seed=0)
    for split, text in said.items():
        [row] = speech.splits[split]
        assert speech.texts[row] == text
        low, high = speech.frames(split)
        samples = speech.audio[low * HOP : high * HOP].numpy() / np.float32(32_768)
        heard = whisper.transcribe(soxr.resample(samples, RATE_HZ, 16_000)).text
        # The teacher's noise is its own: "where is" may sound as "where's".
        assert heard.strip(" .?!").lower().split()[-1] == text.strip(".?").lower().split()[-1]
        assert (speech.f0[low:high] > 0).float().mean() > 0.15
        assert len(speech.phones[low:high].unique()) > 3


def test_texts_that_are_missing_or_damaged_are_named(tmp_path):
    with pytest.raises(ModelError, match="duologue train texts"):
        read_texts(tmp_path / "texts.jsonl.xz")
    (tmp_path / "texts.jsonl.xz").write_bytes(lzma.compress(b'{"text": "a"}'))
    with pytest.raises(ModelError, match="duologue train texts"):
        read_texts(tmp_path / "texts.jsonl.xz")
