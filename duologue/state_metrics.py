"""Memory that sessions hold, for Prometheus; asked of the engines whenever the figures are read."""

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Holds(Protocol):
    """Keeps the state of sessions."""

    @property
    def state_bytes(self) -> Mapping[str, int]:
        """Bytes, by what they are of; any thread may ask.

        Returns:
            Of "sessions" that are open, of the "voices" that they share, and what is "set aside"
            for others to come.
        """
        ...


class StateBytes(Collector):
    """What is held in this process, for as long as its holders live."""

    def __init__(self) -> None:
        self._holders: list[tuple[str, weakref.ref[Holds]]] = []
        self._table = threading.Lock()

    def watch(self, engine: str, holder: Holds) -> None:
        """Count what a holder keeps."""
        with self._table:
            alive = [known for known in self._holders if known[1]() is not None]
            self._holders = [*alive, (engine, weakref.ref(holder))]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures as they are now."""
        held: Counter[tuple[str, str]] = Counter()
        with self._table:
            holders = [(engine, holder()) for engine, holder in self._holders]
        for engine, holder in holders:
            if holder is not None:
                for of, size in holder.state_bytes.items():
                    held[engine, of] += size
        yield _family("state", "State of sessions.", ("engine", "of"), held)
        yield _family("gpu", "Memory of a GPU as torch has it.", ("device", "of"), _gpu_bytes())


def _family(
    name: str, help_text: str, labels: tuple[str, str], values: Mapping[tuple[str, str], int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"duologue_{name}_bytes", help_text, labels=labels)
    for key, size in values.items():
        family.add_metric(key, size)
    return family


def _gpu_bytes() -> dict[tuple[str, str], int]:
    """Nothing unless an engine uses torch on a GPU: asking loads neither it nor a driver."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    found = {}
    for device in range(torch.cuda.device_count()):
        # Asking a device that is not in use would start a context on it.
        if reserved := torch.cuda.memory_reserved(device):
            name = str(device)
            found[name, "allocated"] = torch.cuda.memory_allocated(device)
            found[name, "reserved"] = reserved
            found[name, "free"] = torch.cuda.mem_get_info(device)[0]
    return found
