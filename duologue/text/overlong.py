"""Where to cut text that goes on without a place to cut: a word or a list of any length."""

import re
import unicodedata
from bisect import bisect_right
from itertools import accumulate

from duologue.text.breaks import WIDE

_DIGIT = re.compile(r"\d")
_BLANK = re.compile(r"\s+")
_BEHIND_WORD = re.compile(r"(?<=\w)\s+")  # not inside "Dr. Smith"
_JOINT = re.compile(r"(?:(?<!\d)[^\w\s'’]|_|[^\w\s'’](?!\d))(?=[^\W_])")  # "a/b", not "1,000"
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s/?#]{1,253}[/?#]", re.IGNORECASE)
_ADDRESS_END = re.compile(r"[\s<>\"'）】，。；！？]")
_JOINER = "\u200d"


def full_at(text: str, most: int) -> int | None:
    """Returns where `text` has taken as long to say as `most` letters, or None before that.

    A CJK character counts as three, a digit as five: so many letters has its word.
    """
    start = len(text) - len(text.lstrip())
    near = text[start : start + most + 1]
    if len(near) + 2 * len(WIDE.findall(near)) + 4 * len(_DIGIT.findall(near)) <= most:
        return None
    return start + bisect_right(list(accumulate(map(_length, near))), most)


def _length(char: str) -> int:
    return 5 if _DIGIT.match(char) else 3 if WIDE.match(char) else 1


def seam(text: str, full: int) -> int | None:
    """Returns where to cut `text`, at `full` or as little before it as can be.

    Between words, else behind a sign within a word, else between two characters. An address that
    a voice shortens to its host stays whole.

    Args:
        text: at least one character longer than `full`.
        full: from `full_at`.

    Returns:
        A place behind some of the text, or None while an address goes on.
    """
    start = len(text) - len(text.lstrip())
    blanks = [found.start() for found in _BLANK.finditer(text, start, full + 1)]
    if _ADDRESS.search(text, blanks[-1] if blanks else start, full):
        end = _ADDRESS_END.search(text, full)
        return blanks[-1] if blanks else end.start() if end else None
    half = (start + full) // 2
    between = [found.start() for found in _BEHIND_WORD.finditer(text, start, full + 1)]
    signs = _JOINT.finditer(text, half, full + 1)
    joints = [sign.end() for sign in signs if unicodedata.category(sign[0])[0] in "PS"]
    if places := between or blanks or joints:
        return places[-1]
    at = full
    while at > half and _hangs_on(text[at - 1], text[at]):
        at -= 1
    return at if at > half else full


def _hangs_on(before: str, char: str) -> bool:
    """Says whether `char` is one with the character before it: an accent, a joined emoji."""
    return before == _JOINER or char == _JOINER or unicodedata.category(char)[0] == "M"
