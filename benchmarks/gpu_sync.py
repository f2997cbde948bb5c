"""How often a chunk on the GPU waits for the device, by torch's own check and by the profiler."""

from collections.abc import Callable
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

CALLS = (
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaDeviceSynchronize",
    "cudaMemcpy",
    "cudaMalloc",
    "cudaFree",
)
"""Calls of the CUDA runtime that may wait for the device, as the profiler names them."""


def waits(chunk: Callable[[], object], count: int) -> dict[str, float]:
    """Run chunks that may wait for a stream, which is counted; whatever else waits raises.

    An upload waits for the one before it, whose copy the end of the last chunk has waited for.

    Args:
        chunk: Speaks one, and waits once: where its samples go to the host.
        count: How many chunks.

    Returns:
        Waits for a stream a chunk, and of all uploads those that found the device busy.
    """
    streams, busy = 0, 0
    wait, wait_for_upload = torch.cuda.Stream.synchronize, torch.cuda.Event.synchronize

    def on_stream(stream: torch.cuda.Stream) -> None:
        nonlocal streams
        streams += 1
        torch.cuda.set_sync_debug_mode("default")
        wait(stream)
        torch.cuda.set_sync_debug_mode("error")

    def on_upload(event: torch.cuda.Event) -> None:
        nonlocal busy
        busy += not event.query()
        wait_for_upload(event)

    torch.cuda.set_sync_debug_mode("error")
    try:
        with (
            mock.patch.object(torch.cuda.Stream, "synchronize", on_stream),
            mock.patch.object(torch.cuda.Event, "synchronize", on_upload),
        ):
            for _ in range(count):
                chunk()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"waits a chunk": streams / count, "uploads that found the device busy": busy}


def runtime_calls(chunk: Callable[[], object], count: int) -> dict[str, tuple[float, float]]:
    """Calls of `CALLS` a chunk, and microseconds of the host in them.

    Raises:
        RuntimeError: the profiler saw no call of the runtime at all.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(count):
            chunk()
    events = {event.key: event for event in trace.key_averages()}
    if not any(name.startswith("cuda") for name in events):
        raise RuntimeError("the profiler saw no call of the CUDA runtime")
    return {
        name: (events[name].count / count, events[name].cpu_time_total / count)
        if name in events
        else (0.0, 0.0)
        for name in CALLS
    }
