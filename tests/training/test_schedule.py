"""The stages' order, on stages that only write down when they ran."""

import asyncio
import sys

import pytest

from duologue.errors import EngineError
from duologue.training.schedule import Order, run_all

WRITES = """
import pathlib, sys
name, minutes, work, fails = sys.argv[1:]
with open(pathlib.Path(work, "ran"), "a") as file:
    file.write(f"{name} {minutes}\\n")
print(f"{name} says why")
sys.exit(3 if name in fails.split() else 0)
"""


def run(tmp_path, fails: str = "") -> list[tuple[str, float]]:
    def command(stage: str, minutes: float) -> list[str]:
        return [sys.executable, "-c", WRITES, stage, str(minutes), str(tmp_path), fails]

    try:
        asyncio.run(run_all(tmp_path, 10, command))
    finally:
        lines = (tmp_path / "ran").read_text().splitlines()
    return [(name, float(minutes)) for name, minutes in map(str.split, lines)]


def test_stages_run_in_order_and_share_the_time(tmp_path):
    ran = run(tmp_path)
    names = [name for name, _ in ran]
    assert names[0] == "speech" and sorted(names) == [
        "flow",
        "hift",
        "speech",
        "talker",
        "tokenizer",
    ]
    assert names.index("tokenizer") < min(names.index("flow"), names.index("talker"))
    given = dict(ran)
    assert given["speech"] == pytest.approx(1.0) and given["hift"] == pytest.approx(5.0)
    assert 9.5 < given["flow"] < 10


def test_a_failed_stage_stops_only_what_needs_it(tmp_path):
    with pytest.raises(EngineError, match=r"tokenizer \(exit code 3.*\n?tokenizer says why"):
        run(tmp_path, fails="tokenizer")
    ran = (tmp_path / "ran").read_text()
    assert "hift" in ran and "flow" not in ran and "talker" not in ran


def test_without_speech_nothing_is_trained(tmp_path):
    with pytest.raises(EngineError, match="speech"):
        run(tmp_path, fails="speech")
    assert (tmp_path / "ran").read_text().split()[0::2] == ["speech"]


def test_a_stage_is_called_as_its_command_takes_it(tmp_path):
    from typer.testing import CliRunner

    from duologue.cli_train import train_app

    for stage in ("speech", "flow"):
        command = Order(tmp_path, tmp_path / "voice", "cpu").command(stage, 1.5)
        assert command[3] == stage
        result = CliRunner().invoke(train_app, command[3:])
        # Every option is known; what is missing is the work.
        assert "No such option" not in result.output and result.exit_code == 1
