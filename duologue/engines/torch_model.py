"""A whole model on PyTorch: the reference that the other engines are measured against."""

from pathlib import Path

import torch

from duologue.engines.torch import TorchGraph
from duologue.token2wav.flow import (
    EncoderOffline,
    EncoderStream,
    EstimatorOffline,
    EstimatorStream,
)
from duologue.token2wav.hift import F0Graph, HiftGraph
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.ports import SIGNATURES
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.weights import Model, load


def open_engine(folder: Path, settings: EngineSettings) -> Token2wav:
    """Load a checkpoint, on the CPU and in float32.

    Raises:
        ModelError, ConfigError: a file is missing or not what it should be.
    """
    return engine_of(load(folder), settings)


def engine_of(
    model: Model, settings: EngineSettings, *, device: str = "cpu", dtype: str = "float32"
) -> Token2wav:
    """Run a model in memory.

    Args:
        model: It is moved to `device`.
        settings: Capacity and mode.
        device: "cpu", "cuda" or "cuda:1".
        dtype: Of the flow's weights and caches, which are converted in place; HiFT has float32.

    Raises:
        EngineError: there is no such device.
    """
    model.flow.to(getattr(torch, dtype))
    source, affine = model.hift.source_weights(), model.flow.spk_embed_affine_layer
    speaker = (
        affine.weight.detach().cpu().float().numpy(),
        affine.bias.detach().cpu().float().numpy(),
    )
    modules = {
        "encoder_stream": EncoderStream(model.flow),
        "estimator_stream": EstimatorStream(model.flow),
        "encoder_offline": EncoderOffline(model.flow),
        "estimator_offline": EstimatorOffline(model.flow),
        "f0": F0Graph(model.hift),
        "hift": HiftGraph(model.hift),
    }
    # Without caches a signature has no type of its own.
    signatures = {name: SIGNATURES[name](model.config, dtype) for name in modules}
    graphs = {
        name: TorchGraph(module, *signatures[name], device=device)
        for name, module in modules.items()
    }
    f0, hift = graphs.pop("f0"), graphs.pop("hift")
    flow = FlowGraphs(**graphs, speaker_weight=speaker[0], speaker_bias=speaker[1])
    return Token2wav.over_graphs(model.config, flow, f0, hift, source, settings)
