"""Text as it is spoken: its words, about how long each takes to say, and where a voice pauses."""

import re
from dataclasses import dataclass

from duologue.text.breaks import PLACE, Break, grade

SOUNDS_S = (0.057, 0.3, 0.15, 0.58, 0.19)
"""Seconds of what `sounds` counts. By least squares on a Piper voice (`python -m benchmarks.heard
--fit`), except for the last one: 4.8 tokens of 40 ms a character in the stream that
duologue.lm.cursor tells of."""
LENGTHENING_S = 0.06
"""What a word takes longer in front of a mark."""

_WIDE = "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WIDE_MARK = "\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff3d"
_OPENING = re.escape("([{<“‘«（［｛【「『《〈〔")
_NUMERAL = "零〇一二两三四五六七八九十百千万亿"
_WORD = re.compile(
    rf"[{_OPENING}]*"
    rf"(?:[^\w\s]?\d{{1,3}}(?:[ \u00a0\u202f]\d{{3}})+(?!\d)|[{_NUMERAL}][{_NUMERAL}点]+"
    rf"|(?:[^\s{_WIDE}{_WIDE_MARK}]|(?<=\d)[．：](?=\d))+(?:(?<=\d)[十百千万亿兆]+)?|[{_WIDE}])"
    # What is neither letter nor blank goes with what it follows: combining marks and joiners, too.
    rf"(?:(?![{_OPENING}])[^\w\s])*|\S"
)
_SYLLABLE = re.compile(rf"[{_WIDE}\uac00-\ud7a3]")
_INITIALISM = re.compile(r"(?<![A-Za-z])[A-Z]{2,5}(?![A-Za-z])")
_SIGN = re.compile(r"[%‰°€£¥￥$&+=@#]")


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word, a number or a wide character, with the marks around it.

    Attributes:
        end: Offset behind it.
        length_s: How long it takes to say at pace 1; 0 for what has no sound.
        mark: Whether a clause or a sentence ends with it.
    """

    end: int
    length_s: float
    mark: Break


def spoken_words(text: str, start: int = 0, *, final: bool = True) -> list[SpokenWord]:
    """The words of `text` from offset `start` on; a cut behind any of them is clean.

    Args:
        text: The text around; it begins with a newline where a line begins.
        start: Where a word may begin.
        final: Whether nothing follows `text`.
    """
    marks = {}
    for place in PLACE.finditer(text, start):
        quality = grade(text, place, final)
        if quality in (Break.CLAUSE, Break.SENTENCE):
            marks[place.end() if place["mark"] or place["comma"] else place.start()] = quality
    words = []
    for match in _WORD.finditer(text, start):
        first, end = match.span()
        mark = max((q for at, q in marks.items() if first < at <= end), default=Break.NONE)
        words.append(SpokenWord(end, _length_s(match[0], mark), mark))
    return words


def sounds(word: str) -> tuple[int, int, int, int, int]:
    """Counts what makes a word long.

    Returns:
        Letters, digits but zeros, zeros ("1,000"), signs that are said ("%"), and syllables that
        are written as one character (Han, kana, Hangul, the letters of "SQL").
    """
    syllables = len(_SYLLABLE.findall(word)) + sum(map(len, _INITIALISM.findall(word)))
    letters, digits = sum(map(str.isalpha, word)), sum(map(str.isdigit, word))
    zeros = word.count("0")
    return letters - syllables, digits - zeros, zeros, len(_SIGN.findall(word)), syllables


def _length_s(word: str, mark: Break) -> float:
    length_s = sum(n * each_s for n, each_s in zip(sounds(word), SOUNDS_S, strict=True))
    return length_s + LENGTHENING_S if length_s and mark else length_s
