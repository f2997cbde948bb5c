"""The runner of TensorRT plans, over a fake TensorRT that computes at the addresses it is given."""

import sys
from concurrent.futures import ThreadPoolExecutor

import fake_tensorrt
import numpy as np
import pytest
import torch
from toy import INPUTS, OUTPUTS, PROFILES, Toy, toy_onnx

from duologue.engines import tensorrt_run
from duologue.engines.graph import Port
from duologue.engines.plans import PlanInfo, PortInfo, Recipe, sha256, store_plan
from duologue.engines.tensorrt_run import TensorRTGraph
from duologue.engines.torch import TorchGraph
from duologue.errors import EngineError

STREAM = 0x5EED
SIZES = {"rows": 4, "frames": 3, "cached": 5}
LONG = {"rows": 2, "frames": 50, "cached": 0}


@pytest.fixture
def trt(monkeypatch):
    fake = fake_tensorrt.make(profiles=len(PROFILES))
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    # Tensors of torch on the CPU begin at any multiple of 64 bytes.
    monkeypatch.setattr(tensorrt_run, "ALIGNMENT", 16)
    stream = type("Stream", (), {"cuda_stream": STREAM, "synchronize": lambda self: None})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return fake


def store(folder, content=None, **changes):
    content = toy_onnx() if content is None else content
    recipe = Recipe(
        graph="toy",
        backend="tensorrt",
        version="11.4.0.106",
        precision="fp16",
        targets=("sm89",),
        gpu="L4",
        profiles=PROFILES,
        onnx_sha256=sha256(content),
    )
    info = PlanInfo(
        **recipe.model_dump(),
        inputs=tuple(map(PortInfo.of, INPUTS)),
        outputs=tuple(map(PortInfo.of, OUTPUTS)),
        sha256=sha256(content),
        size=len(content),
        seconds=1.0,
    ).model_copy(update=changes)
    path = recipe.path(folder)
    store_plan(path, content, info)
    return path


@pytest.fixture
def graph(trt, tmp_path):
    return TensorRTGraph(store(tmp_path), device="cpu")


def arrays(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.size(sizes)).astype(p.dtype) for p in INPUTS}


def tensors(sizes=SIZES, seed=0):
    return {name: torch.from_numpy(array) for name, array in arrays(sizes, seed).items()}


def test_runs_of_several_threads_take_turns(graph):
    inputs = [arrays({"rows": 4, "frames": n, "cached": n}, n) for n in (2, 3, 4, 5)]
    expected = [graph.run(each) for each in inputs]

    def run(place: int) -> list[dict[str, np.ndarray]]:
        return [graph.run(inputs[place]) for _ in range(50)]

    with ThreadPoolExecutor(4) as threads:
        for right, found in zip(expected, threads.map(run, range(4)), strict=True):
            for result in found:
                for name in right:
                    np.testing.assert_array_equal(result[name], right[name])


def test_it_equals_torch_whatever_the_size_was_before(graph):
    reference = TorchGraph(Toy(), INPUTS, OUTPUTS)
    assert (graph.inputs, graph.outputs) == (INPUTS, OUTPUTS)
    empty = {"rows": 2, "frames": 1, "cached": 0}
    for seed, sizes in enumerate([SIZES, LONG, empty, SIZES, SIZES | {"cached": 6}, LONG]):
        got, expected = graph.run(arrays(sizes, seed)), reference.run(arrays(sizes, seed))
        assert list(got) == list(expected)
        for name in got:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-5)


def test_a_cache_goes_round_without_a_copy(graph):
    """Two buffers change places; the numbers are those of torch with caches of its own."""
    reference = TorchGraph(Toy(), INPUTS, OUTPUTS)
    given = tensors()
    cache = {"now": given["cache"], "then": torch.empty_like(given["cache"])}
    addresses = {name: tensor.data_ptr() for name, tensor in cache.items()}
    expected_cache = given["cache"].numpy().copy()
    for step in range(3):
        inputs = tensors(seed=step) | {"cache": cache["now"]}
        got = graph.enqueue(inputs, {"new_cache": cache["then"]})
        assert got["new_cache"] is cache["then"]
        expected = reference.run(arrays(seed=step) | {"cache": expected_cache})
        np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-5, atol=1e-5)
        expected_cache = expected["new_cache"]
        cache = {"now": cache["then"], "then": cache["now"]}
    assert cache["now"].data_ptr() == addresses["then"]


def test_work_goes_to_the_callers_stream_and_shapes_are_set_once(graph, trt):
    del trt.calls[:]
    graph.enqueue(tensors())
    graph.enqueue(tensors(seed=1))
    shapes = [call for call in trt.calls if call[0] == "shape"]
    assert shapes == [("shape", port.name, port.size(SIZES)) for port in INPUTS]
    assert [call for call in trt.calls if call[0] == "execute"] == [("execute", 0, STREAM)] * 2


def test_each_profile_has_a_context(graph, trt):
    assert trt.calls == [("profile", 0, STREAM), ("profile", 1, STREAM)]
    graph.enqueue(tensors(LONG))
    graph.enqueue(tensors())
    graph.enqueue(tensors(LONG))
    runs = [call[1] for call in trt.calls if call[0] == "execute"]
    assert runs == [1, 0, 1]
    # Going to and fro sets no shape again.
    assert sum(call[0] == "shape" for call in trt.calls) == 2 * len(INPUTS)


def test_a_size_in_no_profile_names_the_bounds(graph, trt):
    with pytest.raises(EngineError, match="rows is 1, built for 2 to 8"):
        graph.run(arrays({"rows": 1, "frames": 3, "cached": 5}))
    with pytest.raises(EngineError) as caught:
        graph.run(arrays({"rows": 10, "frames": 3, "cached": 21}))
    assert "rows is 10, built for 2 to 8, cached is 21, built for 0 to 20; or" in str(caught.value)
    assert "build with a larger profile" in str(caught.value)
    assert not any(call[0] == "execute" for call in trt.calls)


WRONG = {
    "x must be contiguous": lambda t: t.update(
        x=t["x"].transpose(0, 1).contiguous().transpose(0, 1)
    ),
    "input kv: expected float16, got float32": lambda t: t.update(kv=t["kv"].float()),
    "kv begins inside another tensor": lambda t: t.update(
        kv=torch.zeros(t["kv"].numel() + 1).half()[1:].view(t["kv"].shape)
    ),
    "missing: t": lambda t: t.pop("t"),
}


@pytest.mark.parametrize("text", WRONG)
def test_tensors_that_do_not_fit_are_named(graph, text):
    given = tensors()
    WRONG[text](given)
    with pytest.raises(EngineError, match=text):
        graph.enqueue(given)


def test_outputs_that_do_not_fit_are_named(graph):
    with pytest.raises(EngineError, match=r"output y: expected float32 \[4, 3, 4\], got float16"):
        graph.enqueue(tensors(), {"y": torch.empty(4, 3, 4, dtype=torch.float16)})
    with pytest.raises(EngineError, match="no such output: z"):
        graph.enqueue(tensors(), {"z": torch.empty(1)})


def test_a_refused_run_is_an_error(graph, trt):
    trt.engines[0]._healthy = False
    with pytest.raises(EngineError, match="the run was refused: TensorRT gave no reason"):
        graph.enqueue(tensors())


def test_a_plan_that_tensorrt_refuses_says_why(trt, tmp_path):
    with pytest.raises(EngineError, match="Magic tag does not match; build it again"):
        TensorRTGraph(store(tmp_path, b"no plan"), device="cpu")


def test_a_damaged_plan_is_not_given_to_tensorrt(trt, tmp_path):
    path = store(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EngineError, match="damaged"):
        TensorRTGraph(path, device="cpu")
    assert trt.engines == []


def test_a_plan_of_another_gpu_or_version_is_not_given_to_tensorrt(trt, tmp_path, monkeypatch):
    path = store(tmp_path)
    monkeypatch.setattr(tensorrt_run, "gpu_of", lambda device: ("sm90", "H200"))
    trt.__version__ = "10.16.1.11"
    with pytest.raises(EngineError) as caught:
        TensorRTGraph(path, device="cpu")
    assert "built by tensorrt 11.4.0.106, installed is 10.16.1.11" in str(caught.value)
    assert "for sm89, the GPU here is sm90" in str(caught.value)
    assert trt.engines == []


def test_a_json_of_another_engine_is_noticed(trt, tmp_path):
    inputs = (*INPUTS[:-1], Port("kv", "float32", INPUTS[-1].shape))
    path = store(tmp_path, inputs=tuple(map(PortInfo.of, inputs)))
    with pytest.raises(EngineError, match="disagree on kv"):
        TensorRTGraph(path, device="cpu")


def test_onnx_is_no_plan(trt, tmp_path):
    with pytest.raises(EngineError, match="is an ONNX file"):
        TensorRTGraph(store(tmp_path, backend="onnx"), device="cpu")


def test_without_tensorrt_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in ("tensorrt", "tensorrt_bindings", "tensorrt_libs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineError, match="pip install tensorrt"):
        TensorRTGraph(store(tmp_path), device="cpu")
