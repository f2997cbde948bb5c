"""Weights out of an ONNX file, under the names of the torch modules that it was exported from.

The public files are those of torch's TorchScript exporter. It renames what it folds or transposes
("onnx::Conv_4423"), so an initializer's name says little; but the name of the node that reads it
is its module's path: "/head/layer1/layer1.0/conv1/Conv" reads "head.layer1.0.conv1.weight".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import from_numpy, nn

from duologue.errors import EngineError, ModelError

_PARAMETERS = {
    "Conv": ("", "weight", "bias"),
    "BatchNormalization": ("", "weight", "bias", "running_mean", "running_var"),
    "LayerNormalization": ("", "weight", "bias"),
    "MatMul": ("", "weight"),
    "Add": ("bias", "bias"),
}
"""What each input of a node is to its module, in order."""


def read_onnx_weights(path: Path) -> dict[str, np.ndarray]:
    """Parameters and buffers by their names in torch; a linear layer's as [out, in].

    Raises:
        ModelError: the file is missing or not ONNX.
        EngineError: the `onnx` package is missing.
    """
    try:
        import onnx
        from onnx.numpy_helper import to_array
    except ImportError as error:
        raise EngineError(f"reading {path} needs onnx; run: pip install -e '.[torch]'") from error
    try:
        graph = onnx.load(path).graph
    except Exception as error:  # a protobuf DecodeError has no root but Exception
        raise ModelError(f"{path}: cannot be read as ONNX ({error})") from error
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    weights = {}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in tensors:
            # The exporter keeps one of several equal tensors.
            tensors[node.output[0]] = tensors[node.input[0]]
    for node in graph.node:
        for name, parameter in zip(node.input, _PARAMETERS.get(node.op_type, ()), strict=False):
            if parameter and name in tensors:
                array = to_array(tensors[name])
                key = f"{_module(node)}.{parameter}"
                weights[key] = array.T if node.op_type == "MatMul" else array
    return weights


def _module(node: Any) -> str:
    """The module's path of a node; a child that repeats its parent ("mlp/mlp.0") stands alone."""
    path: list[str] = []
    for scope in node.name.strip("/").split("/")[:-1]:
        if path and scope.startswith(f"{path[-1]}."):
            path.pop()
        path.append(scope)
    return ".".join(path)


def load_strictly(module: nn.Module, weights: Mapping[str, np.ndarray], path: Path) -> None:
    """Copy weights into a module of exactly these.

    Raises:
        ModelError: some are missing, unknown, or of another shape.
    """
    expected = {
        name: tensor
        for name, tensor in module.state_dict().items()
        # Only training counts batches.
        if not name.endswith(".num_batches_tracked")
    }
    problems = {
        "missing": [name for name in expected if name not in weights],
        "unknown": [name for name in weights if name not in expected],
        "of another shape": [
            name
            for name, tensor in expected.items()
            if name in weights and weights[name].shape != tensor.shape
        ],
    }
    if any(problems.values()):
        found = "; ".join(
            f"{len(names)} {problem} ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
            for problem, names in problems.items()
            if names
        )
        raise ModelError(
            f"{path}: not the weights of a {type(module).__name__}: {found}. Expected the public "
            "file; any other export runs on ONNX Runtime as it is"
        )
    for name, tensor in expected.items():
        tensor.copy_(from_numpy(np.array(weights[name], np.float32)))
