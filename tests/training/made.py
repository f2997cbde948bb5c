"""A few seconds of made-up speech for the stages to train on."""

from collections.abc import Callable

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from duologue.training.speech import HOP, RATE_HZ, SPLITS, LogMel, Speech

CPU = torch.device("cpu")
WORDS = ("yes", "no", "maybe so", "hello there", "good morning, all")


def made_speech(utterances: int = 24, *, seed: int = 0) -> Speech:
    """Harmonic tones, each of its own pitch and phoneme, with codes; held-out splits have a sixth
    each."""
    random = np.random.default_rng(seed)
    parts, f0, phones = [], [], []
    lengths = random.integers(20, 40, utterances) * 2
    for frames in lengths:
        hz = np.repeat(random.uniform(90, 200, frames // 10 + 1), 10)[:frames]
        cycles = np.cumsum(np.repeat(hz, HOP) / RATE_HZ)
        parts.append(sum(np.sin(2 * np.pi * k * cycles) / k for k in range(1, 8)) * 0.1)
        f0.append(hz)
        phones.append(np.floor(hz / 20) + 20)
    audio = torch.from_numpy(np.concatenate(parts)).float()
    edges = [0, utterances // 2, *(utterances * k // 6 for k in (4, 5, 6))]
    splits = {
        name: range(low, high)
        for name, low, high in zip(SPLITS, edges[:-1], edges[1:], strict=True)
    }
    labels = torch.from_numpy(np.concatenate(phones)).byte()
    return Speech(
        audio=(audio * 32_767).short(),
        mel=LogMel()(audio[None])[0].half(),
        f0=torch.from_numpy(np.concatenate(f0)).half(),
        phones=labels,
        starts=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        texts=[WORDS[i % len(WORDS)] for i in range(utterances)],
        splits=splits,
        codes=(labels[::2].short() * 37) % 6561,
    )


def waiting_calls(loss: Callable[[], torch.Tensor]) -> set[str]:
    """What in a loss and its gradient waits for the device, or is copied to it.

    Either would end the capture of a step.
    """
    called = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        loss().backward()
    assert "mm" in called or "convolution" in called
    return called & {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh"}
