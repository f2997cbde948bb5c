"""Looks up what stands inside a mark, whole or still growing."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil

from duologue.errors import UsageError
from duologue.particles.taxonomy import (
    AUDIBLE,
    COMMON,
    DEGREES,
    ELEMENTS,
    GOVERNING,
    MAX_PAUSE_MS,
    MODIFIERS,
    TAXONOMY,
    UNITS,
    Kind,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A form that was looked up.

    Attributes:
        name: the taxonomy's name, the same for every language and spelling.
        kind: what it does to the voice.
        form: the surface form, normalised.
        common: whether the form is an ordinary word that needs a stronger mark.
        sure: whether it is a mark in round brackets wherever these stand.
        intensity: how much of it, 1..3; 0 where the mark does not say.
        value: what else the mark says: a pause's milliseconds, a pronunciation.
    """

    name: str
    kind: Kind
    form: str
    common: bool = False
    sure: bool = False
    intensity: int = 0
    value: str = ""


_JOIN = re.compile(r"[\s_,，、-]+")
_TAIL = re.compile(r"[\s.!~…。！～]+$")
_RANK = {kind: rank for rank, kind in enumerate(Kind)}

_AMOUNT = re.compile(
    r"(?P<head>\D*[^\W\d_])(?P<gap>[\s:：=]*)(?P<number>\d{1,6}(?:\.\d{0,4})?)\s*(?P<unit>[^\W\d_]*)"
)
_GAP = re.compile(r"\s*[:：=]\s*$")

_ATTRIBUTE = r"""\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"']+)"""
_VALUE = re.compile(r"""=\s*["']?([^"']*?)["']?(?=\s+[\w:-]+\s*=|\s*$)""")
_TAG = re.compile(rf"(?P<element>[^\s=]+)(?P<attributes>(?:{_ATTRIBUTE})*)\s*")
_OPEN_TAG = re.compile(
    rf"""(?P<element>[^\s=]+)(?:{_ATTRIBUTE})*"""
    r"""(?:\s+(?:[\w:-]+\s*(?:=\s*(?:"[^"]*|'[^']*|[^\s"']*))?)?)?"""
)


class Lexicon:
    """Looks up the content of a mark, whole or still growing.

    A content is a run of known forms and modifiers with at least one form, and perhaps an amount
    behind it ("高兴1", "happy: 0.8", "pause 500 ms"). A prefix of a content is judged by the same
    steps, so that `viable` is true for each prefix of all that `match` takes, and `viable_tag` for
    those of `match_tag`.

    Args:
        forms: entries by normalised form.
        modifiers: normalised words that may stand beside a form.
    """

    def __init__(self, forms: Mapping[str, Entry], modifiers: frozenset[str]):
        self._forms = dict(forms)
        self._modifiers = modifiers
        pieces = modifiers.union(self._forms)
        self._longest = max(map(len, pieces))
        self._starts = {piece[:n] for piece in pieces for n in range(len(piece) + 1)}

    def extended(self, aliases: Mapping[str, str]) -> "Lexicon":
        """Returns a lexicon that also knows a family's own spellings, form to taxonomy name.

        What a family is known to write is a mark in round brackets wherever these stand.

        Raises:
            UsageError: a name that the taxonomy does not have.
        """
        by_name = {entry.name: entry for entry in self._forms.values()}
        if unknown := set(aliases.values()) - set(by_name):
            raise UsageError(f"no particle is called {sorted(unknown)}: use {sorted(by_name)}")
        more = {
            _plain(form): replace(by_name[name], form=_plain(form), common=False, sure=True)
            for form, name in aliases.items()
        }
        return Lexicon(self._forms | more, self._modifiers)

    @property
    def forms(self) -> Mapping[str, Entry]:
        """All surface forms."""
        return self._forms

    def match(self, content: str) -> Entry | None:
        """Returns the entry for a whole content: of several forms, one of the best kind."""
        amount = _AMOUNT.fullmatch(_TAIL.sub("", content))
        entry = self._find(_plain(amount["head"] if amount else content))
        return _measured(entry, amount) if entry and amount else entry

    def match_tag(self, content: str) -> Entry | None:
        """Returns the entry for what stands in `<>`: a content, or an element with attributes."""
        tag = _TAG.fullmatch(content)
        known = self._element(tag["element"]) if tag else None
        if tag is None or known is None:
            return self.match(content)
        values = [value for value in _VALUE.findall(tag["attributes"]) if value]
        if known.name == "pronounce" and values:
            return replace(known, value=values[-1])
        head = "" if known.name == "markup" else tag["element"]
        return next(filter(None, (self.match(f"{head} {value}") for value in values)), known)

    def viable(self, content: str) -> bool:
        """Says whether more characters could still make `content` match."""
        if amount := _AMOUNT.fullmatch(_TAIL.sub("", content)):
            entry, unit = self._find(_plain(amount["head"])), amount["unit"].casefold()
            return entry is not None and any(known.startswith(unit) for known in UNITS)
        head = _GAP.sub("", content)
        if head != content:
            return self._find(_plain(head)) is not None
        text = _plain(content)
        if content[-1:].isspace():
            text = f"{text.rstrip()} ".lstrip()
        return any(text[at:] in self._starts for at, _ in self._walk(text))

    def viable_tag(self, content: str) -> bool:
        """As `viable`, for what stands in `<>`."""
        if any(name.startswith(content.casefold()) for name in _ELEMENTS):
            return True
        tag = _OPEN_TAG.fullmatch(content)
        return bool(tag and self._element(tag["element"])) or self.viable(content)

    def _element(self, name: str) -> Entry | None:
        return _ELEMENTS.get(name.casefold()) or self.match(name)

    def _find(self, text: str) -> Entry | None:
        """Returns the entry for a normalised run of forms and modifiers."""
        found = self._forms.get(text)
        if found and found.kind in GOVERNING:  # "deep voice" is no very deep one
            return found
        if not found:
            runs = [entry for at, entry in self._walk(text) if entry and at >= len(text)]
            found = min(runs, key=lambda entry: _RANK[entry.kind], default=None)
        degree = _DEGREE.search(text) if found else None
        return replace(found, intensity=_DEGREES[degree[0]]) if found and degree else found

    def _walk(self, text: str) -> Iterator[tuple[int, Entry | None]]:
        """Yields each place that a run of pieces reaches, with the best entry on the way."""
        reached: list[tuple[int, Entry | None]] = [(0, None)]
        for at, best in reached:
            yield at, best
            for end in range(at + 1, min(len(text), at + self._longest) + 1):
                for entry in self._piece(text, at, end):
                    step = end + text.startswith(" ", end), _better(best, entry)
                    if step not in reached:
                        reached.append(step)

    def _piece(self, text: str, at: int, end: int) -> Iterator[Entry | None]:
        """Yields what text[at:end] may be: an entry, or None for a modifier."""
        piece = text[at:end]
        if piece.isascii() and text[end : end + 1].isascii() and text[end : end + 1].isalnum():
            return
        if piece in self._forms:
            yield self._forms[piece]
        if piece in self._modifiers:
            yield None


def _measured(entry: Entry, amount: re.Match[str]) -> Entry | None:
    """Returns the entry with its amount, or None where the two do not go together."""
    number, unit = float(amount["number"]), amount["unit"].casefold()
    if entry.name == "pause":
        # Without a unit: nobody means a pause of 500 s, nor one of 2 ms.
        factor = UNITS.get(unit or ("ms" if number >= 20 else "s"))
        if factor is None:
            return None
        return replace(entry, value=str(round(min(number * factor, MAX_PAUSE_MS))))
    if unit or entry.kind is Kind.INTERJECTION:  # "[AH0]" is a phoneme
        return None
    if not amount["gap"] and amount["number"].isdigit() and number < 10:
        return replace(entry, intensity=min(int(number), 3))
    if amount["gap"].strip() and number <= 1:
        return replace(entry, intensity=ceil(3 * number))
    return None


def _plain(content: str) -> str:
    return _JOIN.sub(" ", _TAIL.sub("", content).lstrip().casefold())


def _better(old: Entry | None, new: Entry | None) -> Entry | None:
    if old is None or new is None:
        return old or new
    return new if _RANK[new.kind] < _RANK[old.kind] else old


def _words(forms: str) -> list[str]:
    return [_plain(form) for form in forms.split()]


def _forms() -> dict[str, Entry]:
    common, audible = frozenset(_words(COMMON)), frozenset(_words(AUDIBLE))
    sounds = (Kind.EVENT, Kind.STAGE, Kind.PROSODY)
    return {
        form: Entry(name, kind, form, form in common, kind in sounds or form in audible)
        for kind, names in TAXONOMY.items()
        for name, forms in names.items()
        for form in _words(forms)
    }


_DEGREES = {word: degree for degree, words in DEGREES.items() for word in _words(words)}
_DEGREE = re.compile(
    "|".join(
        rf"\b{word}\b" if word.isascii() else word
        for word in sorted(_DEGREES, key=len, reverse=True)
    )
)
_ELEMENTS = {
    element: Entry(name, Kind.PROSODY, element)
    for name, elements in ELEMENTS.items()
    for element in elements.split()
}

LEXICON = Lexicon(_forms(), frozenset([*_words(MODIFIERS), *_DEGREES]))
"""The forms of the house; `extended` adds a family's own."""
