"""Is the CUDA engine right, and how fast is it? Run on a machine with an NVIDIA GPU.

Compares the whole engine with the torch modules in float32 (random weights of the public size),
then times it. A part that fails prints its traceback and the rest goes on. A short table comes
last; all numbers go to a JSON file.

    python benchmarks/gpu_check.py --out gpu_check.json
    python benchmarks/gpu_check.py --parts sweep --out sweep.json
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_sync import runtime_calls, waits
from duologue.engines.cudagraph import hift as hift_network
from duologue.engines.cudagraph import ops
from duologue.engines.cudagraph.flow import CudaGraphFlow
from duologue.engines.cudagraph.vocoder import CudaGraphVocoder
from duologue.engines.torch import TorchGraph
from duologue.token2wav.config import FULL, TINY, Token2wavConfig
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
from duologue.token2wav.weights import Model, random_weights

MODULES = {
    "encoder_stream": EncoderStream,
    "estimator_stream": EstimatorStream,
    "encoder_offline": EncoderOffline,
    "estimator_offline": EstimatorOffline,
}
PRESETS = {"tiny": TINY, "full": FULL}
RESULTS: dict[str, object] = {}
TABLE: list[str] = []


def note(name: str, value: object, text: str = "") -> None:
    RESULTS[name] = value
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    TABLE.append(f"{name:46s} {shown} {text}")
    print(TABLE[-1], flush=True)


@cache
def model(preset: str) -> Model:
    return random_weights(PRESETS[preset], 3)


def voice(tokens: int, seed: int = 1) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        rng.integers(0, 6561, tokens).astype(np.int32),
        rng.normal(-4, 2, (2 * tokens, 80)).astype(np.float32),
        rng.normal(size=192).astype(np.float32),
        f"{tokens}/{seed}",
    )


def tokens(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 6561, n).astype(np.int32)


def reference_flow(preset: str, config: Token2wavConfig) -> GraphFlow:
    flow = model(preset).flow
    affine = flow.spk_embed_affine_layer
    weight, bias = (p.detach().cpu().numpy() for p in (affine.weight, affine.bias))
    graphs = {
        name: TorchGraph(module(flow), *SIGNATURES[name](config), device="cuda")
        for name, module in MODULES.items()
    }
    return GraphFlow(
        FlowGraphs(**graphs, speaker_weight=weight, speaker_bias=bias), config, capacity=4
    )


def reference_vocoder(preset: str) -> Vocoder:
    hift, config = model(preset).hift, model(preset).config
    weights = hift.source_weights()
    f0, body = (
        TorchGraph(module(hift), *SIGNATURES[name](config), device="cuda")
        for name, module in (("f0", F0Graph), ("hift", HiftGraph))
    )
    return Vocoder(config.hift, f0, body, weights, capacity=4)


def error(given, expected) -> float:
    given = given.float().cpu().numpy() if isinstance(given, torch.Tensor) else given
    assert given.shape == expected.shape and np.isfinite(given).all(), (given.shape, expected.shape)
    return float(np.linalg.norm(given - expected) / max(np.linalg.norm(expected), 1e-9))


def chunks(spoken: list[int], total: np.ndarray) -> list[tuple[np.ndarray, bool]]:
    cut, begin = [], 0
    for n in spoken:
        cut.append((total[begin : begin + n + 3], False))
        begin += n
    return [*cut, (total[begin:], True)]


def check_flow(preset: str, dtype: torch.dtype) -> None:
    """Two sessions of different voices and chunks against the reference."""
    config = PRESETS[preset]
    name = f"flow {preset} {str(dtype)[6:]} "
    reference = reference_flow(preset, config)
    engine = CudaGraphFlow(model(preset).flow, config, sessions=4, voices=2, dtype=dtype)
    note(f"{name}MB per session", engine.bytes_per_session / 1e6)
    voices = voice(60, 1), voice(31, 2)
    plans = [chunks([12, 15, 25, 25], tokens(90, 5)), chunks([12, 15, 15, 25], tokens(80, 6))]
    pairs = [(reference.open(v, s), engine.open(v, s)) for v, s in zip(voices, (7, 8), strict=True)]
    for index, parts in enumerate(zip(*plans, strict=True)):
        work = [
            [
                FlowWork(pair[side], part, final)
                for pair, (part, final) in zip(pairs, parts, strict=True)
            ]
            for side in (0, 1)
        ]
        errors = [
            error(mel, right)
            for mel, right in zip(engine.step(work[1]), reference.step(work[0]), strict=True)
        ]
        note(f"{name}chunk {index} rel rms", max(errors), "< 0.01 wanted")
    utterances = [(tokens(70, 9), voices[0], 3), (tokens(41, 10), voices[1], 4)]
    for mel, right in zip(engine.offline(utterances), reference.offline(utterances), strict=True):
        note(f"{name}offline {len(mel)} rel rms", error(mel, right))


def check_batch(dtype: torch.dtype) -> None:
    """Many sessions in one graph against each alone, at the tiles of medium and large batches."""
    for sessions in (8, 32):
        engine = CudaGraphFlow(model("full").flow, FULL, sessions=sessions, voices=2, dtype=dtype)
        alone = CudaGraphFlow(model("full").flow, FULL, sessions=1, voices=2, dtype=dtype)
        handles = [engine.open(voice(60), seed) for seed in range(sessions)]
        parts = [chunks([25, 25], tokens(60 + seed % 3, seed)) for seed in range(sessions)]
        mels = [[] for _ in handles]
        for index in range(3):
            work = [FlowWork(h, *p[index]) for h, p in zip(handles, parts, strict=True)]
            for row, mel in zip(mels, engine.step(work), strict=True):
                row.append(mel)
        worst = 0.0
        for seed in (0, sessions // 2, sessions - 1):
            handle = alone.open(voice(60), seed)
            for mel, part in zip(mels[seed], parts[seed], strict=True):
                [right] = alone.step([FlowWork(handle, *part)])
                worst = max(worst, error(mel, right.cpu().numpy()))
            alone.close(handle)
        note(f"flow batch {sessions} against single, rel rms", worst)


def check_vocoder(preset: str, dtype: torch.dtype) -> None:
    """Two sessions against the reference."""
    name = f"vocoder {preset} {str(dtype)[6:]} "
    reference = reference_vocoder(preset)
    engine = CudaGraphVocoder(model(preset).hift, sessions=3, dtype=dtype)
    rng = np.random.default_rng(0)
    pairs = [(reference.open(seed), engine.open(seed)) for seed in (3, 4)]
    for index, frames in enumerate(((24, 24), (30, 30), (50, 30), (50, 50), (10, 54))):
        mels = [rng.normal(-4, 2, (n, 80)).astype(np.float32) for n in frames]
        final = index == 4
        right = reference.step(
            [VocoderWork(pair[0], mel, final) for pair, mel in zip(pairs, mels, strict=True)]
        )
        given = engine.step(
            [
                VocoderWork(pair[1], torch.tensor(mel, device="cuda"), final)
                for pair, mel in zip(pairs, mels, strict=True)
            ]
        )
        worst = max(error(a, b) for a, b in zip(given, right, strict=True))
        note(f"{name}step {index} rel rms", worst, f"{[len(x) for x in given]}")
    mels = [rng.normal(-4, 2, (n, 80)).astype(np.float32) for n in (90, 131)]
    pairs = zip(engine.offline(mels, [5, 6]), reference.offline(mels, [5, 6]), strict=True)
    note(f"{name}offline rel rms", max(error(a, b) for a, b in pairs))


def milliseconds(run: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each call, the device's work included."""
    taken = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken


class Rig:
    """Sessions of both engines that speak chunks of so many tokens for ever."""

    def __init__(self, sessions: int, batch: int = 64, spoken: int = 25):
        self.flow = CudaGraphFlow(
            model("full").flow, FULL, sessions=sessions, voices=2, max_prompt=256, max_batch=batch
        )
        self.vocoder = CudaGraphVocoder(model("full").hift, sessions=sessions, max_batch=batch)
        speaker = voice(125)
        self.pairs = [
            (self.flow.open(speaker, seed), self.vocoder.open(seed)) for seed in range(sessions)
        ]
        self.parts = [tokens(spoken + 3, seed) for seed in range(sessions)]
        self.mels: list[torch.Tensor] = []

    def speak(self) -> list[torch.Tensor]:
        """The flow's half of a chunk."""
        self.mels = self.flow.step(
            [FlowWork(f, part, False) for (f, _), part in zip(self.pairs, self.parts, strict=True)]
        )
        return self.mels

    def sound(self) -> list[np.ndarray]:
        """The vocoder's half of a chunk."""
        return self.vocoder.step(
            [VocoderWork(v, mel, False) for (_, v), mel in zip(self.pairs, self.mels, strict=True)]
        )

    def chunk(self) -> list[np.ndarray]:
        """Tokens to samples."""
        self.speak()
        return self.sound()


def time_chunks(sessions: int, repeats: int, batch: int = 64, spoken: int = 25) -> None:
    name = f"{sessions} x {spoken / 25} s{'' if batch == 64 else f' by {batch}'}: "
    rig = Rig(sessions, batch, spoken)
    begin = time.perf_counter()
    for _ in range(4):
        rig.chunk()
    note(f"{name}compile, capture and 4 chunks, s", time.perf_counter() - begin)
    for part, run in (("chunk", rig.chunk), ("flow", rig.speak), ("vocoder", rig.sound)):
        taken = milliseconds(run, repeats)
        p50, p99 = (float(np.percentile(taken, q)) for q in (50, 99))
        note(f"{name}{part} ms p50", p50, f"p99 {p99:.3f}, {sessions * spoken * 40 / p50:.0f} s/s")
    note(f"{name}GPU GB", torch.cuda.max_memory_allocated() / 1e9)


def time_kernels() -> None:
    """Where one session's chunk spends its time."""
    from torch.profiler import ProfilerActivity, profile

    rig = Rig(1)
    for _ in range(3):
        rig.chunk()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(3):
            rig.chunk()
        torch.cuda.synchronize()
    events = sorted(trace.key_averages(), key=lambda e: -e.self_device_time_total)
    for event in events[:16]:
        total, count = event.self_device_time_total / 3e3, event.count // 3
        note(
            f"kernel {event.key[:38]}", total, f"ms, {count} x {1e3 * total / max(count, 1):.2f} us"
        )
    note("kernels per chunk", sum(event.count for event in events) // 3)


def check_sync(sessions: int, count: int = 20) -> None:
    """A chunk waits once, for its samples; the end of a profile waits once more for them all."""
    name, rig = f"sync, {sessions} sessions: ", Rig(sessions)
    for _ in range(4):
        rig.chunk()
    for what, number in waits(rig.chunk, count).items():
        note(f"{name}{what}", number)
    for call, (number, spent) in runtime_calls(rig.chunk, count).items():
        note(f"{name}{call} a chunk", number, f"{spent:.1f} us")


def time_offline() -> None:
    engine = CudaGraphFlow(model("full").flow, FULL, sessions=1, voices=1)
    vocoder = CudaGraphVocoder(model("full").hift, sessions=1)
    for batch in (1, 16):
        utterances = [(tokens(162, seed), voice(125), seed) for seed in range(batch)]
        for _ in range(2):
            engine.offline(utterances)
        taken = float(np.median(milliseconds(lambda u=utterances: engine.offline(u), 5)))
        note(f"offline flow {batch} x 6.5 s, ms", taken, f"RTF {taken / 6.48e3 / batch:.5f}")
        mels, seeds = engine.offline(utterances), list(range(batch))
        for _ in range(2):
            vocoder.offline(mels, seeds)
        taken = float(np.median(milliseconds(lambda m=mels, s=seeds: vocoder.offline(m, s), 5)))
        note(f"offline vocoder {batch} x 6.5 s, ms", taken, f"RTF {taken / 6.48e3 / batch:.5f}")


def sweep() -> None:
    """Other tiles, for one session and for many."""
    for tile, span in (
        (ops.TILE, 512), (ops.TILE, 256), (ops.Tile(64, 32, 128, 4, 4), 512),
        (ops.Tile(64, 32, 128, 4, 4), 256), (ops.Tile(64, 64, 64, 4, 6), 256),
    ):  # fmt: skip
        ops.TILE, ops.SPAN = tile, span
        rig = Rig(1)
        for _ in range(3):
            rig.speak()
        note(f"1: {tile} {span}", float(np.median(milliseconds(rig.speak, 20))), "ms")
    for tile in (hift_network.LARGE, hift_network.Tile(64, 128, 4), hift_network.Tile(128, 64, 4)):
        hift_network.LARGE = tile
        rig = Rig(16)
        for _ in range(3):
            rig.chunk()
        note(f"16: vocoder {tile}", float(np.median(milliseconds(rig.sound, 20))), "ms")


half = torch.float16
PARTS: dict[str, list[Callable[[], None]]] = {
    "check": [lambda: check_flow("full", half), lambda: check_vocoder("full", half)],
    "time": [
        lambda: time_chunks(1, 100),
        lambda: time_chunks(1, 100, spoken=12),
        time_kernels,
    ],
    "batch": [
        lambda: check_batch(half),
        lambda: time_chunks(2, 40),
        lambda: time_chunks(4, 40),
        lambda: time_chunks(16, 20),
        lambda: time_chunks(64, 10),
        lambda: time_chunks(512, 3),
        lambda: time_chunks(512, 3, 128),
        time_offline,
    ],
    "sync": [lambda: check_sync(1), lambda: check_sync(16)],
    "precision": [lambda: check_flow("full", torch.bfloat16)],
    "tiny": [
        lambda: check_flow("tiny", half),
        lambda: check_flow("tiny", torch.float32),
        lambda: check_vocoder("tiny", half),
        lambda: check_vocoder("tiny", torch.float32),
    ],
    "sweep": [sweep],
}
DEFAULT = ["check", "time", "batch"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=DEFAULT, choices=PARTS)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    begin = time.perf_counter()
    for part in arguments.parts:
        for index, run in enumerate(PARTS[part]):
            try:
                run()
            except Exception:
                traceback.print_exc()
                note(f"{part} {index}", "FAILED")
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            print(f"--- {part} {index}: {time.perf_counter() - begin:.0f} s", flush=True)
            arguments.out.write_text(json.dumps(RESULTS, indent=1))
    print("\n".join(["=" * 72, *TABLE]))


if __name__ == "__main__":
    main()
