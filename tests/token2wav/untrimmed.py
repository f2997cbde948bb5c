"""The flow's window, the plain way: caches that are never trimmed, but masked."""

import itertools

import numpy as np

from duologue.token2wav import noise
from duologue.token2wav.config import TINY
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.step import VoicePrompt
from tests.token2wav.flows import AHEAD, BINS, FEW_STEPS


class Untrimmed:
    """One session that keeps everything in order; what a window would drop is masked out."""

    def __init__(self, graphs: FlowGraphs, voice: VoicePrompt, seed: int, window: int):
        self.graphs, self.seed, self.window = graphs, seed, window
        self.embedding = voice.embedding / np.linalg.norm(voice.embedding)
        self.prompt, self.done, self.shift = 0, 0, 0
        steps, dit = FEW_STEPS.flow.decoder.n_timesteps, TINY.flow.decoder.estimator
        encoder, width = TINY.flow.encoder, TINY.flow.encoder.output_size
        kv = (encoder.attention_heads, 0, 2 * width // encoder.attention_heads)

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.float32)

        self.pre, self.up = zeros(1, width, 2), zeros(1, width, 4)
        self.kv_token = zeros(1, encoder.num_blocks, *kv)
        self.kv_mel = zeros(1, encoder.num_up_blocks, *kv)
        self.conv = [zeros(2, dit.depth, 2, dit.hidden_size, 2)] * steps
        self.kv = [zeros(2, dit.depth, dit.num_heads, 0, 2 * dit.head_dim)] * steps
        start = noise.normal(0, noise.PROMPT, 0, 2 * len(voice.tokens), BINS)
        self.chunk(np.concatenate([voice.tokens, voice.tokens[:AHEAD]]), False, start, voice.mel)
        self.prompt = len(voice.tokens)

    def step(self, tokens: np.ndarray, final: bool) -> np.ndarray:
        spoken = len(tokens) - AHEAD * (not final)
        start = noise.normal(self.seed, noise.FLOW, 2 * (self.done + self.shift), 2 * spoken, BINS)
        mel = self.chunk(tokens, final, start, np.zeros_like(start))
        self.done += spoken
        return mel

    def past(self, rate: int) -> tuple[np.ndarray, np.ndarray]:
        """Distance and mask of every frame so far, [1, n]."""
        prompt, done = rate * self.prompt, rate * self.done
        distance = np.arange(prompt + done, 0, -1, dtype=np.float32)
        is_prompt = np.arange(prompt + done) < prompt
        mask = is_prompt | (distance <= self.window * rate // 2)
        shifted = distance + rate * self.shift * is_prompt
        return shifted[None].astype(np.float32), mask[None].astype(np.float32)

    def chunk(self, tokens, final, x, cond) -> np.ndarray:
        ids = np.pad(tokens, (0, AHEAD * final))[None].astype(np.int64)
        distance_token, mask_token = self.past(1)
        distance_mel, mask_mel = self.past(2)
        encoded = self.graphs.encoder_stream.run(
            {
                "tokens": ids,
                "valid": (np.arange(ids.shape[1]) < len(tokens))[None].astype(np.float32),
                "mask": np.ones((1, ids.shape[1] - AHEAD), np.float32),
                "pre_cache": self.pre,
                "up_cache": self.up,
                "kv_token": self.kv_token,
                "distance_token": distance_token,
                "mask_token": mask_token,
                "kv_mel": self.kv_mel,
                "distance_mel": distance_mel,
                "mask_mel": mask_mel,
            }
        )
        self.pre, self.up = encoded["new_pre_cache"], encoded["new_up_cache"]
        self.kv_token = np.concatenate([self.kv_token, encoded["new_kv_token"]], -2)
        self.kv_mel = np.concatenate([self.kv_mel, encoded["new_kv_mel"]], -2)
        spk = self.graphs.speaker_weight @ self.embedding + self.graphs.speaker_bias
        rows = [np.stack([row, 0 * row]) for row in (encoded["mu"][0], spk, cond)]
        times = 1 - np.cos(np.linspace(0, np.pi / 2, len(self.kv) + 1))
        for i, (now, then) in enumerate(itertools.pairwise(times)):
            out = self.graphs.estimator_stream.run(
                {
                    **dict(zip(("mu", "spk", "cond"), rows, strict=True)),
                    "x": np.stack([x, x]).astype(np.float32),
                    "t": np.array([now], np.float32),
                    "mask": np.ones((2, len(x)), np.float32),
                    "conv_cache": self.conv[i],
                    "kv": self.kv[i],
                    "kv_mask": np.concatenate([mask_mel, mask_mel]),
                }
            )
            self.conv[i] = out["new_conv_cache"]
            self.kv[i] = np.concatenate([self.kv[i], out["new_kv"]], -2)
            given, free = out["velocity"]
            x = x + (then - now) * (1.7 * given - 0.7 * free)
        return x
