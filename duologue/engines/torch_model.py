"""A whole model on PyTorch: the reference that the other engines are measured against."""

from pathlib import Path

import torch

from duologue.engines.torch import TorchGraph
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.flow import (
    EncoderOffline,
    EncoderStream,
    EstimatorOffline,
    EstimatorStream,
    Flow,
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
    source = model.hift.source_weights()
    flow = flow_graphs(model.flow, model.config, device=device, dtype=dtype)
    f0, hift = (
        TorchGraph(module(model.hift), *SIGNATURES[name](model.config), device=device)
        for name, module in (("f0", F0Graph), ("hift", HiftGraph))
    )
    return Token2wav.over_graphs(model.config, flow, f0, hift, source, settings)


def flow_graphs(
    flow: Flow, config: Token2wavConfig, *, device: str = "cpu", dtype: str = "float32"
) -> FlowGraphs:
    """The graphs of a flow in memory; its weights are converted in place."""
    flow.to(getattr(torch, dtype))
    affine = flow.spk_embed_affine_layer
    modules = {
        "encoder_stream": EncoderStream,
        "estimator_stream": EstimatorStream,
        "encoder_offline": EncoderOffline,
        "estimator_offline": EstimatorOffline,
    }
    graphs = {
        name: TorchGraph(module(flow), *SIGNATURES[name](config, dtype), device=device)
        for name, module in modules.items()
    }
    return FlowGraphs(
        **graphs,
        speaker_weight=affine.weight.detach().cpu().float().numpy(),
        speaker_bias=affine.bias.detach().cpu().float().numpy(),
    )
