"""A graph run by PyTorch, on the CPU or a GPU."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from duologue.engines.graph import Port, check_arrays
from duologue.errors import EngineError


class TorchGraph:
    """A module as a graph.

    Args:
        module: Its forward takes `inputs` in order and gives `outputs` in order; it is moved to
            `device` and set to evaluation, its weights keep their types.
        inputs: What it takes.
        outputs: What it gives.
        device: "cpu", "cuda" or "cuda:1".

    Raises:
        EngineError: there is no such device.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        *,
        device: str = "cpu",
    ):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._device = device
        try:
            self._module = module.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            raise EngineError(f"device {device!r} cannot be used: {error}") from error

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            EngineError: an input is missing, unknown, or has another type or shape than its port;
                or the run failed.
        """
        check_arrays(self.inputs, arrays)
        tensors = [to_tensor(port, arrays[port.name], self._device) for port in self.inputs]
        try:
            with torch.inference_mode():
                results = self._module(*tensors)
        except RuntimeError as error:
            raise EngineError(f"{type(self._module).__name__}: the run failed: {error}") from error
        if isinstance(results, torch.Tensor):
            results = (results,)
        pairs = zip(self.outputs, results, strict=True)
        return {port.name: to_array(port, result) for port, result in pairs}


def to_tensor(port: Port, array: np.ndarray, device: str) -> torch.Tensor:
    """The tensor of an array that fits the port; a copy unless it lies on the CPU already."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, getattr(torch, port.dtype))


def to_array(port: Port, tensor: torch.Tensor) -> np.ndarray:
    """The array of a tensor; waits for the device."""
    return tensor.to("cpu", getattr(torch, port.array_dtype)).numpy()
