"""What sequences of frames leave behind on the device: sessions, and the prompts of voices."""

from dataclasses import dataclass

import torch
from torch import Tensor

from duologue.token2wav.config import Token2wavConfig

CONTEXT = 2
"""Frames that a convolution of the estimator, or tokens that one of the encoder, looks back."""
UNUSED, BLANK = -2, -1
"""Rows of `pre` and `up` that no slot has: where rows without a slot write, and where they read."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Caches of so many sequences. All keys and values are [.., head, frame, k | v], in rings.

    Attributes:
        estimator: [slot, step, block, 2, head, size, 2 * head_dim].
        token: Encoder layers at token rate, [slot, layer, 1, head, size / stride, 2 * head_dim].
        mel: Encoder layers at mel rate, [slot, layer, 1, head, size, 2 * head_dim].
        conv: Left context of the estimator's convolutions, on two sides that are read and written
            in turn, [slot, step, block, conv, 2, side, CONTEXT, hidden].
        pre: Left context of the encoder's look-ahead layer, [slots + 2, CONTEXT, width].
        up: Left context of its upsampling, [slots + 2, CONTEXT, width].
    """

    estimator: Tensor
    token: Tensor
    mel: Tensor
    conv: Tensor
    pre: Tensor
    up: Tensor

    @classmethod
    def empty(
        cls,
        config: Token2wavConfig,
        slots: int,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "Caches":
        """Zeros for so many sequences of at most `size` mel frames each."""
        dit, encoder = config.flow.decoder.estimator, config.flow.encoder
        steps, width = config.flow.decoder.n_timesteps, encoder.output_size
        heads = encoder.attention_heads
        tokens = size // encoder.up_stride

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            zeros(slots, steps, dit.depth, 2, dit.num_heads, size, 2 * dit.head_dim),
            zeros(slots, encoder.num_blocks, 1, heads, tokens, 2 * width // heads),
            zeros(slots, encoder.num_up_blocks, 1, heads, size, 2 * width // heads),
            zeros(slots, steps, dit.depth, 2, 2, 2, CONTEXT, dit.hidden_size),
            zeros(slots + 2, CONTEXT, width),
            zeros(slots + 2, CONTEXT, width),
        )

    def clear(self, slot: int) -> None:
        """Forget a slot's left context; its rings are read only as far as they are filled."""
        for cache in (self.conv, self.pre, self.up):
            cache[slot].zero_()

    def follow(self, slot: int, other: "Caches", other_slot: int) -> None:
        """Take over the left context of another sequence."""
        self.conv[slot].copy_(other.conv[other_slot])
        self.pre[slot].copy_(other.pre[other_slot])
        self.up[slot].copy_(other.up[other_slot])

    @property
    def bytes_per_slot(self) -> int:
        """Memory of one sequence."""
        return sum(
            cache[0].numel() * cache.element_size()
            for cache in (self.estimator, self.token, self.mel, self.conv, self.pre, self.up)
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """What one step reads and writes.

    Attributes:
        own: Caches of the sequences that are stepped; they are written to.
        prompt: Those of the prompts before them; None if they begin with nothing.
    """

    own: Caches
    prompt: Caches | None
