"""A folder with a whole model in ONNX, which a machine without torch can run.

`<graph>.onnx` for each graph, `outside.safetensors` with the weights that lie in none of them, and
`config.json`, written last: a folder that has it is whole.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from duologue.engines.onnx import OnnxGraph
from duologue.errors import ModelError
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.ports import SIGNATURES
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.source import SourceWeights

CONFIG, TENSORS = "config.json", "outside.safetensors"
OPTIONAL = "campplus"


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model on ONNX Runtime.

    Attributes:
        config: Its sizes.
        flow: Graphs and weights of the flow.
        f0: Mel to the fundamental frequency.
        hift: Mel and source to samples.
        source: Weights of the source signal.
        campplus: Filter banks to a speaker embedding; None if the model came without.
    """

    config: Token2wavConfig
    flow: FlowGraphs
    f0: OnnxGraph
    hift: OnnxGraph
    source: SourceWeights
    campplus: OnnxGraph | None


def load_onnx(folder: Path, *, threads: int = 1) -> OnnxModel:
    """Load a folder that `duologue engine export` wrote.

    Raises:
        ModelError: there is no such folder, or it is not whole.
        EngineError: ONNX Runtime cannot run a graph.
    """
    try:
        config = Token2wavConfig.model_validate_json((folder / CONFIG).read_bytes())
        outside = load_file(folder / TENSORS)
        source = SourceWeights(outside["source_weight"], float(outside["source_bias"][0]))
        speaker = outside["speaker_weight"], outside["speaker_bias"]
    except (OSError, ValidationError, SafetensorError, KeyError) as error:
        raise ModelError(
            f"{folder} is no model in ONNX ({error}); expected {CONFIG}, {TENSORS} and a file for "
            "each graph, as `duologue engine export` writes them"
        ) from error
    graphs = {
        name: OnnxGraph(folder / f"{name}.onnx", threads=threads)
        for name in SIGNATURES
        if name != OPTIONAL or (folder / f"{name}.onnx").is_file()
    }
    flow = FlowGraphs(
        graphs["encoder_stream"],
        graphs["estimator_stream"],
        graphs["encoder_offline"],
        graphs["estimator_offline"],
        *speaker,
    )
    return OnnxModel(config, flow, graphs["f0"], graphs["hift"], source, graphs.get(OPTIONAL))


def open_engine(folder: Path, settings: EngineSettings) -> Token2wav:
    """Load a folder that `duologue engine export` wrote.

    Raises:
        ModelError, EngineError: as `load_onnx`.
    """
    model = load_onnx(folder, threads=settings.threads)
    return Token2wav.over_graphs(
        model.config, model.flow, model.f0, model.hift, model.source, settings
    )


def outside_tensors(
    speaker_weight: np.ndarray, speaker_bias: np.ndarray, source: SourceWeights
) -> dict[str, np.ndarray]:
    """The weights that lie in no graph, as `outside.safetensors` names them."""
    return {
        "speaker_weight": speaker_weight,
        "speaker_bias": speaker_bias,
        "source_weight": source.harmonics,
        "source_bias": np.array([source.bias], np.float32),
    }
