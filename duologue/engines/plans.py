"""A folder of built graphs, each file with a JSON beside it that says what it is.

A plan is known by what it was made from: two builds of one ONNX differ by some bytes, so plans
themselves are never compared. The JSON is written last; without it a file does not count.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from duologue.engines.graph import Port
from duologue.errors import EngineError, UsageError
from duologue.token2wav.ports import SIGNATURES

Backend = Literal["onnx", "tensorrt", "tensorrt_rtx"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Types of weights by the names that plans give them."""

CPU_PRECISIONS = ("fp32", "fp16")
"""Those that ONNX Runtime has kernels for on the CPU."""

Range = tuple[int, int, int]
"""The least, the usual and the greatest size of an axis."""

Profile = dict[str, Range]
"""The range of each open axis of a graph."""


class PortInfo(BaseModel):
    """A `Port` in JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, port: Port) -> "PortInfo":
        """A port's description."""
        return cls(name=port.name, dtype=port.dtype, shape=port.shape)

    @property
    def port(self) -> Port:
        """The port itself."""
        return Port(self.name, self.dtype, self.shape)


class Recipe(BaseModel):
    """All that a plan depends on.

    Attributes:
        graph: Which graph, "estimator_stream".
        backend: What runs it.
        version: Version of the backend that builds it; a plan runs on no other.
        precision: Type of the weights: "fp32", "fp16" or "bf16".
        targets: What GPUs it is for, "sm89"; empty for ONNX, which runs anywhere.
        gpu: Name of the GPU that it is tuned on; empty if on none.
        profiles: Sizes that it is built for; a run must fit one of them.
        onnx_sha256: The ONNX it is built from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    graph: str
    backend: Backend
    version: str
    precision: str
    targets: tuple[str, ...]
    gpu: str
    profiles: tuple[Profile, ...]
    onnx_sha256: str

    def path(self, folder: Path) -> Path:
        """Where its plan lies in a folder; the name changes with every part of the recipe."""
        recipe = json.dumps(self.model_dump(include=set(Recipe.model_fields)), sort_keys=True)
        suffix = "onnx" if self.backend == "onnx" else "plan"
        name = f"{self.graph}-{self.precision}-{self.backend}"
        return folder / f"{name}-{sha256(recipe.encode())[:16]}.{suffix}"


class PlanInfo(Recipe):
    """What a built file is: its recipe, and what came of it.

    Attributes:
        inputs: What it takes, as the network says.
        outputs: What it gives.
        sha256: Hash of the file.
        size: Its bytes.
        seconds: Time of the build.
    """

    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    sha256: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plans of a folder are checked against.

    Attributes:
        versions: Version of each backend that is installed.
        gpu: Compute capability of the GPU, "sm89"; None where there is none to compare with.
        gpu_name: Its name.
    """

    versions: Mapping[str, str]
    gpu: str | None = None
    gpu_name: str = ""


def check_kind(graph: str, backend: str, precision: str) -> None:
    """Whether there is such a graph, backend and precision.

    Raises:
        UsageError: there is not.
    """
    check_known("graph", graph, SIGNATURES)
    check_known("backend", backend, BACKENDS)
    check_known("precision", precision, PRECISIONS)


def check_known(what: str, name: str, known: Iterable[str]) -> None:
    """Whether a name is one of those known.

    Raises:
        UsageError: it is not.
    """
    if name not in known:
        raise UsageError(f"{what} {name!r}; expected one of {', '.join(known)}")


def store_plan(path: Path, content: bytes, info: PlanInfo) -> None:
    """Write a plan and then its JSON, each whole or not at all.

    Raises:
        EngineError: the folder cannot be written.
    """
    write_atomically(path, content)
    write_atomically(_info_path(path), info.model_dump_json(indent=2).encode())


def read_info(path: Path) -> PlanInfo:
    """The JSON of a plan.

    Raises:
        EngineError: there is none, or it is not of this kind.
    """
    source = _info_path(path)
    try:
        return PlanInfo.model_validate_json(source.read_bytes())
    except FileNotFoundError as error:
        raise EngineError(f"{source}: no such file; build {path.name} again") from error
    except (OSError, ValidationError) as error:
        raise EngineError(f"{source} cannot be used ({error}); build it again") from error


def find_whole(path: Path) -> PlanInfo | None:
    """What lies at a path, if it is a whole plan, and of the recipe that its name stands for."""
    try:
        info = read_info(path)
    except EngineError:
        return None
    return None if info.path(path.parent) != path or _damage(path, info) else info


def find_plans(folder: Path) -> list[Path]:
    """All plans of a folder, by name.

    Raises:
        EngineError: there is no such folder.
    """
    if not folder.is_dir():
        raise EngineError(f"{folder}: no such folder; `duologue engine build` makes it")
    return sorted(path.with_suffix("") for path in folder.glob("*-*.*.json"))


def problems(path: Path, info: PlanInfo, machine: Machine) -> list[str]:
    """Why a plan cannot run on a machine; empty if it can, as far as can be told."""
    damage = _damage(path, info)
    return damage if damage or info.backend == "onnx" else _misfits(info, machine)


def _damage(path: Path, info: PlanInfo) -> list[str]:
    if not path.is_file():
        return ["the file is missing"]
    if (size := path.stat().st_size) != info.size:
        return [f"damaged: it has {size} bytes, not {info.size}"]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return [] if found == info.sha256 else [f"damaged: its SHA-256 is {found}, not {info.sha256}"]


def _misfits(info: PlanInfo, machine: Machine) -> list[str]:
    found = []
    installed = machine.versions.get(info.backend)
    if installed is None:
        found.append(f"{info.backend} is not installed")
    elif installed != info.version:
        found.append(f"built by {info.backend} {info.version}, installed is {installed}")
    if machine.gpu is not None and machine.gpu not in info.targets:
        found.append(f"for {', '.join(info.targets)}, the GPU here is {machine.gpu}")
    elif machine.gpu_name and info.gpu and machine.gpu_name != info.gpu:
        found.append(f"tuned on {info.gpu}, the GPU here is {machine.gpu_name}")
    return found


def sha256(content: bytes) -> str:
    """Hash of bytes."""
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either whole or not there.

    Raises:
        EngineError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as aside:
            file = Path(aside, path.name)
            file.write_bytes(content)
            file.replace(path)
    except OSError as error:
        raise EngineError(f"{path} cannot be written: {error}") from error


def _info_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
