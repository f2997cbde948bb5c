"""The clip behind which the embedded voice speaks: its one voice, out of its training speech."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from duologue.errors import UsageError
from duologue.token2wav.config import Token2wavConfig
from duologue.training.flow import voice_embedding
from duologue.training.speech import FRAMES_PER_TOKEN, Speech, normal

FILE = "voice.safetensors"
LEAST, MOST = 38, 50
"""Tokens of the clip: 1.5 to 2 s."""


def write_voice(
    speech: Speech, work: Path, config: Token2wavConfig, *, row: int | None = None
) -> int:
    """Write WORK/voice.safetensors: tokens, mel as the model has it, speaker embedding.

    Args:
        speech: With codes.
        work: Where to.
        config: Of the model.
        row: The utterance; None takes the first of the dev split that is as long as a clip is.

    Returns:
        The utterance that was taken.

    Raises:
        UsageError: there are no codes, or no utterance has the length.
    """
    if speech.codes is None:
        raise UsageError("speech has no codes; run `duologue train tokenizer` first")
    lengths = speech.starts.diff() // FRAMES_PER_TOKEN
    fitting = [at for at in speech.splits["dev"] if LEAST <= int(lengths[at]) <= MOST]
    if row is None:
        if not fitting:
            raise UsageError(f"no utterance of the dev split has {LEAST} to {MOST} tokens")
        row = fitting[0]
    first, last = int(speech.starts[row]), int(speech.starts[row + 1])
    tokens = speech.codes[first // FRAMES_PER_TOKEN : last // FRAMES_PER_TOKEN]
    embedding = voice_embedding(config.flow)
    arrays = {
        "tokens": tokens.cpu().numpy().astype(np.int32),
        "mel": normal(speech.mel[first:last]).cpu().numpy(),
        "embedding": embedding.to(torch.float32).cpu().numpy(),
    }
    work.mkdir(parents=True, exist_ok=True)
    save_file(arrays, work / FILE)
    return row


def write_held(speech: Speech, work: Path) -> Path:
    """Write WORK/held.json: text and codes of the held-out splits, for benchmarks.

    Raises:
        UsageError: there are no codes.
    """
    if speech.codes is None:
        raise UsageError("speech has no codes; run `duologue train tokenizer` first")
    codes, starts = speech.codes.tolist(), (speech.starts // FRAMES_PER_TOKEN).tolist()
    held = {
        split: [
            {"text": speech.texts[row], "codes": codes[starts[row] : starts[row + 1]]}
            for row in speech.splits[split]
        ]
        for split in ("dev", "test", "short")
    }
    path = work / "held.json"
    path.write_text(json.dumps(held, separators=(",", ":")), encoding="utf-8")
    return path
