"""A tokenizer as the demultiplexer needs it: ids of names, and the bytes behind an id."""

import re
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from duologue.errors import ModelError

# The names of special tokens; an added token of another form, such as a run of blanks, is text.
_FRAMING = re.compile(r"<.+>|\[[A-Z_]+\]")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Pieces(dict[int, bytes]):
    """The bytes of each text id, looked up when first met.

    A character may be spread over several ids (byte-level BPE, or byte fallback), so only bytes
    can be had of one id alone.

    Raises:
        ModelError: the tokenizer's pieces are of another kind.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder.__getstate__() if tokenizer.decoder else b""
        self._byte_level = b"ByteLevel" in decoder
        self.leading_blank = not self._byte_level
        """Whether a text begins with a blank that is not its own (SentencePiece)."""
        if not (self._byte_level or b"ByteFallback" in decoder or b"Metaspace" in decoder):
            raise ModelError(
                "the tokenizer's decoder is neither byte-level nor SentencePiece, "
                f"but {decoder.decode()[:100] or 'missing'}; use the model's own tokenizer.json"
            )
        self._added = {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items()}

    def __missing__(self, token: int) -> bytes:
        piece = self._bytes(token)
        self[token] = piece
        return piece

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.id_to_token(token) or ""
        if self._byte_level:
            letters = _byte_of()
            if letters.keys() >= set(piece):
                return bytes(map(letters.__getitem__, piece))
            # As the library's own decoder does: other letters stand for themselves.
            return piece.encode()
        if found := _BYTE.fullmatch(piece):
            return bytes([int(found[1], 16)])
        return piece.replace("▁", " ").encode()


class Vocab:
    """The vocabulary of a `tokenizer.json`.

    Args:
        path: The file, or a folder that holds it.

    Attributes:
        size: Ids are 0..size-1.
        framing: Names of the added tokens that are no text, by id.
        pieces: The bytes of the others.

    Raises:
        ModelError: no such file, or not a tokenizer of a known kind.
    """

    def __init__(self, path: Path):
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise ModelError(
                f"{path} is missing; expected the model's tokenizer.json, which transformers "
                "writes with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(f"{path} is no tokenizer.json: {error}") from error
        added = self._tokenizer.get_added_tokens_decoder()
        self.size = max([self._tokenizer.get_vocab_size() - 1, *added]) + 1
        self.framing = {
            token: entry.content
            for token, entry in added.items()
            if entry.special or _FRAMING.fullmatch(entry.content)
        }
        self.pieces = Pieces(self._tokenizer)

    def id_of(self, name: str) -> int | None:
        """The id of a token, None if there is none of that name."""
        return self._tokenizer.token_to_id(name)

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are spelled out; nothing is added to it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids


@cache
def _byte_of() -> dict[str, int]:
    """The byte behind each letter of a byte-level piece (the alphabet of GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + n): byte for n, byte in enumerate(others)}
