"""A language model of half a megabyte with an audio vocabulary of its own, written in a moment.

The file format is GGUF version 3 (github.com/ggml-org/ggml, docs/gguf.md).
"""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

BOT, EOT, TTS_START, TTS_END, TTS_PAD, TOOL, TOOL_END = range(256, 263)
SPECIALS = "<|BOT|> <|EOT|> <tts_start> <tts_end> <tts_pad> <tool_call> </tool_call>".split()
AUDIO = 64
AUDIO_0 = 256 + len(SPECIALS)
SIZE = AUDIO_0 + AUDIO
"""Ids 0..255 are bytes, then come `SPECIALS`, then `<audio_0>` to `<audio_63>`."""

CONTEXT = 8192
_HEADS, _HEAD, _FEED, _LAYERS = 2, 32, 64, 2
_NORMAL, _CONTROL = 1, 3
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_ALIGNMENT = 32

Weights = Callable[[int, int], np.ndarray]


def spell(token: int) -> str:
    """The name of a token; a byte's letter is that of GPT-2's alphabet."""
    if token >= AUDIO_0:
        return f"<audio_{token - AUDIO_0}>"
    return SPECIALS[token - BOT] if token >= BOT else _letters()[token]


def random_model(path: Path, seed: int) -> Path:
    """A model whose next token depends on all before it; it never ends by itself."""
    generator = np.random.default_rng(seed)
    width = _HEADS * _HEAD

    def weights(rows: int, columns: int) -> np.ndarray:
        return generator.standard_normal((rows, columns)) * 2 / np.sqrt(columns)

    output = weights(SIZE, width) * 3
    output[EOT] = 0
    return _write(path, weights(SIZE, width), output, weights)


def chain_model(path: Path, chain: Sequence[int]) -> Path:
    """A model that goes on with the token that stands behind the newest one in `chain`.

    Behind a token that is not in it, all are alike.
    """
    assert len(set(chain[:-1])) == len(chain[:-1]), "a token has one successor"
    width = -(-SIZE // 64) * 64
    output = np.zeros((SIZE, width))
    for token, successor in zip(chain, chain[1:], strict=False):
        output[successor, token] = 10

    def nothing(rows: int, columns: int) -> np.ndarray:
        return np.zeros((rows, columns))

    return _write(path, np.eye(SIZE, width), output, nothing)


def _write(path: Path, embedding: np.ndarray, output: np.ndarray, weights: Weights) -> Path:
    width = embedding.shape[1]
    tensors = {
        "token_embd.weight": embedding,
        "output.weight": output,
        "output_norm.weight": np.ones(width),
    }
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{layer}.{name}.weight"] = weights(width, width)
        for name in ("ffn_gate", "ffn_up"):
            tensors[f"blk.{layer}.{name}.weight"] = weights(_FEED, width)
        tensors[f"blk.{layer}.ffn_down.weight"] = weights(width, _FEED)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(width)
    fields = _fields(width)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)) + b"".join(fields)
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(tensor.astype("<f4").tobytes())
    path.write_bytes(_padded(head) + data)
    return path


def _fields(width: int) -> list[bytes]:
    tokens = [spell(token) for token in range(SIZE)]
    kinds = [_NORMAL if token < BOT else _CONTROL for token in range(SIZE)]
    heads = width // _HEAD
    numbers = {
        "llama.context_length": CONTEXT,
        "llama.embedding_length": width,
        "llama.block_count": _LAYERS,
        "llama.feed_forward_length": _FEED,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": heads,
        "llama.rope.dimension_count": _HEAD,
        "llama.vocab_size": SIZE,
        "tokenizer.ggml.eos_token_id": EOT,
        "tokenizer.ggml.padding_token_id": TTS_PAD,
    }
    texts = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.chat_template": "{% for m in messages %}<|BOT|>{{ m.role }}\n"
        "{{ m.content }}<|EOT|>{% endfor %}<|BOT|>assistant\n",
    }
    epsilon = struct.pack("<If", _F32, 1e-6)
    return [
        *(_string(key) + struct.pack("<I", _STRING) + _string(text) for key, text in texts.items()),
        *(_string(key) + struct.pack("<II", _U32, number) for key, number in numbers.items()),
        _string("llama.attention.layer_norm_rms_epsilon") + epsilon,
        _array("tokenizer.ggml.tokens", _STRING, list(map(_string, tokens))),
        _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for kind in kinds]),
        # The loader wants one merge at least; this one joins nothing that the tests say.
        _array("tokenizer.ggml.merges", _STRING, [_string("Ġ Ġ")]),
    ]


def _array(key: str, kind: int, items: list[bytes]) -> bytes:
    return _string(key) + struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(items)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _letters() -> list[str]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
