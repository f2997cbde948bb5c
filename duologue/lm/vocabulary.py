"""A profile's names turned into ids, and each id or name into what it means."""

from dataclasses import dataclass

from duologue.errors import ConfigError, ModelError, UsageError
from duologue.lm.formats import Codebook, Kind, Profile, Special
from duologue.lm.tokenizer import Vocab

GENERIC = {"<tool_call>": Kind.TOOL_OPEN, "</tool_call>": Kind.TOOL_CLOSE}
"""Names that mean the same in every family, so that what stands between them is never spoken."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A codebook and the id of its token 0, if that is known."""

    book: Codebook
    first: int | None

    def as_came(self, token: int) -> int | str:
        """How a token stood in the stream: its id, or its name if no id is known."""
        if self.first is not None:
            return self.first + token
        return (self.book.token or "{}").format(self.book.first_number + token)


class Vocabulary:
    """What each id and each name of a stream means. One per model, shared by its turns.

    Args:
        profile: The family.
        vocab: The model's tokenizer. Without one the profile's own numbers count, and text
            stays ids.

    Attributes:
        profile: The family.
        vocab: As given.
        books: The codebooks, numbered.
        unknown: Names of audio tokens whose ids nobody tells: no stream of ids can be read.

    Raises:
        ModelError: the tokenizer belongs to another family.
        ConfigError: two meanings for one id.
    """

    def __init__(self, profile: Profile, vocab: Vocab | None = None):
        self.profile, self.vocab = profile, vocab
        self.books = [Numbered(book, self._first(book)) for book in profile.codebooks]
        self.unknown = [n.book.token for n in self.books if n.first is None]
        self._named = GENERIC | {s.name: s.kind for s in profile.specials if s.name}
        self._ids = {special: self._special(special) for special in profile.specials}
        self._with_ids = {special.name for special, ids in self._ids.items() if ids}
        self._table = self._kinds()

    def kind_of(self, token: int) -> int:
        """The `Kind` of an id; AUDIO + n for the n-th codebook."""
        return self._table[token] if 0 <= token < len(self._table) else Kind.BEYOND

    def has_id(self, name: str) -> bool:
        """Whether the stream of ids has an id for `name`, which then does not count spelled out."""
        return name in self._with_ids

    def meaning(self, name: str) -> tuple[int, int]:
        """The kind of a name, and the token if that is audio."""
        if name in self._named:
            return self._named[name], 0
        beyond = False
        for n, numbered in enumerate(self.books):
            number = _number(name, numbered.book.token)
            if number is not None:
                token = number - numbered.book.first_number
                if 0 <= token < numbered.book.size:
                    return Kind.AUDIO + n, token
                beyond = True
        return Kind.BEYOND if beyond else Kind.FRAMING, 0

    def prefix(self, name: str) -> Kind:
        """The kind of a token that ends the prompt; angle brackets may be left out.

        Raises:
            UsageError: no such token.
        """
        openers = {s.name: s.kind for s in self.profile.specials if s.name and s.kind is Kind.OPEN}
        openers["<think>"] = Kind.THINK_OPEN
        for known, kind in openers.items():
            if name in (known, known.strip("<>")):
                return kind
        raise UsageError(
            f"{self.profile.family} has no token {name!r} to end a prompt with: "
            f"use one of {', '.join(openers)}"
        )

    def _first(self, book: Codebook) -> int | None:
        if self.vocab is None or book.token is None:
            return book.first_id
        names = [book.token.format(book.first_number + n) for n in (0, book.size - 1)]
        first, last = (self.vocab.id_of(name) for name in names)
        if first is None or last is None or last - first != book.size - 1:
            raise ModelError(
                f"the tokenizer has {names[0]} at {first} and {names[1]} at {last}, expected "
                f"{book.size} ids in a row: it is not one of {self.profile.family}"
            )
        return first

    def _special(self, special: Special) -> tuple[int, ...]:
        if self.vocab is None or special.name is None:
            return special.ids
        token = self.vocab.id_of(special.name)
        if token is None and special.required:
            raise ModelError(
                f"the tokenizer has no {special.name}: it is not one of {self.profile.family}"
            )
        return () if token is None else (token,)

    def _kinds(self) -> bytes:
        """The kind of each id, one byte each."""
        ends = [n.first + n.book.size for n in self.books if n.first is not None]
        ids = [token for tokens in self._ids.values() for token in tokens]
        text_ids = self.vocab.size if self.vocab else self.profile.text_ids
        table = bytearray([Kind.BEYOND]) * max([text_ids, *ends, *(token + 1 for token in ids)])
        table[:text_ids] = bytes(text_ids)
        first = min((n.first for n in self.books if n.first is not None), default=len(table))
        if self.vocab is None:
            table[text_ids:first] = bytes([Kind.FRAMING]) * max(0, first - text_ids)
        else:
            for token in self.vocab.framing:
                table[token] = Kind.FRAMING if token < first else Kind.BEYOND
        for n, numbered in enumerate(self.books):
            if numbered.first is not None:
                end = numbered.first + numbered.book.size
                table[numbered.first : end] = bytes([Kind.AUDIO + n]) * numbered.book.size
        for special, tokens in self._ids.items():
            for token in tokens:
                if table[token] >= Kind.AUDIO:
                    raise ConfigError(f"{special.name} has the id {token} of an audio token")
                table[token] = special.kind
        return bytes(table)


def _number(name: str, form: str | None) -> int | None:
    """The number in a name of the given form; None if it has another form."""
    before, _, after = (form or "").partition("{}")
    digits = name[len(before) : len(name) - len(after)]
    if not before or not digits.isdecimal() or not digits.isascii():
        return None
    whole = name == f"{before}{digits}{after}" and (digits == "0" or digits[0] != "0")
    return int(digits) if whole and len(digits) < 10 else None
