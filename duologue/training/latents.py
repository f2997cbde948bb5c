"""The first half of the teacher in many processes: phoneme ids to latents.

Without PyTorch, which each process would take seconds and memory to import.
"""

import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duologue.errors import ModelError
from duologue.tts.piper import DURATIONS, HOP

LATENT = "/Mul_7_output_0"
LIVELY, TIMING, PACE = (0.33, 0.6), (0.3, 0.6), (0.95, 1.12)
"""Ranges of the voice's noise, of its timing's noise, and of its length scale."""

WAITING = 512
"""Utterances that wait for the second half at most; then the processes wait."""


class Latent(NamedTuple):
    """One utterance between the halves of the teacher.

    Attributes:
        row: Which.
        latent: float16 [channels, n].
        edges: Samples at the teacher's rate where each id ends.
    """

    row: int
    latent: np.ndarray
    edges: np.ndarray


def latents(
    front: Path,
    rows: Sequence[tuple[int, list[int]]],
    *,
    jobs: int,
    minutes: float,
    seed: int,
) -> Iterator[Latent]:
    """Latents in the order in which processes finish them, until the time is over.

    Args:
        front: ONNX file of the first half.
        rows: Number and phoneme ids of each utterance, those first that matter most.
        jobs: Processes.
        minutes: How long; each process finishes what it has begun.
        seed: Of each utterance's pace and liveliness.

    Raises:
        ModelError: the processes died.
    """
    context = multiprocessing.get_context("spawn")
    finished: Any = context.Queue(maxsize=WAITING)
    end = time.time() + 60 * minutes
    workers = [
        context.Process(
            target=_work, args=(front, rows[job::jobs], finished, end, seed + job), daemon=True
        )
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    running = jobs
    while running:
        try:
            item = finished.get(timeout=5)
        except queue.Empty:
            if not any(worker.is_alive() for worker in workers):
                raise ModelError("the teacher's processes died; their errors are above") from None
            continue
        if item is None:
            running -= 1
        else:
            yield Latent(*item)
    for worker in workers:
        worker.join()


def _work(
    front: Path, rows: Sequence[tuple[int, list[int]]], finished: Any, end: float, seed: int
) -> None:
    """One process."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(front, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    try:
        for row, ids in rows:
            if time.time() > end:
                break
            scales = [random.uniform(*LIVELY), random.uniform(*PACE), random.uniform(*TIMING)]
            latent, frames = session.run(
                [LATENT, DURATIONS],
                {
                    "input": np.array([ids], np.int64),
                    "input_lengths": np.array([len(ids)], np.int64),
                    "scales": np.array(scales, np.float32),
                },
            )
            edges = np.cumsum(np.rint(np.asarray(frames).ravel()).astype(np.int64)) * HOP
            finished.put((row, np.asarray(latent)[0].astype(np.float16), edges))
    finally:
        finished.put(None)
