"""What a voice should say for text that was written to be read.

Words keep their order, so that a place in the speech can be traced to a place in the text.
"""

import re
import unicodedata
from collections.abc import Sequence

from duologue.errors import UsageError
from duologue.text import english
from duologue.text.english import Match
from duologue.text.markdown import Flattener

_TLD = "com|org|net|edu|gov|io|ai|dev|app|co|me|info|tv|uk|us|eu|de|fr|nl|cn|jp|kr|in|ca|au"
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_URL = re.compile(
    r"(?:https?://|www\.)[^\s<>\"'）】，。；！？]+"
    rf"|(?<![\w@./-])(?:[a-z0-9-]+\.)+(?:{_TLD})\b(?!\.\w)(?::\d+)?(?:/[^\s<>\"'），。；！？]*)?",
    re.IGNORECASE,
)
_URL_TAIL = re.compile(r"[.,;:!?)\]}*_]+$")
_HOST = re.compile(r"(?:https?://)?(?:[^/@\s]*@)?(?:www\.)?([^/:?#]*)", re.IGNORECASE)
_FACE = re.compile(
    r"(?<![\w:<>=!])(?:[:;][-^']?[)(DPpOo3/\\|*]+|=[)(DP])(?!\w)"
    r"|(?<!\d)(?<!\d )</?3+(?![\d.])"
)
_OTHER_DIGIT = re.compile(r"[^\D0-9]")  # full-width digits among others
_CALL = re.compile(r"(?<=[A-Za-z0-9])\(([^()\s]*)\)")
_LAST_BRACKET = re.compile(r"[)）]+\s*$")
_NO_GLYPH = re.compile(r"[\ufe00-\ufe0f\u20e3ℹ]")  # letters and marks that only make an emoji
_DASH = re.compile(r"(?<=\w)\s+--?\s+(?=\w)")
_BESIDE_WORDS = re.compile(r"(?<!\w)'|'(?!\w)|(?<![\w+])\+|(?<!\w)[-/](?!\w)")
_MARKS = frozenset(".,!?;:'+-–—/%°…，。！？；：、")
_GAPS = {"(": ", ", ")": ", ", "（": "，", "）": "，", "|": ", ", "’": "'"}
_TIDY: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\s+"), " "),
    (re.compile(r" (?=[,.!?;:，。！？；：、…%](?:\W|$))"), ""),
    (re.compile(r"(?<=[,;:—–，、；：])\s*[,;]+"), ""),
    (re.compile(r"[,，]\s*(?=[.!?。！？])"), ""),
    (re.compile(r"(?<=[.!?。！？…])\s*[,;:]+"), ""),
    (re.compile(r"^[\s,.;:!?/，。！？；：、…–—-]+(?=\D)"), ""),
]
_WORD = re.compile(r"\w")


class Speaker:
    """Makes the clauses of a turn speakable, in order; a code fence may span clauses.

    Args:
        lang: "en" or "zh", the language in which numbers and signs are said.

    Raises:
        UsageError: another language.
    """

    def __init__(self, lang: str = "en"):
        if lang == "en":
            self._rules, self._dot, self._at = english.RULES, english.DOT, english.AT
            stop = english.STOP
        elif lang == "zh":
            from duologue.text import chinese  # its number library loads for 0.2 s

            self._rules, self._dot, self._at = chinese.RULES, chinese.DOT, chinese.AT
            stop = chinese.STOP
        else:
            raise UsageError(f"language {lang!r} is not one that Speaker knows: en, zh")
        self._flattener = Flattener(stop)

    def say(self, clause: str) -> str:
        """Returns the words for a clause, or "" where there is nothing to say."""
        text = self._flattener.flatten(clause)
        text = _EMAIL.sub(self._email, text)
        text = _URL.sub(self._host, text)
        text = _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), _FACE.sub(" ", text))
        for pattern, said in self._rules:
            text = pattern.sub(said, text)
        text = _tidy(text)
        return text if _WORD.search(text) else ""

    def reset(self) -> None:
        """Forgets an open code fence; call it where a turn ends or is broken off."""
        self._flattener.reset()

    def _email(self, match: Match) -> str:
        return match[0].replace("@", self._at).replace(".", self._dot)

    def _host(self, match: Match) -> str:
        """Says the host of an address, and keeps the mark that ends a sentence behind it."""
        host = _HOST.match(match[0])
        tail = _URL_TAIL.search(match[0])
        said = host[1].rstrip(".,;:!?)]}*_") if host else ""
        return said.replace(".", self._dot) + (tail[0] if tail else "")


def speakable(text: str, lang: str = "en") -> str:
    """Returns what a voice should say for one whole text, see `Speaker`.

    Raises:
        UsageError: a language other than "en" and "zh".
    """
    return Speaker(lang).say(text)


def _tidy(text: str) -> str:
    """Drops emoji, box drawing and stray signs, and what blanks and marks they leave doubled."""
    text = _CALL.sub(r" \1 ", _NO_GLYPH.sub("", text))
    text = _DASH.sub(", ", _LAST_BRACKET.sub("", text))
    text = _BESIDE_WORDS.sub(" ", "".join(map(_say_character, text)))
    for pattern, kept in _TIDY:
        text = pattern.sub(kept, text)
    return text.strip()


def _say_character(char: str) -> str:
    """Returns a letter, digit or mark of speech as it is, and a gap for any other character."""
    if char in _MARKS or char.isalpha():
        return char
    category = unicodedata.category(char)
    if category == "No":  # a small or circled digit
        plain = unicodedata.normalize("NFKC", char)
        return plain if plain.isdigit() else char
    return char if category[0] in "LMN" else _GAPS.get(char, " ")
