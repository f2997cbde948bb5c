"""How a voice shows a particle: its own mark, what goes beside the text, words, or nothing."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from duologue.errors import InputError
from duologue.particles.scanner import Particle
from duologue.particles.taxonomy import Span

Parameters = Mapping[str, str | float | tuple[float, ...]]
"""What a request says beside its text, by the engine's own names."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What goes to the voice in a particle's place.

    Attributes:
        text: what to feed the voice, or None where nothing stands in the particle's place.
        native: whether `text` is a mark of that engine rather than words: fed to the voice, but
            neither shown nor remembered.
        leads: whether `text` must begin the request and holds for all of it.
        parameters: what goes beside the text and holds for all of the request.
    """

    text: str | None = None
    native: bool = False
    leads: bool = False
    parameters: Parameters = field(default_factory=dict)

    @property
    def stripped(self) -> bool:
        """Whether the voice gets nothing; the caller reports it."""
        return self.text is None and not self.parameters

    @property
    def governs(self) -> bool:
        """Whether it holds for a whole request."""
        return self.leads or bool(self.parameters)


class Renderer(Protocol):
    """One speech engine's way with particles."""

    def render(self, particle: Particle) -> Rendered:
        """Returns what this engine gets in the place of `particle`."""
        ...

    def literal(self, text: str) -> str:
        """Returns ordinary text in a form in which this engine takes none of it for a mark."""
        ...


class Unknown(StrEnum):
    """What becomes of a particle that an engine has nothing for."""

    STRIP = "strip"
    """It is left out and reported."""
    KEEP = "keep"
    """It is said as it was written."""
    ERROR = "error"
    """It is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """What one engine understands, by taxonomy name.

    Where a table has several rows for a name, the particle's intensity counts from the first.

    Attributes:
        engine: its name.
        points: marks for the place where the particle stands.
        ranges: marks before and behind the words.
        leads: marks for the head of the request, the strength rising.
        parameters: what goes beside the text, the strength rising.
        reserved: (pattern, replacement) for ordinary text that the engine takes for marks.
    """

    engine: str
    points: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    leads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parameters: Mapping[str, Sequence[Parameters]] = field(default_factory=dict)
    reserved: Sequence[tuple[str, str]] = ()

    def knows(self, name: str) -> bool:
        """Whether the engine has anything for a name."""
        tables = self.points, self.ranges, self.leads, self.parameters
        return any(name in table for table in tables)

    def within(self, accepted: Container[str]) -> "Notation":
        """What is left of it where a request takes only these parameters."""
        lost = {
            name
            for name, rows in self.parameters.items()
            if any(key not in accepted for row in rows for key in row)
        }
        return replace(
            self,
            leads={name: rows for name, rows in self.leads.items() if name not in lost},
            parameters={name: rows for name, rows in self.parameters.items() if name not in lost},
        )


class NotationRenderer:
    """Renders by an engine's tables.

    Args:
        notation: the tables.
        words: what to say in the place of a particle that they have nothing for, by name.
        unknown: what to do with what is in neither.
    """

    def __init__(
        self,
        notation: Notation,
        *,
        words: Mapping[str, str] | None = None,
        unknown: Unknown = Unknown.STRIP,
    ):
        self._notation = notation
        self._words = words or {}
        self._unknown = unknown
        self._reserved = [(re.compile(pattern), said) for pattern, said in notation.reserved]

    def render(self, particle: Particle) -> Rendered:
        """Returns what this engine gets in the place of `particle`.

        Raises:
            InputError: it has nothing for it, and `unknown` says that this is an error.
        """
        known = self._native(particle)
        if not known.stripped or (particle.closes and self._speaks(particle.name)):
            return known
        if not particle.closes and particle.name in self._words:
            return Rendered(self._words[particle.name])
        if self._unknown is Unknown.ERROR:
            raise InputError(
                f"{self._notation.engine} has nothing for {particle.source!r}"
                f" ({particle.kind} {particle.name}): leave it out or let it be stripped"
            )
        return Rendered(particle.source if self._unknown is Unknown.KEEP else None)

    def literal(self, text: str) -> str:
        """Returns ordinary text in a form in which this engine takes none of it for a mark."""
        for pattern, said in self._reserved:
            text = pattern.sub(said, text)
        return text

    def _speaks(self, name: str) -> bool:
        return name in self._words or self._notation.knows(name)

    def _native(self, particle: Particle) -> Rendered:
        notation, name = self._notation, particle.name
        if particle.span is Span.RANGE and name in notation.ranges:
            return Rendered(notation.ranges[name][particle.closes], native=True)
        if particle.closes:
            return Rendered()
        if name in notation.points:
            return Rendered(notation.points[name], native=True)
        parameters = notation.parameters.get(name, ())
        leads = notation.leads.get(name, ())
        return Rendered(
            leads[_row(leads, particle.intensity)] if leads else None,
            native=bool(leads),
            leads=bool(leads),
            parameters=parameters[_row(parameters, particle.intensity)] if parameters else {},
        )


def _row(rows: Sequence, intensity: int) -> int:
    return min(max(intensity, 1), len(rows)) - 1
