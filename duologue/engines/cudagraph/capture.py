"""Functions on fixed tensors, captured as CUDA graphs where there is a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from duologue.errors import EngineError

T = TypeVar("T")


def find_device(name: str) -> torch.device:
    """A device by name.

    Raises:
        EngineError: there is no such device.
    """
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"device {name!r}: torch finds no NVIDIA GPU; run on a machine with one")
    return device


class Captured(Generic[T]):
    """A function whose every call works on the same tensors.

    It runs once before it is captured, to compile its kernels, and must do no harm then. On the
    CPU it is simply called.

    Args:
        function: Takes nothing; what it gives is given again by each call.
        device: Where it runs.
        pool: Memory that it shares with other graphs, none of which runs at the same time.
    """

    def __init__(self, function: Callable[[], T], device: torch.device, pool=None):
        self._function, self._graph = function, None
        if device.type == "cuda":
            side = torch.cuda.Stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                function()
            torch.cuda.current_stream(device).wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._result = function()

    def __call__(self) -> T:
        """Run it on the current stream."""
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._result


class Upload:
    """A device tensor that is filled from the host without waiting for the device.

    Args:
        shape: Of both.
        dtype: Of both.
        device: Of the one that kernels read.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        self._pinned = device.type == "cuda"
        self.host = torch.zeros(shape, dtype=dtype, pin_memory=self._pinned)
        self.device = torch.zeros(shape, dtype=dtype, device=device)
        self._sent = torch.cuda.Event() if self._pinned else None

    def wait(self) -> None:
        """Until `host` may be written again."""
        if self._sent:
            self._sent.synchronize()

    def send(self) -> None:
        """Copy `host` to `device`, in the order of the current stream."""
        self.device.copy_(self.host, non_blocking=True)
        if self._sent:
            self._sent.record()


class Lanes:
    """Streams for work that may run side by side.

    Args:
        device: Where they run; on the CPU everything runs in turn.
        count: How many; 0 for in turn.
    """

    def __init__(self, device: torch.device, count: int):
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]

    @property
    def parallel(self) -> bool:
        """Whether anything runs side by side; then no tensor may be freed before the join."""
        return bool(self._streams)

    @contextmanager
    def lane(self, index: int) -> Iterator[None]:
        """Run this behind all that came before in the current stream, and beside what follows."""
        if not self._streams:
            yield
            return
        stream = self._streams[index]
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield

    def join(self, *indices: int) -> None:
        """Wait for lanes in the current stream."""
        for index in indices if self._streams else ():
            stream = self._streams[index]
            torch.cuda.current_stream(stream.device).wait_stream(stream)
