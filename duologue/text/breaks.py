"""Where text may be cut, and how well: sentence ends, commas, conjunctions, word boundaries."""

import re
from enum import IntEnum


class Break(IntEnum):
    """How good a place is for a cut; NONE is no place."""

    NONE = 0
    WORD = 1
    CONJUNCTION = 2
    CLAUSE = 3
    SENTENCE = 4


_CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WIDE = re.compile(rf"[{_CJK}]")
PLACE = re.compile(
    rf"(?P<line>[ \t]*\n\s*)|(?P<blank>[ \t]+)|(?P<cjk>(?<=[{_CJK}])(?=[{_CJK}]))"
    r"|(?P<comma>[，、：；])"
    r"|(?P<mark>[.!?…。！？,;:—–]+|(?<=\S[ \t])--?(?=\s))[\"'”’»)\]）】」』*_`]*"
)
"""Finds the next candidate; `grade` tells what it is."""

_REACH = 24
"""How many blanks, marks or letters behind a place count; no word that matters is longer."""

_WORD_BEFORE = re.compile(r"[^\s(（\[\"'“‘*_]*$")
_WORD_AFTER = re.compile(rf"\s{{0,{_REACH}}}[\"'“‘(\[*_]{{0,{_REACH}}}([^\W\d_]{{0,{_REACH}}})")
_INITIALS = re.compile(r"(?:[A-Za-z]{1,2}\.)*[A-HJ-Z]|(?:[A-Za-z]{1,2}\.)+[A-Za-z]{1,2}")
_LIST_NUMBER = re.compile(r"\n[\s>*_#-]*\d{1,3}$")

_NEVER_ENDS = frozenset(
    "mr mrs ms dr prof st gen sen rep gov capt lt col sgt rev hon mt messrs mme vs cf ca approx"
    " viz incl e.g i.e".split()
)
_BEFORE_NUMBER = frozenset("no nos fig figs eq p pp vol ch sec art ver tel".split())
_MAY_END = frozenset("etc al inc ltd co corp jr sr dept est ave blvd rd".split())
_STARTERS = frozenset(
    "The A An It Its He She We They I You This That These Those There Here But And So Or If When"
    " What How Why Who Where My Our Your His Her Their In On At For To Then Now Please Is Are Do"
    " Does Did Can Could Would Should Let No Yes Not After Before As With From Because".split()
)
_CONJUNCTIONS = frozenset(
    "and but or because so which while although when if then where"
    " 但是 而且 因为 所以 如果 然后 不过 或者".split()
)
_LEANS_ON = frozenset(
    "a an the of to in on at by for with from and or but so my your his her its our their is are"
    " was were be been not no very this that these those as if than".split()
)
"""Words that a voice should not pause behind."""


def grade(text: str, place: re.Match[str], final: bool) -> Break | None:
    """Returns how good a cut at `place` is, or None where that hangs on text still to come.

    Args:
        text: the text around the place; it begins with a newline where a line begins.
        place: a match of `PLACE` in `text`.
        final: whether nothing follows `text`.
    """
    if place["comma"]:
        return _comma(text, place, final)
    if place.end() == len(text) and not final:
        return None
    if place["line"]:
        wrapped = text[place.end() : place.end() + 1].islower()
        return _between_words(text, place, final) if wrapped else Break.SENTENCE
    if place["mark"]:
        return _mark(text, place, final)
    return _between_words(text, place, final)


def _comma(text: str, place: re.Match[str], final: bool) -> Break | None:
    """Grades a CJK comma, which needs no look-ahead but between digits."""
    if text[place.start() - 1 : place.start()].isdigit():
        after = text[place.end() : place.end() + 1]
        if not after and not final:
            return None
        if after.isdigit():
            return Break.NONE
    return Break.SENTENCE if place["comma"] == "；" else Break.CLAUSE


def _between_words(text: str, place: re.Match[str], final: bool) -> Break | None:
    if place["cjk"] is not None:
        if len(text) < place.end() + 2 and not final:
            return None
        after = text[place.end() : place.end() + 2]
        return Break.CONJUNCTION if after in _CONJUNCTIONS else Break.WORD
    word = _word_after(text, place.end(), final)
    if word is None:
        return None
    before = _word_before(text, place.start())
    if not before.isalpha() or before.lower() in _LEANS_ON or not word:
        return Break.NONE
    return Break.CONJUNCTION if word in _CONJUNCTIONS else Break.WORD


def _mark(text: str, place: re.Match[str], final: bool) -> Break | None:
    mark, after = place["mark"], text[place.end() : place.end() + 1]
    if mark[-1] in "—–-":
        return _dash(text, place, final)
    if mark[-1].isascii() and not _parts(after):
        return Break.NONE
    if mark[-1] in ",;:":
        return Break.CLAUSE
    if "…" in mark or mark.endswith(".."):
        word = _word_after(text, place.end(), final)
        return None if word is None else Break.CLAUSE if word.islower() else Break.SENTENCE
    return _full_stop(text, place, final) if mark == "." else Break.SENTENCE


def _parts(after: str) -> bool:
    """Says whether the character behind an ASCII mark parts it from what follows."""
    if not after or after.isspace() or WIDE.match(after):
        return True
    return not after.isascii() and not after.isalnum()


def _dash(text: str, place: re.Match[str], final: bool) -> Break | None:
    if not text[: place.start()].rstrip()[-1:].isdigit():
        return Break.CLAUSE
    after = _char_after(text, place.end(), final)
    return None if after is None else Break.NONE if after.isdigit() else Break.CLAUSE


def _full_stop(text: str, place: re.Match[str], final: bool) -> Break | None:
    """Grades a single ASCII full stop with a blank behind it."""
    at, end = place.start(), place.end()
    word = _word_before(text, at)
    if word.lower() in _NEVER_ENDS or _LIST_NUMBER.search(text, max(0, at - 12), at):
        return Break.NONE
    if word.lower() in _BEFORE_NUMBER:
        after = _char_after(text, end, final)
        return None if after is None else Break.NONE if after.isdigit() else Break.SENTENCE
    if word.lower() in _MAY_END or _INITIALS.fullmatch(word):
        follower = _word_after(text, end, final)
        if follower is None:
            return None
        return Break.SENTENCE if follower in _STARTERS else Break.NONE
    return Break.SENTENCE


def _word_before(text: str, at: int) -> str:
    found = _WORD_BEFORE.search(text, max(0, at - _REACH), at)
    return found.group() if found else ""


def _word_after(text: str, at: int, final: bool) -> str | None:
    """Returns the letters behind `at`, or None while more letters may come."""
    found = _WORD_AFTER.match(text, at)
    if not found or (found.end() == len(text) and len(found[1]) < _REACH and not final):
        return None
    return found[1]


def _char_after(text: str, at: int, final: bool) -> str | None:
    """Returns what follows the blanks behind `at`, "" for nothing, or None while it may come."""
    near = text[at : at + _REACH]
    after = near.lstrip()[:1]
    return None if not after and len(near) < _REACH and not final else after
