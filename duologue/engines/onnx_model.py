"""A folder with a whole model in ONNX, which a machine without torch can run.

`<graph>.onnx` for each graph, `outside.safetensors` with the weights that lie in none of them, and
`config.json`, written last: a folder that has it is whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from safetensors.numpy import load_file

from duologue.engines.graph import Graph, Port
from duologue.engines.onnx import OnnxGraph
from duologue.errors import ModelError
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.layout import CONFIG, OUTSIDE
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.ports import SIGNATURES, Signature
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.source import SourceWeights

OPTIONAL = "campplus"
REQUIRED = tuple(name for name in SIGNATURES if name != OPTIONAL)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model as graphs.

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
    f0: Graph
    hift: Graph
    source: SourceWeights
    campplus: Graph | None

    def engine(self, settings: EngineSettings) -> Token2wav:
        """The engine over these graphs."""
        return Token2wav.over_graphs(
            self.config, self.flow, self.f0, self.hift, self.source, settings
        )


def load_onnx(folder: Path, *, threads: int = 1) -> OnnxModel:
    """Load a folder that `duologue engine export` wrote.

    Raises:
        ModelError: there is no such folder, or it is not whole, or its parts are not of one model.
        EngineError: ONNX Runtime cannot run a graph.
    """

    def open_graph(name: str) -> OnnxGraph | None:
        path = folder / f"{name}.onnx"
        return OnnxGraph(path, threads=threads) if path.is_file() else None

    return load_model(folder, open_graph)


def load_model(folder: Path, open_graph: Callable[[str], Graph | None]) -> OnnxModel:
    """Put a model together from its folder and graphs of any engine.

    Args:
        folder: What `duologue engine export` wrote.
        open_graph: Gives a graph by its name; None if there is none.

    Raises:
        ModelError: the folder is not whole, or its parts are not of one model.
    """
    try:
        config = Token2wavConfig.model_validate_json((folder / CONFIG).read_bytes())
    except (OSError, ValidationError) as error:
        raise _no_model(folder, str(error)) from error
    outside = _read_outside(folder, config)
    graphs = {name: _checked(folder, name, config, open_graph(name)) for name in REQUIRED}
    campplus = open_graph(OPTIONAL)
    if campplus is not None:
        _checked(folder, OPTIONAL, config, campplus)
    flow = FlowGraphs(
        graphs["encoder_stream"],
        graphs["estimator_stream"],
        graphs["encoder_offline"],
        graphs["estimator_offline"],
        outside["speaker_weight"],
        outside["speaker_bias"],
    )
    source = SourceWeights(outside["source_weight"], float(outside["source_bias"][0]))
    return OnnxModel(config, flow, graphs["f0"], graphs["hift"], source, campplus)


def _read_outside(folder: Path, config: Token2wavConfig) -> dict[str, np.ndarray]:
    try:
        outside = load_file(folder / OUTSIDE)
    # Beside SafetensorError it lets out what numpy says of types that it has not.
    except Exception as error:
        raise _no_model(folder, f"{OUTSIDE}: {error}") from error
    bins, harmonics = config.flow.output_size, config.hift.nb_harmonics + 1
    expected = {
        "speaker_weight": (bins, config.flow.spk_embed_dim),
        "speaker_bias": (bins,),
        "source_weight": (harmonics,),
        "source_bias": (1,),
    }
    for name, shape in expected.items():
        array = outside.get(name, np.zeros(0, np.float32))
        if array.dtype != np.float32 or array.shape != shape or not np.isfinite(array).all():
            raise _no_model(
                folder,
                f"{OUTSIDE}: {name} is {array.dtype} {list(array.shape)}, "
                f"not finite float32 {list(shape)}",
            )
    return outside


def _checked(folder: Path, name: str, config: Token2wavConfig, graph: Graph | None) -> Graph:
    if graph is None:
        raise _no_model(folder, f"no file of {name}")
    found = _fixed(Signature(graph.inputs, graph.outputs))
    if found not in [_fixed(SIGNATURES[name](config, dtype)) for dtype in ("float32", "float16")]:
        raise _no_model(folder, f"the inputs and outputs of its {name} are those of another graph")
    return graph


def _fixed(signature: Signature) -> list[list[tuple]]:
    """What is the same in a signature and in a file, which names its axes in its own way."""

    def facts(port: Port) -> tuple:
        return port.name, port.dtype, [isinstance(axis, int) and axis for axis in port.shape]

    return [list(map(facts, ports)) for ports in signature]


def _no_model(folder: Path, reason: str) -> ModelError:
    return ModelError(
        f"{folder} is no model in ONNX ({reason}); expected {CONFIG}, {OUTSIDE} and a file for "
        "each graph, all of one model, as `duologue engine export` writes them"
    )


def open_engine(folder: Path, settings: EngineSettings) -> Token2wav:
    """Load a folder that `duologue engine export` wrote.

    Raises:
        ModelError, EngineError: as `load_onnx`.
    """
    return load_onnx(folder, threads=settings.threads).engine(settings)


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
