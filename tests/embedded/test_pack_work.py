"""From what the training stages leave behind to what is packed."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from duologue.errors import ModelError, UsageError
from duologue.training import pack as packing
from duologue.training.pack import pack_work
from duologue.training.speech import Speech, normal
from duologue.training.voice import write_voice
from tests.embedded.tiny import CARD, DECODER, SOUNDS, SPEAKER, TALKER, decoder, talker

LENGTHS = [60, 20, 40, 45]
"""Tokens of four utterances; the last three are the dev split."""


@pytest.fixture
def speech() -> Speech:
    tokens = sum(LENGTHS)
    return Speech(
        audio=torch.zeros(0, dtype=torch.int16),
        mel=torch.randn(2 * tokens, 80).half(),
        f0=torch.zeros(2 * tokens),
        phones=torch.zeros(2 * tokens, dtype=torch.uint8),
        starts=torch.tensor([0, *np.cumsum(LENGTHS)]) * 2,
        texts=["x"] * 4,
        splits={"train": range(1), "dev": range(1, 4), "test": range(0), "short": range(0)},
        codes=torch.arange(tokens, dtype=torch.int16),
    )


@pytest.fixture
def work(tmp_path, speech):
    save_torch(talker().state_dict(), tmp_path / "talker.safetensors")
    save_torch(decoder().flow.state_dict(), tmp_path / "flow.safetensors")
    hift = {f"hift.{name}": tensor for name, tensor in decoder().hift.state_dict().items()}
    save_torch(hift, tmp_path / "hift.safetensors")
    write_voice(speech, tmp_path, DECODER)
    (tmp_path / "sounds.json").write_text(json.dumps(SOUNDS))
    return tmp_path


@pytest.fixture
def packed_of(work, monkeypatch, tmp_path):
    """What is packed of the work folder, without the packing."""
    monkeypatch.setattr(
        packing, "pack", lambda *models, **options: (*models, options["card"], options["sounds"])
    )
    return lambda: pack_work(work, tmp_path / "out", card=CARD, talker=TALKER, token2wav=DECODER)


def test_the_weights_of_all_stages_are_packed(packed_of, speech):
    speaks, model, speaker, _, card, sounds = packed_of()
    pairs = ((speaks, talker()), (model.flow, decoder().flow), (model.hift, decoder().hift))
    for got, expected in pairs:
        for name, tensor in expected.state_dict().items():
            assert torch.equal(got.state_dict()[name], tensor)
    assert card == CARD and sounds == SOUNDS and model.config == DECODER
    # The first of the dev split that is long enough.
    np.testing.assert_array_equal(speaker.tokens, np.arange(80, 120))
    np.testing.assert_array_equal(speaker.mel, normal(speech.mel[160:240]).numpy())
    assert speaker.embedding.shape == SPEAKER.embedding.shape


@pytest.mark.parametrize("file", ["flow.safetensors", "sounds.json"])
def test_a_stage_that_was_not_run_is_named(packed_of, work, file):
    (work / file).unlink()
    with pytest.raises(ModelError, match=rf"{file} cannot be read.*run its stage"):
        packed_of()


@pytest.mark.parametrize("stage", ["talker", "hift"])
def test_weights_of_another_model_are_refused(packed_of, work, stage):
    save_torch({"more": torch.zeros(1)}, work / f"{stage}.safetensors")
    # One line, however much is missing.
    with pytest.raises(ModelError, match=rf"{stage}\.safetensors is of another model: .*Missing"):
        packed_of()


def test_a_file_that_is_no_voice_is_refused(packed_of, work):
    save_file({"tokens": np.zeros(3, np.int32)}, work / "voice.safetensors")
    with pytest.raises(ModelError, match="found tokens, expected tokens, mel, embedding"):
        packed_of()


def test_a_voice_needs_a_clip_of_its_length(speech, tmp_path):
    assert write_voice(speech, tmp_path, DECODER, row=3) == 3
    speech.splits["dev"] = range(1, 2)
    with pytest.raises(UsageError, match="no utterance of the dev split has 38 to 50 tokens"):
        write_voice(speech, tmp_path, DECODER)
