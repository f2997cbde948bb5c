"""How fast token2wav is on an NVIDIA GPU, against the public reference in the same run.

Random weights of the public size. Everything ends on the host. `--plot` draws what an earlier run
has measured, on any machine. `--cpu` measures the tiny preset on ONNX Runtime and two CPU cores.

    python -m benchmarks.token2wav --out figures.json
    python -m benchmarks.token2wav --plot figures.json --docs docs
    python -m benchmarks.token2wav --cpu --json
"""

import argparse
import gc
import json
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.token2wav_plot import write_docs
from duologue.token2wav.config import FULL
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.step import FlowWork, VocoderWork, VoicePrompt
from duologue.token2wav.stream import Schedule

PROMPT_S, PROMPT_TOKENS = 5, 125
CLIPS, CLIPS_S = 26, 170
CHUNKS = 60
BATCH = 128
FIGURES: dict[str, Any] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure token2wav.")
    parser.add_argument("--out", type=Path, help="where the figures go, JSON")
    parser.add_argument("--plot", type=Path, help="figures to draw instead of measuring")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where plots go")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sessions", nargs="+", type=int, default=[256, 512, 768, 1000])
    parser.add_argument("--soak-s", type=float, default=60.0, help="of the sessions that hold")
    parser.add_argument("--cpu", action="store_true", help="the tiny preset on ONNX Runtime")
    parser.add_argument("--model", type=Path, help="with --cpu: an export to measure instead")
    parser.add_argument("--json", action="store_true", help="with --cpu: print JSON")
    options = parser.parse_args()
    if options.cpu:
        figures = on_cpu(options.model)
        lines = (f"{name}: {value:.4g}" for name, value in figures.items())
        print(json.dumps(figures, indent=1) if options.json else "\n".join(lines))
        return
    if options.plot:
        write_docs(json.loads(options.plot.read_text()), options.docs)
        return
    for name in options.parts:
        started = time.monotonic()
        try:
            FIGURES[name] = PARTS[name](options)
        except Exception:
            # What has been measured until now must not be lost.
            traceback.print_exc()
        print(f"{name}: {json.dumps(FIGURES.get(name))} ({time.monotonic() - started:.0f} s)")
        sys.stdout.flush()
        if options.out:
            options.out.write_text(json.dumps(FIGURES, indent=1))
        release()


def release() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def voice(seed: int = 1) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        rng.integers(0, FULL.flow.vocab_size, PROMPT_TOKENS).astype(np.int32),
        rng.normal(-4, 2, (2 * PROMPT_TOKENS, FULL.flow.output_size)).astype(np.float32),
        rng.normal(size=FULL.flow.spk_embed_dim).astype(np.float32),
        f"voice {seed}",
    )


def speech(tokens: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, FULL.flow.vocab_size, tokens).astype(np.int32)


def clips() -> list[int]:
    """Tokens of 26 clips of 170 s together, 3 to 10 s each."""
    lengths = np.linspace(3, 10, CLIPS)
    return [round(float(s)) for s in lengths * CLIPS_S / lengths.sum() * FULL.token_rate_hz]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds in the middle, at the 99th percentile, and the worst."""
    ms = np.array(seconds) * 1e3
    return {
        "p50_ms": float(np.median(ms)),
        "p99_ms": float(np.percentile(ms, 99)),
        "max_ms": float(ms.max()),
    }


def cudagraph(sessions: int) -> Token2wav:
    from duologue.engines.cudagraph.model import engine_of
    from duologue.token2wav.weights import load_preset

    return engine_of(
        load_preset("full", 1), EngineSettings(sessions=sessions, batch=BATCH, voices=2)
    )


def plain_torch() -> Token2wav:
    from duologue.engines.torch_model import engine_of
    from duologue.token2wav.weights import load_preset

    return engine_of(
        load_preset("full", 1), EngineSettings(sessions=2), device="cuda", dtype="float16"
    )


def reference(dtype: str) -> Any:
    import torch

    from benchmarks.token2wav_reference import Reference

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return Reference(getattr(torch, dtype))


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def chunk_times(model: Token2wav, count: int, tokens: int = 25) -> list[float]:
    """Seconds of each chunk of one session, once the window is full."""
    flow, vocoder = model.flow.open(voice(), 1), model.vocoder.open(1)
    times = []
    for index in range(8 + count):
        chunk = speech(tokens + FULL.look_ahead, index)

        def step(chunk: np.ndarray = chunk) -> None:
            mels = model.flow.step([FlowWork(flow, chunk, False)])
            model.vocoder.step([VocoderWork(vocoder, mels[0], False)])

        times.append(seconds(step))
    model.flow.close(flow), model.vocoder.close(vocoder)
    return times[8:]


def reference_chunk_times(dtype: str, count: int) -> list[float]:
    from benchmarks.token2wav_reference import Session

    model, who = reference(dtype), voice()
    session = Session(model, model.prompt(who.tokens, who.mel, who.embedding))
    chunks = [speech(25 + FULL.look_ahead, index) for index in range(8 + count)]
    return [seconds(lambda chunk=chunk: session.step(chunk)) for chunk in chunks][8:]


def streaming(_: Any) -> dict[str, Any]:
    """One session, 25-token chunks, 5 s prompt."""
    rows = {
        "reference fp32 (TF32)": lambda: reference_chunk_times("float32", 20),
        "reference fp16": lambda: reference_chunk_times("float16", 20),
        "ours torch fp16": lambda: chunk_times(plain_torch(), 5),
        "ours cudagraph fp16": lambda: chunk_times(cudagraph(2), CHUNKS * 5),
    }
    found: dict[str, Any] = {}
    for name, measure in rows.items():
        found[name] = spread(measure())
        release()
    best = min(found[name]["p50_ms"] for name in rows if name.startswith("reference"))
    found["speed-up over the faster reference"] = best / found["ours cudagraph fp16"]["p50_ms"]
    return found


def first_sound(_: Any) -> dict[str, Any]:
    """The first sound on the GPU."""
    return first_sound_of(cudagraph(2))


def first_sound_of(model: Token2wav) -> dict[str, Any]:
    """12 tokens and their look-ahead, of a voice that is warm, to samples on the host."""
    times, samples = [], 0
    for seed in range(CHUNKS):
        tokens = speech(12 + FULL.look_ahead, seed)
        with model.utterance(voice(), seed) as utterance:
            started = time.perf_counter()
            samples = len(utterance.push(tokens))
            times.append(time.perf_counter() - started)
    spoken = 12 * FULL.samples_per_token
    sound_ms = 1e3 * samples / FULL.hift.sample_rate_hz
    return spread(times[10:]) | {
        "tokens": 12 + FULL.look_ahead,
        "samples": samples,
        "sound_ms": sound_ms,
        "withheld_samples": spoken - samples,
    }


def reference_offline(dtype: str, who: VoicePrompt) -> float:
    model = reference(dtype)
    prompt = model.prompt(who.tokens, who.mel, who.embedding)
    for tokens in clips()[::9]:
        model.offline(speech(tokens), prompt)
    return sum(seconds(lambda n=n: model.offline(speech(n), prompt)) for n in clips())


def offline(_: Any) -> dict[str, Any]:
    """26 clips of 170 s together."""
    who, found = voice(), {}
    for name, dtype in (("reference fp32 (TF32)", "float32"), ("reference fp16", "float16")):
        found[name] = reference_offline(dtype, who)
        release()
    ours = cudagraph(32)
    batches = {}
    for batch in (1, 4, 16):
        utterances = [(speech(n, n), who, n) for n in sorted(clips())]
        groups = [utterances[i : i + batch] for i in range(0, CLIPS, batch)]
        for group in groups:
            ours.offline(group)
        batches[batch] = sum(seconds(lambda group=group: ours.offline(group)) for group in groups)
    rtf = {name: spent / CLIPS_S for name, spent in found.items()}
    best = min(found.values())
    return {
        "seconds": found | {f"ours batch {n}": spent for n, spent in batches.items()},
        "rtf": rtf | {f"ours batch {n}": spent / CLIPS_S for n, spent in batches.items()},
        "speed-up": {n: best / spent for n, spent in batches.items()},
    }


def sessions(options: Any) -> dict[str, Any]:
    """Many sessions with one voice, each 1 s of tokens a second, none in step with another."""
    import torch

    most = max(options.sessions)
    free = torch.cuda.mem_get_info()[0]
    model = cudagraph(most)
    state_mb = getattr(model.flow, "bytes_per_session", 0) / 1e6
    for part in (model.flow, model.vocoder):
        part.warm([1, 2, 4, 8, 16, 32, 64, 128], (50,))  # pyright: ignore
    curve = {count: load(model, count, 8.0) for count in options.sessions}
    held = [count for count, row in curve.items() if row["p99_ms"] <= 500]
    found = {"curve": curve, "state_mb": state_mb}
    if held:
        found["soak"] = {"sessions": max(held)} | load(model, max(held), options.soak_s)
    found["gpu_gb"] = (free - torch.cuda.mem_get_info()[0]) / 1e9
    return found


def on_cpu(folder: Path | None, threads: int = 2) -> dict[str, Any]:
    """One session on ONNX Runtime: chunks of 1 s behind a prompt of 5 s, and the first sound."""
    from duologue.token2wav import pipeline

    with tempfile.TemporaryDirectory() as aside:
        if folder is None:
            from duologue.engines.export import export_all
            from duologue.engines.graphs import random_weights

            folder = Path(aside)
            export_all(random_weights("tiny"), folder)
        model = pipeline.load(folder, "onnx", EngineSettings(sessions=1, threads=threads))
    times = chunk_times(model, CHUNKS)
    first = {f"first sound {name}": value for name, value in first_sound_of(model).items()}
    return {"rtf": float(np.mean(times)), "threads": threads, **spread(times), **first}


def load(model: Token2wav, count: int, duration_s: float) -> dict[str, Any]:
    """How late chunks are, in seconds from their last token to their samples on the host."""
    late: list[float] = []
    sent: list[float] = [0.0] * count
    lock = threading.Lock()
    errors: list[str] = []

    def ear(index: int) -> Callable[[Any], None]:
        def emit(said: Any) -> None:
            with lock:
                late.append(time.perf_counter() - sent[index])
                if said.error:
                    errors.append(str(said.error))

        return emit

    tokens = speech(25 * 64)
    with model.batcher(max_batch=BATCH) as batcher:
        begun = [
            batcher.open(voice(), index, ear(index), Schedule((25,))) for index in range(count)
        ]
        order = np.random.default_rng(1).uniform(0, 1, count).argsort()
        start = time.perf_counter() + 0.1
        for turn in range(int(duration_s)):
            for place, index in enumerate(order):
                due = start + turn + place / count
                if (wait := due - time.perf_counter()) > 0:
                    time.sleep(wait)
                # The first push of an utterance needs its look-ahead, too.
                size = 25 + (FULL.look_ahead if turn == 0 else 0)
                sent[index] = due
                begun[index].push(tokens[turn * 8 : turn * 8 + size])
        time.sleep(1.0)
        for utterance in begun:
            utterance.cancel()
    expected = count * int(duration_s)
    # What never came is as late as the run is long.
    missing = [duration_s] * (expected - len(late))
    return spread([*late, *missing]) | {
        "chunks": expected,
        "missing": len(missing),
        "errors": len(errors),
    }


def campplus(_: Any) -> dict[str, Any]:
    """Speaker embedding of a 5 s clip."""
    import torch

    from duologue.engines.cudagraph.campplus import CudaGraphCampplus
    from duologue.engines.cudagraph.graph import CapturedGraph
    from duologue.engines.torch import TorchGraph
    from duologue.token2wav.campplus import CAMPPlus
    from duologue.token2wav.ports import SIGNATURES

    torch.manual_seed(1)
    kinds = {
        "torch fp32": TorchGraph,
        "torch fp32, captured": CapturedGraph,
        "cudagraph fp16": CudaGraphCampplus,
    }
    signature = SIGNATURES["campplus"](FULL)
    fbank = {"fbank": np.random.default_rng(1).normal(size=(1, 500, 80)).astype(np.float32)}
    found = {}
    for name, kind in kinds.items():
        graph = kind(CAMPPlus().eval(), *signature, device="cuda")
        found[name] = spread(
            [seconds(lambda graph=graph: graph.run(fbank)) for _ in range(60)][10:]
        )
    return found


PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "streaming": streaming,
    "first_sound": first_sound,
    "offline": offline,
    "campplus": campplus,
    "sessions": sessions,
}

if __name__ == "__main__":
    main()
