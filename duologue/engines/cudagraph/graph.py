"""Any module as a graph whose launches are captured, for graphs of many small kernels."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from duologue.engines.cudagraph.capture import Captured, find_device
from duologue.engines.graph import Port, check_arrays
from duologue.engines.torch import to_array

Shapes = tuple[tuple[int, ...], ...]


class CapturedGraph:
    """A module on an NVIDIA GPU, captured once for each set of input shapes.

    Args:
        module: Its forward takes `inputs` in order and gives `outputs` in order, without waiting
            for the device in between.
        inputs: What it takes.
        outputs: What it gives.
        device: "cuda" or "cuda:1".
        shapes: Sets of input shapes that are kept captured; the one unused for longest goes.

    Raises:
        EngineError: there is no such device.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        *,
        device: str = "cuda",
        shapes: int = 16,
    ):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._device = find_device(device)
        self._module = module.to(self._device).eval()
        self._kept = shapes
        self._captured: OrderedDict[Shapes, tuple[list[torch.Tensor], Captured]] = OrderedDict()

    @torch.inference_mode()
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            EngineError: an input is missing, unknown, or has another type or shape than its port.
        """
        check_arrays(self.inputs, arrays)
        values = [torch.from_numpy(np.ascontiguousarray(arrays[port.name])) for port in self.inputs]
        tensors, call = self._for(values)
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
        results = call()
        if isinstance(results, torch.Tensor):
            results = (results,)
        pairs = zip(self.outputs, results, strict=True)
        return {port.name: to_array(port, result) for port, result in pairs}

    def _for(self, values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Captured]:
        key = tuple(tuple(value.shape) for value in values)
        if key not in self._captured:
            if len(self._captured) >= self._kept:
                self._captured.popitem(last=False)
            tensors = [value.to(self._device, copy=True) for value in values]
            self._captured[key] = tensors, Captured(lambda: self._module(*tensors), self._device)
        self._captured.move_to_end(key)
        return self._captured[key]
