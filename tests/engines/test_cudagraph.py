"""The CUDA engine computes what the torch modules compute, whatever shares its graphs.

With TRITON_INTERPRET=1 and triton installed it runs on any machine, slowly.
"""

import os

import numpy as np
import pytest
import torch

from duologue.engines.cudagraph.voices import VoiceSlots
from duologue.engines.torch import TorchGraph
from duologue.errors import CapacityError, ConfigError, InputError
from duologue.token2wav.config import TINY
from duologue.token2wav.flow import (
    EncoderOffline,
    EncoderStream,
    EstimatorOffline,
    EstimatorStream,
)
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.hift import F0Graph, HiftGraph
from duologue.token2wav.ports import SIGNATURES
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.step import FlowWork, VocoderWork, VoicePrompt
from duologue.token2wav.vocoder import Vocoder
from duologue.token2wav.weights import random_weights

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# On a GPU a float32 product is a tf32 one.
TOLERANCE = 2e-5 if INTERPRETED else 5e-3
MODULES = {
    "encoder_stream": EncoderStream,
    "estimator_stream": EstimatorStream,
    "encoder_offline": EncoderOffline,
    "estimator_offline": EstimatorOffline,
}
FEW_STEPS = TINY.model_copy(
    update={
        "flow": TINY.flow.model_copy(
            update={"decoder": TINY.flow.decoder.model_copy(update={"n_timesteps": 2})}
        )
    }
)
MODEL = random_weights(TINY, 1)


@pytest.fixture(scope="module")
def gpu():
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip("needs an NVIDIA GPU, or TRITON_INTERPRET=1")
    pytest.importorskip("triton", reason="needs triton")


def make_voice(seed: int, tokens: int, missing: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        tokens=rng.integers(0, 6561, tokens, dtype=np.int32),
        mel=rng.normal(-4, 2, (2 * tokens - missing, 80)).astype(np.float32),
        embedding=rng.normal(size=192).astype(np.float32),
        digest=f"voice {seed}",
    )


VOICE, OTHER = make_voice(1, 5), make_voice(2, 4, missing=1)
TOKENS = np.random.default_rng(0).integers(0, 6561, (4, 24), dtype=np.int32)


@pytest.fixture(scope="module")
def reference():
    graphs = {
        name: TorchGraph(module(MODEL.flow), *SIGNATURES[name](TINY))
        for name, module in MODULES.items()
    }
    affine = MODEL.flow.spk_embed_affine_layer
    weight, bias = affine.weight.detach().numpy(), affine.bias.detach().numpy()
    graphs = FlowGraphs(**graphs, speaker_weight=weight, speaker_bias=bias)
    return GraphFlow(graphs, FEW_STEPS, capacity=8, window=12)


def make_engine():
    from duologue.engines.cudagraph.flow import CudaGraphFlow

    return CudaGraphFlow(
        MODEL.flow, FEW_STEPS, sessions=4, window=12, voices=2, max_prompt=12,
        dtype=torch.float32, device=DEVICE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine(gpu):
    return make_engine()


def difference(given, expected: np.ndarray) -> float:
    given = given.float().cpu().numpy() if isinstance(given, torch.Tensor) else given
    assert given.shape == expected.shape
    return float(np.linalg.norm(given - expected) / max(np.linalg.norm(expected), 1e-9))


def chunk(row: int, begin: int, spoken: int, final: bool) -> tuple[np.ndarray, bool]:
    return TOKENS[row, begin : begin + spoken + (0 if final else 3)], final


def test_sessions_that_share_a_graph_equal_the_reference(reference, engine):
    """Three of two voices, in chunks of unlike lengths, past the window, to the end."""
    starts = [(VOICE, 5), (OTHER, 9), (VOICE, 7)]
    pairs = [(reference.open(*start), engine.open(*start)) for start in starts]
    done = [0, 0, 0]
    for sizes in ((3, 0, 2), (4, 2, 4), (4, 4, 3), (2, 4, 4)):
        last = sizes == (2, 4, 4)
        rows = [row for row, size in enumerate(sizes) if size]
        parts = [chunk(row, done[row], sizes[row], last) for row in rows]
        expected, given = (
            side.step(
                [FlowWork(pairs[row][index], *part) for row, part in zip(rows, parts, strict=True)]
            )
            for index, side in enumerate((reference, engine))
        )
        for mel, right in zip(given, expected, strict=True):
            assert difference(mel, right) < TOLERANCE
        done = [a + b for a, b in zip(done, sizes, strict=True)]
    for before, after in pairs:
        reference.close(before)
        engine.close(after)


def test_whole_utterances_equal_the_reference(reference, engine):
    utterances = [(TOKENS[0, :6], VOICE, 3), (TOKENS[1, :3], OTHER, 4)]
    pairs = zip(engine.offline(utterances), reference.offline(utterances), strict=True)
    assert max(difference(mel, right) for mel, right in pairs) < TOLERANCE


@pytest.mark.slow
def test_large_batches_equal_the_reference(reference, gpu, monkeypatch):
    """Their products are cuBLAS's; on the CPU the fused GELU of torch is the exact one."""
    from duologue.engines.cudagraph import ops

    monkeypatch.setattr(ops, "FEW_ROWS", 0)
    engine = make_engine()
    before, after = reference.open(VOICE, 5), engine.open(VOICE, 5)
    for part in (chunk(0, 0, 3, False), chunk(0, 3, 4, False), chunk(0, 7, 2, True)):
        [right] = reference.step([FlowWork(before, *part)])
        [mel] = engine.step([FlowWork(after, *part)])
        assert difference(mel, right) < max(TOLERANCE, 1e-3)
    reference.close(before)


def test_slots_are_refused_and_come_back(engine):
    handles = [engine.open(VOICE, seed) for seed in range(4)]
    with pytest.raises(CapacityError, match="all 4 sessions"):
        engine.open(VOICE, 9)
    engine.close(handles[1])
    engine.close(handles[1])
    again = engine.open(VOICE, 9)
    assert again.slot == handles[1].slot
    [mel] = engine.step([FlowWork(handles[1], *chunk(0, 0, 3, True))])
    assert mel.shape == (0, 80)
    for handle in (*handles, again):
        engine.close(handle)


def test_what_does_not_fit_is_refused(engine):
    from duologue.engines.cudagraph.flow import CudaGraphFlow

    with pytest.raises(InputError, match="at most 12"):
        engine.open(make_voice(3, 7), 1)
    with pytest.raises(ConfigError, match="window: found 3"):
        CudaGraphFlow(MODEL.flow, TINY, sessions=1, window=3, device=DEVICE)


def test_the_vocoder_equals_the_reference(gpu):
    from duologue.engines.cudagraph.vocoder import CudaGraphVocoder

    hift = MODEL.hift
    f0, body = (
        TorchGraph(module(hift), *SIGNATURES[name](TINY))
        for name, module in (("f0", F0Graph), ("hift", HiftGraph))
    )
    reference = Vocoder(TINY.hift, f0, body, hift.source_weights(), capacity=3)
    engine = CudaGraphVocoder(hift, sessions=3, dtype=torch.float32, device=DEVICE)
    pairs = [(reference.open(seed), engine.open(seed)) for seed in (5, 9)]
    rng = np.random.default_rng(0)
    for frames, final in (((24, 8), False), ((30, 16), False), ((24, 24), True)):
        mels = [rng.normal(-4, 2, (n, 80)).astype(np.float32) for n in frames]
        expected, given = (
            side.step(
                [
                    VocoderWork(pair[index], mel, final)
                    for pair, mel in zip(pairs, mels, strict=True)
                ]
            )
            for index, side in enumerate((reference, engine))
        )
        for samples, right in zip(given, expected, strict=True):
            assert difference(samples, right) < 10 * TOLERANCE
    mels = [rng.normal(-4, 2, (n, 80)).astype(np.float32) for n in (9, 0, 12)]
    wholes = zip(engine.offline(mels, [1, 2, 3]), reference.offline(mels, [1, 2, 3]), strict=True)
    assert max(difference(*pair) for pair in wholes) < 10 * TOLERANCE


def test_voices_stay_while_used_and_the_oldest_idle_one_goes():
    slots, filled = VoiceSlots(2), []
    first = slots.take("a", filled.append)
    assert slots.take("a", filled.append) == first
    second = slots.take("b", filled.append)
    with pytest.raises(CapacityError, match="use 2 voices"):
        slots.take("c", filled.append)
    slots.release("b")
    assert slots.take("c", filled.append) == second
    slots.release("a")
    with pytest.raises(CapacityError):
        slots.take("b", filled.append)
    slots.release("a")
    assert slots.take("b", filled.append) == first
    assert filled == [first, second, second, first]


def test_a_voice_that_fails_takes_no_slot():
    def fail(slot: int) -> None:
        raise InputError("no")

    slots = VoiceSlots(1)
    with pytest.raises(InputError):
        slots.take("a", fail)
    assert slots.take("b", lambda slot: None) == 0
