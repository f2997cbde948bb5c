"""A graph on ONNX Runtime, on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from duologue.engines.graph import Port, check_arrays, is_axis
from duologue.errors import EngineError

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


class OnnxGraph:
    """A graph in an ONNX file.

    Args:
        source: The file, or its bytes.
        threads: CPU threads of one run.
        weights: Arrays for the initializers that the file names, but leaves to others to hold.

    Raises:
        EngineError: no such file, or none that ONNX Runtime can run on the CPU (it has no bfloat16
            kernels for most operators).
    """

    def __init__(
        self,
        source: Path | bytes,
        *,
        threads: int = 1,
        weights: Mapping[str, np.ndarray] | None = None,
    ):
        import onnxruntime

        self._name = f"an ONNX of {len(source)} bytes" if isinstance(source, bytes) else source
        if isinstance(source, Path) and not source.is_file():
            raise EngineError(f"{source}: no such file; `duologue engine build --backend onnx`")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Inputs have another length at nearly every run: a plan of memory for each costs time.
        options.enable_mem_pattern = False
        # Idle threads leave their cores to other sessions at once.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            if weights:
                values = map(onnxruntime.OrtValue.ortvalue_from_numpy, weights.values())
                options.add_external_initializers(list(weights), list(values))
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
            self.inputs = tuple(map(_port, self._session.get_inputs()))
            self.outputs = tuple(map(_port, self._session.get_outputs()))
        # Its exceptions have no base class but Exception.
        except Exception as error:
            raise EngineError(f"{self._name}: ONNX Runtime cannot load it: {error}") from error

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            EngineError: an input is missing, unknown, or has another type or shape than its port;
                or the run failed.
        """
        check_arrays(self.inputs, arrays)
        names = [port.name for port in self.outputs]
        try:
            results = self._session.run(names, dict(arrays))
        except Exception as error:
            raise EngineError(f"{self._name}: the run failed: {error}") from error
        return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def _port(node: Any) -> Port:
    """The port of one input or output; an axis without a usable name gets one of its own."""
    if node.type not in _DTYPES:
        raise EngineError(f"{node.name} is a {node.type}; expected one of {', '.join(_DTYPES)}")
    shape = tuple(
        axis if isinstance(axis, int) or is_axis(axis) else f"{node.name}_{index}"
        for index, axis in enumerate(node.shape)
    )
    return Port(node.name, _DTYPES[node.type], shape)
