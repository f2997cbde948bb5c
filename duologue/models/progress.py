"""How a fetch reports: one bar on a terminal, plain lines elsewhere, the log in a library call."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

log = logging.getLogger(__name__)


class Progress(Protocol):
    """Receives the bytes of a fetch; both counts may be taken back with negative numbers."""

    def expect(self, n_bytes: int) -> None:
        """Add to the bytes to come."""

    def advance(self, n_bytes: int) -> None:
        """Add to the bytes that are there."""

    def note(self, text: str) -> None:
        """Tell the person one thing, such as a change of source."""


class LogProgress:
    """No bar; notes go to the log."""

    def expect(self, n_bytes: int) -> None:
        """Ignore the count."""

    def advance(self, n_bytes: int) -> None:
        """Ignore the count."""

    def note(self, text: str) -> None:
        """Log the note."""
        log.info(text)


class LineProgress:
    """A line at each tenth of the way, for output that is not a terminal."""

    def __init__(self, console: Console):
        self._console = console
        self._total = self._done = self._tenths = 0

    def expect(self, n_bytes: int) -> None:
        """Add to the bytes to come."""
        self._total += n_bytes

    def advance(self, n_bytes: int) -> None:
        """Add to the bytes that are there and print a line when a new tenth is reached."""
        self._done += n_bytes
        tenths = 10 * self._done // self._total if self._total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            self.note(f"fetching models: {10 * tenths} % of {self._total / 1e6:.1f} MB")

    def note(self, text: str) -> None:
        """Print the note."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class BarProgress:
    """One bar for the whole fetch; it appears with the first expected byte."""

    def __init__(self, console: Console):
        self._bar = RichProgress(
            TextColumn("fetching models"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=0)
        self._total = 0

    def expect(self, n_bytes: int) -> None:
        """Add to the bytes to come."""
        self._total += n_bytes
        self._bar.update(self._task, total=self._total)
        self._bar.start()

    def advance(self, n_bytes: int) -> None:
        """Add to the bytes that are there."""
        self._bar.advance(self._task, n_bytes)

    def note(self, text: str) -> None:
        """Print the note above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Leave the bar as it is and give the terminal back."""
        self._bar.stop()


@contextmanager
def stderr_progress() -> Iterator[Progress]:
    """Progress on standard error: a bar on a terminal, else lines. Nothing until it is used."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield LineProgress(console)
        return
    bar = BarProgress(console)
    try:
        yield bar
    finally:
        bar.stop()
