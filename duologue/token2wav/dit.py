"""The diffusion transformer (DiT) that estimates the velocity of the flow.

Mathematics and state-dict names are those of stepfun-ai/Step-Audio2, `cosyvoice2/flow/
decoder_dit.py`: adaLN-zero blocks of attention, causal convolution and feed-forward. Position is
known only from the convolutions and from `mu`, so keys and values are a set without order.

In half precision the time embedding is computed in float32 whatever its weights (1000 t is off
by up to 0.5 in float16), and every LayerNorm of torch and ONNX takes its statistics in float32.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.token2wav.config import EstimatorConfig
from duologue.token2wav.layers import attention, key_bias, split_heads, tail

FREQUENCIES = 128
TIME_SCALE = 1000.0
LONGEST_PERIOD = 10_000.0
CONTEXT = 2
"""Frames that a causal convolution of kernel 3 sees before its own."""


class DitCache(NamedTuple):
    """What the frames before a chunk left behind.

    Attributes:
        conv: [rows, depth, 2, hidden, 2].
        kv: [rows, depth, heads, n, 2 * head_dim], in any order.
        mask: [rows, n], 1 for a real entry.
    """

    conv: Tensor
    kv: Tensor
    mask: Tensor


class TimestepEmbedder(nn.Module):
    """Time in 0..1 to a vector."""

    def __init__(self, hidden: int):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(2 * FREQUENCIES, hidden), nn.SiLU(), nn.Linear(hidden, hidden)
        )

    def forward(self, t: Tensor) -> Tensor:
        """float32 [n] to float32 [n, hidden]."""
        steps = torch.arange(FREQUENCIES, dtype=torch.float32, device=t.device) / FREQUENCIES
        angle = TIME_SCALE * t[:, None] * torch.exp(-math.log(LONGEST_PERIOD) * steps)
        x = torch.cat([angle.cos(), angle.sin()], -1)
        return _linear32(self.mlp[2], F.silu(_linear32(self.mlp[0], x)))


def _linear32(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear layer in float32, whatever the type of its weights."""
    assert isinstance(layer, nn.Linear)
    return F.linear(x, layer.weight.float(), layer.bias.float())


def modulation(hidden: int, chunks: int) -> nn.Sequential:
    """The projection of adaLN. Its SiLU is taken once for all blocks: see `DiT.modulations`."""
    return nn.Sequential(nn.Identity(), nn.Linear(hidden, chunks * hidden))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Shift and scale of adaLN."""
    return x * (1 + scale) + shift


class Attention(nn.Module):
    """Self-attention with a LayerNorm on each head's queries and keys."""

    def __init__(self, config: EstimatorConfig):
        super().__init__()
        self.heads = config.num_heads
        inner = config.num_heads * config.head_dim
        self.to_q = nn.Linear(config.hidden_size, inner)
        self.to_k = nn.Linear(config.hidden_size, inner)
        self.to_v = nn.Linear(config.hidden_size, inner)
        self.q_norm = nn.LayerNorm(config.head_dim)
        self.k_norm = nn.LayerNorm(config.head_dim)
        self.proj = nn.Linear(inner, config.hidden_size)

    def forward(self, x: Tensor, bias: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """[rows, n, hidden] to the same and to the keys and values [rows, heads, n, 2 d]."""
        query = self.q_norm(split_heads(self.to_q(x), self.heads))
        key = self.k_norm(split_heads(self.to_k(x), self.heads))
        new = torch.cat([key, split_heads(self.to_v(x), self.heads)], -1)
        keys, values = (new if past is None else torch.cat([past, new], 2)).chunk(2, -1)
        return self.proj(attention(query, keys, values, bias)), new


class CausalConvBlock(nn.Module):
    """Causal convolution, LayerNorm, Mish, causal convolution."""

    def __init__(self, hidden: int):
        super().__init__()
        # Named as the stages of the reference's Sequential that hold weights.
        self.block = nn.ModuleDict(
            {
                "1": nn.Conv1d(hidden, hidden, CONTEXT + 1),
                "3": nn.LayerNorm(hidden),
                "6": nn.Conv1d(hidden, hidden, CONTEXT + 1),
            }
        )

    def forward(self, x: Tensor, count: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, n, hidden] and its past [rows, 2, hidden, 2] to the same of both."""
        first = torch.cat([past[:, 0], x.transpose(1, 2)], 2)
        x = F.mish(self.block["3"](self.block["1"](first).transpose(1, 2)))
        second = torch.cat([past[:, 1], x.transpose(1, 2)], 2)
        new = torch.stack([tail(first, count, CONTEXT), tail(second, count, CONTEXT)], 1)
        return self.block["6"](second).transpose(1, 2), new


class Mlp(nn.Module):
    """Feed-forward layer with tanh-GELU."""

    def __init__(self, config: EstimatorConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.mlp_size)
        self.fc2 = nn.Linear(config.mlp_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, n, hidden] to the same."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class DiTBlock(nn.Module):
    """Attention, convolution and feed-forward, each between modulation and gate."""

    def __init__(self, config: EstimatorConfig):
        super().__init__()
        hidden = config.hidden_size
        self.norm = nn.LayerNorm(hidden, eps=1e-6, elementwise_affine=False)
        self.attn = Attention(config)
        self.conv = CausalConvBlock(hidden)
        self.mlp = Mlp(config)
        self.adaLN_modulation = modulation(hidden, 9)

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        bias: Tensor,
        count: Tensor,
        conv_past: Tensor,
        kv_past: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[rows, n, hidden] to the same, and the new caches of this block."""
        # In the checkpoint the feed-forward's chunks stand before the convolution's.
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate, *conv_chunks = modulation.chunk(9, -1)
        conv_shift, conv_scale, conv_gate = conv_chunks
        y, new_kv = self.attn(modulate(self.norm(x), shift, scale), bias, kv_past)
        x = x + gate * y
        y, new_conv = self.conv(modulate(self.norm(x), conv_shift, conv_scale), count, conv_past)
        x = x + conv_gate * y
        x = x + mlp_gate * self.mlp(modulate(self.norm(x), mlp_shift, mlp_scale))
        return x, new_conv, new_kv


class FinalLayer(nn.Module):
    """Modulated LayerNorm and the projection to mel."""

    def __init__(self, hidden: int, out_channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(hidden, out_channels)
        self.adaLN_modulation = modulation(hidden, 2)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """[rows, n, hidden] to [rows, n, mel]."""
        shift, scale = modulation.chunk(2, -1)
        return self.linear(modulate(self.norm(x), shift, scale))


class DiT(nn.Module):
    """The estimator of the velocity."""

    def __init__(self, config: EstimatorConfig):
        super().__init__()
        hidden = config.hidden_size
        self.t_embedder = TimestepEmbedder(hidden)
        self.in_proj = nn.Linear(config.in_channels, hidden)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(hidden, config.out_channels)

    def modulations(self, t: Tensor) -> list[Tensor]:
        """What time [1] is to each block [1, 1, 9 hidden] and to the last layer [1, 1, 2 hidden].

        They depend on nothing else, so a solver with fixed times can compute them once.
        """
        condition = F.silu(self.t_embedder(t)).to(self.in_proj.weight.dtype)[:, None]
        layers = (*self.blocks, self.final_layer)
        return [layer.get_submodule("adaLN_modulation")(condition) for layer in layers]

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        modulations: list[Tensor],
        mask: Tensor,
        cache: DitCache | None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Velocity of a chunk.

        Args:
            x: The mel so far, [rows, n, mel].
            mu: Of the encoder, [rows, n, mel].
            spk: The voice, [rows, mel].
            cond: The prompt's mel where it is known, else 0, [rows, n, mel].
            modulations: Of this time.
            mask: [rows, n].
            cache: What came before; None at the very beginning.

        Returns:
            Velocity [rows, n, mel]; of each block, the new convolution cache [rows, 2, hidden, 2]
            and the chunk's keys and values [rows, heads, n, 2 * head_dim]. Both lists are empty
            without a cache.
        """
        features = torch.cat([x, mu, spk[:, None].expand_as(x), cond], -1)
        x = self.in_proj(features.to(self.in_proj.weight.dtype))
        count = mask.sum(1).long()
        bias = key_bias(mask if cache is None else torch.cat([cache.mask, mask], 1), x.dtype)
        start = x.new_zeros(x.shape[0], 2, x.shape[2], CONTEXT)
        convs, kvs = [], []
        for i, block in enumerate(self.blocks):
            conv_past, kv_past = (
                (start, None) if cache is None else (cache.conv[:, i], cache.kv[:, i])
            )
            x, conv, kv = block(x, modulations[i], bias, count, conv_past, kv_past)
            if cache is not None:
                convs.append(conv)
                kvs.append(kv)
        return self.final_layer(x, modulations[-1]), convs, kvs
