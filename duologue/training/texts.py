"""Stage `texts`: what the embedded voice learns to say.

Sentences as a voice bot says them, cut into clauses and normalised as in a conversation, each of
the frequent words in several of them, and the phoneme ids with which the teacher reads them.
"""

import json
import lzma
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, pairwise
from pathlib import Path

import yaml

from duologue.errors import InputError
from duologue.text.numerals import spell_digits
from duologue.training.text_cleaner import Cleaner, capitalized, words_of
from duologue.training.text_corpus import Corpus, Near, is_sentence
from duologue.training.text_sources import DATA, Sources, fetch_wheels
from duologue.training.text_templates import expand, make_slots
from duologue.tts.piper import PhonemeIds

FILE = "texts.jsonl.xz"
LONGEST_S = 9.0
PHONEMES_PER_S = 19.5
"""Of the teacher, with marks, stress and gaps counted as phonemes."""

FREQUENT, TIMES = 30_000, 3
"""How many of the frequent words must occur, in how many sentences of the train split."""

CARRIERS = 8
"""Rounds of templates for the words that are still missing."""

VOCABULARY = 60_000
"""A sentence with a word outside these and WordNet's is left out: most are typing errors."""

POOL = 70_000
"""Clauses of one source that are looked at."""

COMMON = 8_000
"""Held-out sentences are of the most frequent words, which the recogniser that judges knows."""

HELD_OUT = 200
"""Sentences of the test split, and of the dev split."""

_ABBREVIATIONS = frozenset("mr mrs ms dr st jr sr vs hmm mm hm shh ft lb lbs oz ltd nth".split())
_MARKS = (".", "!", "?", ",", "")


class Composer:
    """Chooses the sentences of all splits.

    Args:
        sources: Where texts and word lists come from.
        seed: Of every choice.
        frequent: How many of the frequent words are covered.
    """

    def __init__(self, sources: Sources, *, seed: int = 0, frequent: int = FREQUENT):
        self.rng = random.Random(seed)
        self.data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
        self.sources = sources
        self.slots = make_slots(self.data, self.rng)
        self.spellings = sources.spellings()
        blocked = sources.blocked() - set(self.data["harmless"].split())
        ranked = [word for word in sources.frequent_words(VOCABULARY) if word not in blocked]
        own = {word for value in self.data.values() for word in words_of(str(value))}
        known = {*ranked, *self.spellings, *own}
        noise = set(self.data["noise"])
        self.cleaner = Cleaner(known, blocked, self.data["repairs"], noise, self.rng)
        usable = (word for word in ranked if self.cleaner.say(self._spelled(word)))
        self.frequent = [*islice(usable, frequent)]
        self._covered, self._common = set(self.frequent), set(self.frequent[:COMMON])
        self.corpus = Corpus()

    def compose(self, size: int, held_out: int = HELD_OUT) -> Corpus:
        """About `size` sentences for training, and the other splits."""
        pools = self._pools()
        self._hold_out(pools, held_out)
        for text in self._short_replies():
            self.corpus.add(text)
        self._from_templates(self.data["dialogue"], int(0.12 * size))
        self._from_templates(self.data["numeric"], int(0.09 * size))
        for name, share in (("answers", 0.03), ("chats", 0.24), ("sayings", 0.05)):
            for _ in range(min(int(share * size), len(pools[name]))):
                self.corpus.add(pools[name].pop())
        rest = [*chain.from_iterable(pools.values())]
        self.rng.shuffle(rest)
        rest = self._cover(self._cover(rest, 2), 1)
        for _ in range(CARRIERS):
            self._carry(self.missing())
        for text in rest[: max(0, size - len(self.corpus.splits["train"]))]:
            self.corpus.add(text)
        self.corpus.splits["train"] = self._ordered(self.corpus.splits["train"])
        return self.corpus

    def missing(self) -> list[str]:
        """Frequent words that occur less often than they must, a rare one as often as it lacks."""
        counts = self.corpus.counts
        return [word for word in self.frequent for _ in range(TIMES - counts[word])]

    def _pools(self) -> dict[str, list[str]]:
        """Clauses that can be used, by source, in random order."""
        written = {
            "chats": self.sources.chats(),
            "answers": self.sources.answers(),
            "sayings": self.sources.sayings(self.data["fortunes"]),
            "examples": self.sources.examples(),
            "facts": self.sources.facts(),
        }
        return {name: self._pool([*texts]) for name, texts in written.items()}

    def _pool(self, texts: list[str]) -> list[str]:
        self.rng.shuffle(texts)
        clauses = (clause for text in texts for clause in self.cleaner.clauses(text))
        return [*{clause.lower(): clause for clause in islice(clauses, POOL)}.values()]

    def _hold_out(self, pools: dict[str, list[str]], count: int) -> None:
        """Draw short, test and dev; what is like one of the latter leaves the pools."""
        for text in self.data["short"]:
            self.corpus.add(text, "short")
        # What a bot says is talk; glosses and proverbs are few.
        shares = {"chats": 0.6, "answers": 0.2, "examples": 0.1, "facts": 0.05, "sayings": 0.05}
        for split in ("test", "dev"):
            for name, share in shares.items():
                new = (t for t in pools[name] if self._is_fair(t) and not self.corpus.has(t))
                for text in [*islice(new, round(share * count))]:
                    self.corpus.add(text, split)
        near = Near([*self.corpus.splits["test"], *self.corpus.splits["dev"]])
        for name, texts in pools.items():
            pools[name] = [text for text in texts if not near(text)]

    def _is_fair(self, text: str) -> bool:
        """Whether a text can be held out: a sentence of common words, none twice in a row."""
        words = words_of(text)
        return (
            is_sentence(text)
            and self._common.issuperset(words)
            and all(one != other for one, other in pairwise(words))
        )

    def _short_replies(self) -> Iterator[str]:
        replies = self.data["replies"]
        lists = ("weekdays", "months", "colors", "names", "acronyms")
        numbers = [spell_digits(str(n)) for n in range(101)]
        letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
        for text in [*replies, *numbers, *letters, *chain(*map(self.data.get, lists))]:
            yield from (capitalized(text) + mark for mark in _MARKS)
        for _ in range(12 * len(replies)):
            first, second = self.rng.sample(replies, 2)
            yield f"{capitalized(first)}, {second}{self.rng.choice(_MARKS[:3])}"

    def _from_templates(self, templates: Sequence[str], count: int) -> None:
        """Sentences of templates in turn."""
        added = 0
        for turn in range(4 * count):
            if added == count:
                return
            written = expand(templates[turn % len(templates)], self.slots, self.rng)
            added += self.corpus.add(self.cleaner.say(written))

    def _cover(self, texts: list[str], gain: int) -> list[str]:
        """Add those texts that bring `gain` words which are still missing; the others remain."""
        wanted, counts = self._covered, self.corpus.counts
        rest = []
        for text in texts:
            new = sum(word in wanted and counts[word] < TIMES for word in set(words_of(text)))
            if new < gain or not self.corpus.add(text):
                rest.append(text)
        return rest

    def _carry(self, words: list[str]) -> None:
        """Put words that no source has often enough into templates."""
        self.rng.shuffle(words)
        slots = dict.fromkeys("abc", lambda: self._spelled(words.pop() if words else "so"))
        while words:
            written = expand(self.rng.choice(self.data["carriers"]), slots, self.rng)
            self.corpus.add(self.cleaner.say(written))

    def _ordered(self, texts: list[str]) -> list[str]:
        """In random order, but what has some frequent word for the first time comes early."""
        self.rng.shuffle(texts)
        unheard, keys = set(self.frequent), {}
        for text in texts:
            words = set(words_of(text))
            keys[text] = self.rng.random() / (1 if unheard.isdisjoint(words) else 4)
            unheard -= words
        return sorted(texts, key=keys.__getitem__)

    def _spelled(self, word: str) -> str:
        """Capitals for what is said letter by letter."""
        spelled = self.spellings.get(word, word)
        silent = not re.search("[aeiouy]", word) and word not in _ABBREVIATIONS
        return word.upper() if spelled.isupper() or silent else spelled


def phoneme_ids(texts: Sequence[str], voice: Path, *, jobs: int = 2) -> list[list[int]]:
    """Ids with which the voice in the folder `voice` reads each text.

    Raises:
        EngineError: espeak-ng is missing.
        InputError: `voice` has not one *.onnx.json.
    """
    configs = sorted(voice.glob("*.onnx.json"))
    if len(configs) != 1:
        raise InputError(f"{voice}: found {len(configs)} *.onnx.json files, expected one voice")
    config = json.loads(configs[0].read_text(encoding="utf-8"))

    def read(part: Sequence[str]) -> list[list[int]]:
        ids = PhonemeIds(config)
        try:
            return [ids(text)[0] for text in part]
        finally:
            ids.close()

    step = -(-len(texts) // jobs) or 1
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(read, [texts[i : i + step] for i in range(0, len(texts), step)])
        return [ids for part in parts for ids in part]


def seconds(ids: Sequence[int]) -> float:
    """How long the teacher needs for these ids, about: every second one is a pad."""
    return len(ids) / 2 / PHONEMES_PER_S


def write_texts(work: Path, voice: Path, *, size: int = 80_000, seed: int = 0) -> Path:
    """Write WORK/texts.jsonl.xz: a line {"text", "ids", "split"} each, split train/dev/test/short.

    The splits come in the order test, dev, short, train. Train is in random order, but its first
    half has every frequent word once: a first part of the file can be used alone.

    Args:
        work: Folder of the training; downloads go to a folder in it.
        voice: Folder of the teacher's voice.
        size: How many sentences to train with, about.
        seed: Of the choice.

    Raises:
        ModelError: a source cannot be fetched.
        InputError: a source is not installed.
        EngineError: espeak-ng is missing.
    """
    composer = Composer(Sources(fetch_wheels(work / "downloads")), seed=seed)
    return write(composer.compose(size), work, voice)


def write(corpus: Corpus, work: Path, voice: Path) -> Path:
    """Write a corpus with its phoneme ids; what is too long to say is left out."""
    order = ("test", "dev", "short", "train")
    rows = [(text, split) for split in order for text in corpus.splits[split]]
    ids = phoneme_ids([text for text, _ in rows], voice)
    path = work / FILE
    with lzma.open(path, "wt", encoding="utf-8") as file:
        for (text, split), of_text in zip(rows, ids, strict=True):
            if seconds(of_text) <= LONGEST_S:
                file.write(json.dumps({"text": text, "ids": of_text, "split": split}) + "\n")
    return path
