"""The sentences of the embedded voice by split, and what is too much like one of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from duologue.training.text_cleaner import words_of


@dataclass(slots=True)
class Corpus:
    """The sentences chosen so far, each once, by split."""

    splits: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    """How many train sentences have a word."""
    _seen: set[str] = field(default_factory=set)

    def has(self, text: str) -> bool:
        """Whether a sentence is in some split, in whatever case."""
        return text.lower() in self._seen

    def add(self, text: str, split: str = "train") -> bool:
        """Take a sentence; whether it is new."""
        if not text or self.has(text):
            return False
        self._seen.add(text.lower())
        self.splits[split].append(text)
        if split == "train":
            self.counts.update(set(words_of(text)))
        return True


class Near:
    """Whether a text is nearly one of some texts: they share half of the shorter one's triples."""

    def __init__(self, texts: Iterable[str]):
        self._owners: dict[tuple[str, ...], set[int]] = defaultdict(set)
        self._sizes = []
        for index, text in enumerate(texts):
            triples = _triples(text)
            self._sizes.append(len(triples))
            for triple in triples:
                self._owners[triple].add(index)

    def __call__(self, text: str) -> bool:
        """Compare with all of them."""
        triples = _triples(text)
        shared = Counter(owner for triple in triples for owner in self._owners.get(triple, ()))
        return any(2 * n >= min(self._sizes[owner], len(triples)) for owner, n in shared.items())


def _triples(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def is_sentence(text: str) -> bool:
    """Whether it is one whole sentence of 4 to 16 words."""
    return text[0].isupper() and text[-1] in ".?!" and 4 <= len(words_of(text)) <= 16
