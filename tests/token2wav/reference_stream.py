"""Offline and streaming exactly as Step-Audio 2 does them, for parity with its published results.

stepfun-ai/Step-Audio2, `token2wav.py` and `cosyvoice2/flow`. What runs otherwise is `GraphFlow`,
from which streaming differs in what it remembers: the encoder's keys are never trimmed, so memory
grows; the estimator's are kept newest chunk first, and trimming keeps the first frames of that
order (as many as the prompt has) and the last 100; noise is sliced by the number of cached frames,
so it repeats once trimming has begun.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from duologue.token2wav.flow import (
    EncoderOffline,
    EncoderStream,
    EstimatorOffline,
    EstimatorStream,
    Flow,
)
from duologue.token2wav.step import VoicePrompt

KEPT_FRAMES = 100


@torch.inference_mode()
def offline(
    flow: Flow, voices: Sequence[VoicePrompt], tokens: Sequence[np.ndarray], noise: Tensor
) -> list[Tensor]:
    """Mel of whole utterances, several at once; each is as if it were alone.

    Args:
        flow: The model.
        voices: The voice of each utterance.
        tokens: Its speech tokens, int [n].
        noise: [1 or batch, frames, mel], enough for a prompt's frames and its utterance's.

    Returns:
        float32 [frames_per_token * n, mel] of each.
    """
    up, device = flow.config.encoder.up_stride, flow.device
    rows = [
        torch.tensor(np.concatenate([voice.tokens, spoken]))
        for voice, spoken in zip(voices, tokens, strict=True)
    ]
    counts = torch.tensor([len(row) for row in rows])
    ids = pad_sequence(rows, batch_first=True).long().to(device)
    valid = (torch.arange(ids.shape[1]) < counts[:, None]).float().to(device)
    (mu,) = EncoderOffline(flow)(ids, valid)
    cond = torch.zeros_like(mu)
    for row, voice in zip(cond, voices, strict=True):
        prompt = up * len(voice.tokens)
        row[:prompt] = fit_prompt(torch.tensor(voice.mel), prompt)
    spk = flow.speaker(torch.tensor(np.stack([voice.embedding for voice in voices])).to(device))
    inputs = [with_free(value) for value in (mu, spk, cond)]
    estimator, mask = EstimatorOffline(flow), valid.repeat_interleave(up, 1).repeat(2, 1)
    mel = solve(
        lambda step, t, x: estimator(x, *inputs, t, mask)[0],
        noise[:, : mu.shape[1]].to(device).expand(len(rows), -1, -1),
        flow.config.decoder.n_timesteps,
        flow.config.decoder.inference_cfg_rate,
    )
    return [
        row[up * len(voice.tokens) : up * count]
        for row, voice, count in zip(mel, voices, counts.tolist(), strict=True)
    ]


class ReferenceStream:
    """One session.

    Args:
        flow: The model.
        voice: Its prompt has at least `look_ahead` tokens.
        noise: Standard normal [frames, mel], of the reference's `rand_noise`.
    """

    @torch.inference_mode()
    def __init__(self, flow: Flow, voice: VoicePrompt, noise: Tensor):
        self._flow, self._noise = flow, noise.to(flow.device)
        self._encode, self._estimate = EncoderStream(flow), EstimatorStream(flow)
        self._ahead, self._up = flow.config.encoder.pre_lookahead_len, flow.config.encoder.up_stride
        self._prompt_frames = self._up * len(voice.tokens)
        self._spk = flow.speaker(self._tensor(voice.embedding)[None])
        self._reset()
        # The prompt has no tokens behind it to look at; its own first ones stand in.
        tokens = np.concatenate([voice.tokens, voice.tokens[: self._ahead]])
        mel = fit_prompt(self._tensor(voice.mel), self._prompt_frames)
        self._chunk(tokens, len(voice.tokens), mel)

    @torch.inference_mode()
    def step(self, tokens: np.ndarray, final: bool) -> Tensor:
        """Tokens int [n], with look-ahead unless final, to mel float32 [frames, mel]."""
        spoken = len(tokens) if final else len(tokens) - self._ahead
        mel = self._chunk(tokens, spoken, None)
        kept = self._prompt_frames
        if self._kv.shape[-2] > kept + KEPT_FRAMES:
            self._kv = torch.cat([self._kv[..., :kept, :], self._kv[..., -KEPT_FRAMES:, :]], -2)
        return mel

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self._flow.device)

    def _reset(self) -> None:
        """Caches of a session that has heard nothing."""
        encoder, dit = self._flow.config.encoder, self._flow.config.decoder.estimator
        weight = self._flow.encoder_proj.weight
        width, heads = encoder.output_size, encoder.attention_heads
        self._pre = weight.new_zeros(1, width, 2)
        self._upsample = weight.new_zeros(1, width, 2 * self._up)
        self._kv_token = weight.new_zeros(1, encoder.num_blocks, heads, 0, 2 * width // heads)
        self._kv_mel = weight.new_zeros(1, encoder.num_up_blocks, heads, 0, 2 * width // heads)
        steps = self._flow.config.decoder.n_timesteps
        self._conv = weight.new_zeros(steps, 2, dit.depth, 2, dit.hidden_size, 2)
        self._kv = weight.new_zeros(steps, 2, dit.depth, dit.num_heads, 0, 2 * dit.head_dim)

    def _chunk(self, tokens: np.ndarray, spoken: int, prompt_mel: Tensor | None) -> Tensor:
        """Encode `spoken` tokens, solve, and keep the caches; mel [frames, mel]."""
        mu = self._encoded(tokens, spoken)
        cond = torch.zeros_like(mu) if prompt_mel is None else prompt_mel[None]
        inputs = [with_free(value) for value in (mu, self._spk, cond)]
        mask, kv_mask = _ones(2, mu.shape[1], mu), _ones(2, self._kv.shape[-2], mu)
        convs, kvs = [], []

        def velocity(step: int, t: Tensor, x: Tensor) -> Tensor:
            cache = self._conv[step], self._kv[step], kv_mask
            estimate, conv, kv = self._estimate(x, *inputs, t, mask, *cache)
            convs.append(conv)
            kvs.append(torch.cat([kv, self._kv[step]], -2))
            return estimate

        start = self._kv.shape[-2]
        solver = self._flow.config.decoder
        noise = self._noise[None, start : start + mu.shape[1]]
        mel = solve(velocity, noise, solver.n_timesteps, solver.inference_cfg_rate)
        self._conv, self._kv = torch.stack(convs), torch.stack(kvs)
        return mel[0]

    def _encoded(self, tokens: np.ndarray, spoken: int) -> Tensor:
        """The chunk's `mu` [1, frames, mel]; keeps the encoder's caches."""
        ids = self._tensor(np.pad(tokens, (0, spoken + self._ahead - len(tokens)))).long()[None]
        valid = (torch.arange(ids.shape[1], device=ids.device) < len(tokens)).float()[None]
        old = self._kv_token, self._kv_mel
        contexts = [
            value
            for kv in old
            for value in (
                kv,
                torch.arange(kv.shape[-2], 0, -1, device=ids.device).float()[None],
                _ones(1, kv.shape[-2], valid),
            )
        ]
        mu, self._pre, self._upsample, *new = self._encode(
            ids, valid, _ones(1, spoken, valid), self._pre, self._upsample, *contexts
        )
        self._kv_token, self._kv_mel = (torch.cat(pair, -2) for pair in zip(old, new, strict=True))
        return mu


def _ones(rows: int, length: int, like: Tensor) -> Tensor:
    return torch.ones(rows, length, device=like.device)


def times(steps: int) -> list[float]:
    """The cosine schedule of the solver: steps + 1 times from 0 to 1, dense at first."""
    return [1 - math.cos(math.pi * i / (2 * steps)) for i in range(steps + 1)]


def solve(
    velocity: Callable[[int, Tensor, Tensor], Tensor], noise: Tensor, steps: int, cfg_rate: float
) -> Tensor:
    """Euler steps from noise [batch, n, mel] to mel, with classifier-free guidance.

    Args:
        velocity: Of (step, time [1], x [2 * batch, n, mel]), conditional rows first.
        noise: Standard normal.
        steps: Their number.
        cfg_rate: Weight of what the condition changes.
    """
    x, schedule = noise, times(steps)
    for step, (now, then) in enumerate(pairwise(schedule)):
        t = torch.tensor([now], dtype=torch.float32, device=x.device)
        given, free = velocity(step, t, x.repeat(2, 1, 1)).chunk(2)
        x = x + (then - now) * ((1 + cfg_rate) * given - cfg_rate * free)
    return x


def with_free(given: Tensor) -> Tensor:
    """Rows of the conditional half, and zeros for the unconditional one."""
    return torch.cat([given, torch.zeros_like(given)])


def fit_prompt(mel: Tensor, frames: int) -> Tensor:
    """A prompt's mel [n, mel] at exactly `frames`: its last frame repeated, or cut."""
    return torch.cat([mel[:frames], mel[-1:].expand(max(frames - mel.shape[0], 0), -1)])
