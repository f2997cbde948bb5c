"""The store: one folder per model, filled under a lock and published in one step."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from duologue.errors import ModelError
from duologue.models.catalogue import Catalogue, Entry, load_catalogue
from duologue.models.environment import Environment
from duologue.models.progress import LogProgress, Progress
from duologue.models.verify import Report, State, inspect

if TYPE_CHECKING:
    from duologue.models.sources import Source


def _default_sources(progress: Progress) -> "AbstractContextManager[Sequence[Source]]":
    # The network libraries load only when something is missing.
    from duologue.models.sources import default_sources

    return default_sources(progress)


@dataclass(slots=True, frozen=True)
class Store:
    """Models below one folder, as a catalogue describes them."""

    root: Path
    catalogue: Catalogue
    sources: "Callable[[Progress], AbstractContextManager[Sequence[Source]]]" = _default_sources

    @classmethod
    def default(cls) -> "Store":
        """The built-in catalogue in DUOLOGUE_MODELS, else in the user's cache folder."""
        return cls(Environment.read().DUOLOGUE_MODELS.expanduser(), load_catalogue())

    def inspect(self, name: str, *, rehash: bool = False) -> Report:
        """The state of one model; `rehash` trusts no earlier look.

        Raises:
            UsageError: the catalogue has no such name.
            ModelError: a file cannot be read.
        """
        entry = self.catalogue[name]
        with _disk_errors(self.root):
            return inspect(entry, self.root / name, rehash=rehash)

    def locate(self, ref: str) -> Path | None:
        """Where a model is, or None when it is not there whole; makes no network call.

        Args:
            ref: a catalogue name, a local folder or file, or hub:ORG/REPO[@REVISION][:FILE].

        Raises:
            UsageError: `ref` is none of these.
        """
        if ref in self.catalogue:
            report = self.inspect(ref)
            return report.path if report.state is State.READY else None
        try:
            return self.ensure(ref, offline=True)
        except ModelError:
            return None

    def ensure(
        self, ref: str, *, offline: bool | None = None, progress: Progress | None = None
    ) -> Path:
        """Where a model is; it is fetched first when it is not there.

        Args:
            ref: a catalogue name, a local folder or file, or hub:ORG/REPO[@REVISION][:FILE].
            offline: make no network call; None takes DUOLOGUE_OFFLINE.
            progress: told of a fetch; None logs the notes.

        Returns:
            The folder of the model, or the file where `ref` names one.

        Raises:
            UsageError: `ref` is none of these.
            ModelError: it is not there and cannot be fetched, or what came is damaged.
        """
        environment = Environment.read()
        offline = environment.DUOLOGUE_OFFLINE if offline is None else offline
        if ref in self.catalogue:
            self.ensure_all([ref], offline=offline, progress=progress)
            return self.root / ref
        if ref.startswith("hub:"):
            from duologue.models.hub import snapshot

            return snapshot(ref, offline=offline or not environment.DUOLOGUE_HUB)
        path = Path(ref).expanduser()
        if ref and path.exists():
            return path
        if "/" in ref or os.sep in ref:
            raise ModelError(f"{ref}: no such folder or file. Check the path of the model.")
        raise self.catalogue.unknown(ref)

    def ensure_all(
        self,
        names: Sequence[str],
        *,
        offline: bool | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Fetch those of the named catalogue models that are not there whole.

        Args:
            names: catalogue names.
            offline: make no network call; None takes DUOLOGUE_OFFLINE.
            progress: told of the whole fetch; None logs the notes.

        Raises:
            UsageError: the catalogue lacks a name.
            ModelError: a model cannot be fetched, or what came is damaged.
        """
        missing = [name for name in names if self.inspect(name).state is not State.READY]
        if not missing:
            return
        if Environment.read().DUOLOGUE_OFFLINE if offline is None else offline:
            raise ModelError(
                f"{', '.join(missing)}: not whole in {self.root}, and this call may not use the "
                f"network. Run `duologue models fetch {' '.join(missing)}` with a network, or set "
                "DUOLOGUE_MODELS to a folder that has them."
            )
        progress = progress or LogProgress()
        entries = [self.catalogue[name] for name in missing]
        with self.sources(progress) as sources:
            progress.expect(sum(sources[0].size(entry) for entry in entries))
            for entry in entries:
                with _disk_errors(self.root), self._locked(entry, progress):
                    self._fetch(entry, sources, progress)

    def _fetch(self, entry: Entry, sources: "Sequence[Source]", progress: Progress) -> None:
        """Try the sources in order until one gives the right files."""
        if self.inspect(entry.name).state is State.READY:  # another process was faster
            progress.advance(sources[0].size(entry))
            return
        work = self.root / ".downloads" / entry.name
        failures: list[str] = []
        for source, following in zip(sources, [*sources[1:], None], strict=True):
            try:
                self._fetch_from(source, entry, work)
                progress.note(f"{entry.name}: ready in {self.root / entry.name}")
                return
            except ModelError as error:
                failures.append(f"{source.name}: {error}")
                if following is not None:
                    progress.note(f"{entry.name}: {failures[-1]} Next: {following.name}.")
                    progress.expect(following.size(entry) - source.size(entry))
        raise ModelError(f"cannot fetch {entry.name}. {' '.join(failures)}")

    def _fetch_from(self, source: "Source", entry: Entry, work: Path) -> None:
        staging = work / "files"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        self._check_space(entry, source.size(entry), work)
        source.fetch(entry, work, staging)
        report = inspect(entry, staging)
        if report.state is not State.READY:
            shutil.rmtree(work)
            raise ModelError(
                f"{'; '.join(report.problems)}. All was thrown away. Try again; if this "
                "repeats, the source has changed and must not be used."
            )
        folder = self.root / entry.name
        if folder.exists():
            folder.rename(work / "damaged")
        staging.rename(folder)
        shutil.rmtree(work)

    def _check_space(self, entry: Entry, n_download: int, work: Path) -> None:
        there = sum(path.stat().st_size for path in work.iterdir() if path.is_file())
        needed, free = entry.size + n_download - there, shutil.disk_usage(work).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{entry.name} needs {needed} bytes, {free} are free")

    @contextmanager
    def _locked(self, entry: Entry, progress: Progress) -> Iterator[None]:
        """One fetch of a model at a time, over all processes that share the folder."""
        folder = self.root / ".downloads"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{entry.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"{entry.name}: another process is fetching it; waiting")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "Set DUOLOGUE_MODELS to a folder that can be used."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "Make room, or set DUOLOGUE_MODELS to a folder on a larger disk."
        raise ModelError(
            f"the model store {root} cannot be used: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}. {advice}"
        ) from error
