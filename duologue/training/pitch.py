"""Pitch of clean speech: autocorrelation and the best path through its peaks.

Boersma 1993, "Accurate short-term analysis of the fundamental frequency ...", whose costs these
are, in batches and on any device.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR_HZ, CEILING_HZ = 60.0, 400.0
CANDIDATES = 12
SILENCE, VOICING = 0.03, 0.45
OCTAVE, JUMP, SWITCH = 0.01, 0.35, 0.14
"""Costs: of a low candidate, of an octave's jump, of voiced to unvoiced and back."""

BLOCK = 32_768
"""Frames whose spectra are in memory at once."""


def pitch(samples: Tensor, rate_hz: int, hop: int) -> Tensor:
    """f0 of each frame of [batch, n] in Hz, 0 where unvoiced, [batch, n // hop]."""
    hz, strength = _candidates(samples, rate_hz, hop)
    return _best_path(hz, strength)


def _candidates(samples: Tensor, rate_hz: int, hop: int) -> tuple[Tensor, Tensor]:
    """Frequencies and strengths [batch, frames, 1 + CANDIDATES]; the first is "unvoiced"."""
    size = int(3 * rate_hz / FLOOR_HZ)
    fft = 1 << (2 * size - 1).bit_length()
    low, high = int(rate_hz / CEILING_HZ), int(rate_hz / FLOOR_HZ)
    window = torch.hann_window(size, device=samples.device)
    edge = (size - hop) // 2
    frames = F.pad(samples, (edge, size - hop - edge)).unfold(1, size, hop)
    shape = frames.shape[:2]
    peak = samples.abs().amax(1, keepdim=True).clamp(min=1e-5)
    loud = (frames.abs().amax(2) / peak).clamp(max=1)
    of_window = _autocorrelation(window[None], fft)[0, : high + 2]
    hz, strength = [], []
    for block in frames.flatten(0, 1).split(BLOCK):
        x = (block - block.mean(1, keepdim=True)) * window
        r = _autocorrelation(x, fft)[:, : high + 2] / of_window
        peaks = r[:, low : high + 1]
        highest = F.max_pool1d(r[:, None, low - 1 : high + 2], 3, 1)[:, 0] == peaks
        scored = torch.where(highest, peaks, -1.0)
        at = scored.topk(CANDIDATES, 1).indices
        left, middle, right = (r.gather(1, at + low + move) for move in (-1, 0, 1))
        bend = left - 2 * middle + right
        move = torch.where(bend < -1e-9, 0.5 * (left - right) / bend.clamp(max=-1e-9), 0.0)
        lag = at + low + move.clamp(-0.5, 0.5)
        height = middle - 0.25 * (left - right) * move
        height = torch.where(scored.gather(1, at) > 0, height.clamp(max=1.0), -1.0)
        frequency = rate_hz / lag
        hz.append(frequency)
        strength.append(height - OCTAVE * torch.log2(FLOOR_HZ * lag / rate_hz).clamp(min=-9))
    hz = torch.cat(hz).unflatten(0, shape)
    strength = torch.cat(strength).unflatten(0, shape)
    silent = VOICING + (2 - loud / SILENCE * (1 + VOICING)).clamp(min=0)
    return (
        torch.cat([torch.zeros_like(hz[..., :1]), hz], -1),
        torch.cat([silent[..., None], strength], -1),
    )


def _autocorrelation(x: Tensor, fft: int) -> Tensor:
    """Normalised, [rows, fft]."""
    power = torch.fft.rfft(x, fft).abs().square()
    r = torch.fft.irfft(power, fft)
    return r / r[:, :1].clamp(min=1e-9)


def _best_path(hz: Tensor, strength: Tensor) -> Tensor:
    """Viterbi's path, [batch, frames]."""
    log = torch.log2(hz.clamp(min=1.0))
    voiced = hz > 0
    score, back = strength[:, 0], []
    for frame in range(1, hz.shape[1]):
        was, now = voiced[:, frame - 1, :, None], voiced[:, frame, None, :]
        jump = (log[:, frame - 1, :, None] - log[:, frame, None, :]).abs()
        cost = torch.where(was & now, JUMP * jump, SWITCH * (was ^ now))
        best, source = (score[..., None] - cost).max(1)
        score = best + strength[:, frame]
        back.append(source)
    at = score.argmax(1, keepdim=True)
    path = [at]
    for source in reversed(back):
        at = source.gather(1, at)
        path.append(at)
    return hz.gather(2, torch.stack(path[::-1], 1)).squeeze(2)


def cents(one: Tensor, other: Tensor) -> Tensor:
    """How far two pitches are apart, 100 for a semitone."""
    return 1200 / math.log(2) * (one.clamp(min=1).log() - other.clamp(min=1).log()).abs()
