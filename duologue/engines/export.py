"""A torch module as an ONNX file, compared with the module before anyone uses it.

The file is stripped of what names the machine it was made on, and the same weights give the same
bytes, which is what the cache of TensorRT plans goes by.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save

from duologue.engines.graph import Graph, Port
from duologue.engines.graphs import GRAPHS, Weights, sample_inputs
from duologue.engines.onnx import OnnxGraph
from duologue.engines.onnx_model import outside_tensors
from duologue.engines.plans import CPU_PRECISIONS, PRECISIONS, check_known, write_atomically
from duologue.engines.torch import TorchGraph, to_tensor
from duologue.errors import EngineError, UsageError
from duologue.token2wav.layout import CONFIG, OUTSIDE, front_end_metadata
from duologue.token2wav.ports import SIGNATURES, Signature

# The first that has Attention and RMSNormalization; Gelu and Mish came before it.
OPSET = 23

Arrays = Mapping[str, np.ndarray]

TOLERANCE = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 2e-2}
"""The greatest relative rms difference from the float32 module."""


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A graph in ONNX.

    Attributes:
        content: The file.
        signature: What it takes and gives.
        difference: Greatest relative rms difference of an output from the float32 module.
    """

    content: bytes
    signature: Signature
    difference: float


def export_graph(weights: Weights, name: str, precision: str = "fp32") -> ExportedGraph:
    """Write a graph as ONNX and compare it with its module at several sizes.

    The weights take the type of `precision`, save those that the module keeps in float32.

    Raises:
        UsageError: an unknown graph or precision, or the weights do not have the graph.
        EngineError: the module cannot be exported, or the file differs from it.
    """
    check_known("precision", precision, PRECISIONS)
    check_known("graph", name, GRAPHS)
    spec = GRAPHS[name]
    module = spec.module(weights)
    if module is None:
        raise UsageError(f"the checkpoint has no {name}; put {name}.onnx beside it")
    config = weights.model.config
    signature = SIGNATURES[name](config, PRECISIONS[precision])
    cast = copy.deepcopy(module).to(getattr(torch, PRECISIONS[precision]))
    sample = sample_inputs(signature.inputs, spec.trace, config)
    content = export_onnx(cast, signature.inputs, signature.outputs, sample)
    reference = TorchGraph(module, *SIGNATURES[name](config))
    graph = OnnxGraph(_widened(content) if precision == "bf16" else content)
    found = max(
        difference(graph, reference, sample_inputs(signature.inputs, sizes, config))
        for sizes in (spec.trace, *spec.checks)
    )
    if not found < TOLERANCE[precision]:
        raise EngineError(
            f"{name} in {precision} differs from its module by {found:.2g} (relative rms); "
            f"expected less than {TOLERANCE[precision]}"
        )
    return ExportedGraph(content, signature, found)


def export_all(
    weights: Weights,
    folder: Path,
    precision: str = "fp32",
    report: Callable[[str, float], None] = lambda graph, difference: None,
) -> None:
    """Write every graph and what lies in none, for `duologue.engines.onnx_model`.

    Args:
        weights: Of the model.
        folder: Where to; what it holds is replaced.
        precision: "fp32" or "fp16".
        report: Told of each graph that is written, and its relative rms difference.

    Raises:
        UsageError, EngineError: as `export_graph`.
    """
    check_known("precision", precision, CPU_PRECISIONS)
    (folder / CONFIG).unlink(missing_ok=True)
    for name, spec in GRAPHS.items():
        if spec.module(weights) is None:
            continue
        exported = export_graph(weights, name, precision)
        write_atomically(folder / f"{name}.onnx", exported.content)
        report(name, exported.difference)
    speaker, hift = weights.model.flow.spk_embed_affine_layer, weights.model.hift
    tensors = outside_tensors(
        speaker.weight.detach().numpy(), speaker.bias.detach().numpy(), hift.source_weights()
    )
    content = save(tensors, front_end_metadata(weights.front_end))
    write_atomically(folder / OUTSIDE, content)
    config = weights.model.config.model_dump_json(indent=1)
    write_atomically(folder / CONFIG, config.encode())


def export_onnx(
    module: torch.nn.Module, inputs: Iterable[Port], outputs: Iterable[Port], sample: Arrays
) -> bytes:
    """Write a module as ONNX.

    Args:
        module: Its forward takes `inputs` in order and gives `outputs` in order.
        inputs: What it takes; a size that is a text stays open in the file.
        outputs: What it gives.
        sample: Inputs to trace with. Open sizes must be 2 or more and differ from each other: the
            exporter takes a 0, a 1 or an equality for a fact.

    Raises:
        EngineError: the module cannot be exported, or only for the sizes of `sample`.
    """
    inputs, outputs = tuple(inputs), tuple(outputs)
    tensors = tuple(to_tensor(port, sample[port.name], "cpu") for port in inputs)
    dynamic = tuple(
        {
            at: torch.export.Dim.DYNAMIC
            for at, size in enumerate(port.shape)
            if isinstance(size, str)
        }
        for port in inputs
    )
    try:
        with _quiet(), torch.inference_mode():
            program = torch.onnx.export(
                module.eval(),
                tensors,
                dynamo=True,
                opset_version=OPSET,
                input_names=[port.name for port in inputs],
                output_names=[port.name for port in outputs],
                dynamic_shapes=dynamic,
                external_data=False,
                verbose=False,
            )
    # torch.onnx.errors and torch._dynamo.exc share no base class.
    except Exception as error:
        raise EngineError(f"{type(module).__name__} cannot be exported: {error}") from error
    assert program is not None
    model = program.model_proto
    _name_sizes(model.graph.input, inputs)
    _name_sizes(model.graph.output, outputs)
    _strip(model)
    _mish_in_float32(model.graph)
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)


def difference(graph: Graph, reference: Graph, sample: Arrays) -> float:
    """The greatest relative rms difference of an output of two graphs; the latter is float32."""
    got = graph.run({port.name: sample[port.name].astype(port.dtype) for port in graph.inputs})
    expected = reference.run(
        {port.name: sample[port.name].astype(port.dtype) for port in reference.inputs}
    )
    return max(relative_rms(got[name].astype(np.float32), expected[name]) for name in expected)


def relative_rms(got: np.ndarray, expected: np.ndarray) -> float:
    """The rms of the difference over that of the expected; 0 where both are empty or zero."""
    error = float(np.sqrt(np.mean((got - expected) ** 2))) if expected.size else 0.0
    scale = float(np.sqrt(np.mean(expected**2))) if expected.size else 1.0
    return error / scale if error else 0.0


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on packages it could use and on torch's own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _name_sizes(values: Iterable[onnx.ValueInfoProto], ports: tuple[Port, ...]) -> None:
    """Give open sizes the names of the ports instead of the exporter's (`s77`)."""
    for value, port in zip(values, ports, strict=True):
        dims = value.type.tensor_type.shape.dim
        if value.name != port.name or len(dims) != len(port.shape):
            raise EngineError(f"exported {value.name} with {len(dims)} axes; expected {port}")
        for dim, size in zip(dims, port.shape, strict=True):
            if isinstance(size, str) != bool(dim.dim_param):
                raise EngineError(
                    f"{port.name} was exported with size {dim.dim_param or dim.dim_value} "
                    f"where the port has {size}"
                )
            if isinstance(size, str):
                dim.dim_param = size


def _strip(model: onnx.ModelProto) -> None:
    """Take off traces of the source and shapes in the exporter's names."""
    graph = model.graph
    del graph.value_info[:]
    parts = [graph, *graph.node, *graph.input, *graph.output, *graph.initializer]
    for part in parts:
        part.doc_string = ""
        del part.metadata_props[:]
    for function in model.functions:
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]


def _mish_in_float32(graph: onnx.GraphProto) -> None:
    """Put casts around each Mish of bfloat16, which TensorRT for RTX 1.7 does not have."""
    if all(tensor.data_type != TensorProto.BFLOAT16 for tensor in graph.initializer):
        return
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type != "Mish":
            graph.node.append(node)
            continue
        wide, made = f"{node.input[0]}_wide", f"{node.output[0]}_wide"
        graph.node.append(helper.make_node("Cast", node.input, [wide], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("Mish", [wide], [made]))
        graph.node.append(helper.make_node("Cast", [made], node.output, to=TensorProto.BFLOAT16))


def _widened(model: bytes) -> bytes:
    """The model with float32 wherever it has bfloat16, its weights being rounded to that.

    ONNX Runtime has no bfloat16 kernels on the CPU.
    """
    proto = onnx.load_from_string(model)
    half, single = TensorProto.BFLOAT16, TensorProto.FLOAT
    for value in [*proto.graph.input, *proto.graph.output]:
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = single
    for tensor in proto.graph.initializer:
        _widen(tensor)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i == half:
                attribute.i = single
    return proto.SerializeToString()


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.BFLOAT16:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
