"""The conformer encoder: embedded speech tokens to what `mu` is projected from, two frames each.

Mathematics and state-dict names are those of stepfun-ai/Step-Audio2, `cosyvoice2/transformer/
upsample_encoder_v2.py`: a convolution that looks ahead, layers at token rate, upsampling, layers
at mel rate. Attention is relative to position (Transformer-XL, arXiv 1901.02860, section 3.3).

Positions need neither table nor shift, so keys may lie anywhere. With the query i frames into the
chunk and key j at distance d_j before the chunk's first frame, the term of position is
(q_i + v) W pe(i + d_j), where pe holds sin(w_k d) and cos(w_k d). By the addition theorem that is
(R_i Wᵀ(q_i + v)) pe(d_j), R_i turning each pair by w_k i: each key needs its own distance only.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.token2wav.config import EncoderConfig
from duologue.token2wav.layers import attention, key_bias, split_heads, tail

PRE_CONTEXT = 2
"""Columns of context of the second convolution of the look-ahead layer."""


class AttentionCache(NamedTuple):
    """Keys and values before a chunk, of every layer of one rate.

    Attributes:
        kv: [batch, layers, heads, n, 2 * d].
        distance: [batch, n], how far before the chunk's first frame each lies, 1 for the nearest.
        mask: [batch, n], 1 for a real entry.
    """

    kv: Tensor
    distance: Tensor
    mask: Tensor


class EncoderCache(NamedTuple):
    """What the tokens before a chunk left behind; `pre` and `up` are [batch, channels, columns]."""

    pre: Tensor
    up: Tensor
    token: AttentionCache
    mel: AttentionCache


class Positions(NamedTuple):
    """Sinusoids of one chunk, shared by the layers of one rate.

    Attributes:
        query_sin: [n, width / 2], of each query's place in the chunk.
        query_cos: The same.
        keys: [batch, width, m], sines then cosines of each key's distance.
    """

    query_sin: Tensor
    query_cos: Tensor
    keys: Tensor


def positions(length: int, past: Tensor | None, like: Tensor) -> Positions:
    """Sinusoids for a chunk of `length` behind keys at the distances `past` [batch, n].

    Angles are float32; the sinusoids take type and device, and [.., width] its width, from `like`.
    """
    width = like.shape[-1]
    pairs = torch.arange(0, width, 2, dtype=torch.float32, device=like.device)
    frequency = torch.exp(pairs * -(math.log(10_000.0) / width))
    place = torch.arange(length, dtype=torch.float32, device=like.device)
    distance = -place[None]
    if past is not None:
        distance = torch.cat([past, distance.expand(past.shape[0], -1)], 1)
    query = place[:, None] * frequency
    key = frequency[:, None] * distance[:, None]
    keys = torch.cat([key.sin(), key.cos()], 1)
    return Positions(query.sin().to(like), query.cos().to(like), keys.to(like))


class Embed(nn.Module):
    """Linear layer and LayerNorm, scaled by the root of the width."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.out = nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width))
        self.scale = math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, n, inputs] to [batch, n, width]."""
        return self.out(x) * self.scale


class PreLookahead(nn.Module):
    """Mixes each token with the few behind it and, after that, with the two before it."""

    def __init__(self, width: int, ahead: int):
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, ahead + 1)
        self.conv2 = nn.Conv1d(width, width, PRE_CONTEXT + 1)

    def forward(self, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """[batch, n + ahead, width] to [batch, n, width], and the inputs of `conv2`."""
        y = F.leaky_relu(self.conv1(x.transpose(1, 2)))
        y = F.pad(y, (PRE_CONTEXT, 0)) if past is None else torch.cat([past, y], 2)
        return self.conv2(y).transpose(1, 2) + x[:, : 1 - self.conv1.kernel_size[0]], y


class Upsample(nn.Module):
    """Repeats each frame and smooths by a causal convolution."""

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(width, width, 2 * stride + 1)

    def forward(self, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """[batch, n, width] to [batch, stride * n, width], and the inputs of `conv`."""
        y = x.transpose(1, 2)[..., None].expand(-1, -1, -1, self.stride).flatten(2)
        y = F.pad(y, (2 * self.stride, 0)) if past is None else torch.cat([past, y], 2)
        return self.conv(y).transpose(1, 2), y


class RelativeAttention(nn.Module):
    """Self-attention relative to position."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        width, self.heads = config.output_size, config.attention_heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.heads, width // self.heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.heads, width // self.heads))

    def forward(
        self, x: Tensor, at: Positions, bias: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """[batch, n, width] to the same and to the keys and values [batch, heads, n, 2 d]."""
        query = split_heads(self.linear_q(x), self.heads)
        new = torch.cat([split_heads(f(x), self.heads) for f in (self.linear_k, self.linear_v)], -1)
        keys, values = (new if past is None else torch.cat([past, new], 2)).chunk(2, -1)
        bias = bias + self._position_scores(query + self.pos_bias_v[:, None], at)
        return self.linear_out(attention(query + self.pos_bias_u[:, None], keys, values, bias)), new

    def _position_scores(self, query: Tensor, at: Positions) -> Tensor:
        """Scaled scores [batch, heads, n, m] of each key's distance from each query."""
        pairs = self.linear_pos.weight.unflatten(0, (self.heads, -1)) * query.shape[-1] ** -0.5
        sin, cos = query @ pairs[..., 0::2], query @ pairs[..., 1::2]
        turned = torch.cat(
            [
                sin * at.query_cos - cos * at.query_sin,
                sin * at.query_sin + cos * at.query_cos,
            ],
            -1,
        )
        return (turned.flatten(1, 2) @ at.keys).unflatten(1, (self.heads, -1))


class FeedForward(nn.Module):
    """Two linear layers around SiLU."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.w_1 = nn.Linear(config.output_size, config.linear_units)
        self.w_2 = nn.Linear(config.linear_units, config.output_size)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, n, width] to the same."""
        return self.w_2(F.silu(self.w_1(x)))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each behind a LayerNorm and beside a residual."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.self_attn = RelativeAttention(config)
        self.feed_forward = FeedForward(config)
        self.norm_mha = nn.LayerNorm(config.output_size, eps=1e-12)
        self.norm_ff = nn.LayerNorm(config.output_size, eps=1e-12)

    def forward(
        self, x: Tensor, at: Positions, bias: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `RelativeAttention`."""
        y, new = self.self_attn(self.norm_mha(x), at, bias, past)
        x = x + y
        return x + self.feed_forward(self.norm_ff(x)), new


class Encoder(nn.Module):
    """The whole encoder; offline and streaming differ only in whether there is a cache."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        width = config.output_size
        self.ahead, self.stride = config.pre_lookahead_len, config.up_stride
        self.embed = Embed(config.input_size, width)
        self.pre_lookahead_layer = PreLookahead(width, self.ahead)
        self.encoders = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_blocks))
        self.up_layer = Upsample(width, self.stride)
        self.up_embed = Embed(width, width)
        self.up_encoders = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_up_blocks))
        self.after_norm = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, valid: Tensor, mask: Tensor, cache: EncoderCache | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Encode a chunk.

        Args:
            x: Embedded tokens [batch, n + ahead, input_size].
            valid: [batch, n + ahead]; where it is 0 the look-ahead sees zeros.
            mask: [batch, n], 1 for each token of this chunk.
            cache: What came before; None at the very beginning.

        Returns:
            [batch, stride * n, width], and the new caches: pre, up, and the keys and values of the
            layers at token rate and at mel rate [batch, layers, heads, n, 2 d]; () without a cache.
        """
        # After the embedding, whose bias and LayerNorm make something of nothing.
        x = self.embed(x) * valid[..., None].to(x.dtype)
        x, pre = self.pre_lookahead_layer(x, None if cache is None else cache.pre)
        x, token = _layers(self.encoders, x, mask, None if cache is None else cache.token)
        x, up = self.up_layer(x, None if cache is None else cache.up)
        mask_mel = mask[..., None].expand(-1, -1, self.stride).flatten(1)
        x, mel = _layers(
            self.up_encoders, self.up_embed(x), mask_mel, None if cache is None else cache.mel
        )
        x = self.after_norm(x)
        if cache is None:
            return x, ()
        count = mask.sum(1).long()
        new_pre = tail(pre, count, PRE_CONTEXT)
        new_up = tail(up, self.stride * count, 2 * self.stride)
        return x, (new_pre, new_up, torch.stack(token, 1), torch.stack(mel, 1))


def _layers(
    layers: nn.ModuleList, x: Tensor, mask: Tensor, cache: AttentionCache | None
) -> tuple[Tensor, list[Tensor]]:
    """Run the layers of one rate; also the chunk's keys and values of each."""
    at = positions(x.shape[1], None if cache is None else cache.distance, x)
    bias = key_bias(mask if cache is None else torch.cat([cache.mask, mask], 1), x.dtype)
    news = []
    for i, layer in enumerate(layers):
        x, new = layer(x, at, bias, None if cache is None else cache.kv[:, i])
        news.append(new)
    return x, news
