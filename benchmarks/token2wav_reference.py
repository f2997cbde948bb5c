"""The public reference of token2wav, timed: stepaudio2-minicpmo 0.1.1 with random weights.

It is driven as its own `Token2wav` does it: one session, a cross-fade of 160 ms, every chunk copied
to the host. Needs the packages of `scripts/references.sh`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from duologue.token2wav.config import FULL
from tests.token2wav import reference

OVERLAP_FRAMES = 8
OVERLAP = OVERLAP_FRAMES * FULL.hift.samples_per_frame


@dataclass
class Prompt:
    """A voice on the device: tokens int [1, n], mel [1, 2 n, 80], embedding [1, 192]."""

    tokens: torch.Tensor
    mel: torch.Tensor
    embedding: torch.Tensor


class Reference:
    """Flow in `dtype`, HiFT in float32, on one device."""

    def __init__(self, dtype: torch.dtype, device: str = "cuda", seed: int = 1):
        self.dtype, self.device = dtype, device
        self.flow = reference.build_flow(FULL.flow, seed).to(device, dtype)
        self.hift = reference.build_hift(FULL.hift, seed).to(device)

    def prompt(self, tokens: np.ndarray, mel: np.ndarray, embedding: np.ndarray) -> Prompt:
        """A voice of numpy arrays."""
        return Prompt(
            torch.tensor(tokens, device=self.device)[None],
            torch.tensor(mel, device=self.device, dtype=self.dtype)[None],
            torch.tensor(embedding, device=self.device, dtype=self.dtype)[None],
        )

    @torch.inference_mode()
    def offline(self, tokens: np.ndarray, prompt: Prompt) -> np.ndarray:
        """A whole utterance, batch 1."""
        count = torch.tensor([len(tokens)], device=self.device)
        ahead = torch.tensor([prompt.tokens.shape[1]], device=self.device)
        frames = torch.tensor([prompt.mel.shape[1]], device=self.device)
        mel = self.flow.inference(
            torch.tensor(tokens, device=self.device)[None],
            count,
            prompt.tokens,
            ahead,
            prompt.mel,
            frames,
            prompt.embedding,
            10,
        )
        wav, _ = self.hift(mel.float())
        return wav.cpu().numpy()


class Session:
    """One stream of the reference."""

    def __init__(self, model: Reference, prompt: Prompt):
        self.model = model
        # The reference returns views of buffers that its streams share; a copy keeps one honest.
        self.stream = reference.ReferenceStream(
            model.flow, prompt.tokens, prompt.mel, prompt.embedding
        )
        device = model.device
        self.mel = torch.zeros(1, 80, 0, device=device)
        self.source = torch.zeros(1, 1, 0, device=device)
        self.speech = torch.zeros(1, 0, device=device)
        self.window = torch.tensor(np.hamming(2 * OVERLAP), device=device, dtype=torch.float32)

    @torch.inference_mode()
    def step(self, tokens: np.ndarray, final: bool = False) -> np.ndarray:
        """One chunk, with its look-ahead unless final; samples on the host."""
        new = self.stream.step(tokens, final).T[None].float()
        mel = torch.cat([self.mel, new], 2)
        speech, source = self.model.hift(mel, self.source)
        if self.speech.shape[-1]:
            head = speech[..., :OVERLAP] * self.window[:OVERLAP]
            speech = torch.cat(
                [head + self.speech[..., -OVERLAP:] * self.window[OVERLAP:], speech[..., OVERLAP:]],
                -1,
            )
        self.mel, self.source = mel[..., -OVERLAP_FRAMES:], source[..., -OVERLAP:]
        self.speech = speech[:, -OVERLAP:]
        return (speech if final else speech[:, :-OVERLAP]).cpu().numpy()


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call whose result lies on the host."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
