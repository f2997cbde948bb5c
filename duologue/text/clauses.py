"""Cuts a turn's text, while it streams in, into clauses that a voice can say one at a time.

Where to cut depends only on the text up to the cut and the few characters that settle it (the
character behind a full stop, the word behind "U.S."), so any cut of the same text into deltas
gives the same clauses.
"""

import re
from dataclasses import dataclass

from duologue.errors import UsageError
from duologue.text.breaks import PLACE, WIDE, Break, grade
from duologue.text.overlong import full_at, seam


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of text to say in one breath.

    Attributes:
        text: the clause as written, without the blanks around it.
        start: offset of the clause in the turn, in characters.
        end: offset behind the clause.
        final_in_sentence: whether a sentence, a line or the turn ends with it.
    """

    text: str
    start: int
    end: int
    final_in_sentence: bool


_CONTENT = re.compile(r"\w")


class ClauseSplitter:
    """Streaming clause splitter for one speaker, turn after turn.

    The first clause of a turn goes out as soon as it stands, so that the voice can start; later
    ones go sentence by sentence, short sentences together and long ones in parts. Lengths count
    characters, a CJK character as three, for it takes about as long to say. Text that has no place
    to cut, such as a word of a thousand letters, is cut where it is half as long again as the
    limit.

    Args:
        lang: "en" or "zh"; the rules of both always hold, for turns mix them.
        first_min_chars: the shortest first clause that may end at a comma.
        first_max_chars: where the first clause ends at the next word; at half of it a conjunction
            will do.
        min_chars: later sentences shorter than this are joined with the next.
        max_chars: where later clauses end at the next word; at half of it a comma will do.

    Raises:
        UsageError: an unknown language, or limits out of order.
    """

    def __init__(
        self,
        lang: str = "en",
        *,
        first_min_chars: int = 12,
        first_max_chars: int = 40,
        min_chars: int = 24,
        max_chars: int = 220,
    ):
        if lang not in ("en", "zh"):
            raise UsageError(f"language {lang!r} is not one that ClauseSplitter knows: en, zh")
        if not 0 < first_min_chars <= first_max_chars or not 0 < min_chars <= max_chars:
            raise UsageError(
                f"ClauseSplitter limits {first_min_chars}..{first_max_chars} (first clause) and"
                f" {min_chars}..{max_chars} (later) must be positive and ascending"
            )
        self._first = {
            Break.SENTENCE: 1,
            Break.CLAUSE: first_min_chars,
            Break.CONJUNCTION: max(first_min_chars, first_max_chars // 2),
            Break.WORD: first_max_chars,
        }
        self._later = {
            Break.SENTENCE: min_chars,
            Break.CLAUSE: max(min_chars, max_chars // 2),
            Break.CONJUNCTION: max_chars,
            Break.WORD: max_chars,
        }
        self._most = max(first_max_chars, max_chars) * 3 // 2
        self._begin()

    def _begin(self) -> None:
        self._text = "\n"  # what is not given out yet, behind the newline that begins a turn
        self._seen = 1  # no cut lies before it
        self._limits = self._first
        self._offset = -1  # of _text in the turn

    def feed(self, delta: str) -> list[Clause]:
        """Takes the next piece of the turn and returns the clauses that stand."""
        self._text += delta
        return self._split(final=False)

    def flush(self) -> list[Clause]:
        """Ends the turn: returns what is left and counts offsets from 0 again."""
        clauses = self._split(final=True)
        if self._text.strip():
            clauses.append(self._cut(len(self._text), Break.SENTENCE))
        self._begin()
        return clauses

    def _split(self, final: bool) -> list[Clause]:
        clauses: list[Clause] = []
        while True:
            place, full = PLACE.search(self._text, self._seen), full_at(self._text, self._most)
            if full is not None and (not place or place.end() > full):
                if (end := seam(self._text, full)) is None:
                    return clauses
                clauses.append(self._cut(end, Break.WORD))
                continue
            if not place:
                break
            quality = grade(self._text, place, final)
            if quality is None:
                return clauses
            end = place.end() if place["mark"] or place["comma"] else place.start()
            if self._long_enough(end, quality):
                clauses.append(self._cut(end, quality))
            else:
                self._seen = place.end() + (place.end() == place.start())
        # A dash at the end is no place until its blank comes.
        self._seen = max(self._seen, len(self._text) - 2)
        return clauses

    def _long_enough(self, end: int, quality: Break) -> bool:
        text = self._text[:end].strip()
        if quality is Break.NONE or not _CONTENT.search(text):
            return False
        return len(text) + 2 * len(WIDE.findall(text)) >= self._limits[quality]

    def _cut(self, end: int, quality: Break) -> Clause:
        """Gives out the text before `end` and keeps the rest."""
        text = self._text[:end].strip()
        start = self._offset + end - len(self._text[:end].lstrip())
        self._text = self._text[end:]
        self._offset += end
        self._seen = 0
        self._limits = self._later
        return Clause(text, start, start + len(text), quality is Break.SENTENCE)
