"""The graphs of token2wav as modules: what to trace them with, check them with and build them for.

Names, types and shapes are in `duologue.token2wav.ports`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from duologue.engines.graph import Port
from duologue.engines.plans import Profile, Range
from duologue.token2wav.campplus import CAMPPlus
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.flow import (
    EncoderOffline,
    EncoderStream,
    EstimatorOffline,
    EstimatorStream,
)
from duologue.token2wav.hift import F0Graph, HiftGraph
from duologue.token2wav.layout import SPEAKER, find_front_end
from duologue.token2wav.step import FrontEndId
from duologue.token2wav.weights import Model, load, load_preset

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Weights:
    """All modules, in float32.

    Attributes:
        model: Flow and vocoder.
        campplus: Speaker encoder; None if the checkpoint has none.
        front_end: The models whose voices it takes; None if nobody knows.
    """

    model: Model
    campplus: CAMPPlus | None
    front_end: FrontEndId | None = None


class CampplusGraph(nn.Module):
    """The graph `campplus`, float32 outside whatever the type of the weights."""

    def __init__(self, campplus: CAMPPlus):
        super().__init__()
        self.campplus = campplus

    def forward(self, fbank: torch.Tensor) -> torch.Tensor:
        """[batch, frames, bins] to [batch, embedding]."""
        dtype = next(self.campplus.parameters()).dtype
        return self.campplus(fbank.to(dtype)).float()


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """How one graph is exported.

    Attributes:
        module: Its module; None if the weights do not have it.
        trace: Open sizes to trace with: none is 0 or 1, no two are alike.
        checks: Open sizes to compare file and module at, the least and empty ones among them.
    """

    module: Callable[[Weights], nn.Module | None]
    trace: Sizes
    checks: Sequence[Sizes]


GRAPHS: dict[str, GraphSpec] = {
    "encoder_stream": GraphSpec(
        lambda weights: EncoderStream(weights.model.flow),
        {"batch": 2, "tokens": 5, "cached_tokens": 3, "cached": 7},
        (
            {"batch": 1, "tokens": 1, "cached_tokens": 0, "cached": 0},
            {"batch": 2, "tokens": 12, "cached_tokens": 0, "cached": 0},
            {"batch": 3, "tokens": 6, "cached_tokens": 17, "cached": 34},
        ),
    ),
    "encoder_offline": GraphSpec(
        lambda weights: EncoderOffline(weights.model.flow),
        {"batch": 2, "tokens": 5},
        ({"batch": 1, "tokens": 1}, {"batch": 3, "tokens": 17}),
    ),
    "estimator_stream": GraphSpec(
        lambda weights: EstimatorStream(weights.model.flow),
        {"rows": 4, "frames": 6, "cached": 5},
        (
            {"rows": 2, "frames": 2, "cached": 0},
            {"rows": 4, "frames": 10, "cached": 0},
            {"rows": 2, "frames": 8, "cached": 33},
        ),
    ),
    "estimator_offline": GraphSpec(
        lambda weights: EstimatorOffline(weights.model.flow),
        {"rows": 4, "frames": 6},
        ({"rows": 2, "frames": 2}, {"rows": 6, "frames": 21}),
    ),
    "f0": GraphSpec(
        lambda weights: F0Graph(weights.model.hift),
        {"batch": 2, "frames": 7},
        ({"batch": 1, "frames": 1}, {"batch": 3, "frames": 30}),
    ),
    "hift": GraphSpec(
        lambda weights: HiftGraph(weights.model.hift),
        {"batch": 2, "frames": 7},
        ({"batch": 1, "frames": 1}, {"batch": 3, "frames": 12}),
    ),
    "campplus": GraphSpec(
        lambda weights: weights.campplus and CampplusGraph(weights.campplus),
        {"batch": 2, "frames": 330},
        ({"batch": 1, "frames": 50}, {"batch": 2, "frames": 200}, {"batch": 1, "frames": 401}),
    ),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What TensorRT plans are to serve.

    Attributes:
        batch: Most sessions in one step.
        chunk: Mel frames of the usual chunk, 1 s.
        max_chunk: The longest.
        window: Mel frames of its own past that a session attends to.
        prompt: Mel frames of the usual voice prompt, 5 s.
        max_prompt: The longest, 30 s.
        max_offline: Mel frames of the longest prompt and utterance together, 60 s.
    """

    batch: int = 8
    chunk: int = 50
    max_chunk: int = 100
    window: int = 100
    prompt: int = 250
    max_prompt: int = 1500
    max_offline: int = 3000

    def profiles(self, graph: str) -> tuple[Profile, ...]:
        """The ranges that a graph is built for.

        A streaming graph gets one for chunks, many sessions at once, and one for the prompt of one
        voice, which is long and has nothing before it: one range for both would reserve memory for
        many long prompts at once.
        """
        batch = (1, max(1, self.batch // 2), self.batch)
        rows = _times(batch, 2)
        chunk, past = (2, self.chunk, self.max_chunk), self.prompt + self.window
        cached = (0, past, self.max_prompt + self.window)
        prompt, offline = (
            (2, self.prompt, self.max_prompt),
            (2, self.prompt, self.max_offline),
        )
        vocoder = (1, self.chunk + CONTEXT, self.max_chunk + CONTEXT)
        ranges: dict[str, tuple[Profile, ...]] = {
            "encoder_stream": (
                {
                    "batch": batch,
                    "tokens": _tokens(chunk),
                    "cached_tokens": _tokens(cached),
                    "cached": cached,
                },
                {
                    "batch": ONE,
                    "tokens": _tokens(prompt),
                    "cached_tokens": NOTHING,
                    "cached": NOTHING,
                },
            ),
            "encoder_offline": ({"batch": batch, "tokens": _tokens(offline)},),
            "estimator_stream": (
                {"rows": rows, "frames": chunk, "cached": cached},
                {"rows": _times(ONE, 2), "frames": prompt, "cached": NOTHING},
            ),
            "estimator_offline": ({"rows": rows, "frames": offline},),
            "f0": ({"batch": batch, "frames": vocoder},),
            "hift": ({"batch": batch, "frames": vocoder},),
            "campplus": ({"batch": ONE, "frames": (50, 500, 3000)},),
        }
        return ranges[graph]


CONTEXT = 50
"""Mel frames that the vocoder sees besides those of a chunk, on both sides together, at most."""

ONE: Range = (1, 1, 1)
NOTHING: Range = (0, 0, 0)


def _times(sizes: Range, factor: int) -> Range:
    least, usual, most = sizes
    return least * factor, usual * factor, most * factor


def _tokens(frames: Range) -> Range:
    """Two mel frames are one token."""
    least, usual, most = frames
    return least // 2, usual // 2, most // 2


def load_weights(folder: Path) -> Weights:
    """A checkpoint, and the speaker encoder that lies beside it, if any.

    Raises:
        ModelError, ConfigError: a file is missing or not what it should be.
    """
    campplus = folder / SPEAKER
    model = load(folder)
    speaker = CAMPPlus.from_onnx(campplus) if campplus.is_file() else None
    return Weights(model, speaker, find_front_end(folder))


def random_weights(preset: str, seed: int = 0) -> Weights:
    """Random weights of a known size, to try engines with.

    Raises:
        ConfigError: an unknown preset.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        campplus = CAMPPlus().eval()
        # As torch makes them, these layers let next to nothing through.
        for name, tensor in campplus.state_dict().items():
            if name.endswith("running_mean"):
                tensor.normal_(std=0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.dim() > 1:
                nn.init.kaiming_normal_(tensor)
        return Weights(load_preset(preset, seed), campplus)


def sample_inputs(
    inputs: Sequence[Port], sizes: Sizes, config: Token2wavConfig, seed: int = 0
) -> dict[str, np.ndarray]:
    """Inputs like those of a run: some keys masked, the last frame of some rows padding.

    Args:
        inputs: The ports.
        sizes: Of each axis.
        config: Bounds the tokens.
        seed: Of what is random.
    """
    rng = np.random.default_rng(seed)
    return {
        port.name: _sample(port, port.size(sizes), config, rng).astype(port.array_dtype)
        for port in inputs
    }


def _sample(
    port: Port, shape: tuple[int, ...], config: Token2wavConfig, rng: np.random.Generator
) -> np.ndarray:
    if port.name == "tokens":
        return rng.integers(0, config.flow.vocab_size, shape)
    if port.name == "t":
        return rng.uniform(0.1, 0.9, shape)
    if port.name.startswith("distance"):
        return np.broadcast_to(np.arange(shape[1], 0, -1), shape)
    if port.name in ("mask", "valid"):
        mask = np.ones(shape)
        # Only some rows are padded, and never all of a row.
        mask[1:, max(1, shape[1] - 1) :] = 0
        return mask
    if "mask" in port.name:
        return rng.random(shape) < 0.8
    return rng.standard_normal(shape)
