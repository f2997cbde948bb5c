"""What all templates write with: framing as it is, and content that cannot become framing."""

import json
import re
from itertools import chain
from math import ceil
from typing import Any
from unicodedata import normalize

from duologue.errors import InputError, ModelError, UsageError
from duologue.lm.conversation import Codes
from duologue.lm.prompt import AudioPart, IdsPart, Part, TextPart
from duologue.lm.vocabulary import Vocabulary

# How the names of special tokens begin, in all families. Marks that steer a voice (`<strong>`,
# `[breath]`) are not among them.
_NAME = re.compile(
    r"<(?=\||/?(?:audio|tts|tool)_|/?(?:think|s|unit|sop|eop|unk|pad)>)"
    r"|\[(?=(?:EOS|[gs]?MASK)\])"
)
# Also what may become one with the text behind it.
_BEGINS = re.compile(rf"{_NAME.pattern}|<(?=(?:/|/?[a-z]\w*)?\Z)|\[(?=[a-zA-Z]*\Z)")
# SentencePiece drops them, and may make a name of what they stood in.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def literal(text: str) -> str:
    """The text with a blank inside every special token that it spells out.

    A tokenizer, wherever it runs, takes the name of a special token for the token, also where a
    person says it or a tool finds it; one that normalises does so with wide letters, too.
    """
    text = _CONTROL.sub("", text)
    plain = normalize("NFKC", text)
    if len(_NAME.findall(plain)) > len(_NAME.findall(text)):
        text = plain
    return _BEGINS.sub(lambda found: f"{found.group()} ", text)


class Writer:
    """A prompt in the making; neighbouring texts become one part.

    Args:
        vocabulary: The family, and its tokenizer where ids are written.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._parts: list[Part] = []

    def parts(self) -> tuple[Part, ...]:
        """What has been written."""
        return tuple(self._parts)

    def framing(self, text: str) -> None:
        """Write text whose special tokens count."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, TextPart):
            self._parts[-1] = TextPart(last.text + text)
        elif text:
            self._parts.append(TextPart(text))

    def content(self, text: str) -> None:
        """Write what somebody has said, wrote or found: text alone."""
        self.framing(literal(text))

    def json(self, text: str) -> None:
        """Write JSON; a special token in its strings is escaped, which leaves their value."""
        self.framing(_NAME.sub(lambda found: f"\\u{ord(found.group()):04x}", text))

    def value(self, value: Any) -> None:
        """Write a value as JSON, with the letters of all languages as they are."""
        self.json(json.dumps(value, ensure_ascii=False))

    def sound(self, audio: AudioPart) -> None:
        """Write sound, in pieces that the model can take."""
        if (heard := self._vocabulary.profile.heard) is None:
            raise UsageError(f"{self._vocabulary.profile.family} does not hear")
        for piece in audio.pieces(heard.longest_s):
            self.framing(heard.opens)
            self._parts.append(piece)
            self.framing(heard.closes)

    def spelled(self, codes: Codes) -> None:
        """Write audio tokens by their names, whole frames of them.

        Raises:
            InputError: they are not of the family's codebooks.
        """
        self._check(codes)
        books, frame = self._vocabulary.profile.codebooks, self._vocabulary.profile.frame
        self.framing(
            "".join(
                (books[book].token or "").format(books[book].first_number + token)
                for token, book in _ordered(codes, frame)
            )
        )

    def own_ids(self, codes: Codes) -> None:
        """Write audio tokens as the model's own numbers.

        Raises:
            InputError: they are not of the family's codebook.
        """
        self._check(codes)
        self._parts.append(IdsPart(codes[0]))

    def voiced(
        self, text: str, audio: Codes, pads: tuple[str, str] | None, around: tuple[str, ...] = ()
    ) -> None:
        """Write a spoken answer as the model gives it: text and audio tokens in turns.

        Args:
            text: Its words.
            audio: Its speech, of one codebook.
            pads: Tokens that fill the groups of whichever ends first; None if it has none.
            around: Tokens before and behind it, or none.

        Raises:
            UsageError: without a tokenizer.
            ModelError: with one that lacks a token.
            InputError: audio tokens beyond the codebook.
        """
        profile, vocab = self._vocabulary.profile, self._vocabulary.vocab
        if vocab is None:
            raise UsageError(
                f"speech of {profile.family} in a history needs its tokenizer"
                + ("; or keep answers as text" if profile.text_history else "")
            )
        self._check(audio)
        first, (texts, audios) = self._vocabulary.books[-1].first or 0, profile.interleave or (1, 1)
        words, tokens = vocab.encode(literal(text)), [first + token for token in audio[0]]
        groups = max(ceil(len(words) / texts), ceil(len(tokens) / audios))
        if pads:
            text_pad, audio_pad = map(self._id, pads)
            words += [text_pad] * (groups * texts - len(words))
            tokens += [audio_pad] * (groups * audios - len(tokens))
        ids = chain.from_iterable(
            words[n * texts : (n + 1) * texts] + tokens[n * audios : (n + 1) * audios]
            for n in range(groups)
        )
        before, behind = map(self._id, around[:1]), map(self._id, around[1:])
        self._parts.append(IdsPart((*before, *ids, *behind)))

    def _id(self, name: str) -> int:
        vocab = self._vocabulary.vocab
        token = vocab.id_of(name) if vocab else None
        if token is None:
            family = self._vocabulary.profile.family
            raise ModelError(f"the tokenizer has no {name}: it is not one of {family}")
        return token

    def _check(self, codes: Codes) -> None:
        profile = self._vocabulary.profile
        names = ", ".join(book.name for book in profile.codebooks)
        if len(codes) != len(profile.codebooks):
            raise InputError(
                f"audio tokens of {len(codes)} codebooks, expected those of {names or 'none'}"
            )
        for run, book in zip(codes, profile.codebooks, strict=True):
            if beyond := [token for token in run if not 0 <= token < book.size]:
                raise InputError(
                    f"audio token {beyond[0]} of {book.name}, expected 0..{book.size - 1}"
                )


def _ordered(codes: Codes, frame: tuple[int, ...]) -> list[tuple[int, int]]:
    """(token, codebook) in the order of the stream: frame by frame, or one run after the other."""
    if not frame:
        return [(token, book) for book, run in enumerate(codes) for token in run]
    frames = min(len(run) // frame.count(book) for book, run in enumerate(codes))
    runs = [iter(run) for run in codes]
    return [(next(runs[book]), book) for book in frame * frames]
