"""The numerics of the flow over four graphs: the encoder, and the ODE loop around the estimator.

Conditional flow matching with classifier-free guidance, solved by Euler's method (Step-Audio 2,
after CosyVoice 2 and Matcha-TTS). Nothing here outlives a call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from duologue.engines.graph import Graph
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.window import Advance, Memory, Window, collate, distances


@dataclass(frozen=True, slots=True)
class FlowGraphs:
    """The four graphs of a flow (see `ports`), and the weights that lie in none of them.

    Several threads run a graph at once; one that cannot do that takes turns inside.

    Attributes:
        encoder_stream: One chunk of tokens to mu.
        estimator_stream: The velocity of one chunk.
        encoder_offline: Whole utterances to mu.
        estimator_offline: The velocity of whole utterances.
        speaker_weight: Normalised speaker embedding to mel bins, float32 [mel_bins, spk_embed_dim].
        speaker_bias: float32 [mel_bins].
    """

    encoder_stream: Graph
    estimator_stream: Graph
    encoder_offline: Graph
    estimator_offline: Graph
    speaker_weight: np.ndarray
    speaker_bias: np.ndarray


@dataclass(slots=True)
class Row:
    """What one row of a chunk starts from; `past[-1]` is brought forward by it.

    All rows of a batch speak equally many tokens, that is have equally many frames.
    """

    tokens: np.ndarray  # int32 [spoken], or [spoken + look_ahead]
    start: np.ndarray  # noise, float32 [frames, mel_bins]
    cond: np.ndarray  # known mel, float32 [frames, mel_bins]
    speaker: np.ndarray  # float32 [mel_bins]
    past: tuple[Memory, ...]  # oldest first


class Solver:
    """Rows of tokens and noise to mel.

    Args:
        graphs: The graphs, of any engine.
        config: Sizes of the model.
    """

    def __init__(self, graphs: FlowGraphs, config: Token2wavConfig):
        self._graphs = graphs
        self._config = config
        solver = config.flow.decoder
        self._guidance = np.float32(solver.inference_cfg_rate)
        angles = np.linspace(0, np.pi / 2, solver.n_timesteps + 1)
        self._times = (1 - np.cos(angles)).astype(np.float32)

    def speaker(self, embedding: np.ndarray) -> np.ndarray:
        """A speaker embedding [spk_embed_dim] as the estimator takes it, float32 [mel_bins]."""
        return self._graphs.speaker_weight @ unit_norm(embedding) + self._graphs.speaker_bias

    def blank(self, tokens: int) -> Memory:
        """The memory of nothing yet, with room for so many tokens and their frames."""
        graphs, frames = self._graphs, tokens * self._config.frames_per_token
        steps = (self._config.flow.decoder.n_timesteps, 2)
        return Memory(
            pre_cache=_blank(graphs.encoder_stream, "pre_cache"),
            up_cache=_blank(graphs.encoder_stream, "up_cache"),
            conv_cache=_blank(graphs.estimator_stream, "conv_cache", steps),
            token=Window(_blank(graphs.encoder_stream, "kv_token"), tokens),
            mel=Window(_blank(graphs.encoder_stream, "kv_mel"), frames),
            estimator=Window(_blank(graphs.estimator_stream, "kv", steps), frames),
        )

    def advance(self, rows: Sequence[Row]) -> list[tuple[np.ndarray, Advance]]:
        """Mel and new state of one chunk of each row."""
        encoded = self._encode(rows)
        conv_caches, kvs = [], []

        def estimate(step: int, inputs: dict[str, np.ndarray]) -> np.ndarray:
            guided = [(row, half) for half in (0, 1) for row in rows]
            kv, kv_mask = collate(
                [[memory.estimator.kept[step, half] for memory in row.past] for row, half in guided]
            )
            conv_cache = np.stack([row.past[-1].conv_cache[step, half] for row, half in guided])
            cached = {"conv_cache": conv_cache, "kv": kv, "kv_mask": kv_mask}
            out = self._graphs.estimator_stream.run(inputs | cached)
            conv_caches.append(out["new_conv_cache"])
            kvs.append(out["new_kv"])
            return out["velocity"]

        mels = self._solve(
            {
                "mu": encoded["mu"],
                "spk": np.stack([row.speaker for row in rows]),
                "cond": np.stack([row.cond for row in rows]),
            },
            np.ones(encoded["mu"].shape[:2], np.float32),
            np.stack([row.start for row in rows]),
            estimate,
        )
        news = (
            encoded["new_pre_cache"],
            encoded["new_up_cache"],
            _by_row(conv_caches),
            encoded["new_kv_token"],
            encoded["new_kv_mel"],
            _by_row(kvs),
        )
        return [(mel, Advance(*new)) for mel, *new in zip(mels, *news, strict=True)]

    def whole(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Mel of whole utterances of any lengths, [frames, mel_bins] each."""
        tokens, valid = collate([[row.tokens[:, None]] for row in rows])
        start, mask = collate([[row.start] for row in rows])
        cond, _ = collate([[row.cond] for row in rows])
        mu = self._graphs.encoder_offline.run(
            {"tokens": tokens[..., 0].astype(np.int64), "valid": valid}
        )["mu"]
        condition = {"mu": mu, "spk": np.stack([row.speaker for row in rows]), "cond": cond}
        estimator = self._graphs.estimator_offline
        mels = self._solve(
            condition, mask, start, lambda _, inputs: estimator.run(inputs)["velocity"]
        )
        return [mel[: len(row.start)] for mel, row in zip(mels, rows, strict=True)]

    def _encode(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        spoken = len(rows[0].start) // self._config.frames_per_token
        tokens = np.zeros((len(rows), spoken + self._config.look_ahead), np.int64)
        valid = np.zeros(tokens.shape, np.float32)
        for index, row in enumerate(rows):
            tokens[index, : len(row.tokens)] = row.tokens
            valid[index, : len(row.tokens)] = 1
        token_rate = [[memory.token for memory in row.past] for row in rows]
        mel_rate = [[memory.mel for memory in row.past] for row in rows]
        kv_token, mask_token = collate([[w.kept for w in windows] for windows in token_rate])
        kv_mel, mask_mel = collate([[w.kept for w in windows] for windows in mel_rate])
        return self._graphs.encoder_stream.run(
            {
                "tokens": tokens,
                "valid": valid,
                "mask": np.ones((len(rows), spoken), np.float32),
                "pre_cache": np.stack([row.past[-1].pre_cache for row in rows]),
                "up_cache": np.stack([row.past[-1].up_cache for row in rows]),
                "kv_token": kv_token,
                "distance_token": distances(token_rate),
                "mask_token": mask_token,
                "kv_mel": kv_mel,
                "distance_mel": distances(mel_rate),
                "mask_mel": mask_mel,
            }
        )

    def _solve(
        self,
        condition: dict[str, np.ndarray],
        mask: np.ndarray,
        x: np.ndarray,
        estimate: Callable[[int, dict[str, np.ndarray]], np.ndarray],
    ) -> np.ndarray:
        """Euler's method with classifier-free guidance, from noise to mel.

        Args:
            condition: What the unconditional rows do not get: mu and cond [row, frame, mel_bins],
                spk [row, mel_bins].
            mask: [row, frame].
            x: Noise, [row, frame, mel_bins].
            estimate: Index of the Euler step and inputs of the estimator to velocity, both with
                twice the rows: first the conditional ones.

        Returns:
            Mel [row, frame, mel_bins].
        """
        guided = {name: np.concatenate([a, np.zeros_like(a)]) for name, a in condition.items()}
        guided["mask"] = np.concatenate([mask, mask])
        for step, dt in enumerate(np.diff(self._times)):
            inputs = {"x": np.concatenate([x, x]), "t": self._times[step : step + 1]}
            with_condition, without = np.split(estimate(step, guided | inputs), 2)
            velocity = (1 + self._guidance) * with_condition - self._guidance * without
            x = x + dt * velocity
        return x


def unit_norm(embedding: np.ndarray) -> np.ndarray:
    """A vector at length 1, float32; in float64 in between, which no float32 overflows."""
    wide = embedding.astype(np.float64)
    return (wide / max(float(np.linalg.norm(wide)), 1e-12)).astype(np.float32)


def _blank(graph: Graph, name: str, steps: tuple[int, ...] = ()) -> np.ndarray:
    """One row of a cache port, without frames: zeros [*steps, ...]."""
    [port] = [port for port in graph.inputs if port.name == name]
    shape = [0 if isinstance(axis, str) else axis for axis in port.shape[1:]]
    return np.zeros((*steps, *shape), port.array_dtype)


def _by_row(of_steps: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays [2 * row, ...] of each Euler step to one [row, step, 2, ...]."""
    stacked = np.stack(of_steps)
    steps, rows = stacked.shape[:2]
    return np.moveaxis(stacked.reshape(steps, 2, rows // 2, *stacked.shape[2:]), 2, 0)
