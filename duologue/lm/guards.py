"""Guards of a token stream: whole frames only, and no endless repetition."""

from collections.abc import Sequence
from typing import Any

STRIDE = 16


class LoopGuard:
    """Notices a stream that has only repeated a few items for a whole window.

    Items come in any runs; where a loop is noticed depends on the items alone.

    Args:
        window: Items that a loop must have lasted.
        period: The most items that it repeats.
    """

    def __init__(self, window: int, period: int):
        self._window, self._period = window, period
        self._recent: list[Any] = []
        self._until_check = window

    def admit(self, items: Sequence[Any]) -> tuple[int, bool]:
        """How many of the next items pass, and whether a loop is noticed behind them."""
        count, start = len(items), 0
        while count - start >= self._until_check:
            end = start + self._until_check
            self._recent = [*self._recent, *items[start:end]][-self._window :]
            if _periodic(self._recent, self._period):
                return end, True
            start, self._until_check = end, STRIDE
        self._recent += items[start:] if start else items
        self._until_check -= count - start
        return count, False


def _periodic(items: list[Any], most: int) -> bool:
    """Whether the items repeat their first few, at most `most`, to the end."""
    return any(items[n:] == items[:-n] for n in range(1, most + 1) if items[-1] == items[-1 - n])


class FrameAligner:
    """Finds whole frames in a stream of tokens of several codebooks.

    A token that does not continue the frame drops as much of its beginning as it must.

    Args:
        pattern: The codebook of each token in a frame.
    """

    def __init__(self, pattern: tuple[int, ...]):
        self._pattern = pattern
        self._held: list[tuple[int, int]] = []

    def add(self, book: int, token: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(the frame that this token completes or [], what cannot be part of one)."""
        held = [*self._held, (book, token)]
        start = 0
        while tuple(book for book, _ in held[start:]) != self._pattern[: len(held) - start]:
            start += 1
        dropped, self._held = held[:start], held[start:]
        if len(self._held) < len(self._pattern):
            return [], dropped
        return self.flush(), dropped

    def flush(self) -> list[tuple[int, int]]:
        """The frame that is not whole yet; forgotten then."""
        held, self._held = self._held, []
        return held
