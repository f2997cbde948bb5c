"""Graphs of a tiny model in ONNX against their modules."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from toy import INPUTS, OUTPUTS, Toy, toy_onnx

from duologue.engines.export import (
    ExportedGraph,
    difference,
    export_all,
    export_graph,
    export_onnx,
    relative_rms,
)
from duologue.engines.graphs import GRAPHS, Weights, sample_inputs
from duologue.engines.onnx import OnnxGraph
from duologue.engines.onnx_model import REQUIRED, load_onnx
from duologue.engines.plans import PRECISIONS, PlanInfo, PortInfo, Recipe, sha256, store_plan
from duologue.engines.torch import TorchGraph
from duologue.errors import ConfigError, EngineError, ModelError, UsageError
from duologue.token2wav.pipeline import load as load_engine
from duologue.token2wav.ports import SIGNATURES
from duologue.token2wav.step import FrontEndId

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
HALVES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}

# Tracing takes seconds to a minute each; the quick set has every kind of thing that can go wrong:
# caches, Mish and half precision; transposed convolutions and sines; the f0 that stays in float32.
QUICK = [
    ("estimator_stream", "fp32"),
    ("estimator_stream", "fp16"),
    ("hift", "fp16"),
    ("f0", "fp32"),
    ("f0", "fp16"),
]
SLOW = [
    pytest.param(name, precision, marks=[pytest.mark.slow, pytest.mark.timeout(600)])
    for name in GRAPHS
    for precision in PRECISIONS
    # In bfloat16 the 52 layers of campplus add up to more than is tolerated, which is refused.
    if (name, precision) not in [*QUICK, ("campplus", "bf16")]
]

# Sizes that the export itself does not look at.
OTHER_SIZES = {
    "encoder_stream": [
        {"batch": 1, "tokens": 3, "cached_tokens": 1, "cached": 2},
        {"batch": 4, "tokens": 2, "cached_tokens": 9, "cached": 0},
    ],
    "encoder_offline": [{"batch": 1, "tokens": 2}, {"batch": 5, "tokens": 31}],
    "estimator_stream": [
        {"rows": 2, "frames": 50, "cached": 0},
        {"rows": 2, "frames": 1, "cached": 1},
        {"rows": 6, "frames": 26, "cached": 140},
    ],
    "estimator_offline": [{"rows": 2, "frames": 1}, {"rows": 4, "frames": 80}],
    "f0": [{"batch": 2, "frames": 2}, {"batch": 1, "frames": 100}],
    "hift": [{"batch": 1, "frames": 2}, {"batch": 2, "frames": 25}],
    "campplus": [{"batch": 3, "frames": 101}, {"batch": 1, "frames": 600}],
}


@pytest.mark.parametrize(("name", "precision"), [*QUICK, *SLOW])
def test_the_file_equals_the_module(exported, weights, name, precision):
    content, signature, found = (
        getattr(exported(name, precision), field)
        for field in ("content", "signature", "difference")
    )
    assert signature == SIGNATURES[name](weights.model.config, PRECISIONS[precision])
    assert found < {"fp32": 2e-6, "fp16": 5e-3, "bf16": 2e-2}[precision]
    if precision == "bf16":
        return
    config = weights.model.config
    reference = TorchGraph(GRAPHS[name].module(weights), *SIGNATURES[name](config))
    graph = OnnxGraph(content)
    assert (graph.inputs, graph.outputs) == tuple(signature)
    for seed, sizes in enumerate(OTHER_SIZES[name]):
        sample = sample_inputs(signature.inputs, sizes, config, seed)
        got, expected = (
            graph.run(sample),
            reference.run(
                {port.name: sample[port.name].astype(port.dtype) for port in reference.inputs}
            ),
        )
        for port in signature.outputs:
            error = relative_rms(got[port.name].astype(np.float32), expected[port.name])
            assert error < {"fp32": 1e-4, "fp16": 1e-2}[precision], (port.name, sizes, error)
            assert expected[port.name].std() > 1e-3


@pytest.mark.parametrize(("name", "precision"), [("estimator_stream", "fp16"), ("hift", "fp16")])
def test_weights_are_half_and_what_must_not_be_is_not(exported, name, precision):
    content = exported(name, precision).content
    graph = onnx.load_from_string(content).graph
    size = dict.fromkeys(HALVES.values(), 0) | {TensorProto.FLOAT: 0}
    for tensor in graph.initializer:
        size[tensor.data_type] = size.get(tensor.data_type, 0) + numpy_helper.to_array(tensor).size
    assert size[HALVES[precision]] > 20 * size[TensorProto.FLOAT]
    ops = {"estimator_stream": ["Sin", "Softmax"], "hift": ["Exp", "Sin", "Clip"]}[name]
    typed = onnx.shape_inference.infer_shapes(onnx.load_from_string(content)).graph
    types = {
        value.name: value.type.tensor_type.elem_type for value in (*typed.value_info, *typed.output)
    }
    found = [types[node.output[0]] for node in graph.node if node.op_type in ops]
    assert found
    assert set(found) == {TensorProto.FLOAT}


def test_f0_is_float32_in_every_precision(exported):
    assert exported("f0", "fp16").content == exported("f0", "fp32").content


def test_the_same_weights_give_the_same_bytes_and_name_no_machine(exported, weights):
    again = export_graph(weights, "f0").content
    assert again == exported("f0").content
    for mark in (b".py", b"duologue", b"site-packages"):
        assert mark not in again


def test_open_sizes_have_the_names_of_the_ports(exported):
    graph = onnx.load_from_string(exported("estimator_stream", "fp16").content).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    signature = exported("estimator_stream", "fp16").signature
    assert shapes == {p.name: list(p.shape) for ports in signature for p in ports}


class Fixed(Toy):
    """Exports for the traced size alone."""

    def forward(self, x, t, cache, kv):
        y, *rest = super().forward(x, t, cache, kv)
        return y.reshape(4, 6, -1), *rest


class Branches(Toy):
    """Cannot be traced."""

    def forward(self, x, t, cache, kv):
        return super().forward(x * 2 if x.sum() > 0 else x, t, cache, kv)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Fixed(), "y was exported with size 4 where the port has rows"),
        (Branches(), "Branches cannot be exported"),
    ],
)
def test_a_module_that_does_not_export_is_an_error(module, text):
    sizes = {"rows": 4, "frames": 6, "cached": 5}
    sample = {p.name: np.ones(p.size(sizes), p.dtype) for p in INPUTS}
    with pytest.raises(EngineError, match=text):
        export_onnx(module, INPUTS, OUTPUTS, sample)


def test_a_file_that_differs_is_noticed(monkeypatch, weights, exported):
    content = exported("f0").content
    model = onnx.load_from_string(content)
    [bias] = [t for t in model.graph.initializer if t.name.endswith("classifier.bias")]
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 5, bias.name))
    wrong = model.SerializeToString()
    monkeypatch.setattr("duologue.engines.export.export_onnx", lambda *_: wrong)
    with pytest.raises(EngineError, match="f0 in fp32 differs from its module by"):
        export_graph(weights, "f0")


def test_difference_is_relative_and_per_output():
    sizes = {"rows": 2, "frames": 3, "cached": 0}
    sample = {p.name: np.ones(p.size(sizes), np.float32) for p in INPUTS}
    graph = OnnxGraph(toy_onnx())
    assert difference(graph, TorchGraph(Toy(), INPUTS, OUTPUTS), sample) == 0

    class Off(Toy):
        def forward(self, x, t, cache, kv):
            y, new_cache, new_kv = super().forward(x, t, cache, kv)
            return y, new_cache, new_kv / 1.25

    assert difference(graph, TorchGraph(Off(), INPUTS, OUTPUTS), sample) == pytest.approx(
        0.25, 1e-2
    )


def test_unknown_names_are_refused(weights):
    with pytest.raises(UsageError, match="graph 'vocoder'; expected one of encoder_stream"):
        export_graph(weights, "vocoder")
    with pytest.raises(UsageError, match="precision 'int8'; expected one of fp32"):
        export_graph(weights, "f0", "int8")
    with pytest.raises(UsageError, match="precision 'bf16'; expected one of fp32, fp16"):
        export_all(weights, Path("unused"), "bf16")
    with pytest.raises(UsageError, match="put campplus.onnx beside it"):
        export_graph(Weights(weights.model, None), "campplus")


def stub(name: str, config) -> bytes:
    """An ONNX file with the ports of a graph; its outputs are zeros of sizes nobody knows."""
    signature = SIGNATURES[name](config)

    def infos(ports):
        return [helper.make_tensor_value_info(p.name, TYPES[p.dtype], p.shape) for p in ports]

    nodes = [helper.make_node("Shape", [signature.inputs[0].name], ["n"], start=0, end=1)]
    constants = []
    for port in signature.outputs:
        ones, shape = f"{port.name}_ones", f"{port.name}_shape"
        constants.append(numpy_helper.from_array(np.ones(len(port.shape), np.int64), ones))
        nodes.append(helper.make_node("Mul", ["n", ones], [shape]))
        nodes.append(helper.make_node("ConstantOfShape", [shape], [port.name]))
    graph = helper.make_graph(nodes, name, infos(signature.inputs), infos(signature.outputs))
    graph.initializer.extend(constants)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def stand_in(monkeypatch, exported):
    def export(weights, name, precision):
        if name == "f0":
            return exported(name)
        config = weights.model.config
        return ExportedGraph(stub(name, config), SIGNATURES[name](config), 0.0)

    monkeypatch.setattr("duologue.engines.export.export_graph", export)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, weights, exported):
    path = tmp_path_factory.mktemp("onnx")
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, exported)
        export_all(weights, path)
    return path


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("source_bias", np.zeros(0, np.float32)),
        ("speaker_weight", np.zeros((80, 5), np.float32)),
        ("speaker_bias", np.full(80, np.nan, np.float32)),
        ("source_weight", np.zeros(9, np.int32)),
        ("source_weight", None),
    ],
)
def test_weights_outside_that_do_not_fit(folder, tmp_path, name, array):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "outside.safetensors")
    del tensors[name]
    save_file(tensors | ({} if array is None else {name: array}), tmp_path / "outside.safetensors")
    with pytest.raises(ModelError, match=rf"{name} is .*, not finite float32 \["):
        load_onnx(tmp_path)


def test_a_graph_under_the_name_of_another(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    shutil.copy(folder / "f0.onnx", tmp_path / "hift.onnx")
    with pytest.raises(ModelError, match="outputs of its hift are those of another graph"):
        load_onnx(tmp_path)


def test_a_folder_of_graphs_loads_without_torch(tmp_path, weights, monkeypatch, exported):
    """The files are those of `export_graph`; but for f0 stand-ins, to save the tracing."""
    stand_in(monkeypatch, exported)
    told = []
    made_with = FrontEndId("mini/token2wav", "c0ffee")
    export_all(
        replace(weights, front_end=made_with),
        tmp_path,
        report=lambda name, difference: told.append(name),
    )
    assert told == list(GRAPHS)
    assert load_engine(tmp_path, "onnx").front_end == made_with
    model = load_onnx(tmp_path)
    assert model.config == weights.model.config
    affine = weights.model.flow.spk_embed_affine_layer
    np.testing.assert_array_equal(model.flow.speaker_weight, affine.weight.detach().numpy())
    np.testing.assert_array_equal(model.flow.speaker_bias, affine.bias.detach().numpy())
    source = weights.model.hift.source_weights()
    np.testing.assert_array_equal(model.source.harmonics, source.harmonics)
    assert model.source.bias == pytest.approx(source.bias)
    mel = {"mel": np.random.default_rng(0).standard_normal((1, 4, 80)).astype(np.float32)}
    assert model.f0.run(mel)["f0_hz"].shape == (1, 4)
    assert model.campplus is not None
    (tmp_path / "campplus.onnx").unlink()
    assert load_onnx(tmp_path).campplus is None
    (tmp_path / "hift.onnx").unlink()
    with pytest.raises(ModelError, match="no file of hift.*`duologue engine export`"):
        load_onnx(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match="is no model in ONNX"):
        load_onnx(tmp_path)


def test_loading_needs_no_torch():
    import subprocess
    import sys

    script = "import sys; sys.modules['torch'] = None; import duologue.engines.onnx_model"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_torch_keeps_its_random_state():
    from duologue.engines.graphs import random_weights

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    random_weights("tiny")
    assert torch.equal(torch.rand(3), expected)


def add_plan(folder: Path, name: str, config, precision: str = "fp16") -> None:
    """What `engine build` leaves, with the ONNX file for its plan."""
    content = (folder / f"{name}.onnx").read_bytes()
    recipe = Recipe(
        graph=name,
        backend="tensorrt",
        version="11.4.0.106",
        precision=precision,
        targets=("sm89",),
        gpu="",
        profiles=(),
        onnx_sha256=sha256(content),
    )
    inputs, outputs = (tuple(map(PortInfo.of, ports)) for ports in SIGNATURES[name](config))
    info = PlanInfo(
        **recipe.model_dump(),
        inputs=inputs,
        outputs=outputs,
        sha256=sha256(content),
        size=len(content),
        seconds=1.0,
    )
    store_plan(recipe.path(folder), content, info)


def test_plans_beside_an_export_make_an_engine(folder, tmp_path, weights, monkeypatch):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = weights.model.config
    opened: list[str] = []

    def open_plan(path: Path) -> OnnxGraph:
        opened.append(path.name.split("-")[0])
        return OnnxGraph(path.read_bytes())

    monkeypatch.setattr("duologue.engines.tensorrt_model.TensorRTGraph", open_plan)
    for name in REQUIRED[:-1]:
        add_plan(tmp_path, name, config)
    with pytest.raises(ModelError, match=f"no plan of {REQUIRED[-1]}; run: duologue engine build"):
        load_engine(tmp_path, "tensorrt")
    add_plan(tmp_path, REQUIRED[-1], config)
    opened.clear()
    assert load_engine(tmp_path, "tensorrt").config == config
    assert sorted(opened) == sorted(REQUIRED)
    add_plan(tmp_path, "f0", config, "fp32")
    with pytest.raises(ConfigError, match="several plans of f0"):
        load_engine(tmp_path, "tensorrt")
