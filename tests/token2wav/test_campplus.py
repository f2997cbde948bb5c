"""CAM++ against chatterbox's (3D-Speaker's) module and its ONNX export, with random weights."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch

from duologue.engines.onnx import OnnxGraph
from duologue.errors import ModelError
from duologue.token2wav.campplus import CAMPPlus
from tests.voice_models import export_legacy

SOURCE = Path(__file__).parents[2] / ".references/chatterbox-tts/chatterbox/models/s3gen/xvector.py"


@pytest.fixture(scope="module")
def reference():
    """Its unused audio library is left out."""
    names = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
    with pytest.MonkeyPatch.context() as patch:
        modules = {name: types.ModuleType(name) for name in names}
        modules[names[0]].compliance = modules[names[1]]
        modules[names[1]].kaldi = modules[names[2]]
        for name in names:
            patch.setitem(sys.modules, name, modules[name])
        spec = importlib.util.spec_from_file_location("reference_xvector", SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    torch.manual_seed(1)
    model = module.CAMPPlus(memory_efficient=False).eval()
    # Fresh norms do nothing, zero biases would hide a missing one, and the weak start of the head
    # lets nothing of the input through.
    for name, value in model.state_dict().items():
        if name.endswith(("running_var", "batchnorm.weight", "bn1.weight", "bn2.weight")):
            value.uniform_(0.5, 1.5)
        elif name.endswith(("running_mean", "bias")):
            value.normal_(0, 0.2)
        elif value.dim() == 4:
            value.mul_(6**0.5)
    return model


def _fbank(frames: int, rows: int = 1) -> torch.Tensor:
    """Noise whose spectrum differs by row and moves with time, so that each segment counts."""
    rng = torch.Generator().manual_seed(frames)
    drift = torch.randn(rows, frames // 10 + 1, 80, generator=rng).cumsum(1)
    noise = torch.randn(rows, frames, 80, generator=rng)
    fbank = noise + drift.repeat_interleave(10, 1)[:, :frames]
    return fbank - fbank.mean(1, keepdim=True)


@pytest.fixture(scope="module")
def exported(reference, tmp_path_factory):
    """The reference as the exporter of the public file writes it: norms folded, names lost."""
    path = tmp_path_factory.mktemp("campplus") / "campplus.onnx"
    export_legacy(
        reference,
        (torch.randn(1, 200, 80),),
        path,
        input_names=["input"],
        output_names=["output"],
        dynamic_axes={"input": {0: "B", 1: "T"}, "output": {0: "B"}},
    )
    return path


def _error(given: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, in standard deviations of an embedding's numbers."""
    return float((given - expected).abs().max() / expected.std())


# 450 frames become 225: two segments and a quarter. 400 become 200: whole segments only.
@pytest.mark.parametrize("frames", [30, 400, 450])
def test_it_agrees_with_the_reference(reference, frames):
    ours = CAMPPlus()
    ours.load_state_dict(reference.state_dict())
    fbank = _fbank(frames, rows=2)
    with torch.no_grad():
        expected = reference(fbank)
        given = ours.eval()(fbank)
    assert given.shape == (2, 192)
    # The input has a say, so that agreement says something.
    assert (expected[0] - expected[1]).std() > 0.2 * expected.std()
    assert _error(given, expected) < 5e-5


def test_weights_come_from_the_public_form_of_onnx(exported, reference):
    fbank = _fbank(333)
    with torch.no_grad():
        assert _error(CAMPPlus.from_onnx(exported)(fbank), reference(fbank)) < 5e-5


def test_onnx_runtime_runs_the_public_form_as_it_is(exported, reference):
    fbank = _fbank(333)
    given = OnnxGraph(exported).run({"input": fbank.numpy()})["output"]
    with torch.no_grad():
        assert _error(torch.from_numpy(given), reference(fbank)) < 5e-5


def test_another_file_is_refused_by_name(exported, tmp_path):
    import onnx

    model = onnx.load(exported)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, tmp_path / "anonymous.onnx")
    with pytest.raises(ModelError, match=r"missing \(head\.conv1\.weight"):
        CAMPPlus.from_onnx(tmp_path / "anonymous.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no protobuf")
    with pytest.raises(ModelError, match="cannot be read as ONNX"):
        CAMPPlus.from_onnx(tmp_path / "broken.onnx")
