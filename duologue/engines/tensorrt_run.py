"""A TensorRT plan on a GPU, on tensors that stay there."""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from duologue.engines.graph import Port, check_arrays
from duologue.engines.plans import Machine, PlanInfo, Profile, problems, read_info
from duologue.engines.tensorrt_api import dtype_name, load, make_logger
from duologue.engines.torch import to_array, to_tensor
from duologue.errors import EngineError

ALIGNMENT = 256
"""Bytes that an address must be a multiple of, by TensorRT's own header."""

Tensors = Mapping[str, torch.Tensor]


class TensorRTGraph:
    """A plan, ready to run.

    Any thread may call `run`, they take turns; `enqueue` is for one thread at a time. Work is
    queued on the caller's CUDA stream; on the default stream TensorRT adds synchronisations of its
    own, so use another.

    Args:
        path: The plan; its JSON lies beside it.
        device: The GPU.

    Raises:
        EngineError: the plan is damaged, was built by another version or for another GPU, or
            TensorRT refuses it.
    """

    def __init__(self, path: Path, *, device: str = "cuda"):
        info = read_info(path)
        if info.backend == "onnx":
            raise EngineError(f"{path} is an ONNX file; expected a TensorRT plan")
        trt = load(info.backend)
        self._device = torch.device(device)
        here = Machine({info.backend: trt.__version__}, *gpu_of(self._device))
        if reasons := problems(path, info, here):
            raise EngineError(f"{path} cannot run here: {'; '.join(reasons)}; build it here")
        self.inputs = tuple(port.port for port in info.inputs)
        self.outputs = tuple(port.port for port in info.outputs)
        self._name, self._profiles = path.name, info.profiles
        self._logger = make_logger(trt)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise EngineError(f"{path}: {self._failure()}; build it again")
        self._compare(trt, info)
        self._contexts = self._make_contexts(trt)
        self._shapes: list[dict[str, int]] = [{} for _ in self._contexts]
        # An empty tensor has no address, and TensorRT wants one.
        self._nothing = torch.empty(ALIGNMENT, dtype=torch.uint8, device=self._device)
        self._running = threading.Lock()

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once on arrays of the host; this waits for the GPU.

        Raises:
            EngineError: as `enqueue`.
        """
        check_arrays(self.inputs, arrays)
        device = str(self._device)
        with self._running:
            results = self.enqueue(
                {port.name: to_tensor(port, arrays[port.name], device) for port in self.inputs}
            )
            return {port.name: to_array(port, results[port.name]) for port in self.outputs}

    def enqueue(self, tensors: Tensors, into: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Queue one run on the current CUDA stream, without waiting for it and without a copy.

        Keep inputs and `into` unchanged until the stream is past the run. A cache goes round
        without a copy if its output becomes the next run's input and its input the next `into`.

        Args:
            tensors: Inputs by name, contiguous, on the GPU.
            into: Outputs by name to write into; those not named are new.

        Returns:
            All outputs by name.

        Raises:
            EngineError: a tensor does not fit its port or no profile holds its size, or TensorRT
                refuses the run.
        """
        sizes = check_arrays(self.inputs, tensors, host=False)
        index = self._profile_for(sizes)
        context = self._contexts[index]
        results = self._results(sizes, into or {})
        if sizes != self._shapes[index]:
            self._shapes[index] = {}
            for port in self.inputs:
                if not context.set_input_shape(port.name, port.size(sizes)):
                    raise EngineError(f"{self._name}: {port.name} refused: {self._failure()}")
            self._shapes[index] = sizes
        for name, tensor in (*tensors.items(), *results.items()):
            context.set_tensor_address(name, self._address(name, tensor))
        stream = torch.cuda.current_stream(self._device).cuda_stream
        if not context.execute_async_v3(stream):
            raise EngineError(f"{self._name}: the run was refused: {self._failure()}")
        return results

    def _results(self, sizes: dict[str, int], into: Tensors) -> dict[str, torch.Tensor]:
        results = {}
        for port in self.outputs:
            shape, dtype = port.size(sizes), getattr(torch, port.dtype)
            given = into.get(port.name)
            if given is not None and (tuple(given.shape) != shape or given.dtype != dtype):
                raise EngineError(
                    f"output {port.name}: expected {port.dtype} {list(shape)}, "
                    f"got {str(given.dtype).removeprefix('torch.')} {list(given.shape)}"
                )
            if given is None:
                given = torch.empty(shape, dtype=dtype, device=self._device)
            results[port.name] = given
        if unknown := set(into) - set(results):
            raise EngineError(f"no such output: {', '.join(sorted(unknown))}")
        return results

    def _address(self, name: str, tensor: torch.Tensor) -> int:
        if not tensor.numel():
            return self._nothing.data_ptr()
        address = tensor.data_ptr()
        if tensor.device.type != self._device.type or not tensor.is_contiguous():
            raise EngineError(f"{name} must be contiguous and on {self._device}")
        if address % ALIGNMENT:
            raise EngineError(
                f"{name} begins inside another tensor, not at a multiple of {ALIGNMENT} bytes; "
                "clone it"
            )
        return address

    def _profile_for(self, sizes: dict[str, int]) -> int:
        for index, profile in enumerate(self._profiles):
            if not _outside(sizes, profile):
                return index
        reasons = [", ".join(_outside(sizes, profile)) for profile in self._profiles]
        raise EngineError(
            f"{self._name} was built for other sizes: {'; or '.join(reasons)}. "
            "Send less at once, or build with a larger profile"
        )

    def _make_contexts(self, trt: Any) -> list[Any]:
        """A context for each profile, with memory for that profile alone."""
        contexts = []
        stream = torch.cuda.current_stream(self._device)
        for index in range(len(self._profiles)):
            context = self._engine.create_execution_context(
                trt.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE
            )
            if context is None or not context.set_optimization_profile_async(
                index, stream.cuda_stream
            ):
                raise EngineError(f"{self._name}: no context for a profile: {self._failure()}")
            contexts.append(context)
        stream.synchronize()
        return contexts

    def _compare(self, trt: Any, info: PlanInfo) -> None:
        """Whether the engine has the ports that the JSON says."""
        engine = self._engine
        found = set()
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            found.add((name, dtype_name(engine.get_tensor_dtype(name)), is_input))
        expected = {*_named(self.inputs, True), *_named(self.outputs, False)}
        if found != expected or engine.num_optimization_profiles != len(info.profiles):
            wrong = ", ".join(sorted(name for name, _, _ in found ^ expected)) or "profiles"
            raise EngineError(f"{self._name} and its JSON disagree on {wrong}; build it again")

    def _failure(self) -> str:
        return "; ".join(self._logger.errors[-3:]) or "TensorRT gave no reason"


def gpu_of(device: torch.device | str = "cuda") -> tuple[str | None, str]:
    """Compute capability ("sm89") and name of a GPU; None and no name where there is none."""
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return None, ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}", torch.cuda.get_device_name(device)


def _named(ports: Iterable[Port], is_input: bool) -> set[tuple[str, str, bool]]:
    return {(port.name, port.dtype, is_input) for port in ports}


def _outside(sizes: dict[str, int], profile: Profile) -> list[str]:
    return [
        f"{axis} is {sizes[axis]}, built for {least} to {most}"
        for axis, (least, _, most) in profile.items()
        if not least <= sizes[axis] <= most
    ]
