"""From what people wrote to clauses that a voice can say."""

import random
import re
from collections.abc import Container, Iterator

from duologue.text import ClauseSplitter, Speaker
from duologue.text.numerals import spell_digits

WORDS = 22
LETTERS = 130
"""The longest clause."""

_SPEAKABLE = re.compile(r"[A-Za-z' .,?!;:-]+")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_STRETCHED = re.compile(r"(.)\1\1|\b[ab]?(?:h[ae]){2,}h?\b", re.IGNORECASE)  # "sooo", "haha"
_QUESTION = re.compile(
    r"(?:what|why|who|where|when|how|which|do|does|did|are|is|can|could|would|will|have)\b", re.I
)


def words_of(text: str) -> list[str]:
    """The words of a text in small letters."""
    return _WORD.findall(text.lower())


def capitalized(text: str) -> str:
    """`text` with a capital; the rest stays as it is."""
    return text[:1].upper() + text[1:]


class Cleaner:
    """Makes written text into clauses to say, and leaves out what the voice should not learn.

    Args:
        known: Words that may occur, in small letters.
        blocked: Words and phrases that must not.
        repairs: How words of a chat are said.
        noise: Words of a chat that nobody says.
        rng: Decides on missing final marks.
    """

    def __init__(
        self,
        known: Container[str],
        blocked: set[str],
        repairs: dict[str, str],
        noise: set[str],
        rng: random.Random,
    ):
        self._known, self._repairs, self._noise, self._rng = known, repairs, noise, rng
        self._blocked = {term for term in blocked if " " not in term}
        phrases = "|".join(re.escape(term) for term in sorted(blocked) if " " in term)
        self._phrases = re.compile(rf"\b(?:{phrases})\b" if phrases else r"(?!)")
        self._speaker = Speaker("en")
        # A turn's first clause is short, for the voice to start early; most are not the first.
        self._first = ClauseSplitter("en", max_chars=LETTERS)
        self._later = ClauseSplitter(
            "en", first_min_chars=24, first_max_chars=LETTERS, max_chars=LETTERS
        )

    def clauses(self, text: str) -> Iterator[str]:
        """The clauses of one written text that can be used, in order."""
        text = self._repaired(text)
        splitter = self._first if self._rng.random() < 0.15 else self._later
        for clause in [*splitter.feed(text), *splitter.flush()]:
            if said := self.say(clause.text, final=clause.final_in_sentence):
                yield said

    def say(self, text: str, *, final: bool = False) -> str:
        """One clause with all in words, or "" where it cannot be used.

        Args:
            text: As written.
            final: Whether a sentence ends with it; then most get a final mark.
        """
        self._speaker.reset()
        said = spell_digits(self._speaker.say(text)).strip(" -")
        if final and said[-1:].isalpha() and self._rng.random() < 0.9:
            said += "?" if _QUESTION.match(said) else "."
        return said if self._fits(said) else ""

    def _repaired(self, text: str) -> str:
        kept = []
        for token in " ".join(text.split()).split(" "):
            word = token.strip(".,!?*").lower()
            if word in self._noise:
                continue
            if word in self._repairs:
                token = re.sub(re.escape(word), self._repairs[word], token, flags=re.IGNORECASE)
            kept.append(token)
        return capitalized(" ".join(kept))

    def _fits(self, said: str) -> bool:
        if not _SPEAKABLE.fullmatch(said) or len(said) > LETTERS or _STRETCHED.search(said):
            return False
        words = words_of(said)
        shouted = len(said) > 12 and sum(map(str.isupper, said)) > len(said) / 2
        if shouted or not 0 < len(words) <= WORDS:
            return False
        if self._phrases.search(said.lower()):
            return False
        stems = {word.removesuffix("'s") for word in words}
        if not self._blocked.isdisjoint(stems | {stem.removesuffix("s") for stem in stems}):
            return False
        return all(word in self._known or word.removesuffix("'s") in self._known for word in words)
