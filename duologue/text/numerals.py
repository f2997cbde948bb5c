"""Digits as words, for a voice that learns to read letters only."""

import re

from num2words import num2words

_NUMBER = re.compile(r"(\d+(?:,\d{3})*)(?:\.(\d+))?(?:(st|nd|rd|th)\b)?(\s?%)?")
_LONGEST = 15
"""Digits of a number that has a name; a longer one is said digit by digit."""


def spell_digits(text: str) -> str:
    """Returns `text`, as `speakable` gives it, with English words for its digits and "%"."""
    return _NUMBER.sub(_say, text).replace("%", " percent")


def _say(match: re.Match[str]) -> str:
    whole, decimals, ordinal, percent = match.groups()
    said = _whole(whole.replace(",", ""), bool(ordinal))
    if decimals:
        said += f" point {_digits(decimals)}"
    if percent:
        said += " percent"
    before = " " if match.string[: match.start()][-1:].isalpha() else ""
    after = " " if match.string[match.end() :][:1].isalpha() else ""
    return before + said + after


def _whole(digits: str, ordinal: bool) -> str:
    if len(digits) > _LONGEST or (len(digits) > 1 and digits[0] == "0"):
        return _digits(digits)
    said = num2words(int(digits), to="ordinal" if ordinal else "cardinal")
    return said.replace(" and ", " ").replace(",", "")


def _digits(digits: str) -> str:
    return " ".join(num2words(int(digit)) for digit in digits)
