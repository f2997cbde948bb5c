"""The S3 speech tokenizer v2 (25 Hz) in torch (Du et al. 2024, arXiv 2412.10117: CosyVoice 2).

Whisper-like mel through two strided convolutions and transformer blocks with rotary positions, each
with a memory branch (FSMN: a depth-wise convolution over the values); then finite scalar
quantisation: 8 numbers of 3 levels each, 6561 codes. Parameter names are those of
xingchensong/S3Tokenizer.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from duologue.token2wav.onnx_weights import load_strictly, read_onnx_weights

DIGITS = 8
LEVELS = 3
MEMORY_FRAMES = 31


@dataclass(frozen=True, slots=True)
class SpeechTokenizerConfig:
    """Sizes; the defaults are those of the public speech_tokenizer_v2_25hz."""

    mel_bins: int = 128
    width: int = 1280
    heads: int = 20
    blocks: int = 6


PUBLIC = SpeechTokenizerConfig()


class SpeechTokenizer(nn.Module):
    """Log-mel to speech tokens, a quarter as many as frames."""

    def __init__(self, config: SpeechTokenizerConfig):
        super().__init__()
        self.encoder = _Encoder(config)
        self.quantizer = _Quantizer(config.width)

    @classmethod
    def from_onnx(cls, path: Path, config: SpeechTokenizerConfig = PUBLIC) -> "SpeechTokenizer":
        """The weights of the public `speech_tokenizer_v2_25hz.onnx`.

        Raises:
            ModelError: the file is none, or holds other weights.
        """
        model = cls(config)
        load_strictly(model, _renamed(read_onnx_weights(path)), path)
        return model.eval()

    def forward(self, feats: Tensor, feats_length: Tensor) -> Tensor:
        """Tokenise a batch; padding does not change what is before it.

        Args:
            feats: Whisper's log-mel, float32 [B, mel_bins, T], T at most 3000 (30 s).
            feats_length: Real frames of each row, int32 [B].

        Returns:
            Codes, int32 [B, ceil(T / 4)]; of a row, the first ceil(feats_length / 4) are real.
        """
        return self.quantizer(self.encoder(feats, feats_length))


def _renamed(weights: dict) -> dict:
    """Names of the public export, which has no encoder module, to ours."""
    projection = {"quantizer.project_in": "quantizer._codebook.project_down"}
    return {
        f"{projection[module]}.{kind}"
        if module in projection
        else f"encoder.{module}.{kind}": value
        for name, value in weights.items()
        for module, _, kind in [name.rpartition(".")]
    }


def _mask(frames: int, length: Tensor) -> Tensor:
    """1 for the real frames of each row, 0 behind them; [B, frames]."""
    return (torch.arange(frames, device=length.device) < length[:, None]).float()


class _Quantizer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self._codebook = nn.ModuleDict({"project_down": nn.Linear(width, DIGITS)})

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] to codes, int32 [..]."""
        bounded = 0.999 * self._codebook["project_down"](x).float().tanh()
        values = LEVELS ** torch.arange(DIGITS, device=x.device)
        return ((bounded.round() + 1) * values).sum(-1).int()


class _Encoder(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig):
        super().__init__()
        self.conv1 = nn.Conv1d(config.mel_bins, config.width, 3, 2, 1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, 2, 1)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.blocks))
        self.head_dim = config.width // config.heads

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        """[B, mel_bins, T] to [B, ceil(T / 4), width]."""
        for conv in (self.conv1, self.conv2):
            x = F.gelu(conv(x * _mask(x.shape[-1], length)[:, None]))
            length = (length + 1) // 2
        x = x.transpose(1, 2)
        mask = _mask(x.shape[1], length)
        rotation = _rotation(x.shape[1], self.head_dim, x.device)
        for block in self.blocks:
            x = block(x, mask, rotation)
        return x


def _rotation(frames: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine [frames, head_dim] of the rotary positions, halves side by side."""
    frequency = 10_000.0 ** -(torch.arange(0, head_dim, 2, device=device) / head_dim)
    angle = torch.arange(frames, device=device)[:, None] * frequency.repeat(2)
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * rotation[0] + torch.cat([-right, left], -1) * rotation[1]


class _Block(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig):
        super().__init__()
        width = config.width
        self.attn = _Attention(width, config.heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attn(self.attn_ln(x), mask, rotation)
        return x + self.mlp(self.mlp_ln(x))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(
            width, width, MEMORY_FRAMES, padding=MEMORY_FRAMES // 2, groups=width, bias=False
        )

    def forward(self, x: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        value = self.value(x)
        real = mask[..., None]
        memory = value * real
        memory = (self.fsmn_block(memory.transpose(1, 2)).transpose(1, 2) + memory) * real
        attended = F.scaled_dot_product_attention(
            _rotate(self._split(self.query(x)), rotation),
            _rotate(self._split(self.key(x)), rotation),
            self._split(value),
            attn_mask=((mask - 1) * 1e10)[:, None, None],
        )
        return self.out(attended.transpose(1, 2).flatten(2)) + memory

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, width] to [B, heads, T, head_dim]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
