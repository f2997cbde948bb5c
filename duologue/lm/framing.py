"""Framing as it appears in text: taken out whole, however the text is cut into deltas.

Names count in every family, so that another family's framing is never spoken either.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_THINK = ("think", "thinking", "reasoning", "thought")
_STEMS = ("audio_", "tts_", "tool_")
_WORDS = (*_THINK, "s", "unit")
_MOST = 44
_SHORT = 3  # "x<to<y" is no framing

_FRAMING = re.compile(
    r"<\|[^\s<>|◁]{1,40}\|>"
    rf"|</?(?:{'|'.join(_STEMS)})[a-z0-9_]{{1,32}}>"
    rf"|<(?P<opens>)(?:{'|'.join(_THINK)})>|◁(?P<opens2>)think▷"
    rf"|</(?P<closes>)(?:{'|'.join(_THINK)})>|◁/(?P<closes2>)think▷"
    r"|</?(?:s|unit)>",
    re.IGNORECASE,
)
_MAY_BEGIN = re.compile(r"[<◁]")
_OPENING = re.compile(r"(?=[<◁])")
_GROWING = re.compile(r"<\|[^\s<>|◁]{0,40}\|?\Z|[<◁]/?(?P<word>[A-Za-z0-9_]*)\Z")


@dataclass(frozen=True, slots=True)
class Tag:
    """One piece of framing.

    Attributes:
        source: As it was written.
        opens_thought: Whether a thought begins.
        closes_thought: Whether one ends.
    """

    source: str
    opens_thought: bool = False
    closes_thought: bool = False


class FramingScanner:
    """Splits one turn's text into text and tags.

    Text that may become a tag is held back, at most two such beginnings of 44 characters each: what
    stands before an audio token's name may go on behind it.

    Args:
        passes: Whether the text goes on behind a tag as if it were not there.
    """

    def __init__(self, passes: Callable[[str], bool]) -> None:
        self._passes = passes
        self._held = ""

    def feed(self, text: str) -> Iterable[str | Tag]:
        """Takes the next piece of the text and gives what is decided so far.

        What comes must be used up. Nothing is held back before that, so that a `flush` on the way
        does not overtake the rest.
        """
        if not self._held and not _MAY_BEGIN.search(text):
            return [text] if text else []
        return self._scan(text)

    def flush(self) -> list[str | Tag]:
        """What was held back, forgotten then: the beginning of a tag is as good as one."""
        held, self._held = self._held, ""
        return list(_ended(held, 0, len(held)))

    def _scan(self, text: str) -> Iterator[str | Tag]:
        text, self._held = self._held + text, ""
        done = 0
        while found := _FRAMING.search(text, done):
            start, end = found.span()
            begins = start
            if self._passes(found.group()):
                begins = _opening(text, done, start)
                yield from _parts(text[done:begins])
            else:
                yield from _ended(text, done, start)
            opens = found.lastgroup in ("opens", "opens2")
            yield Tag(found.group(), opens, found.lastgroup in ("closes", "closes2"))
            if begins < start:
                text, done = text[begins:start] + text[end:], 0
            else:
                done = end
        last = _opening(text, done, len(text))
        begins = _opening(text, done, last) if last < len(text) else last
        yield from _parts(text[done:begins])
        self._held = text[begins:]


def beginning(text: str) -> str:
    """What of the end of a text may be the beginning of a tag."""
    return text[_opening(text, 0, len(text)) :]


def _opening(text: str, start: int, end: int) -> int:
    """Where in text[start:end] the beginning of a tag begins that reaches to its end."""
    begins = max(text.rfind("<", start, end), text.rfind("◁", start, end))
    return begins if begins >= 0 and _grows(text[begins:end]) else end


def _ended(text: str, start: int, end: int) -> Iterator[str | Tag]:
    """text[start:end] before something that no tag goes on behind."""
    begins = _opening(text, start, end)
    yield from _parts(text[start:begins])
    if begins < end:
        yield Tag(text[begins:end])


def _parts(text: str) -> Iterator[str | Tag]:
    """Text that holds no whole tag; the beginning of one that another follows is as good as one."""
    for part in _OPENING.split(text):
        if _grows(part) and (part[1:2] == "|" or len(part) > _SHORT):
            yield Tag(part)
        elif part:
            yield part


def _grows(text: str) -> bool:
    """Whether more characters could make a tag of `text`."""
    found = _GROWING.match(text)
    if not found or len(text) > _MOST:
        return False
    if (word := found["word"]) is None:
        return True
    word = word.lower()
    known = any(stem.startswith(word) or word.startswith(stem) for stem in _STEMS)
    return known or any(name.startswith(word) for name in _WORDS)
