"""`duologue engine`."""

import json

import pytest
from typer.testing import CliRunner

from duologue.cli_engine import engine_app
from duologue.engines.plans import find_plans
from duologue.errors import DuologueError, EngineError, ModelError, UsageError
from duologue.token2wav.weights import load_preset, save


@pytest.fixture
def command(monkeypatch, exported):
    """Run `duologue engine`; graphs were exported already."""
    monkeypatch.setattr(
        "duologue.engines.build.export_graph", lambda weights, *names: exported(*names)
    )

    def run(*arguments) -> tuple[str, DuologueError | None]:
        result = CliRunner().invoke(engine_app, list(map(str, arguments)))
        error = result.exception
        assert error is None or isinstance(error, DuologueError), repr(error)
        return result.stdout, error

    return run


@pytest.fixture
def built(command, tmp_path):
    """A folder with f0 for ONNX Runtime and for TensorRT for RTX."""
    pytest.importorskip("tensorrt_rtx_bindings")
    for options in ((), ("--backend", "tensorrt_rtx", "--sm", "89", "--sm", "120")):
        output, error = command(
            "build", "--preset", "tiny", "--graph", "f0", "--dir", tmp_path, "--json", *options
        )
        assert error is None
        assert json.loads(output)["fresh"]
    return tmp_path


def test_build_list_and_check(command, built):
    rows = json.loads(command("list", "--dir", built, "--json")[0])
    assert [row["backend"] for row in rows] == ["onnx", "tensorrt_rtx"]
    assert rows[1]["targets"] == ["sm89", "sm120"]
    assert rows[1]["profiles"] == [{"batch": [1, 4, 8], "frames": [1, 100, 150]}]
    assert rows[1]["inputs"] == [
        {"name": "mel", "dtype": "float32", "shape": ["batch", "frames", 80]}
    ]
    assert "sm89,sm120" in command("list", "--dir", built)[0]
    output, error = command("check", "--dir", built)
    assert error is None
    assert output.count(": ok") == 2


def test_building_again_is_free(command, built):
    output, _ = command(
        *("build", "--preset", "tiny", "--graph", "f0", "--dir", built, "--json"),
        *("--backend", "tensorrt_rtx", "--sm", "89", "--sm", "120"),
    )
    facts = json.loads(output)
    assert not facts["fresh"]
    assert facts["bytes"] > 100_000
    assert facts["plan"] == str(find_plans(built)[1])
    assert len(find_plans(built)) == 2
    assert (
        "there already" in command("build", "--preset", "tiny", "--graph", "f0", "--dir", built)[0]
    )


def test_check_names_what_cannot_run(command, built, monkeypatch):
    onnx, plan = find_plans(built)
    onnx.write_bytes(b"")
    monkeypatch.setattr("duologue.engines.tensorrt_run.gpu_of", lambda: ("sm90", "H200"))
    output, error = command("check", "--dir", built, "--json")
    assert isinstance(error, EngineError)
    assert error.exit_code == 4
    assert onnx.name in str(error)
    assert plan.name in str(error)
    rows = json.loads(output)
    assert "damaged" in rows[0]["problems"][0]
    assert rows[1]["problems"] == ["for sm89, sm120, the GPU here is sm90"]
    onnx.with_name(f"{onnx.name}.json").write_text("{}")
    assert "cannot be used" in command("check", "--dir", built)[0]


BUILD = ("build", "--dir", "engines", "--graph")


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((*BUILD, "f0"), UsageError, "expected one of --preset and --model"),
        ((*BUILD, "f0", "--preset", "tiny", "--model", "x"), UsageError, "expected one of"),
        (
            (*BUILD, "f0", "--preset", "huge"),
            UsageError,
            "preset 'huge'; expected one of",
        ),
        ((*BUILD, "f0", "--model", "/absent"), ModelError, "/absent holds neither"),
        ((*BUILD, "f1", "--preset", "tiny"), UsageError, "graph 'f1'; expected one of"),
        ((*BUILD, "f0", "--preset", "tiny", "--backend", "x"), UsageError, "backend 'x'"),
        ((*BUILD, "f0", "--preset", "tiny", "--precision", "fp8"), UsageError, "precision 'fp8'"),
        ((*BUILD, "f0", "--preset", "tiny", "--sm", "89"), UsageError, "name no target"),
        ((*BUILD, "f0", "--preset", "tiny", "--dir", __file__), UsageError, "found a file"),
        (
            ("export", "--dir", "d", "--preset", "tiny", "--precision", "bf16"),
            UsageError,
            "precision 'bf16'; expected one of fp32, fp16",
        ),
        (("export", "--dir", "d", "--model", "/absent"), ModelError, "/absent holds neither"),
        (
            (*BUILD, "f0", "--preset", "tiny", "--backend", "tensorrt_rtx", "--sm", "90"),
            UsageError,
            "targets: sm90; expected some of sm75, sm80",
        ),
        (("list", "--dir", "/absent"), EngineError, "/absent: no such folder"),
        (("check", "--dir", "/absent"), EngineError, "/absent: no such folder"),
    ],
)
def test_wrong_calls(command, tmp_path, monkeypatch, arguments, kind, text):
    """They are told at once: torch, which takes seconds to import, is not looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("duologue.cli_engine._weights", None)
    error = command(*arguments)[1]
    assert isinstance(error, kind)
    assert text in str(error)
    assert error.exit_code == (2 if issubclass(kind, UsageError) else 4)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_not_exported_over_itself(command, tmp_path):
    save(load_preset("tiny", 1), tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    error = command("export", "--model", tmp_path, "--dir", tmp_path / ".")[1]
    assert isinstance(error, UsageError)
    assert "the checkpoint's own folder" in str(error)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_export_writes_a_folder(command, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "duologue.engines.export.export_all",
        lambda weights, folder, precision, report: report("hift", 1e-6),
    )
    output, error = command("export", "--preset", "tiny", "--dir", tmp_path)
    assert (output, error) == (f"{tmp_path}\n", None)


def test_without_torch_the_error_names_the_extra(command, monkeypatch):
    monkeypatch.setattr("duologue.cli_engine.find_spec", lambda name: None)
    error = command(*BUILD, "f0", "--preset", "tiny")[1]
    assert isinstance(error, EngineError)
    assert "-e '.[torch]'" in str(error)
