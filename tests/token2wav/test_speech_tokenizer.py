"""The speech tokenizer against S3Tokenizer's module and the form of its ONNX, random weights."""

import importlib
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from duologue.engines.onnx import OnnxGraph
from duologue.errors import ModelError
from duologue.token2wav.front_end import tokenize
from duologue.token2wav.speech_tokenizer import SpeechTokenizer
from tests.voice_models import TINY, write_tokenizer

PACKAGE = Path(__file__).parents[2] / ".references/s3tokenizer/s3tokenizer"


@pytest.fixture(scope="module")
def reference():
    """Its package imports an audio library that it does not need here."""
    with pytest.MonkeyPatch.context() as patch:
        package = types.ModuleType("s3tokenizer")
        package.__path__ = [str(PACKAGE)]
        patch.setitem(sys.modules, "s3tokenizer", package)
        patch.setitem(sys.modules, "torchaudio", types.ModuleType("torchaudio"))
        module = importlib.import_module("s3tokenizer.model_v2")
    torch.manual_seed(2)
    config = module.ModelConfig(
        n_audio_state=TINY.width, n_audio_head=TINY.heads, n_audio_layer=TINY.blocks
    )
    model = module.S3TokenizerV2("speech_tokenizer_v2_25hz", config).eval()
    # Spread over all three levels, where the plain start gives the middle one.
    model.quantizer._codebook.project_down.weight.data.mul_(3)
    return model


@pytest.fixture(scope="module")
def ours(reference):
    model = SpeechTokenizer(TINY)
    model.load_state_dict(reference.state_dict())
    return model.eval()


def _mel(frames: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, 128, frames, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("frames", [99, 100, 103, 401])
def test_tokens_equal_the_reference(reference, ours, frames):
    mel, length = _mel(frames), torch.tensor([frames], dtype=torch.int32)
    expected, expected_length = reference.quantize(mel, length)
    with torch.no_grad():
        tokens = ours(mel, length)
    assert tokens.shape == (1, int(expected_length)) == (1, -(-frames // 4))
    assert tokens.dtype == torch.int32
    assert len(tokens.unique()) > frames // 8
    assert torch.equal(tokens, expected)


def test_padding_changes_no_row(reference, ours):
    mel, length = _mel(160, rows=2), torch.tensor([160, 71], dtype=torch.int32)
    expected, _ = reference.quantize(mel, length)
    with torch.no_grad():
        batch = ours(mel, length)
        alone = ours(mel[1:, :, :71], length[1:])
    assert torch.equal(batch[1, :18], alone[0])
    assert torch.equal(batch[0], expected[0])
    assert torch.equal(batch[1, :18], expected[1, :18])


@pytest.fixture(scope="module")
def public_form(ours, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "speech_tokenizer_v2_25hz.onnx"
    write_tokenizer(ours, path)
    return path


def test_weights_come_from_the_public_form_of_onnx(public_form, ours):
    loaded = SpeechTokenizer.from_onnx(public_form, TINY)
    for name, value in ours.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_another_size_is_refused(public_form):
    with pytest.raises(ModelError, match=r"16 unknown .*; 1 of another shape \(encoder.conv1.w"):
        SpeechTokenizer.from_onnx(public_form, replace(TINY, mel_bins=80, blocks=1))


# Past 30 s windows overlap; 5700 frames are two windows and 500 frames of a third.
@pytest.mark.parametrize("frames", [1, 402, 3000, 3001, 5700])
def test_onnx_runtime_gives_the_same_tokens(public_form, reference, frames):
    mel = _mel(frames)
    expected, _ = reference.quantize(mel, torch.tensor([frames], dtype=torch.int32))
    tokens = tokenize(OnnxGraph(public_form), mel[0].numpy())
    assert tokens.dtype == np.int32
    np.testing.assert_array_equal(tokens, expected[0])


@pytest.mark.parametrize("frames", [5300, 5600, 5601])
def test_no_token_is_lost_where_a_window_ends_near_the_end(public_form, frames):
    mel = np.zeros((128, frames), np.float32)
    assert len(tokenize(OnnxGraph(public_form), mel)) == -(-frames // 4)
