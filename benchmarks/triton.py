"""What a Triton server costs a chunk of token2wav, beside a server of `duologue serve`'s.

The tiny preset with random weights, all on this machine; one session, one chunk of 1 s after
another, each from its last token to its sound. Every way's sound is compared with the engine's.

    make triton
    python -m benchmarks.triton
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.cluster import chunk_times, one_server, prepare, spread, whole
from duologue.serving.remote import RemoteBatcher
from tests.deploy.ray_cluster import TOKEN, Model
from tests.deploy.triton_server import Triton


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a Triton server.")
    parser.add_argument("--utterances", type=int, default=20, help="of 8 s each, for each way")
    options = parser.parse_args()
    os.environ["DUOLOGUE_SERVE_TOKEN"] = TOKEN
    with tempfile.TemporaryDirectory() as aside:
        bench = prepare(Path(aside), sessions=8)
        model = Model(Path(aside), 8, bench.voice)
        with (
            bench.batcher,
            Triton(model) as triton,
            one_server(bench) as server,
            RemoteBatcher([server]) as near,
            RemoteBatcher([triton.url]) as far,
        ):
            ways = {"in process": bench.batcher, "server": near, "triton": far}
            print(json.dumps(figures(bench.voice, ways, options.utterances), indent=1))


def figures(voice, ways: dict, utterances: int) -> dict:
    opening, chunks = {way: [] for way in ways}, {way: [] for way in ways}
    for batcher in ways.values():
        chunk_times(batcher, voice, 0)
    for seed in range(1, utterances + 1):
        # In turn, so that what else the machine does meets all of them.
        for way, batcher in ways.items():
            opened, *rest = chunk_times(batcher, voice, seed)
            opening[way].append(opened)
            chunks[way] += rest
    base = np.array(chunks["in process"])
    expected, *found = (whole(batcher, voice, 1) for batcher in ways.values())
    return {
        **{way: {"open": spread(opening[way]), "chunk": spread(chunks[way])} for way in ways},
        "added to a chunk, p50_ms": {
            way: float(np.median(np.array(chunks[way]) - base)) * 1e3 for way in list(ways)[1:]
        },
        "largest difference": float(max(np.abs(samples - expected).max() for samples in found)),
    }


if __name__ == "__main__":
    main()
