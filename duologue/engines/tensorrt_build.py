"""ONNX to a TensorRT plan, strongly typed: the types of the ONNX are the types of the plan."""

from collections.abc import Callable, Sequence
from typing import Any

from duologue.engines.graph import Port
from duologue.engines.plans import PortInfo, Profile
from duologue.engines.tensorrt_api import dtype_name, load, make_logger
from duologue.errors import EngineError, UsageError
from duologue.token2wav.ports import Signature

Report = Callable[[float, str], None]
"""Receives how much is done, 0 to 1, and what is being done."""


def build_plan(
    model: bytes,
    signature: Signature,
    profiles: Sequence[Profile],
    *,
    flavour: str,
    targets: Sequence[str] = (),
    report: Report | None = None,
) -> tuple[bytes, list[tuple[PortInfo, ...]]]:
    """Build a plan.

    Args:
        model: The ONNX.
        signature: What it takes and gives; the names of open sizes are the axes of the profiles.
        profiles: The ranges that it is to serve; each costs memory for its greatest sizes.
        flavour: "tensorrt" or "tensorrt_rtx".
        targets: Compute capabilities, "sm89", for "tensorrt_rtx"; the other builds for the GPU
            that is present.
        report: Told how far the build is.

    Returns:
        The plan, and its inputs and outputs as the network has them.

    Raises:
        UsageError: an unknown flavour or target.
        EngineError: the flavour is not installed, the ONNX has other ports, or the build failed.
    """
    trt = find_builder(flavour, targets)
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    # Strong typing is a flag in TensorRT 10 and the only way in 11 and RTX, which ignore the flag.
    flag = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    network = builder.create_network(1 << int(flag))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise EngineError(f"{flavour} cannot read the ONNX: {'; '.join(reasons)}")
    tensors = (
        [network.get_input(index) for index in range(network.num_inputs)],
        [network.get_output(index) for index in range(network.num_outputs)],
    )
    found = [_describe(*pair) for pair in zip(tensors, signature, strict=True)]
    config = builder.create_builder_config()
    if targets:
        config.num_compute_capabilities = len(targets)
        for index, target in enumerate(targets):
            config.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), index)
    for ranges in profiles:
        if config.add_optimization_profile(_profile(builder, signature.inputs, ranges)) < 0:
            raise EngineError(f"{flavour} refuses the profile {ranges}: {logger.errors}")
    if report is not None:
        config.progress_monitor = _monitor(trt, report)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineError(f"{flavour} could not build: {'; '.join(logger.errors) or 'no reason'}")
    return bytes(plan), found


def find_builder(backend: str, targets: Sequence[str]) -> Any:
    """The module that builds for a backend and compute capabilities; None for ONNX.

    Raises:
        UsageError: an unknown backend; or it takes no target, needs some, or does not know one.
        EngineError: it is not installed.
    """
    if backend == "onnx":
        if targets:
            raise UsageError("ONNX is for no GPU in particular; name no target")
        return None
    trt = load(backend)
    if not hasattr(trt, "ComputeCapability"):
        if targets:
            raise UsageError("tensorrt builds for the GPU that is present; name no target")
        return trt
    known = [name.lower() for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    if not targets or set(targets) - set(known):
        raise UsageError(
            f"targets: {', '.join(targets) or 'none'}; expected some of {', '.join(known)}"
        )
    return trt


def _describe(tensors: Sequence[Any], ports: Sequence[Port]) -> tuple[PortInfo, ...]:
    """The network's tensors in the order of the ports, whose names its open sizes take."""
    by_name = {tensor.name: tensor for tensor in tensors}
    if set(by_name) != {port.name for port in ports}:
        raise EngineError(
            f"the ONNX has {', '.join(sorted(by_name))}; "
            f"expected {', '.join(sorted(port.name for port in ports))}"
        )
    found = []
    for port in ports:
        tensor = by_name[port.name]
        shape = tuple(tensor.shape)
        sizes = tuple(
            port_size if size == -1 else size
            for size, port_size in zip(shape, port.shape, strict=False)
        )
        dtype = dtype_name(tensor.dtype)
        if len(shape) != len(port.shape) or sizes != port.shape or dtype != port.dtype:
            raise EngineError(f"the ONNX has {port.name} {dtype} {list(shape)}; expected {port}")
        found.append(PortInfo(name=port.name, dtype=dtype, shape=sizes))
    return tuple(found)


def _profile(builder: Any, inputs: Sequence[Port], ranges: Profile) -> Any:
    profile = builder.create_optimization_profile()
    for port in inputs:
        shapes = [
            port.size({axis: sizes[which] for axis, sizes in ranges.items()}) for which in range(3)
        ]
        profile.set_shape(port.name, *shapes)
    return profile


class _Phases:
    """Nested phases of a build as one fraction: a phase is a step of the phase around it."""

    def __init__(self, report: Report):
        self._report = report
        self._open: dict[str, tuple[int, int]] = {}
        self._most = 0.0

    def start(self, phase: str, steps: int) -> None:
        self._open[phase] = (0, max(steps, 1))
        self._tell(phase)

    def step(self, phase: str, index: int) -> None:
        if phase in self._open:
            self._open[phase] = (index + 1, self._open[phase][1])
            self._tell(phase)

    def finish(self, phase: str) -> None:
        self._open.pop(phase, None)
        if not self._open:
            self._report(1.0, phase)

    def _tell(self, phase: str) -> None:
        done, width = 0.0, 1.0
        for index, steps in self._open.values():
            width /= steps
            done += index * width
        # A step may hold several phases, one after the other.
        self._most = max(self._most, done)
        self._report(self._most, phase)


def _monitor(trt: Any, report: Report) -> Any:
    phases = _Phases(report)

    class Monitor(trt.IProgressMonitor):
        def __init__(self):
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            phases.step(phase_name, step)
            return True

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return Monitor()
