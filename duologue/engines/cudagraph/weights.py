"""The flow's weights as the kernels take them: fused, folded and in half precision.

What is linear between two layers is folded into one, in float32: embedding and its projection into
a table, upsampling with its projection, mu's projection into the estimator's, the position scores'
projection into that of the queries. Time is known, so adaLN is a table too.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from duologue.engines.cudagraph.ops import HeadNorm, Linear, Norm
from duologue.token2wav.config import SolverConfig
from duologue.token2wav.dit import DiT, DiTBlock
from duologue.token2wav.encoder import EncoderLayer
from duologue.token2wav.flow import Flow

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of the estimator."""

    qkv: Linear
    head_norm: HeadNorm
    proj: Linear
    conv1: Linear
    conv_norm: Norm
    conv2: Linear
    fc1: Linear
    fc2: Linear


@dataclass(frozen=True, slots=True)
class EstimatorWeights:
    """The estimator and its solver.

    Attributes:
        blocks: In order.
        modulation: adaLN of each step and block, float32 [step, block, 9, hidden], in the order
            shift, 1 + scale, gate of attention, feed-forward and convolution.
        final: Of the last layer, float32 [step, 2, hidden].
        w_out: Its projection [hidden, padded mel]; b_out float32 [padded mel].
        w_in: The first layer's columns for x [padded mel, hidden]; b_in float32 [hidden].
        dt: Length of each Euler step.
        guidance: Weight of what the condition changes.
        mel: Mel bins.
        heads: Heads of attention.
    """

    blocks: list[Block]
    modulation: Tensor
    final: Tensor
    w_out: Tensor
    b_out: Tensor
    w_in: Tensor
    b_in: Tensor
    dt: list[float]
    guidance: float
    mel: int
    heads: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the encoder; `qkvu` also projects to the position queries."""

    norm: Norm
    qkvu: Linear
    out: Linear
    norm_ff: Norm
    w_1: Linear
    w_2: Linear


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """The encoder, up to the estimator's first layer.

    Attributes:
        table: What each token becomes before the look-ahead, float32 [codes, width].
        ahead: First convolution [(look_ahead + 1) * width, width].
        pre: Second convolution [3 * width, width].
        layers: At token rate.
        up: Upsampling and projection of 3 tokens to `stride` frames [3 * width, stride * width].
        up_norm: LayerNorm behind it, its gain and shift float32 [width].
        up_layers: At mel rate.
        after: The last LayerNorm.
        condition: To the estimator's first layer [width, hidden], with its bias.
        mel: The prompt's mel to the same, float32 [mel, hidden].
        speaker: `spk` to the same, float32 [mel, hidden].
        frequency: Of the position sinusoids, float32 [width / 2].
        heads: Heads of attention.
    """

    table: Tensor
    ahead: Linear
    pre: Linear
    layers: list[Layer]
    up: Linear
    up_norm: tuple[Tensor, Tensor]
    up_layers: list[Layer]
    after: Norm
    condition: Linear
    mel: Tensor
    speaker: Tensor
    frequency: Tensor
    heads: int


class Packer:
    """Packs weights for a device.

    Args:
        device: Where they go.
        dtype: Of the matrices.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self._device, self._dtype = device, dtype

    def half(self, x: Tensor) -> Tensor:
        """A matrix."""
        return x.detach().to(self._device, self._dtype).contiguous()

    def full(self, x: Tensor) -> Tensor:
        """A vector or table in float32."""
        return x.detach().to(self._device, torch.float32).contiguous()

    def linear(self, weight: Tensor, bias: Tensor) -> Linear:
        """A layer of weight [out, in], or a convolution of [out, in, taps]."""
        if weight.dim() == 3:
            weight = weight.permute(0, 2, 1).flatten(1)
        return Linear(self.half(weight.T), self.half(bias))

    def norm(self, layer: torch.nn.LayerNorm, *, mish: bool = False) -> Norm:
        """A LayerNorm with gain and shift."""
        return Norm(self.full(layer.weight), self.full(layer.bias), layer.eps, mish)


@torch.no_grad()
def pack_estimator(flow: Flow, solver: SolverConfig, pack: Packer) -> EstimatorWeights:
    """Pack the estimator; its columns for mu, spk and cond go to the encoder."""
    mel, estimator = flow.config.output_size, flow.decoder["estimator"]
    assert isinstance(estimator, DiT)
    steps = solver.n_timesteps
    schedule = [1 - math.cos(math.pi * i / (2 * steps)) for i in range(steps + 1)]
    device = estimator.in_proj.weight.device
    modulations = [
        estimator.modulations(torch.tensor([t], dtype=torch.float32, device=device))
        for t in schedule[:-1]
    ]
    modulation = torch.stack([torch.cat(blocks[:-1])[:, 0] for blocks in modulations])
    modulation = modulation.unflatten(-1, (9, -1)).clone()
    modulation[:, :, 1::3] += 1
    final = torch.stack([blocks[-1][0, 0] for blocks in modulations]).unflatten(-1, (2, -1)).clone()
    final[:, 1] += 1
    padding = _padded(mel) - mel
    last = estimator.final_layer.linear
    return EstimatorWeights(
        blocks=[_block(block, pack) for block in estimator.blocks],  # pyright: ignore[reportArgumentType]
        modulation=pack.full(modulation),
        final=pack.full(final),
        w_out=pack.half(F.pad(last.weight, (0, 0, 0, padding)).T),
        b_out=pack.full(F.pad(last.bias, (0, padding))),
        w_in=pack.half(F.pad(estimator.in_proj.weight[:, :mel], (0, padding)).T),
        b_in=pack.full(estimator.in_proj.bias),
        dt=[then - now for now, then in pairwise(schedule)],
        guidance=solver.inference_cfg_rate,
        mel=mel,
        heads=solver.estimator.num_heads,
    )


def _padded(mel: int) -> int:
    return max(16, 1 << (mel - 1).bit_length())


def _block(block: DiTBlock, pack: Packer) -> Block:
    attn, conv = block.attn, block.conv.block
    heads, size = attn.heads, attn.q_norm.weight.shape[0]
    scale = size**-0.5 * LOG2_E
    projections = (attn.to_q, attn.to_k, attn.to_v)
    none = torch.zeros_like(attn.to_v.bias)
    norms = ((attn.q_norm, scale), (attn.k_norm, 1.0))
    return Block(
        qkv=pack.linear(
            torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections])
        ),
        head_norm=HeadNorm(
            pack.full(torch.cat([*(n.weight.repeat(heads) * s for n, s in norms), none])),
            pack.full(torch.cat([*(n.bias.repeat(heads) * s for n, s in norms), none])),
            2 * heads * size,
            size,
        ),
        proj=pack.linear(attn.proj.weight, attn.proj.bias),
        conv1=_convolution(conv["1"], pack),
        conv_norm=pack.norm(conv["3"], mish=True),  # pyright: ignore[reportArgumentType]
        conv2=_convolution(conv["6"], pack),
        fc1=pack.linear(block.mlp.fc1.weight, block.mlp.fc1.bias),
        fc2=pack.linear(block.mlp.fc2.weight, block.mlp.fc2.bias),
    )


def _convolution(conv: torch.nn.Module, pack: Packer) -> Linear:
    assert isinstance(conv, torch.nn.Conv1d) and conv.bias is not None
    return pack.linear(conv.weight, conv.bias)


@torch.no_grad()
def pack_encoder(flow: Flow, pack: Packer) -> EncoderWeights:
    """Pack the encoder."""
    encoder, mel = flow.encoder, flow.config.output_size
    estimator = flow.decoder["estimator"]
    assert isinstance(estimator, DiT)
    x_in, mu_in, spk_in, cond_in = estimator.in_proj.weight.split(mel, 1)
    del x_in
    width, proj = flow.config.encoder.output_size, flow.encoder_proj
    pairs = torch.arange(0, width, 2, dtype=torch.float32)
    pre = encoder.pre_lookahead_layer
    assert pre.conv1.bias is not None and pre.conv2.bias is not None
    embed = encoder.up_embed.out[1]
    assert isinstance(embed, torch.nn.LayerNorm)
    return EncoderWeights(
        table=pack.full(encoder.embed(flow.input_embedding.weight)),
        ahead=pack.linear(pre.conv1.weight, pre.conv1.bias),
        pre=pack.linear(pre.conv2.weight, pre.conv2.bias),
        layers=[_layer(layer, pack) for layer in encoder.encoders],  # pyright: ignore[reportArgumentType]
        up=_upsampling(flow, pack),
        up_norm=(
            pack.full(embed.weight * encoder.up_embed.scale),
            pack.full(embed.bias * encoder.up_embed.scale),
        ),
        up_layers=[_layer(layer, pack) for layer in encoder.up_encoders],  # pyright: ignore[reportArgumentType]
        after=pack.norm(encoder.after_norm),
        condition=pack.linear(mu_in @ proj.weight, mu_in @ proj.bias + estimator.in_proj.bias),
        mel=pack.full(cond_in.T),
        speaker=pack.full(spk_in.T),
        frequency=pack.full(torch.exp(pairs * -(math.log(10_000.0) / width))),
        heads=flow.config.encoder.attention_heads,
    )


def _upsampling(flow: Flow, pack: Packer) -> Linear:
    """Repetition, convolution and projection as one: frame `stride * t + p` of tokens t-2 to t."""
    conv, linear = flow.encoder.up_layer.conv, flow.encoder.up_embed.out[0]
    assert isinstance(linear, torch.nn.Linear) and conv.bias is not None
    stride, width = flow.encoder.stride, linear.weight.shape[1]
    taps = torch.einsum("oc,cik->oik", linear.weight, conv.weight)
    folded = torch.zeros(stride, linear.weight.shape[0], 3, width, device=taps.device)
    for phase in range(stride):
        for tap in range(2 * stride + 1):
            folded[phase, :, (phase + tap) // stride] += taps[..., tap]
    bias = linear.weight @ conv.bias + linear.bias
    return pack.linear(folded.flatten(2).flatten(0, 1), bias.repeat(stride))


def _layer(layer: EncoderLayer, pack: Packer) -> Layer:
    attn, heads = layer.self_attn, layer.self_attn.heads
    width = attn.linear_q.weight.shape[0]
    scale = (width // heads) ** -0.5 * LOG2_E
    weight, bias = attn.linear_q.weight * scale, attn.linear_q.bias * scale
    by_head = attn.linear_pos.weight.unflatten(0, (heads, -1))
    pairs = torch.cat([by_head[..., 0::2], by_head[..., 1::2]], -1)
    place = bias + attn.pos_bias_v.flatten() * scale
    u_weight = torch.einsum("hdw,hdi->hwi", pairs, weight.unflatten(0, (heads, -1))).flatten(0, 1)
    u_bias = torch.einsum("hdw,hd->hw", pairs, place.view(heads, -1)).flatten()
    content = bias + attn.pos_bias_u.flatten() * scale
    ff = layer.feed_forward
    return Layer(
        norm=pack.norm(layer.norm_mha),
        qkvu=pack.linear(
            torch.cat([weight, attn.linear_k.weight, attn.linear_v.weight, u_weight]),
            torch.cat([content, attn.linear_k.bias, attn.linear_v.bias, u_bias]),
        ),
        out=pack.linear(attn.linear_out.weight, attn.linear_out.bias),
        norm_ff=pack.norm(layer.norm_ff),
        w_1=pack.linear(ff.w_1.weight, ff.w_1.bias),
        w_2=pack.linear(ff.w_2.weight, ff.w_2.bias),
    )
