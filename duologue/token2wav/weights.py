"""Checkpoints of token2wav: the public layout, our own (see `layout`), and random weights."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from duologue.errors import ConfigError, ModelError
from duologue.token2wav.config import PRESETS, HiftConfig, Token2wavConfig, load_flow_yaml
from duologue.token2wav.flow import Flow
from duologue.token2wav.hift import HiFT
from duologue.token2wav.layout import (
    CONFIG,
    FLOW,
    FLOW_YAML,
    HIFT,
    TENSORS,
    check_checkpoint,
    find_front_end,
    front_end_metadata,
)
from duologue.token2wav.step import FrontEndId

HIFT_PREFIX = "generator."
MAGNITUDE = (".parametrizations.weight.original0", ".weight_g")
DIRECTION = (".parametrizations.weight.original1", ".weight_v")
SHOWN = 5
"""Names that an error lists before it only counts."""


class Model(NamedTuple):
    """A model in memory, in float32 on the CPU, not to be trained."""

    config: Token2wavConfig
    flow: Flow
    hift: HiFT


def load(folder: Path, hift: HiftConfig | None = None) -> Model:
    """Load a checkpoint of either layout.

    Args:
        folder: Where its files lie.
        hift: Sizes of the vocoder in the public layout, which does not say them; default: public.

    Raises:
        ModelError: a file is missing or not what it should be, or tensors are missing, unknown or
            misshapen, not floating point or not finite.
        ConfigError: flow.yaml or config.json is not valid.
    """
    check_checkpoint(folder)
    if (folder / CONFIG).is_file():
        config = _read_config(folder / CONFIG)
        tensors = _read_tensors(folder / TENSORS)
    else:
        config = Token2wavConfig(flow=load_flow_yaml(folder / FLOW_YAML), hift=hift or HiftConfig())
        vocoder = {
            name.removeprefix(HIFT_PREFIX): value
            for name, value in _read_tensors(folder / HIFT).items()
        }
        tensors = {f"flow.{name}": t for name, t in _read_tensors(folder / FLOW).items()}
        tensors |= {f"hift.{name}": t for name, t in fold_weight_norm(vocoder).items()}
    model = _blank(config)
    _fill(_whole(model), tensors, folder)
    return model


def convert(source: Path, target: Path, hift: HiftConfig | None = None) -> None:
    """Write a checkpoint of either layout in ours; arguments and errors are those of `load`."""
    save(load(source, hift), target, find_front_end(source))


def save(model: Model, folder: Path, front_end: FrontEndId | None = None) -> None:
    """Write a model in our layout, the configuration last: a folder that has it is whole.

    Args:
        model: It may have been loaded from this very folder.
        folder: Made if it is not there.
        front_end: The models whose voices it takes.

    Raises:
        ModelError: the folder cannot be written.
    """
    tensors = {name: t.contiguous() for name, t in _whole(model).state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as aside:
            save_file(tensors, Path(aside, TENSORS), front_end_metadata(front_end))
            (folder / CONFIG).unlink(missing_ok=True)
            Path(aside, TENSORS).replace(folder / TENSORS)
        (folder / CONFIG).write_text(model.config.model_dump_json(indent=1), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be written: {error}; choose another folder") from error


def load_preset(name: str, seed: int) -> Model:
    """A model of a known size with random weights.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; expected one of {', '.join(PRESETS)}")
    return random_weights(PRESETS[name], seed)


def random_weights(config: Token2wavConfig, seed: int) -> Model:
    """A model that speaks noise, but in which every weight matters.

    The usual initialisation will not do: a DiT begins with adaLN and its last layer at zero, so
    its velocity is zero, and HiFT's f0 is under the voiced threshold everywhere.
    """
    model = _blank(config)
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: _drawn(name, tensor, generator)
        for name, tensor in sorted(_whole(model).state_dict().items())
    }
    _whole(model).load_state_dict(values, assign=True)
    return model


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain weights for those stored as magnitude and direction, in either spelling of torch.

    Raises:
        ModelError: one of the two is missing, or they do not fit each other.
    """
    plain, pairs = {}, {}
    for name, tensor in tensors.items():
        for part, suffixes in enumerate((MAGNITUDE, DIRECTION)):
            for suffix in suffixes:
                if name.endswith(suffix):
                    pairs.setdefault(name.removesuffix(suffix), {})[part] = tensor.float()
        if not name.endswith(MAGNITUDE + DIRECTION):
            plain[name] = tensor
    if broken := sorted(name for name, pair in pairs.items() if len(pair) < 2):
        raise ModelError(f"weight norm without its magnitude or direction: {_listed(broken)}")
    for name, pair in pairs.items():
        magnitude, direction = pair[0], pair[1]
        one_each = (*direction.shape[:1], *(1 for _ in direction.shape[1:]))
        if direction.dim() < 2 or magnitude.shape != one_each:
            raise ModelError(
                f"weight norm of {name}: found magnitude {list(magnitude.shape)} and direction "
                f"{list(direction.shape)}, expected [n, 1, ..] and [n, m, ..]; "
                "fetch the checkpoint again"
            )
        norm = direction.flatten(1).norm(dim=1).view_as(magnitude)
        plain[f"{name}.weight"] = direction * (magnitude / norm)
    return plain


def _blank(config: Token2wavConfig) -> Model:
    """The modules of a model, whose tensors are of no use yet."""
    model = Model(config, Flow(config.flow), HiFT(config.hift))
    _whole(model).requires_grad_(False).eval()
    return model


def _whole(model: Model) -> nn.ModuleDict:
    return nn.ModuleDict({"flow": model.flow, "hift": model.hift})


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Give a module its tensors, all of them and no other."""
    expected = module.state_dict()
    floats = {name: tensor.float() for name, tensor in tensors.items()}
    problems = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unknown": sorted(tensors.keys() - expected.keys()),
        "misshapen": [
            f"{name} {list(tensors[name].shape)} (expected {list(expected[name].shape)})"
            for name in sorted(expected.keys() & tensors.keys())
            if tensors[name].shape != expected[name].shape
        ],
        "not finite": sorted(name for name, t in floats.items() if not t.isfinite().all()),
    }
    if any(problems.values()):
        found = "; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names)
        raise ModelError(
            f"{source}: its tensors are not those of a model of its configuration. {found}. "
            "Fetch the checkpoint again, or take the configuration that belongs to it"
        )
    module.load_state_dict(floats, assign=True)
    module.requires_grad_(False)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _read_config(path: Path) -> Token2wavConfig:
    try:
        return Token2wavConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigError(f"{path} is not a token2wav configuration: {error}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pt file; what is not plain is refused, no code is run."""
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    # Damaged pickles raise nearly anything.
    except Exception as error:
        raise ModelError(
            f"{path} cannot be read as a file of plain tensors ({error!r}); fetch it again"
        ) from error
    if not isinstance(state, dict) or not all(map(_is_named_tensor, state.items())):
        raise ModelError(
            f"{path} holds a {type(state).__name__}; expected names with tensors in memory"
        )
    if wrong := [f"{name} {t.dtype}" for name, t in state.items() if not t.is_floating_point()]:
        raise ModelError(f"{path}: expected floating point, found {_listed(wrong)}")
    return state


def _is_named_tensor(item: tuple[object, object]) -> bool:
    name, tensor = item
    return (
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
    )


def _drawn(name: str, like: Tensor, generator: torch.Generator) -> Tensor:
    """Random values for a parameter, after its part in the model."""
    normal = torch.randn(like.shape, generator=generator)
    for part, draw in _DRAWS.items():
        if part in name:
            return draw(normal)
    # A vector of weights is that of a LayerNorm.
    return _by_fan_in(normal) + (like.dim() == 1 and name.endswith("weight"))


def _by_fan_in(normal: Tensor) -> Tensor:
    """Scaled so that outputs are about as large as inputs; a bias is small."""
    if normal.dim() == 1:
        return 0.05 * normal
    return normal * (normal.shape[0] / normal.numel()) ** 0.5


_DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "adaLN_modulation.1.weight": lambda normal: 0.02 * normal,
    "adaLN_modulation.1.bias": lambda normal: 0.3 * normal,
    "final_layer.linear": lambda normal: 0.05 * normal,
    "input_embedding": lambda normal: normal,
    # The vocoder's sound is to vary, but hardly to be limited.
    "conv_pre.weight": lambda normal: 4 * _by_fan_in(normal),
    "convs2": lambda normal: 0.5 * _by_fan_in(normal),
    "conv_post.weight": lambda normal: 0.6 * _by_fan_in(normal),
    "conv_post.bias": lambda normal: 0.05 * normal - 1,
    ".alpha": lambda normal: 1 + 0.2 * normal.clamp(-3, 3),
    "f0_predictor.classifier.weight": lambda normal: 100 * normal / normal.numel() ** 0.5,
    "f0_predictor.classifier.bias": lambda normal: torch.full_like(normal, 150.0),
}
