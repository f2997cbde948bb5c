"""Tiny flows over torch's graphs, and what to say with them."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np

from duologue.engines.torch_model import flow_graphs
from duologue.token2wav.config import TINY, Token2wavConfig
from duologue.token2wav.flow import Flow
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.step import FlowWork, VoicePrompt
from duologue.token2wav.weights import load_preset

GRAPHS = ("encoder_stream", "encoder_offline", "estimator_stream", "estimator_offline")
AHEAD, BINS, CODES = TINY.look_ahead, TINY.flow.output_size, TINY.flow.vocab_size
FEW_STEPS = TINY.model_copy(
    update={
        "flow": TINY.flow.model_copy(
            update={"decoder": TINY.flow.decoder.model_copy(update={"n_timesteps": 2})}
        )
    }
)


class Spy:
    """A graph that keeps what it was given, and calls `before` first."""

    def __init__(self, graph):
        self.graph, self.inputs, self.outputs = graph, graph.inputs, graph.outputs
        self.calls: list[dict[str, np.ndarray]] = []
        self.before = lambda: None

    def run(self, arrays):
        self.before()
        self.calls.append(dict(arrays))
        return self.graph.run(arrays)


def graphs_of(flow: Flow, config: Token2wavConfig) -> FlowGraphs:
    graphs = flow_graphs(flow, config)
    return replace(graphs, **{name: Spy(getattr(graphs, name)) for name in GRAPHS})


@cache
def tiny_flow() -> Flow:
    return load_preset("tiny", 5).flow


def tiny_graphs() -> FlowGraphs:
    return graphs_of(tiny_flow(), TINY)


def make_voice(seed: int, tokens: int = 8, missing: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        tokens=rng.integers(0, CODES, tokens, dtype=np.int32),
        mel=rng.normal(-4, 2, (2 * tokens - missing, BINS)).astype(np.float32),
        embedding=rng.normal(size=TINY.flow.spk_embed_dim).astype(np.float32),
        digest=f"voice {seed}",
    )


VOICE, OTHER = make_voice(1), make_voice(2, tokens=5)


def make_tokens(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, CODES, n, dtype=np.int32)


def chunks_of(tokens: np.ndarray, spoken: list[int]) -> list[tuple[np.ndarray, bool]]:
    """What a caller hands over: `spoken` tokens each with look-ahead, then the rest."""
    starts = [0, *itertools.accumulate(spoken)]
    cut = [(tokens[a : b + AHEAD], False) for a, b in itertools.pairwise(starts)]
    return [*cut, (tokens[starts[-1] :], True)]


def speak(flow: GraphFlow, voice, seed, tokens, spoken) -> np.ndarray:
    handle = flow.open(voice, seed)
    mels = [
        flow.step([FlowWork(handle, part, final)])[0] for part, final in chunks_of(tokens, spoken)
    ]
    flow.close(handle)
    return np.concatenate(mels)
