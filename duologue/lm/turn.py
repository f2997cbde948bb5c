"""Writes one turn's events: numbers them, places them, and counts what reaches nobody."""

from typing import Any

from duologue.lm.events import (
    AudioTokens,
    Dropped,
    DropReason,
    EndReason,
    Event,
    Particle,
    TextDelta,
    Thought,
    TurnEnd,
)
from duologue.lm.vocabulary import Numbered
from duologue.particles import Particle as Mark

MAX_IDLE = 256
"""Ids in a row without text or audio that end a turn: 8 s of a model that speaks in real time."""


class TurnWriter:
    """The events of one turn, from the first to `TurnEnd`.

    Args:
        turn_id: Stamped on each event.
        books: The codebooks; the last one tells the time.

    Attributes:
        ended: Whether `TurnEnd` has been written.
    """

    def __init__(self, turn_id: int, books: list[Numbered]):
        self.ended = False
        self._turn_id, self._books = turn_id, books
        self._seq = self._offset = 0
        self._given = [0] * max(1, len(books))
        self._names = [numbered.book.name for numbered in books]
        self._most = [numbered.book.most for numbered in books]
        self._idle = self._pads = 0
        self._dropped: dict[DropReason, int] = {}
        self._out: list[Event] = []

    def take(self) -> list[Event]:
        """What was written since the last call."""
        out, self._out = self._out, []
        return out

    @property
    def idle(self) -> bool:
        """Whether nothing of use has come for too long."""
        return self._idle >= MAX_IDLE

    def add(self, event: type[Event], *values: Any) -> None:
        """Write an event of any kind, given what it has beside its place."""
        self._out.append(event(self._turn_id, self._seq, self._offset, self._given[-1], *values))
        self._seq += 1

    def text(self, text: str, tokens: tuple[int, ...], voiced: bool) -> None:
        """Write text, or ids of text that nothing decodes."""
        self._idle = 0
        seq, offset = self._seq, self._offset
        self._seq, self._offset = seq + 1, offset + len(text) + len(tokens)
        self._out.append(
            TextDelta(self._turn_id, seq, offset, self._given[-1], text, tokens, voiced)
        )

    def particle(self, mark: Mark) -> None:
        """Write a particle."""
        self.add(Particle, mark)

    def thought(self, text: str, tokens: tuple[int, ...]) -> None:
        """Write a piece of a thought."""
        self.add(Thought, text, tokens)

    def audio(self, book: int, tokens: list[int]) -> None:
        """Write tokens of a codebook; those beyond the number a turn may have are dropped."""
        given, most, beyond = self._given[book], self._most[book], []
        if most is not None:
            tokens, beyond = tokens[: most - given], tokens[most - given :]
        if tokens:
            self._idle = 0
            self._out.append(
                AudioTokens(
                    self._turn_id, self._seq, self._offset, given, self._names[book], tuple(tokens)
                )
            )
            self._seq += 1
            self._given[book] = given + len(tokens)
        if beyond:
            self.drop_audio(DropReason.STRAY_AUDIO, [(book, token) for token in beyond])

    def drop(self, reason: DropReason, tokens: list) -> None:
        """Write what is dropped: ids as they came, or names in a text."""
        if tokens := self._wait(tokens):
            self._dropped[reason] = self._dropped.get(reason, 0) + len(tokens)
            self.add(Dropped, reason, tuple(tokens))

    def drop_audio(self, reason: DropReason, tokens: list[tuple[int, int]]) -> None:
        """Write audio that is dropped, given as (codebook, token)."""
        self.drop(reason, [self._books[book].as_came(token) for book, token in tokens])

    def pad(self, run: list) -> None:
        """Count pads."""
        self._pads += len(self._wait(run))

    def awake(self) -> None:
        """Note that something of use has come."""
        self._idle = 0

    def end(self, reason: EndReason) -> None:
        """Write the last event."""
        self.ended = True
        self.add(TurnEnd, reason, self._pads, dict(self._dropped))

    def _wait(self, run: list) -> list:
        """Counts a run that says nothing; returns what passes until the turn is idle."""
        run = run[: MAX_IDLE - self._idle]
        self._idle += len(run)
        return run
