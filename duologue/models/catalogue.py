"""The catalogue: the models known by name, their hashes, and where their files can be had."""

from collections import Counter
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from duologue.errors import ConfigError, UsageError

BUILT_IN = Path(__file__).with_name("catalogue.yaml")


def relative_path(value: str) -> str:
    """Refuse a path that is absolute or climbs out of its folder."""
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts or "\\" in value or ":" in value:
        raise ValueError(f"{value!r} is not a plain path below its folder")
    return value


# A name becomes a folder or a file: no separator, no leading dot.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Member = Annotated[str, AfterValidator(relative_path)]
Bytes = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HubSource(_Strict):
    """A hub repository at one revision."""

    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: str


class Wheel(_Strict):
    """One exact wheel of the package registry; it is read, never installed."""

    project: Name
    version: str
    size: Bytes
    sha256: Sha256


class Part(_Strict):
    """A member of a wheel; the parts of a file are joined in order."""

    wheel: str
    member: Member


class ModelFile(_Strict):
    """A file of a model as it lies in the store."""

    name: Name
    size: Bytes
    sha256: Sha256
    hub_path: Member
    parts: Annotated[list[Part], Field(min_length=1)]


class Entry(_Strict):
    """A model: its files and its sources."""

    name: Name
    role: Literal["asr", "lm", "voice"]
    default: bool
    licence: str
    upstream: str
    hub: HubSource
    wheels: list[Wheel]
    files: Annotated[list[ModelFile], Field(min_length=1)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @model_validator(mode="after")
    def _parts_name_known_wheels(self) -> "Entry":
        known = {wheel.project for wheel in self.wheels}
        named = {part.wheel for file in self.files for part in file.parts}
        if unknown := named - known:
            raise ValueError(f"no wheel is called {', '.join(sorted(unknown))}")
        return self


class Catalogue:
    """Models by name, in the order of the file."""

    def __init__(self, entries: list[Entry]):
        counts = Counter(entry.name for entry in entries)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise ConfigError(f"the catalogue names {', '.join(repeated)} more than once")
        self._entries = {entry.name: entry for entry in entries}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(self._entries)

    @property
    def default_names(self) -> list[str]:
        """The names that a plain `duologue models fetch` takes."""
        return [name for name, entry in self._entries.items() if entry.default]

    def __getitem__(self, name: str) -> Entry:
        """The entry called `name`.

        Raises:
            UsageError: no entry has this name; the message has the nearest one.
        """
        if name not in self._entries:
            raise self.unknown(name)
        return self._entries[name]

    def unknown(self, name: str) -> UsageError:
        """The error for a name that no entry has."""
        near = get_close_matches(name, self.names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.names)}."
        return UsageError(
            f"unknown model {name!r}: {hint} A folder (./NAME) or hub:ORG/REPO also names a model."
        )


def load_catalogue(path: Path = BUILT_IN) -> Catalogue:
    """Read a catalogue file.

    Raises:
        ConfigError: the file does not have the expected form.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Catalogue(TypeAdapter(list[Entry]).validate_python(data))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path} is not a model catalogue: {error}") from error
