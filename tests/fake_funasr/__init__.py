"""Models' folders for the scripted `funasr` module beside this file."""

import json
from pathlib import Path

import numpy as np

FAKE = Path(__file__).parent


def pcm(samples: int, first: int = 1) -> bytes:
    """16-bit PCM that counts up from `first`."""
    return (np.arange(first, first + samples) % 30_000).astype("<i2").tobytes()


class Folders:
    """The models' folders, and what the worker asked of them."""

    def __init__(self, root: Path):
        self.segments, self.interims, self.vad = (root / name for name in ("sense", "para", "fsmn"))
        for folder in (self.segments, self.interims, self.vad):
            folder.mkdir()
        (self.interims / "streaming").touch()

    def log(self, folder: Path) -> list[dict]:
        return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]

    def loads(self) -> int:
        return sum("load" in entry for entry in self.log(self.segments))
