"""Sounds that are no words, as speech tokens: the teacher makes them, the tokenizer hears them.

A teacher that only reads has no laugh and no sigh of its own, but its quick "ha ha ha ha" has a
laugh's rhythm, and its slow "hah" falls as a sigh does.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from duologue.audio.mel import flow_mel
from duologue.audio.pcm import resample
from duologue.errors import ModelError
from duologue.talker.config import Sound
from duologue.training.speech import FRAMES_PER_TOKEN, HOP, RATE_HZ, normal
from duologue.training.tokenizer import MARGIN, MELS, Tokenizer
from duologue.tts.piper import PiperVoice

FILE = "sounds.json"
SAID: dict[Sound, tuple[str, float]] = {"laugh": ("Ha ha ha ha!", 1.25), "sigh": ("Hahh.", 0.55)}
"""What the teacher says for a sound, and how fast."""


def write_sounds(work: Path, teacher: Path) -> Path:
    """Write WORK/sounds.json, the codes of each sound.

    Args:
        work: Holds tokenizer.safetensors.
        teacher: Folder of a Piper voice.

    Raises:
        ModelError: the tokenizer cannot be read.
        EngineError: the teacher cannot speak.
    """
    tokenizer = Tokenizer().eval()
    path = work / "tokenizer.safetensors"
    try:
        tokenizer.load_state_dict({k: v.float() for k, v in load_file(path).items()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); run its stage first") from error
    codes = {name: _codes(tokenizer, _said(teacher, *said)) for name, said in SAID.items()}
    (work / FILE).write_text(json.dumps(codes), encoding="utf-8")
    return work / FILE


def _said(teacher: Path, text: str, speed: float) -> np.ndarray:
    voice = PiperVoice(teacher, speed=speed)
    try:
        samples = resample(voice.synthesize(text).samples, voice.rate_hz, RATE_HZ)
    finally:
        voice.close()
    token = HOP * FRAMES_PER_TOKEN
    return np.pad(samples, (0, -len(samples) % token))


def _codes(tokenizer: Tokenizer, samples: np.ndarray) -> list[int]:
    mel = torch.from_numpy(flow_mel(samples))
    quiet = torch.full((MARGIN, MELS), float(np.log(1e-5)))
    with torch.no_grad():
        [codes] = tokenizer.codes(normal(torch.cat([quiet, mel, quiet]))[None])
    return codes[MARGIN // FRAMES_PER_TOKEN : -MARGIN // FRAMES_PER_TOKEN].tolist()
