"""The encoder on kernels: tokens to the part of the estimator's input that all its steps share."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from duologue.engines.cudagraph import kernels, ops
from duologue.engines.cudagraph.ops import Batch, Update
from duologue.engines.cudagraph.state import BLANK, CONTEXT, UNUSED, Memory
from duologue.engines.cudagraph.weights import EncoderWeights, Layer


class Encoder:
    """Encodes chunks.

    Args:
        weights: Packed.
        look_ahead: Tokens behind those of a chunk.
        stride: Mel frames a token.
    """

    def __init__(self, weights: EncoderWeights, look_ahead: int, stride: int):
        self._weights, self._ahead, self._stride = weights, look_ahead, stride
        self._places: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Batch, condition: Tensor, memory: Memory | None) -> None:
        """Add a chunk's encoding to `condition`.

        Args:
            batch: One row a session; frames are mel frames, tokens stand in its meta.
            condition: float32 [rows, hidden].
            memory: Read and written; None for sequences that are complete.
        """
        weights = self._weights
        tokens = replace(batch, frames=batch.frames // self._stride, rate=self._stride)
        own, prompt = (memory.own, memory.prompt) if memory else (None, None)
        x, change = self._embed(tokens, own and own.pre)
        change = self._layers(
            tokens, x, change, weights.layers, own and own.token, prompt and prompt.token
        )
        x = self._upsample(tokens, x + change.parts.sum(0), own and own.up)
        change = self._layers(
            batch, x, None, weights.up_layers, own and own.mel, prompt and prompt.mel
        )
        x = ops.norm(batch, weights.after, x, change)
        condition += ops.update(batch, x, weights.condition).parts.sum(0)

    def _embed(self, batch: Batch, cache: Tensor | None) -> tuple[Tensor, Update]:
        """Tokens through table and look-ahead: float32, and what is to be added to it."""
        weights, ahead = self._weights, self._ahead
        tokens = batch.meta[:, kernels.TOKENS : kernels.TOKENS + batch.frames + ahead]
        x = weights.table[tokens.clamp(min=0)] * (tokens >= 0).unsqueeze(-1)
        y = ops.linear(batch, _windows(x.to(batch.dtype), ahead + 1), weights.ahead, "leaky")
        y = _behind(batch, y.view(batch.sessions, batch.frames, -1), cache)
        change = ops.update(batch, _windows(y, CONTEXT + 1), weights.pre)
        return x[:, : batch.frames].flatten(0, 1), change

    def _upsample(self, batch: Batch, x: Tensor, cache: Tensor | None) -> Tensor:
        """Rows at token rate to `up_embed` of them at mel rate, float32."""
        gain, shift = self._weights.up_norm
        x = x.to(batch.dtype).view(batch.sessions, batch.frames, -1)
        y = ops.linear(batch, _windows(_behind(batch, x, cache), CONTEXT + 1), self._weights.up)
        return F.layer_norm(y.view(-1, gain.shape[0]).float(), gain.shape, gain, shift)

    def _layers(
        self, batch: Batch, x: Tensor, change: Update | None, layers: list[Layer],
        ring: Tensor | None, prompt: Tensor | None,
    ) -> Update:  # fmt: skip
        """The layers of one rate, of x and its change so far: the change behind them.

        New keys and values go into the ring.
        """
        weights, (rows, width) = self._weights, x.shape
        past = None if prompt is None or ring is None else (prompt, ring)
        sizes = (past[0].shape[4], past[1].shape[4]) if past else (0, 0)
        keys = ops.key_positions(batch, weights.frequency, *sizes).transpose(1, 2)
        places = self._queries(batch.frames)
        qkvu = batch.empty(len(layers), rows, (3 + weights.heads) * width)
        mixed = batch.empty(rows, width)
        for index, (layer, y) in enumerate(zip(layers, qkvu, strict=True)):
            ops.linear(batch, ops.norm(batch, layer.norm, x, change), layer.qkvu, out=y)
            turned = ops.turned(batch, y[:, 3 * width :], places, weights.heads)
            bias = torch.bmm(turned.view(batch.sessions, -1, width), keys)
            before = past and (past[0][:, index], past[1][:, index])
            ops.attention(batch, y, mixed, weights.heads, before, bias)
            change = ops.update(batch, mixed, layer.out)
            wide = ops.linear(batch, ops.norm(batch, layer.norm_ff, x, change), layer.w_1, "silu")
            change = ops.update(batch, wide, layer.w_2)
        if ring is not None:
            ops.remember(batch, qkvu, ring)
        assert change is not None
        return change

    def _queries(self, frames: int) -> tuple[Tensor, Tensor]:
        """Sines and cosines of each frequency at each place of a chunk, [frames, width / 2]."""
        if frames not in self._places:
            place = torch.arange(frames, device=self._weights.frequency.device)
            angle = place[:, None] * self._weights.frequency
            self._places[frames] = angle.sin(), angle.cos()
        return self._places[frames]


def _windows(x: Tensor, size: int) -> Tensor:
    """Each frame of x [batch, n, channels] with those behind it, [batch * m, size * channels]."""
    channels = x.shape[2]
    return x.flatten(1).unfold(1, size * channels, channels).flatten(0, 1).contiguous()


def _behind(batch: Batch, x: Tensor, cache: Tensor | None) -> Tensor:
    """Put x [batch, n, channels] behind its left context, [batch, CONTEXT + n, channels].

    The context of the next chunk goes into the cache.
    """
    slots = batch.meta[:, kernels.SLOT.value]
    if cache is None:
        return F.pad(x, (0, 0, CONTEXT, 0))
    x = torch.cat([cache[slots], x], 1)
    last = batch.meta[:, kernels.VALID.value, None] // batch.rate
    last = last + torch.arange(CONTEXT, device=x.device)
    kept = x.gather(1, last.long()[..., None].expand(-1, -1, x.shape[2]))
    cache[torch.where(slots == BLANK, slots + (UNUSED - BLANK), slots)] = kept
    return x
