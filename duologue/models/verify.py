"""Tells whether a folder holds a model, and hashes big files only when they have changed."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from duologue.models.catalogue import Entry, ModelFile

MARKER = ".verified.json"


class State(StrEnum):
    """What is known of a model in the store."""

    READY = "ready"
    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(slots=True)
class Report:
    """The outcome for one model; `problems` has a line per file that is not right."""

    name: str
    path: Path
    state: State
    problems: list[str] = field(default_factory=list)


@checked_dataclass(slots=True, frozen=True)
class Seen:
    """A file as it was when it was hashed."""

    size: int
    mtime_ns: int
    sha256: str


_SEEN_FILES = TypeAdapter(dict[str, Seen])


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inspect(entry: Entry, folder: Path, *, rehash: bool = False) -> Report:
    """Compare a folder with the catalogue.

    A file is hashed when its size or time differs from the marker of the last look, or
    always with `rehash`. When all is right, the marker is renewed.

    Args:
        entry: the model that should be there.
        folder: where it should be.
        rehash: trust no earlier look.

    Raises:
        OSError: a file cannot be read.
    """
    if not any((folder / file.name).exists() for file in entry.files):
        return Report(entry.name, folder, State.MISSING)
    known = {} if rehash else _read_marker(folder)
    seen: dict[str, Seen] = {}
    problems: list[str] = []
    for file in entry.files:
        problem = _compare(file, folder / file.name, known, seen)
        if problem:
            problems.append(f"{file.name} {problem}")
    if problems:
        return Report(entry.name, folder, State.DAMAGED, problems)
    if seen != known:
        _write_marker(folder, seen)
    return Report(entry.name, folder, State.READY)


def _compare(
    file: ModelFile, path: Path, known: dict[str, Seen], seen: dict[str, Seen]
) -> str | None:
    """What is wrong with one file, if anything; a right one is added to `seen`."""
    if not path.is_file():
        return "is missing"
    status = path.stat()
    if status.st_size != file.size:
        return f"has {status.st_size} bytes, expected {file.size}"
    last = known.get(file.name)
    if last is None or (last.size, last.mtime_ns) != (status.st_size, status.st_mtime_ns):
        last = Seen(status.st_size, status.st_mtime_ns, sha256_of(path))
    if last.sha256 != file.sha256:
        return f"has SHA-256 {last.sha256}, expected {file.sha256}"
    seen[file.name] = last
    return None


def _read_marker(folder: Path) -> dict[str, Seen]:
    # A marker that is absent or unreadable only costs one more hash.
    with suppress(OSError, ValidationError):
        return _SEEN_FILES.validate_json((folder / MARKER).read_bytes())
    return {}


def _write_marker(folder: Path, seen: dict[str, Seen]) -> None:
    # In a read-only store every start hashes again, which is slower but right.
    with suppress(OSError):
        draft = folder / f"{MARKER}.{os.getpid()}"
        draft.write_bytes(_SEEN_FILES.dump_json(seen))
        os.replace(draft, folder / MARKER)
