"""Token streams of our own making: a tiny tokenizer, and events made comparable."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from duologue.lm.demux import Demux
from duologue.lm.events import AudioTokens, Dropped, Event, TextDelta, Thought
from duologue.lm.formats import FAMILIES, Profile
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary

T = TypeVar("T", bound=Event)
# A busy machine is no failure.
steady = settings(deadline=None, max_examples=60)

CORPUS = [
    "the clock says it is time to laugh and sigh",
    "函数 你好 时间",
    "function clock zone",
] * 3


def byte_level(names: Iterable[str]) -> Tokenizer:
    """A byte-level BPE tokenizer with the given special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def names_of(profile: Profile) -> list[str]:
    audio = [
        book.token.format(book.first_number + n)
        for book in profile.codebooks
        if book.token
        for n in range(book.size)
    ]
    specials = [special.name for special in profile.specials if special.name]
    behind = [name for name in specials if name.startswith("<audio_")]
    return ["<audio_start>", *(name for name in specials if name not in behind), *audio, *behind]


@cache
def tokenizer_of(family: str) -> Tokenizer:
    return byte_level(names_of(FAMILIES[family]))


@cache
def decoding(family: str) -> Vocabulary:
    """A family's vocabulary with a tiny tokenizer that has its names."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer_of(family).save(str(path))
        return Vocabulary(FAMILIES[family], Vocab(path))


@cache
def numeric(family: str) -> Vocabulary:
    return Vocabulary(FAMILIES[family])


def ids_of(vocabulary: Vocabulary, *parts: str | int) -> list[int]:
    """Ids of a stream: text is encoded, a special token given by its name, audio by its number."""
    assert vocabulary.vocab
    tokenizer, out = tokenizer_of(vocabulary.profile.family), []
    for part in parts:
        if isinstance(part, int):
            assert vocabulary.books[-1].first is not None
            out.append(vocabulary.books[-1].first + part)
        elif (token := vocabulary.vocab.id_of(part)) is not None and part[:1] == "<":
            out.append(token)
        else:
            out += spelled(tokenizer, part)
    return out


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of the text alone, even where it spells a special token out."""
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [token.id for piece, _ in pieces for token in tokenizer.model.tokenize(piece)]


def bytes_of(vocabulary: Vocabulary, data: bytes) -> list[int]:
    """One id for each byte."""
    assert vocabulary.vocab
    by_piece = {}
    for token in range(300):
        by_piece.setdefault(vocabulary.vocab.pieces[token], token)
    return [by_piece[bytes([byte])] for byte in data]


def demuxed(vocabulary: Vocabulary, *chunks: Sequence[int] | str, **options: Any) -> list[Event]:
    """All events of one turn, from chunks of ids or of text."""
    demux = Demux(vocabulary, **options)
    events = []
    for chunk in chunks:
        events += demux.push_text(chunk) if isinstance(chunk, str) else demux.push(chunk)
    events += demux.finish()
    assert [event.seq for event in events] == list(range(len(events)))
    return events


def joined(events: Iterable[Event]) -> list[Event]:
    """Neighbouring deltas of one kind as one, and no numbers."""
    out: list[Event] = []
    for event in events:
        event = replace(event, seq=0)
        last = out[-1] if out else None
        match last, event:
            case (TextDelta(), TextDelta()) if last.voiced == event.voiced:
                out[-1] = replace(
                    last, text=last.text + event.text, tokens=last.tokens + event.tokens
                )
            case (Thought(), Thought()):
                out[-1] = replace(
                    last, text=last.text + event.text, tokens=last.tokens + event.tokens
                )
            case (AudioTokens(), AudioTokens()) if last.codebook == event.codebook:
                out[-1] = replace(last, tokens=last.tokens + event.tokens)
            case (Dropped(), Dropped()) if last.reason == event.reason:
                out[-1] = replace(last, tokens=last.tokens + event.tokens)
            case _:
                out.append(event)
    return out


def text_of(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def audio_of(events: Iterable[Event], codebook: str | None = None) -> list[int]:
    return [
        token
        for event in events
        if isinstance(event, AudioTokens) and codebook in (None, event.codebook)
        for token in event.tokens
    ]


def of(kind: type[T], events: Iterable[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


@st.composite
def cuts(draw: st.DrawFn, stream: Sequence) -> list[Sequence]:
    """`stream` cut anywhere, empty pieces among them."""
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]
