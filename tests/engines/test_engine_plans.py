"""The folder of built graphs."""

import pytest
from typer.testing import CliRunner

from duologue.cli_engine import engine_app
from duologue.engines.plans import (
    Machine,
    PlanInfo,
    Recipe,
    find_plans,
    find_whole,
    problems,
    read_info,
    sha256,
    store_plan,
    write_atomically,
)
from duologue.errors import EngineError

RECIPE = Recipe(
    graph="hift",
    backend="tensorrt_rtx",
    version="1.7.1",
    precision="fp16",
    targets=("sm80", "sm89"),
    gpu="",
    profiles=({"batch": (1, 4, 8)},),
    onnx_sha256="0" * 64,
)
CONTENT = b"a plan"
HERE = Machine({"tensorrt_rtx": "1.7.1"}, "sm89", "L4")


def store(folder, recipe=RECIPE):
    info = PlanInfo(
        **recipe.model_dump(),
        inputs=(),
        outputs=(),
        sha256=sha256(CONTENT),
        size=len(CONTENT),
        seconds=1.0,
    )
    path = recipe.path(folder)
    store_plan(path, CONTENT, info)
    return path, info


def test_a_plan_comes_back_with_its_facts(tmp_path):
    path, info = store(tmp_path / "new")
    assert read_info(path) == info
    assert find_whole(path) == info
    assert find_plans(tmp_path / "new") == [path]
    assert problems(path, info, HERE) == []
    assert problems(path, info, Machine({"tensorrt_rtx": "1.7.1"})) == []
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.json"}


@pytest.mark.parametrize(
    "change",
    [
        {"graph": "f0"},
        {"backend": "tensorrt"},
        {"version": "1.8"},
        {"precision": "bf16"},
        {"targets": ("sm80",)},
        {"gpu": "L4"},
        {"profiles": ({"batch": (1, 4, 9)},)},
        {"onnx_sha256": "1" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_recipe_is_in_the_name(tmp_path, change):
    other = Recipe(**(RECIPE.model_dump() | change))
    assert other.path(tmp_path) != RECIPE.path(tmp_path)
    assert Recipe(**RECIPE.model_dump()).path(tmp_path) == RECIPE.path(tmp_path)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (Machine({}, "sm89"), "tensorrt_rtx is not installed"),
        (Machine({"tensorrt_rtx": "1.8"}, "sm89"), "built by tensorrt_rtx 1.7.1, installed is 1.8"),
        (Machine({"tensorrt_rtx": "1.7.1"}, "sm90"), "for sm80, sm89, the GPU here is sm90"),
    ],
)
def test_a_plan_for_another_machine_says_so(tmp_path, machine, reason):
    path, info = store(tmp_path)
    assert problems(path, info, machine) == [reason]


def test_a_plan_that_was_tuned_on_another_gpu_says_so(tmp_path):
    recipe = RECIPE.model_copy(update={"gpu": "A10", "targets": ("sm89",)})
    path, info = store(tmp_path, recipe)
    assert problems(path, info, HERE) == ["tuned on A10, the GPU here is L4"]


def test_damage_is_found_whatever_else_is_wrong(tmp_path):
    path, info = store(tmp_path)
    path.write_bytes(CONTENT[::-1])
    assert "damaged: its SHA-256 is" in problems(path, info, HERE)[0]
    assert find_whole(path) is None
    path.write_bytes(CONTENT[:-1])
    assert problems(path, info, HERE) == ["damaged: it has 5 bytes, not 6"]
    path.unlink()
    assert problems(path, info, HERE) == ["the file is missing"]


def test_a_plan_without_its_json_does_not_count(tmp_path):
    path, _ = store(tmp_path)
    facts = path.with_name(f"{path.name}.json")
    facts.write_text("{}")
    with pytest.raises(EngineError, match="cannot be used"):
        read_info(path)
    facts.unlink()
    with pytest.raises(EngineError, match="no such file"):
        read_info(path)
    assert find_plans(tmp_path) == []


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(EngineError, match="no such folder"):
        find_plans(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot be written"):
        store(tmp_path / "file")


def test_a_plan_of_another_recipe_is_not_found(tmp_path):
    path, info = store(tmp_path)
    store_plan(path, CONTENT, info.model_copy(update={"precision": "bf16"}))
    assert find_whole(path) is None


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(EngineError, match="cannot be written"):
        write_atomically(tmp_path / "taken", CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_list_marks_what_is_damaged(tmp_path):
    path, _ = store(tmp_path)
    bad = tmp_path / "f0-fp32-onnx-0.onnx"
    (tmp_path / f"{bad.name}.json").write_text("{")
    for options in ([], ["--json"]):
        result = CliRunner().invoke(engine_app, ["list", "--dir", str(tmp_path), *options])
        assert result.exit_code == 0
        assert path.name in result.stdout
        assert f"{bad.name}.json cannot be used" in result.stdout
