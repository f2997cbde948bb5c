"""The builder: truly built by TensorRT for RTX, and driven over a fake of TensorRT 10 and 11."""

import json
import subprocess
import sys
from dataclasses import replace

import fake_tensorrt
import pytest
from toy import INPUTS, OUTPUTS, PROFILES, toy_onnx

from duologue.engines.build import build_graph
from duologue.engines.graphs import Limits
from duologue.engines.plans import PortInfo
from duologue.engines.tensorrt_build import build_plan
from duologue.errors import EngineError, UsageError
from duologue.token2wav.ports import Signature

TOY = Signature(INPUTS, OUTPUTS)


@pytest.fixture(scope="module")
def rtx():
    return pytest.importorskip("tensorrt_rtx_bindings")


def build(model=None, signature=TOY, profiles=PROFILES, targets=("sm89",), **more):
    model = toy_onnx() if model is None else model
    return build_plan(model, signature, profiles, flavour="tensorrt_rtx", targets=targets, **more)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("estimator_stream", ("sm80",)),
        ("estimator_stream", ("sm89",)),
        ("estimator_stream", ("sm120",)),
        ("hift", ("sm80", "sm89", "sm120")),
    ],
)
def test_half_precision_graphs_build_for_each_gpu(rtx, exported, name, targets):
    graph = exported(name, "fp16")
    profiles = Limits(batch=2).profiles(name)
    plan, ports = build(graph.content, graph.signature, profiles, targets)
    # Names, types and sizes are those of the network, as TensorRT has read it.
    assert ports == [tuple(map(PortInfo.of, ports)) for ports in graph.signature]
    assert len(plan) > len(graph.content) / 2


def test_the_estimators_profile_begins_with_an_empty_cache():
    chunks, prompt = Limits(batch=8).profiles("estimator_stream")
    assert chunks["cached"][0] == 0
    assert chunks["cached"][1] == 350
    assert (chunks["rows"], chunks["frames"][1]) == ((2, 8, 16), 50)
    assert prompt == {"rows": (2, 2, 2), "frames": (2, 250, 1500), "cached": (0, 0, 0)}


def test_one_plan_for_several_gpus_and_progress_to_the_end(rtx):
    told = []
    plan, ports = build(
        targets=("sm80", "sm89", "sm120"), report=lambda done, what: told.append((done, what))
    )
    assert len(plan) > 10_000
    assert [[info.port for info in side] for side in ports] == [list(INPUTS), list(OUTPUTS)]
    done = [fraction for fraction, _ in told]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 1)
    assert len(set(done)) > 10
    assert len({what for _, what in told}) > 3


def with_port(signature, **changes):
    """A signature whose last input is another."""
    return Signature((*signature.inputs[:-1], replace(signature.inputs[-1], **changes)), OUTPUTS)


REFUSED = {
    "cannot read the ONNX": {"model": b"no model"},
    "the ONNX has kv float16": {"signature": with_port(TOY, dtype="float32")},
    "expected cache, kv_2, t, x": {"signature": with_port(TOY, name="kv_2")},
    r"the ONNX has kv float16 \[-1, -1, 4\]; expected": {
        "signature": with_port(TOY, shape=("rows", "cached", 5))
    },
    "refuses the profile|could not build": {
        "profiles": ({"rows": (2, 2, 8), "frames": (9, 5, 10), "cached": (0, 5, 20)},)
    },
    "could not build": {"profiles": ()},
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_built_says_why(rtx, text):
    with pytest.raises(EngineError, match=text):
        build(**REFUSED[text])


@pytest.mark.parametrize("targets", [(), ("sm90",), ("sm89", "turing")])
def test_targets_that_rtx_does_not_have_are_refused(rtx, targets):
    with pytest.raises(UsageError, match="expected some of .*sm89"):
        build(targets=targets)


@pytest.mark.parametrize(("version", "bit"), [("10.16.1.11", 1), ("11.4.0.106", 0)])
def test_tensorrt_10_and_11_by_one_code(monkeypatch, tmp_path, version, bit):
    fake = fake_tensorrt.make(version, strongly_typed=bit)
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    model = toy_onnx()
    plan, ports = build_plan(
        model, TOY, PROFILES, flavour="tensorrt", report=lambda done, what: None
    )
    assert plan == model
    assert [[info.port for info in side] for side in ports] == [list(INPUTS), list(OUTPUTS)]
    [config] = fake.configs
    assert [profile["kv"] for profile in config._profiles] == [
        ((2, 0, 4), (2, 5, 4), (8, 20, 4)),
        ((2, 0, 4), (2, 0, 4), (2, 0, 4)),
    ]
    assert config._profiles[0]["t"] == ((1,), (1,), (1,))
    assert isinstance(config.progress_monitor, fake.IProgressMonitor)
    with pytest.raises(UsageError, match="for the GPU that is present"):
        build_plan(model, TOY, PROFILES, flavour="tensorrt", targets=("sm89",))


@pytest.fixture
def quick(monkeypatch, exported):
    """Graphs that were exported already."""
    monkeypatch.setattr(
        "duologue.engines.build.export_graph", lambda weights, *names: exported(*names)
    )


def test_a_phase_is_a_step_of_the_phase_around_it(monkeypatch):
    fake = fake_tensorrt.make()
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    told = []
    build_plan(
        toy_onnx(), TOY, PROFILES, flavour="tensorrt", report=lambda done, what: told.append(done)
    )
    monitor = fake.configs[0].progress_monitor
    monitor.phase_start("building", None, 4)
    monitor.phase_start("tuning", "building", 2)
    assert monitor.step_complete("tuning", 0)
    monitor.phase_finish("tuning")
    monitor.step_complete("building", 0)
    monitor.phase_start("checking", "building", 1)
    monitor.phase_finish("checking")
    monitor.phase_finish("building")
    assert told == [0, 0, 1 / 8, 1 / 4, 1 / 4, 1]


def test_a_plan_is_built_once(rtx, quick, weights, tmp_path):
    def get(**changes):
        options = {"backend": "tensorrt_rtx", "precision": "fp16", "targets": ("sm89",)}
        return build_graph(weights, "f0", tmp_path, **(options | changes))

    first = get()
    assert first.fresh
    assert first.info.size == first.path.stat().st_size
    assert (first.info.version, first.info.targets) == (rtx.__version__, ("sm89",))
    again = get()
    assert (again.path, again.fresh, again.info) == (first.path, False, first.info)
    assert get(targets=("sm80", "sm89")).path != first.path
    assert get(limits=Limits(batch=3)).path != first.path
    # A damaged one is built again.
    first.path.write_bytes(b"\0" * first.info.size)
    assert get().fresh


def test_tensorrt_builds_for_the_gpu_that_is_there(quick, weights, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.make())
    with pytest.raises(EngineError, match="none is here"):
        build_graph(weights, "f0", tmp_path, backend="tensorrt")
    monkeypatch.setattr("duologue.engines.build.gpu_of", lambda: ("sm89", "L4"))
    info = build_graph(weights, "f0", tmp_path, backend="tensorrt").info
    assert (info.targets, info.gpu, info.version) == (("sm89",), "L4", "11.4.0.106")


def test_onnx_goes_into_the_same_folder(quick, weights, tmp_path):
    built = build_graph(weights, "f0", tmp_path)
    assert built.path.suffix == ".onnx"
    assert (built.info.profiles, built.info.targets) == ((), ())
    assert built.difference < 1e-5
    with pytest.raises(UsageError, match="name no target"):
        build_graph(weights, "f0", tmp_path, targets=("sm89",))
    with pytest.raises(UsageError, match="backend 'coreml'; expected one of onnx"):
        build_graph(weights, "f0", tmp_path, backend="coreml")
    with pytest.raises(UsageError, match="graph 'f1'"):
        build_graph(weights, "f1", tmp_path)


def test_the_real_runtime_refuses_a_plan_where_there_is_no_gpu(rtx, quick, weights, tmp_path):
    """In a process of its own, since the runtime may leave a CUDA error behind."""
    path = build_graph(weights, "f0", tmp_path, backend="tensorrt_rtx", targets=("sm89",)).path
    script = (
        "import sys; from pathlib import Path; from duologue.engines.tensorrt_run import *\n"
        "torch.cuda.current_stream = lambda device: None\n"
        "try: TensorRTGraph(Path(sys.argv[1]), device='cpu')\n"
        "except EngineError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert f"{path}: " in run.stdout, run.stderr
    assert "build it again" in run.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["campplus", "encoder_stream", "encoder_offline", "estimator_offline"]
)
def test_the_other_graphs_build_too(rtx, exported, name):
    graph = exported(name, "fp16")
    profiles = Limits(batch=2).profiles(name)
    for target in ("sm80", "sm89", "sm120"):
        plan, ports = build(graph.content, graph.signature, profiles, (target,))
        assert ports == [tuple(map(PortInfo.of, ports)) for ports in graph.signature]
        assert len(plan) > len(graph.content) / 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bfloat16_builds(rtx, exported):
    graph = exported("estimator_stream", "bf16")
    _, ports = build(graph.content, graph.signature, Limits().profiles("estimator_stream"))
    assert {info.dtype for side in ports for info in side} == {"float32", "bfloat16"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_estimator_in_full_size(rtx, tmp_path):
    command = [sys.executable, "-c", "from duologue.cli_engine import *; engine_app()", "build"]
    options = ["--preset", "full", "--graph", "estimator-stream", "--backend", "tensorrt_rtx"]
    run = subprocess.run(
        [*command, *options, "--precision", "fp16", "--sm", "89", "--dir", tmp_path, "--json"],
        capture_output=True,
        check=True,
    )
    facts = json.loads(run.stdout)
    # Twice 114 million weights.
    assert 228e6 < facts["bytes"] < 300e6
    assert facts["difference"] < 1e-2
