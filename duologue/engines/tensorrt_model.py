"""A whole model on TensorRT: plans beside the folder that the ONNX export wrote."""

from pathlib import Path

from duologue.engines.graph import Graph
from duologue.engines.onnx_model import OPTIONAL, load_model
from duologue.engines.plans import find_plans, read_info
from duologue.engines.tensorrt_run import TensorRTGraph
from duologue.errors import ConfigError, ModelError
from duologue.token2wav.pipeline import EngineSettings, Token2wav


def open_engine(folder: Path, settings: EngineSettings) -> Token2wav:
    """Load a folder of `duologue engine export`, with the plans that were built into it.

    Raises:
        ModelError: the folder is not whole, or a graph has no plan in it.
        ConfigError: a graph has several plans.
        EngineError: a plan cannot run here.
    """
    plans: dict[str, list[Path]] = {}
    for path in find_plans(folder):
        info = read_info(path)
        if info.backend != "onnx":
            plans.setdefault(info.graph, []).append(path)

    def open_graph(name: str) -> Graph | None:
        if name not in plans:
            if name == OPTIONAL:
                return None
            graph = name.replace("_", "-")
            raise ModelError(
                f"{folder} has no plan of {graph}; run: duologue engine build --graph {graph} "
                f"--backend tensorrt_rtx --precision fp16 --model CHECKPOINT --dir {folder}"
            )
        if len(plans[name]) > 1:
            names = ", ".join(path.name for path in plans[name])
            raise ConfigError(f"{folder}: found several plans of {name} ({names}); keep one")
        return TensorRTGraph(plans[name][0])

    return load_model(folder, open_graph).engine(settings)
