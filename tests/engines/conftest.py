"""Fixtures of the engine tests: tiny weights, graphs exported once, the real TensorRT bindings."""

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from bindings import ENTRY_POINTS

from duologue.engines.export import ExportedGraph, export_graph
from duologue.engines.graphs import Weights, random_weights

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).with_name("bindings.py")
LIBRARIES = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser")


@pytest.fixture(scope="session")
def weights() -> Weights:
    torch.set_num_threads(1)
    return random_weights("tiny")


@pytest.fixture(scope="session")
def exported(weights):
    """A graph's export by name and precision, made once."""

    @cache
    def export(name: str, precision: str = "fp32") -> ExportedGraph:
        return export_graph(weights, name, precision)

    return export


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory):
    """Libraries with TensorRT's entry points and nothing behind them, for a major version."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build stand-ins of TensorRT's libraries")
    folder = tmp_path_factory.mktemp("stand_ins")
    source = folder / "stand_in.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in ENTRY_POINTS))

    def build(major: int) -> list[Path]:
        paths = [folder / f"{name}.so.{major}" for name in LIBRARIES]
        for path in paths:
            command = [compiler, "-shared", "-fPIC", "-o", path, source]
            subprocess.run([*command, f"-Wl,-soname,{path.name}"], check=True)
        return paths

    return build


@pytest.fixture(scope="session", params=["10", "11", "rtx"])
def binding(request):
    """What a real binding offers: class -> attribute -> docstring."""
    if request.param == "rtx":
        pytest.importorskip("tensorrt_rtx_bindings")
        return offered(["tensorrt_rtx_bindings", "tensorrt_rtx_libs"])
    package = {"10": "tensorrt-cu12-bindings", "11": "tensorrt-cu13-bindings"}[request.param]
    folder = ROOT / ".references" / package
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; scripts/references.sh fetches it")
    libraries = request.getfixturevalue("stand_ins")(int(request.param))
    return offered(["tensorrt_bindings", *libraries], folder)


def offered(arguments: list, folder: Path | None = None) -> dict[str, dict[str, str]]:
    """In a process of its own: the bindings of 10 and 11 have one name."""
    run = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env={"PYTHONPATH": str(folder or "")},
        capture_output=True,
        check=True,
    )
    return json.loads(run.stdout)
