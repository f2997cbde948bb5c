"""The vocoder's source signal in PyTorch, for training: `token2wav.source.Source`, with gradients.

Only how the harmonics are merged is learnt through it; f0 and the phase take no gradient.
"""

import torch
from torch import Tensor, nn

from duologue.token2wav.config import HiftConfig


def excite(
    config: HiftConfig, merge: nn.Module, f0_hz: Tensor, noise: Tensor, phase: Tensor | None = None
) -> Tensor:
    """The source signal, float32 [B, T * samples_per_frame]; equals `Source.excite`.

    Args:
        config: Rates, levels and thresholds.
        merge: The layer `m_source.l_linear`, from harmonics to one.
        f0_hz: float32 [B, T].
        noise: Standard normals, float32 [B, T, samples_per_frame].
        phase: [B] in cycles, of the frame before the first; None where utterances start.
    """
    weight, bias = merge.get_parameter("weight")[0], merge.get_parameter("bias")
    with torch.no_grad():
        voiced = (f0_hz > config.voiced_threshold_hz)[..., None]
        angle = 2 * torch.pi * _cycles(config, f0_hz.double(), phase)
        harmonics = torch.arange(1, len(weight) + 1, device=angle.device)
        sines = torch.sin(angle[..., None] * harmonics) * (config.nsf_alpha * voiced[..., None])
        level = torch.where(voiced, config.nsf_sigma, config.nsf_alpha / 3)
    merged = sines @ weight + noise * level * torch.linalg.vector_norm(weight)
    return torch.tanh(merged + bias).flatten(1)


def _cycles(config: HiftConfig, f0_hz: Tensor, phase: Tensor | None) -> Tensor:
    """Phase of the fundamental at each sample, float32 [B, T, samples_per_frame], modulo 1."""
    samples = config.samples_per_frame
    step = f0_hz / config.sample_rate_hz
    before, behind = step, torch.cat([step[:, 1:], torch.zeros_like(step[:, :1])], 1)
    centre = step.cumsum(1) * samples
    if phase is None:
        before = torch.cat([torch.zeros_like(step[:, :1]), step[:, 1:]], 1)
    else:
        centre = centre + phase[:, None]
    offset = torch.arange(samples, device=f0_hz.device) - (samples - 1) / 2
    slope = torch.where(offset < 0, before[..., None], behind[..., None])
    cycles = centre[..., None] + offset * slope
    return (cycles - cycles.floor()).float()
