"""Launches of the kernels on tensors, with tiles by the size of the batch."""

# A kernel is launched by an index, which its decorator gives it where triton is installed.
# pyright: reportIndexIssue=false

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from duologue.engines.cudagraph import kernels

FEW_ROWS = 512
"""Up to so many rows products are made by `kernels.matmul_kernel`, and beyond by cuBLAS."""
SPAN = 512
"""Depth of a product from which on it is made in parts."""


class Tile(NamedTuple):
    """Rows and most columns of one program of a product, depth of a turn, warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


TILE = Tile(64, 64, 128, 4, 4)


class Linear(NamedTuple):
    """A linear layer, or a convolution over rows that lie side by side: [in, out] and [out]."""

    weight: Tensor
    bias: Tensor


class Norm(NamedTuple):
    """How rows are normalised: `(x - mean) / deviation * mul + add`, float32, then perhaps Mish."""

    mul: Tensor
    add: Tensor
    eps: float
    mish: bool = False


class HeadNorm(NamedTuple):
    """LayerNorm of the first `columns` of an output, head by head; gain and shift [out]."""

    gain: Tensor
    shift: Tensor
    columns: int
    head_dim: int


class Update(NamedTuple):
    """What is still to be added to a residual stream: the sum of parts [n, rows, width], gated."""

    parts: Tensor
    gate: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What the kernels of one step share.

    Attributes:
        meta: int32 [sessions, columns], see `kernels`.
        frames: Rows of one session.
        copies: 2 where each session has a conditional and an unconditional row, else 1.
        dtype: Of activations, but for the residual stream, which is float32.
        rate: Mel frames for one frame here.
    """

    meta: Tensor
    frames: int
    copies: int
    dtype: torch.dtype
    rate: int = 1

    @property
    def sessions(self) -> int:
        """Sessions of the batch."""
        return self.meta.shape[0]

    @property
    def rows(self) -> int:
        """Rows of the batch's activations."""
        return self.copies * self.sessions * self.frames

    @property
    def pdl(self) -> bool:
        """Whether to launch kernels ahead: it pays where they are short."""
        return self.rows <= FEW_ROWS and _has_pdl(self.meta.device)

    def options(self) -> dict[str, bool]:
        """Options of a launch."""
        return {"launch_pdl": True} if self.pdl else {}

    def empty(self, *shape: int) -> Tensor:
        """Room for activations."""
        return torch.empty(shape, dtype=self.dtype, device=self.meta.device)


@cache
def _has_pdl(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def linear(
    batch: Batch,
    x: Tensor,
    layer: Linear,
    act: str = "",
    *,
    head_norm: HeadNorm | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A layer of x [rows, in], [rows, out]; `act` is "", "gelu", "silu" or "leaky"."""
    out = batch.empty(batch.rows, layer.weight.shape[1]) if out is None else out
    if batch.rows <= FEW_ROWS:
        return _matmul(batch, x, layer, out, layer.weight.shape[0], act, head_norm)
    if act == "gelu":
        torch._addmm_activation(  # pyright: ignore[reportPrivateImportUsage]
            layer.bias, x, layer.weight, use_gelu=True, out=out
        )
    else:
        torch.addmm(layer.bias, x, layer.weight, out=out)
    if act == "silu":
        F.silu(out, inplace=True)
    elif act == "leaky":
        F.leaky_relu(out, 0.01, inplace=True)
    if head_norm:
        kernels.head_norm_kernel[(batch.rows,)](
            out, head_norm.gain, head_norm.shift, out.stride(0), D=head_norm.head_dim,
            HEADS=head_norm.columns // head_norm.head_dim, num_warps=2,
        )  # fmt: skip
    return out


def update(batch: Batch, x: Tensor, layer: Linear, gate: Tensor | None = None) -> Update:
    """A layer of x [rows, in] whose output goes into a residual stream."""
    depth, width = layer.weight.shape
    if batch.rows > FEW_ROWS:
        return Update(linear(batch, x, layer)[None], gate)
    span = min(SPAN, depth & -depth)
    out = batch.empty(depth // span, batch.rows, width)
    return Update(_matmul(batch, x, layer, out, span), gate)


def _matmul(
    batch: Batch, x: Tensor, layer: Linear, out: Tensor, span: int, act: str = "",
    head_norm: HeadNorm | None = None,
) -> Tensor:  # fmt: skip
    depth, columns = layer.weight.shape
    width = head_norm.head_dim if head_norm else min(TILE.columns, columns & -columns)
    turn = min(TILE.depth * 2 // layer.weight.element_size(), span & -span)
    grid = (columns // width, triton.cdiv(batch.rows, TILE.rows), depth // span)
    kernels.matmul_kernel[grid](
        x, layer.weight, layer.bias, out, head_norm and head_norm.gain,
        head_norm and head_norm.shift, batch.rows, columns, depth,
        head_norm.columns if head_norm else 0, ACT=act, NORM=head_norm is not None,
        TURNS=span // turn, BM=TILE.rows, BN=width, BK=turn, PDL=batch.pdl,
        num_warps=TILE.warps, num_stages=TILE.stages, **batch.options(),
    )  # fmt: skip
    return out


def norm(
    batch: Batch,
    layer: Norm,
    residual: Tensor | None,
    change: Update | None,
    *,
    taps: int = 1,
    cache: Tensor | None = None,
) -> Tensor:
    """`kernels.norm_kernel`: bring a residual stream forward, and normalise it for a layer.

    Args:
        batch: The step.
        layer: The norm.
        residual: float32 [rows, width]; None to normalise the change alone.
        change: Added to it, if any.
        taps: Of the causal convolution that follows.
        cache: What it sees before the chunk, [slot, row, side, taps - 1, width].

    Returns:
        [rows, taps * width].
    """
    parts, gate = change or (None, None)
    width = layer.mul.shape[0]
    out = batch.empty(batch.rows, taps * width)
    kernels.norm_kernel[(batch.rows,)](
        residual, parts, gate, layer.mul, layer.add, out, cache, batch.meta, batch.rows,
        batch.frames, batch.sessions, batch.meta.stride(0),
        *((0, 0) if cache is None else cache.stride()[:2]), layer.eps,
        N=width, PARTS=0 if parts is None else len(parts), RESIDUAL=residual is not None,
        GATE=gate is not None, MISH=layer.mish, PAST=taps - 1, CACHE=cache is not None,
        PDL=batch.pdl, num_warps=1, **batch.options(),
    )  # fmt: skip
    return out


def attention(
    batch: Batch,
    qkv: Tensor,
    out: Tensor,
    heads: int,
    past: tuple[Tensor, Tensor] | None,
    bias: Tensor | None = None,
) -> Tensor:
    """`kernels.attention_kernel`.

    Args:
        batch: The step.
        qkv: [rows, q | k | v ...].
        out: [rows, heads * head_dim].
        heads: Number of heads.
        past: Prompt and ring, [slot, row, head, frame, 2 * head_dim] both; None without either.
        bias: [rows, heads, keys].
    """
    head_dim = out.shape[1] // heads
    prompt, ring = past or (None, None)
    grid = (triton.cdiv(batch.frames, 64), batch.copies * batch.sessions * heads)
    kernels.attention_kernel[grid](
        qkv, out, prompt, ring, qkv if bias is None else bias, batch.meta,
        batch.frames, batch.sessions, qkv.stride(0), batch.meta.stride(0),
        *((0, 0, 0) if prompt is None else prompt.stride()[:3]),
        *((0, 0, 0) if ring is None else ring.stride()[:3]),
        0 if bias is None else bias.shape[-1], 0 if prompt is None else prompt.shape[3],
        H=heads, D=head_dim, W=1 if ring is None else ring.shape[3], RATE=batch.rate,
        PAST=past is not None, BIAS=bias is not None, BM=64, BN=64, PDL=batch.pdl,
        num_warps=4, num_stages=3, **batch.options(),
    )  # fmt: skip
    return out


def remember(batch: Batch, qkv: Tensor, ring: Tensor) -> None:
    """Put new keys and values [layer, rows, q | k | v ...] into a ring.

    Args:
        batch: The step.
        qkv: Of every layer.
        ring: [slot, layer, row, head, frame, 2 * head_dim].
    """
    _, layers, _, heads, size, double = ring.shape
    grid = (triton.cdiv(batch.frames, 32), batch.copies * batch.sessions * heads, layers)
    kernels.remember_kernel[grid](
        qkv, ring, batch.meta, batch.frames, batch.sessions, qkv.stride(1), qkv.stride(0),
        batch.meta.stride(0), *ring.stride()[:4],
        H=heads, D=double // 2, W=size, RATE=batch.rate, BM=32, PDL=batch.pdl,
        num_warps=4, **batch.options(),
    )  # fmt: skip


def key_positions(batch: Batch, frequency: Tensor, prompt: int, ring: int) -> Tensor:
    """Sinusoids of each key's distance, [sessions, prompt + ring + frames, width]."""
    keys, width = prompt + ring + batch.frames, 2 * frequency.shape[0]
    out = batch.empty(batch.sessions, keys, width)
    grid = (triton.cdiv(keys, 16), batch.sessions)
    kernels.positions_kernel[grid](
        out, frequency, batch.meta, batch.meta.stride(0), prompt, batch.frames,
        F=frequency.shape[0], W=ring, RATE=batch.rate, BM=16, num_warps=4,
    )  # fmt: skip
    return out


def turned(batch: Batch, u: Tensor, places: tuple[Tensor, Tensor], heads: int) -> Tensor:
    """The position queries u [rows, heads * width] at their places, [rows, heads, width].

    Args:
        batch: The step.
        u: Strided.
        places: Sines and cosines of each frequency at each place, float32 [frames, width / 2].
        heads: Number of heads.
    """
    half = places[0].shape[1]
    out = batch.empty(batch.rows, heads, 2 * half)
    grid = (triton.cdiv(batch.rows, 8), heads)
    kernels.turn_kernel[grid](
        u, out, *places, batch.rows, batch.frames, u.stride(0), H=heads, F=half, BM=8, num_warps=4
    )
    return out
