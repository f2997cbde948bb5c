"""A chunk of so many sessions and frames as one program: what goes in, and the graph behind it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from duologue.engines.cudagraph import kernels
from duologue.engines.cudagraph.capture import Captured, Upload
from duologue.engines.cudagraph.encoder import Encoder
from duologue.engines.cudagraph.estimator import Estimator
from duologue.engines.cudagraph.ops import Batch
from duologue.engines.cudagraph.state import BLANK, Memory
from duologue.token2wav import noise


@dataclass(frozen=True, slots=True)
class Line:
    """What the kernels are told of one row; see `kernels`.

    Attributes:
        frames: Real mel frames of this chunk.
        seed: Of the noise.
        noise: Index of its first frame; negative for a prompt's.
        slot: Of the caches.
        start: Frames before this chunk, behind the prompt.
        voice: Slot of the voice.
        prompt: Frames of the prompt's caches.
        side: Side of the convolution caches to read.
    """

    frames: int
    seed: int
    noise: int
    slot: int = BLANK
    start: int = 0
    voice: int = 0
    prompt: int = 0
    side: int = 0

    @property
    def columns(self) -> np.ndarray:
        """int32, in the order of the kernels."""
        low, high = noise.key(self.seed)
        row = (self.slot, self.frames, self.start, self.voice, self.prompt, self.side)
        return np.array((*row, low, high, self.noise & 0xFFFFFFFF), np.int64).astype(np.int32)


class Program:
    """Runs chunks of a size; rows that are not set have neither slot nor frames.

    Args:
        encoder: The encoder.
        estimator: The estimator.
        condition: Gives what the estimator's first layer gets from speaker and known mel,
            float32 [sessions * frames, hidden], from the meta of the batch.
        memory: What it reads and writes; None for sequences that are complete.
        sessions: Rows.
        frames: Mel frames of a chunk.
        tokens: Tokens of a chunk with its look-ahead.
        device: Where it runs.
        capture: Whether as a CUDA graph.
        pool: Memory shared with other graphs.
        dtype: Of activations.
    """

    def __init__(
        self,
        encoder: Encoder,
        estimator: Estimator,
        condition: Callable[[Tensor], Tensor],
        memory: Memory | None,
        *,
        sessions: int,
        frames: int,
        tokens: int,
        device: torch.device,
        capture: bool,
        pool,
        dtype: torch.dtype,
    ):
        self._meta = Upload((sessions, kernels.TOKENS + tokens), torch.int32, device)
        self.clear()
        self._meta.send()

        def solve() -> Tensor:
            added = condition(self._meta.device)
            encoder(Batch(self._meta.device, frames, 1, dtype), added, memory)
            return estimator(Batch(self._meta.device, frames, 2, dtype), added, memory)

        self._solve = Captured(solve, device, pool) if capture else solve

    def clear(self) -> None:
        """Unset every row; waits until the last run has read them."""
        self._meta.wait()
        self._meta.host.zero_()
        self._meta.host[:, kernels.SLOT.value] = BLANK
        self._meta.host[:, kernels.TOKENS :] = -1

    def set(self, row: int, line: Line, tokens: np.ndarray) -> None:
        """Fill a row; tokens int [n]."""
        host = self._meta.host[row].numpy()
        host[: kernels.TOKENS] = line.columns
        host[kernels.TOKENS : kernels.TOKENS + len(tokens)] = tokens

    def run(self) -> Tensor:
        """Mel float32 [sessions, frames, mel_bins] of the rows set."""
        self._meta.send()
        return self._solve().clone()
