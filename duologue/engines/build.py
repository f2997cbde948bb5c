"""One graph of a model, built for one engine and put into a folder, unless it is there already."""

import time
from dataclasses import dataclass
from pathlib import Path

from duologue.engines.export import export_graph
from duologue.engines.graphs import Limits, Weights
from duologue.engines.plans import (
    PlanInfo,
    PortInfo,
    Recipe,
    check_kind,
    find_whole,
    sha256,
    store_plan,
)
from duologue.engines.tensorrt_build import Report, build_plan, find_builder
from duologue.engines.tensorrt_run import gpu_of
from duologue.errors import EngineError


@dataclass(frozen=True, slots=True)
class Built:
    """What was built.

    Attributes:
        path: The file.
        info: What its JSON says.
        fresh: False if it was there already.
        difference: Greatest relative rms difference of the ONNX from the float32 module.
    """

    path: Path
    info: PlanInfo
    fresh: bool
    difference: float


def build_graph(
    weights: Weights,
    graph: str,
    folder: Path,
    *,
    backend: str = "onnx",
    precision: str = "fp32",
    targets: tuple[str, ...] = (),
    limits: Limits | None = None,
    report: Report | None = None,
) -> Built:
    """Build a graph and store it.

    Args:
        weights: Of the model.
        graph: A name of `duologue.token2wav.ports`.
        folder: Where built graphs lie.
        backend: "onnx", "tensorrt" or "tensorrt_rtx".
        precision: "fp32", "fp16" or "bf16".
        targets: Compute capabilities, "sm89", for tensorrt_rtx.
        limits: Sizes that a TensorRT plan is to serve.
        report: Told how far a TensorRT build is.

    Raises:
        UsageError: an unknown graph, backend, precision or target.
        EngineError: the backend is not installed, or a step failed.
    """
    check_kind(graph, backend, precision)
    version, targets, gpu = _place(backend, targets)
    exported = export_graph(weights, graph, precision)
    profiles = () if backend == "onnx" else (limits or Limits()).profiles(graph)
    recipe = Recipe.model_validate(
        {
            "graph": graph,
            "backend": backend,
            "version": version,
            "precision": precision,
            "targets": targets,
            "gpu": gpu,
            "profiles": profiles,
            "onnx_sha256": sha256(exported.content),
        }
    )
    path = recipe.path(folder)
    if (info := find_whole(path)) is not None:
        return Built(path, info, False, exported.difference)
    started = time.perf_counter()
    if backend == "onnx":
        content = exported.content
        ports = [tuple(map(PortInfo.of, ports)) for ports in exported.signature]
    else:
        content, ports = build_plan(
            exported.content,
            exported.signature,
            profiles,
            flavour=backend,
            targets=() if gpu else targets,
            report=report,
        )
    info = PlanInfo(
        **recipe.model_dump(),
        inputs=ports[0],
        outputs=ports[1],
        sha256=sha256(content),
        size=len(content),
        seconds=round(time.perf_counter() - started, 3),
    )
    store_plan(path, content, info)
    return Built(path, info, True, exported.difference)


def _place(backend: str, targets: tuple[str, ...]) -> tuple[str, tuple[str, ...], str]:
    """Version of the backend, the GPUs that it builds for, and the one that it tunes on."""
    trt = find_builder(backend, targets)
    if trt is None:
        return "", (), ""
    if targets:
        return trt.__version__, targets, ""
    present, name = gpu_of()
    if present is None:
        raise EngineError(
            "tensorrt tunes a plan on the GPU that it is for, and none is here; "
            "build there, or take tensorrt_rtx"
        )
    return trt.__version__, (present,), name
