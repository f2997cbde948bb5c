"""Spectra of samples in PyTorch, with gradients and without waiting for the device; a mel loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.training.speech import RATE_HZ, LogMel

RESOLUTIONS = ((256, 64, 20), (512, 128, 40), (1024, 256, 80), (2048, 512, 128))
"""n_fft, hop and mel bins up to half the rate; the flow's own mel is a fifth."""


class Spectrum(nn.Module):
    """Short-time spectrum under a Hann window, n // hop frames for n samples.

    Args:
        n_fft: Samples of a window.
        hop: Samples from one window to the next.
    """

    def __init__(self, n_fft: int, hop: int):
        super().__init__()
        self._n_fft, self._hop = n_fft, hop
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """[B, n] to [B, frames, n_fft / 2 + 1, 2], real and imaginary parts."""
        margin = (self._n_fft - self._hop) // 2
        padded = F.pad(samples[:, None], (margin, margin), mode="reflect").squeeze(1)
        frames = padded.unfold(-1, self._n_fft, self._hop) * self.window
        return torch.view_as_real(torch.fft.rfft(frames))


class MelLoss(nn.Module):
    """L1 of log-mels at several resolutions, their mean."""

    def __init__(self):
        super().__init__()
        self.mels = nn.ModuleList(
            LogMel(n_fft, hop, mels, RATE_HZ / 2) for n_fft, hop, mels in RESOLUTIONS
        )
        self.mels.append(LogMel())

    def forward(self, sound: Tensor, real: Tensor) -> Tensor:
        """Two of [B, n], n at least 2048, to a scalar; only `sound` gets a gradient."""
        errors = []
        for mel in self.mels:
            with torch.no_grad():
                target = mel(real)
            errors.append((mel(sound) - target).abs().mean())
        return torch.stack(errors).mean()
