"""Words in text and time: which sample ends which word."""

import re
from dataclasses import dataclass

import numpy as np

_WORD = re.compile(r"[^\s\u3000-\u9fff\uff00-\uffef]+|[\u3000-\u9fff\uff00-\uffef]")


@dataclass(frozen=True, slots=True)
class Word:
    """One word.

    Attributes:
        start: Offset of its first character in the text.
        end: Offset behind its last character.
        end_sample: Sample at which it has been said.
    """

    start: int
    end: int
    end_sample: int


def word_spans(text: str) -> list[tuple[int, int]]:
    """Offsets of the words of `text`; each CJK character is a word of its own."""
    return [match.span() for match in _WORD.finditer(text)]


def spread(text: str, end_samples: list[int]) -> list[Word]:
    """Give each word of `text` the time at which it ends.

    `end_samples` are the ends of the spoken units, which need not be the words of the text ("1999"
    is one word and four units): where the counts differ, time is shared out by characters.
    """
    spans = word_spans(text)
    if not spans or not end_samples:
        return []
    if len(spans) == len(end_samples):
        return [Word(*span, end) for span, end in zip(spans, end_samples, strict=True)]
    said = np.cumsum([end - start for start, end in spans])
    at = np.interp(
        said / said[-1] * len(end_samples), range(len(end_samples) + 1), [0, *end_samples]
    )
    return [Word(*span, round(end)) for span, end in zip(spans, at, strict=True)]
