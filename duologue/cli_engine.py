"""`duologue engine`: build model graphs for ONNX Runtime and TensorRT, list and check them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from duologue.engines.plans import (
    CPU_PRECISIONS,
    Machine,
    check_kind,
    check_known,
    find_plans,
    problems,
    read_info,
)
from duologue.errors import EngineError, UsageError
from duologue.token2wav.config import PRESETS
from duologue.token2wav.layout import check_checkpoint

if TYPE_CHECKING:
    from duologue.engines.graphs import Weights
    from duologue.engines.tensorrt_build import Report

engine_app = typer.Typer(
    no_args_is_help=True, help="Build model graphs for each engine, list and check them."
)

Preset = Annotated[str | None, typer.Option(help="Random weights of a size: tiny or full.")]
ModelFolder = Annotated[Path | None, typer.Option("--model", help="A checkpoint's folder.")]
Folder = Annotated[Path, typer.Option("--dir", help="Where built graphs lie.")]
Precision = Annotated[str, typer.Option(help="Type of the weights: fp32, fp16 or bf16.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@engine_app.command()
def build(
    graph: Annotated[str, typer.Option(help="As estimator-stream, hift or campplus.")],
    folder: Folder,
    preset: Preset = None,
    model: ModelFolder = None,
    backend: Annotated[str, typer.Option(help="onnx, tensorrt or tensorrt_rtx.")] = "onnx",
    precision: Precision = "fp32",
    sm: Annotated[
        list[str], typer.Option(help="tensorrt_rtx: compute capability, as 89; may be repeated.")
    ] = [],  # noqa: B006
    batch: Annotated[int, typer.Option(min=1, help="Most sessions in one step.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Build one graph, unless it is there already."""
    from duologue.engines.tensorrt_build import find_builder

    name, targets = graph.replace("-", "_"), tuple(f"sm{target}" for target in sm)
    check_kind(name, backend, precision)
    _check_paths(preset, model, folder)
    find_builder(backend, targets)
    weights = _weights(preset, model)
    from duologue.engines.build import build_graph
    from duologue.engines.graphs import Limits

    with _bar(graph) as report:
        built = build_graph(
            weights,
            name,
            folder,
            backend=backend,
            precision=precision,
            targets=targets,
            limits=Limits(batch=batch),
            report=report,
        )
    if as_json:
        facts = {
            "plan": str(built.path),
            "bytes": built.info.size,
            "seconds": built.info.seconds,
            "fresh": built.fresh,
            "difference": built.difference,
            **built.info.model_dump(mode="json", exclude={"size", "seconds"}),
        }
        typer.echo(json.dumps(facts, indent=2))
    else:
        state = "built" if built.fresh else "there already"
        typer.echo(f"{built.path}: {state}, {built.info.size / 1e6:.1f} MB")


@engine_app.command()
def export(
    folder: Folder,
    preset: Preset = None,
    model: ModelFolder = None,
    precision: Precision = "fp32",
) -> None:
    """Write a whole model in ONNX, which a machine without torch can run."""
    check_known("precision", precision, CPU_PRECISIONS)
    _check_paths(preset, model, folder)
    if model is not None and folder.exists() and folder.samefile(model):
        raise UsageError(
            f"--dir {folder} is the checkpoint's own folder, whose campplus.onnx would be "
            "overwritten; choose another one"
        )
    weights = _weights(preset, model)
    from duologue.engines.export import export_all

    def report(graph: str, difference: float) -> None:
        typer.echo(f"{graph}: differs by {difference:.1e} (relative rms)", err=True)

    export_all(weights, folder, precision, report)
    typer.echo(folder)


@engine_app.command("list")
def list_engines(folder: Folder, as_json: AsJson = False) -> None:
    """List the graphs that were built."""
    rows, damaged = [], []
    for path in find_plans(folder):
        try:
            rows.append((path, read_info(path)))
        except EngineError as error:
            damaged.append({"plan": str(path), "problems": [str(error)]})
    if as_json:
        shown = [{"plan": str(path), **info.model_dump(mode="json")} for path, info in rows]
        typer.echo(json.dumps(shown + damaged, indent=2))
        return
    form = "{:<18}{:<13}{:<12}{:<6}{:<18}{:>9}  {}"
    typer.echo(form.format("GRAPH", "BACKEND", "VERSION", "TYPE", "FOR", "SIZE", "FILE"))
    for path, info in rows:
        size, target = f"{info.size / 1e6:.1f} MB", ",".join(info.targets) or "any"
        facts = (info.graph, info.backend, info.version, info.precision, target, size, path.name)
        typer.echo(form.format(*facts))
    for row in damaged:
        typer.echo(f"{row['plan']}: {'; '.join(row['problems'])}")


@engine_app.command()
def check(folder: Folder, as_json: AsJson = False) -> None:
    """Say of every graph that was built whether it can run here, and if not, why."""
    machine, rows = _machine(), []
    for path in find_plans(folder):
        try:
            reasons = problems(path, read_info(path), machine)
        except EngineError as error:
            reasons = [str(error)]
        rows.append({"plan": str(path), "ok": not reasons, "problems": reasons})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        for row in rows:
            typer.echo(f"{row['plan']}: {'; '.join(row['problems']) or 'ok'}")
        if not rows:
            typer.echo(f"{folder}: nothing built; `duologue engine build` does it", err=True)
    if wrong := [Path(row["plan"]).name for row in rows if not row["ok"]]:
        raise EngineError(f"cannot run here: {', '.join(wrong)}. Build again, or delete them.")


def _check_paths(preset: str | None, model: Path | None, folder: Path) -> None:
    """What can be said of weights and folders before torch is imported, which takes seconds."""
    if (preset is None) == (model is None):
        raise UsageError("expected one of --preset and --model")
    if preset is not None:
        check_known("preset", preset, PRESETS)
    if model is not None:
        check_checkpoint(model)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--dir {folder}: found a file, expected a folder")


def _weights(preset: str | None, model: Path | None) -> "Weights":
    if missing := [name for name in ("torch", "onnx", "onnxscript") if find_spec(name) is None]:
        raise EngineError(
            f"{', '.join(missing)} not installed; exporting takes pip install -e '.[torch]'"
        )
    from duologue.engines.graphs import load_weights, random_weights

    return random_weights(preset) if preset is not None else load_weights(model or Path())


def _machine() -> Machine:
    """What is installed here, and the GPU if torch can see one."""
    from duologue.engines.tensorrt_api import FLAVOURS, load

    versions = {}
    for flavour in FLAVOURS:
        try:
            versions[flavour] = load(flavour).__version__
        except EngineError:
            continue
    if find_spec("torch") is None:
        return Machine(versions)
    from duologue.engines.tensorrt_run import gpu_of

    return Machine(versions, *gpu_of())


@contextmanager
def _bar(graph: str) -> Iterator["Report"]:
    """A bar on standard error, of the build alone; nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("building {task.fields[graph]}"), BarColumn(), TimeElapsedColumn())
    phase = TextColumn("{task.description}")
    with Progress(*columns, phase, console=console, disable=not console.is_interactive) as bar:
        task = bar.add_task("exporting", total=1.0, graph=graph)
        yield lambda done, what: bar.update(task, completed=done, description=what)
