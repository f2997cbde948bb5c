"""Ports, and the graphs that run on the CPU."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy import INPUTS, OUTPUTS, Toy, toy_onnx

from duologue.engines.graph import Port, axes, check_arrays
from duologue.engines.onnx import OnnxGraph
from duologue.engines.torch import TorchGraph
from duologue.errors import EngineError

SIZES = {"rows": 2, "frames": 3, "cached": 5}


def arrays(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.size(sizes)).astype(p.dtype) for p in INPUTS}


@pytest.fixture(scope="module")
def graphs():
    return TorchGraph(Toy(), INPUTS, OUTPUTS), OnnxGraph(toy_onnx())


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), min_size=3))
def test_shapes_in_numbers_give_back_the_sizes(sizes):
    ports = [
        Port("one", "float32", ("a", "3*b+2", 7)),
        Port("two", "int64", ("c+1", "2*a", "480*c")),
    ]
    given_arrays = {p.name: np.zeros(p.size(sizes), p.dtype) for p in ports}
    assert axes(ports) == set("abc")
    assert check_arrays(ports, given_arrays) == sizes


@pytest.mark.parametrize("sizes", [SIZES, {"rows": 1, "frames": 1, "cached": 0}])
def test_torch_and_onnx_runtime_agree(graphs, sizes):
    ours, theirs = (graph.run(arrays(sizes)) for graph in graphs)
    assert list(ours) == list(theirs) == [port.name for port in OUTPUTS]
    for port in OUTPUTS:
        assert ours[port.name].dtype == theirs[port.name].dtype == port.dtype
        assert ours[port.name].shape == theirs[port.name].shape == port.size(sizes)
        np.testing.assert_allclose(ours[port.name], theirs[port.name], rtol=1e-5, atol=1e-5)


def test_an_onnx_file_says_its_ports(graphs):
    assert graphs[1].inputs == INPUTS
    assert graphs[1].outputs == OUTPUTS


WRONG = {
    "missing: kv": lambda a: a.pop("kv"),
    "unknown: more": lambda a: a.update(more=a["x"]),
    "input x: expected float32, got float64": lambda a: a.update(x=a["x"].astype(np.float64)),
    "input kv: expected shape [rows, cached, 4] with rows=2, frames=3, cached=5, got [1, 5, 4]": (
        lambda a: a.update(kv=a["kv"][:1])
    ),
    "input t: expected shape [1] with rows=2, frames=3, got [1, 1]": (
        lambda a: a.update(t=a["t"][None])
    ),
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("which", [0, 1])
def test_wrong_inputs_are_named(graphs, which, text):
    given_arrays = arrays()
    WRONG[text](given_arrays)
    with pytest.raises(EngineError) as caught:
        graphs[which].run(given_arrays)
    assert text in str(caught.value)


def test_a_derived_size_must_come_out_even():
    ports = [Port("a", "float32", ("2*n+1",))]
    for size in (0, 2):
        with pytest.raises(EngineError, match=r"expected shape \[2\*n\+1\]"):
            check_arrays(ports, {"a": np.zeros(size, np.float32)})


def test_bfloat16_is_float32_in_numpy():
    port = Port("x", "bfloat16", ("n",))
    graph = TorchGraph(torch.nn.Identity(), [port], [port])
    got = graph.run({"x": np.array([1.0, 1.001], np.float32)})["x"]
    assert got.dtype == np.float32
    # Eight bits of mantissa.
    assert got.tolist() == [1.0, 1.0]


def test_bad_files_and_devices(tmp_path):
    with pytest.raises(EngineError, match="no such file"):
        OnnxGraph(tmp_path / "absent.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(toy_onnx()[:100])
    with pytest.raises(EngineError, match="cannot load"):
        OnnxGraph(damaged)
    with pytest.raises(EngineError, match="'cuda:7' cannot be used"):
        TorchGraph(torch.nn.Linear(1, 1), INPUTS, OUTPUTS, device="cuda:7")
