"""The estimator and its solver on kernels: noise to mel in one go."""

# A kernel is launched by an index, which its decorator gives it where triton is installed.
# pyright: reportIndexIssue=false

import torch
import triton
from torch import Tensor

from duologue.engines.cudagraph import ops, solver_kernels
from duologue.engines.cudagraph.ops import Batch, Norm, Update
from duologue.engines.cudagraph.state import CONTEXT, Memory
from duologue.engines.cudagraph.weights import Block, EstimatorWeights
from duologue.token2wav import noise

TAPS = CONTEXT + 1
ROWS, COLUMNS = 16, 64
"""Frames, and columns of a turn, of one program between two Euler steps."""
PROGRAMS = 128
"""Programs that keep the device busy between two Euler steps."""


class Estimator:
    """Solves the flow of chunks.

    Args:
        weights: Packed.
    """

    def __init__(self, weights: EstimatorWeights):
        self._weights = weights

    def __call__(self, batch: Batch, condition: Tensor, memory: Memory | None) -> Tensor:
        """Mel float32 [sessions, frames, mel].

        Args:
            batch: Two rows a session.
            condition: What the first layer gets beside x, float32 [sessions * frames, hidden].
            memory: Read and written; None for sequences that are complete.
        """
        weights = self._weights
        x = self._noise(batch)
        h = condition.new_empty(batch.rows, condition.shape[1])
        self._euler(batch, None, None, x, x, condition, h)
        kept = len(weights.blocks) if memory else 1
        qkv = batch.empty(kept, batch.rows, weights.blocks[0].qkv.weight.shape[1])
        for step in range(len(weights.dt)):
            change = None
            for index, block in enumerate(weights.blocks):
                at = step, index
                change = self._block(batch, h, change, qkv[index % kept], block, at, memory)
            if memory:
                ops.remember(batch, qkv, memory.own.estimator[:, step])
            shift, scale = weights.final[step]
            last = ops.norm(batch, Norm(scale, shift, 1e-6), h, change)
            following = torch.empty_like(x)
            self._euler(batch, step, last, x, following, condition, h)
            x = following
        return x

    def _noise(self, batch: Batch) -> Tensor:
        mel = self._weights.mel
        shape = (batch.sessions, batch.frames, mel)
        x = torch.empty(shape, dtype=torch.float32, device=batch.meta.device)
        solver_kernels.noise_kernel[(batch.frames, batch.sessions)](
            x, batch.meta, batch.meta.stride(0), batch.frames, FLOW=noise.FLOW,
            PROMPT=noise.PROMPT, N=mel, BLOCKS=triton.next_power_of_2(-(-mel // 4)), num_warps=1,
        )  # fmt: skip
        return x

    def _block(
        self, batch: Batch, h: Tensor, change: Update | None, qkv: Tensor, block: Block,
        at: tuple[int, int], memory: Memory | None,
    ) -> Update:  # fmt: skip
        """One block at (step, index) of h and its change so far: the change behind it."""
        index = at[1]
        shift, scale, gate, *rest = self._weights.modulation[at]
        mlp_shift, mlp_scale, mlp_gate, conv_shift, conv_scale, conv_gate = rest
        norm, conv_norm, mlp_norm = (
            Norm(mul, add, 1e-6)
            for mul, add in ((scale, shift), (conv_scale, conv_shift), (mlp_scale, mlp_shift))
        )
        past, convs = None, (None, None)
        if memory:
            convs = memory.own.conv[:, at[0], index].unbind(1)
        if memory and memory.prompt:
            past = (
                memory.prompt.estimator[:, at[0], index],
                memory.own.estimator[:, at[0], index],
            )
        x = ops.norm(batch, norm, h, change)
        ops.linear(batch, x, block.qkv, head_norm=block.head_norm, out=qkv)
        x = batch.empty(batch.rows, block.proj.weight.shape[0])
        ops.attention(batch, qkv, x, self._weights.heads, past)
        change = ops.update(batch, x, block.proj, gate)
        x = ops.norm(batch, conv_norm, h, change, taps=TAPS, cache=convs[0])
        change = ops.update(batch, x, block.conv1)
        x = ops.norm(batch, block.conv_norm, None, change, taps=TAPS, cache=convs[1])
        change = ops.update(batch, x, block.conv2, conv_gate)
        x = ops.norm(batch, mlp_norm, h, change)
        x = ops.linear(batch, x, block.fc1, "gelu")
        return ops.update(batch, x, block.fc2, mlp_gate)

    def _euler(
        self, batch: Batch, step: int | None, last: Tensor | None, x: Tensor, following: Tensor,
        condition: Tensor, h: Tensor,
    ) -> None:  # fmt: skip
        """From one step (None: from before the first) to the first layer of the next."""
        weights, frames = self._weights, batch.sessions * batch.frames
        hidden = condition.shape[1]
        width = min(COLUMNS, hidden)
        parts, blocks = hidden // width, triton.cdiv(frames, ROWS)
        span = min(parts, triton.next_power_of_2(triton.cdiv(parts * blocks, PROGRAMS)))
        solver_kernels.euler_kernel[(blocks, parts // span)](
            last, weights.w_out, weights.b_out, x, following, weights.w_in, weights.b_in,
            condition, h, frames, weights.dt[step or 0], weights.guidance,
            K=hidden, MEL=weights.mel, PAD=weights.w_in.shape[0], VELOCITY=step is not None,
            PROJECT=step is None or step + 1 < len(weights.dt), SPAN=span, BM=ROWS, BN=width,
            PDL=batch.pdl, num_warps=4, num_stages=3, **batch.options(),
        )  # fmt: skip
