"""Checkpoints of both layouts, and what is refused."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from duologue.errors import ConfigError, ModelError
from duologue.token2wav.config import TINY, HiftConfig
from duologue.token2wav.flow import EstimatorOffline
from duologue.token2wav.weights import convert, fold_weight_norm, load, load_preset, save
from tests.token2wav import reference
from tests.token2wav.test_config import FLOW_YAML

FLOW = TINY.flow
SMALL_HIFT = HiftConfig(base_channels=32, f0_channels=16)
PARTS = (FLOW, FLOW.encoder, FLOW.decoder, FLOW.decoder.estimator)


def tiny_yaml() -> str:
    """The public file with the sizes of the tiny model."""
    sizes = iter(PARTS)
    lines, part = [], next(sizes)
    for line in FLOW_YAML.splitlines():
        key = line.strip().split(":")[0]
        if "!new:" in line:
            part = part if key == "flow" else next(sizes)
            lines.append(line)
            continue
        lines.append(f"{line.split(key)[0]}{key}: {str(getattr(part, key)).lower()}")
    return "\n".join(lines)


def old_spelling(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As torch wrote weight norm before its parametrizations."""
    names = {
        ".parametrizations.weight.original0": ".weight_g",
        ".parametrizations.weight.original1": ".weight_v",
    }
    renamed = {}
    for name, tensor in state.items():
        for new, old in names.items():
            name = name.replace(new, old)
        renamed[name] = tensor
    return renamed


@pytest.fixture(scope="module")
def public():
    """The reference's flow and vocoder."""
    return reference.build_flow(FLOW, 3), reference.build_hift(SMALL_HIFT, 4)


@pytest.fixture
def folder(tmp_path, public) -> Path:
    flow, hift = public
    path = tmp_path / "token2wav"
    path.mkdir()
    (path / "flow.yaml").write_text(tiny_yaml(), encoding="utf-8")
    torch.save(flow.state_dict(), path / "flow.pt")
    torch.save({f"generator.{k}": v for k, v in hift.state_dict().items()}, path / "hift.pt")
    return path


def change(path: Path, **tensors: Tensor | None) -> None:
    """Replace tensors of a .pt file; None takes one out. `__` stands for a dot."""
    state = torch.load(path, weights_only=True)
    for name, tensor in tensors.items():
        name = name.replace("__", ".")
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    torch.save(state, path)


@reference.available
@pytest.mark.parametrize("spelling", ["new", "old"])
def test_public_layout(folder, public, spelling):
    if spelling == "old":
        torch.save(
            old_spelling(torch.load(folder / "hift.pt", weights_only=True)), folder / "hift.pt"
        )
    model = load(folder, SMALL_HIFT)
    assert model.config.flow == FLOW
    flow, hift = public
    for name, tensor in model.flow.state_dict().items():
        assert torch.equal(tensor, flow.state_dict()[name])
    folded = reference.fold_weight_norm(hift)
    assert folded.keys() == model.hift.state_dict().keys()
    for name, tensor in model.hift.state_dict().items():
        torch.testing.assert_close(tensor, folded[name], rtol=1e-5, atol=1e-7)
    assert not any(p.requires_grad for p in model.hift.parameters())
    assert not model.flow.training


@reference.available
def test_half_precision_files_load_as_float32(folder):
    state = torch.load(folder / "flow.pt", weights_only=True)
    torch.save({name: tensor.half() for name, tensor in state.items()}, folder / "flow.pt")
    assert {p.dtype for p in load(folder, SMALL_HIFT).flow.parameters()} == {torch.float32}


@reference.available
def test_converted_is_the_same(folder, tmp_path):
    convert(folder, tmp_path / "ours", SMALL_HIFT)
    before, after = load(folder, SMALL_HIFT), load(tmp_path / "ours")
    assert sorted(p.name for p in (tmp_path / "ours").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert after.config == before.config
    for old, new in zip(before[1:], after[1:], strict=True):
        for name, tensor in old.state_dict().items():
            assert torch.equal(tensor, new.state_dict()[name])


@reference.available
def test_missing_unknown_and_misshapen_are_named(folder):
    change(
        folder / "flow.pt",
        encoder_proj__bias=None,
        encoder__extra__weight=torch.zeros(1),
        encoder_proj__weight=torch.zeros(80, 63),
    )
    with pytest.raises(ModelError) as error:
        load(folder, SMALL_HIFT)
    message = str(error.value)
    assert "missing: flow.encoder_proj.bias" in message
    assert "unknown: flow.encoder.extra.weight" in message
    assert "flow.encoder_proj.weight [80, 63] (expected [80, 64])" in message


@reference.available
def test_many_names_are_counted(folder):
    """A checkpoint of another vocoder size."""
    with pytest.raises(ModelError, match=r"misshapen: .* and \d+ more"):
        load(folder, HiftConfig(base_channels=64, f0_channels=16))


@reference.available
def test_half_a_weight_norm(folder):
    change(folder / "hift.pt", generator__conv_pre__parametrizations__weight__original0=None)
    with pytest.raises(ModelError, match="magnitude or direction: conv_pre"):
        load(folder, SMALL_HIFT)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@reference.available
def test_code_in_a_checkpoint_is_refused(folder, tmp_path):
    torch.save({"encoder_proj.bias": Evil(tmp_path / "made")}, folder / "flow.pt")
    with pytest.raises(ModelError, match=r"flow\.pt cannot be read"):
        load(folder, SMALL_HIFT)
    assert not (tmp_path / "made").exists()


@reference.available
@pytest.mark.parametrize(
    "content", [b"", b"no checkpoint", b"hello", b"\x80\x02X\x02\0\0\0\xff\xff."]
)
def test_damaged_files(folder, content):
    (folder / "hift.pt").write_bytes(content)
    with pytest.raises(ModelError, match=r"hift\.pt cannot be read"):
        load(folder, SMALL_HIFT)


@reference.available
def test_other_things_than_tensors(folder):
    for state in ({"state": {"a": torch.zeros(1)}}, {1: torch.zeros(1)}, [torch.zeros(1)]):
        torch.save(state, folder / "hift.pt")
        with pytest.raises(ModelError, match=r"hift\.pt holds a .*; expected names with tensors"):
            load(folder, SMALL_HIFT)


@pytest.mark.parametrize(
    ("magnitude", "direction"),
    [((4, 1), (4, 3, 2)), ((3, 1, 1), (4, 3, 2)), ((4,), (4,)), ((), ())],
)
def test_weight_norm_that_does_not_fit(magnitude, direction):
    pair = {"conv.weight_g": torch.ones(magnitude), "conv.weight_v": torch.ones(direction)}
    with pytest.raises(ModelError, match=r"weight norm of conv: found magnitude \["):
        fold_weight_norm(pair)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensor: tensor * torch.nan, r"not finite: hift\.conv_pre\.bias"),
        (lambda tensor: tensor.double() + 1e300, r"not finite: hift\.conv_pre\.bias"),
        (lambda tensor: tensor.int(), r"expected floating point, found hift\.conv_pre\.bias torch"),
    ],
)
def test_values_that_are_no_weights(tmp_path, change, says):
    save(load_preset("tiny", 1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["hift.conv_pre.bias"] = change(tensors["hift.conv_pre.bias"])
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=says):
        load(tmp_path)


def test_a_model_is_converted_in_place(tmp_path):
    """Its tensors are read from the file that is written."""
    before = load_preset("tiny", 1)
    save(before, tmp_path)
    convert(tmp_path, tmp_path)
    after = load(tmp_path)
    for old, new in zip(before[1:], after[1:], strict=True):
        for name, tensor in old.state_dict().items():
            assert torch.equal(tensor, new.state_dict()[name])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_write_that_fails_leaves_no_half_model(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    model = load_preset("tiny", 1)
    save(model, tmp_path / "old")
    monkeypatch.setattr("duologue.token2wav.weights.save_file", full)
    for name in ("old", "new"):
        with pytest.raises(ModelError, match="No space left on device; choose another folder"):
            save(model, tmp_path / name)
    assert not list((tmp_path / "new").iterdir())
    load(tmp_path / "old")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be written"):
        save(model, tmp_path / "file")


def test_empty_folder(tmp_path):
    with pytest.raises(ModelError, match="expected a token2wav checkpoint"):
        load(tmp_path)


def test_damaged_folder_of_ours(tmp_path):
    save(load_preset("tiny", 1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("hift.conv_pre.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"missing: hift\.conv_pre\.weight"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"?")
    with pytest.raises(ModelError, match="safetensors"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"flows": 1}', encoding="utf-8")
    with pytest.raises(ConfigError, match="flows"):
        load(tmp_path)


def test_presets_go_by_seed():
    one, same, other = (load_preset("tiny", seed).flow.state_dict() for seed in (1, 1, 2))
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name])
        assert not torch.equal(tensor, other[name])
    with pytest.raises(ConfigError, match="expected one of full, tiny"):
        load_preset("huge", 1)


@torch.inference_mode()
def test_random_weights_are_not_degenerate():
    """Velocity depends on all of its inputs, most frames are voiced, and the sound varies."""
    model, generator = load_preset("tiny", 1), torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    estimate = EstimatorOffline(model.flow)
    x, mu, cond = (normal(2, 40, 80) for _ in range(3))
    inputs = {"x": x, "mu": mu, "spk": normal(2, 80), "cond": cond, "t": torch.tensor([0.3])}
    [velocity] = estimate(**inputs, mask=torch.ones(2, 40))
    assert velocity.std() > 0.1
    for name in inputs:
        [moved] = estimate(**inputs | {name: inputs[name] * 0.5}, mask=torch.ones(2, 40))
        assert (moved - velocity).std() > 0.01, name
    mel = normal(2, 60, 80) * 2 - 4
    voiced = model.hift.f0_predictor(mel) > model.config.hift.voiced_threshold_hz
    assert voiced.float().mean() > 0.8
    source = 0.05 * normal(2, 60 * 480)
    wav = model.hift.decode(mel, source)
    assert 0.03 < wav.std() < 0.5
    assert (wav.abs() > 0.98).float().mean() < 0.05
    for changed in ((mel * 0.9, source), (mel, source * 0.5)):
        assert (model.hift.decode(*changed) - wav).std() > 0.02 * wav.std()
