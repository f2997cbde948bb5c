"""The teacher's speech as training reads it: utterances laid end to end, all on one device.

A row of the data set lies in WORK/speech as plain .npy files. Utterances are ordered by split, so
that each split is one stretch of frames, and a window of the stretch is speech as a call has it:
clause after clause.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from duologue.audio.mel import (
    FLOW_HOP,
    FLOW_MAX_HZ,
    FLOW_N_FFT,
    FLOW_N_MELS,
    FLOW_RATE_HZ,
    slaney_filters,
)
from duologue.errors import ModelError

RATE_HZ, HOP, MELS = FLOW_RATE_HZ, FLOW_HOP, FLOW_N_MELS
FRAMES_PER_TOKEN = 2
SPLITS = ("train", "dev", "test", "short")

MEL_MEAN, MEL_SCALE = -5.4, 2.8
"""The embedded model's mel is the flow's log-mel, moved and scaled to about a unit normal."""

ARRAYS = {
    "audio": np.int16,
    "mel": np.float16,
    "f0": np.float16,
    "phones": np.uint8,
    "starts": np.int64,
}


@dataclass(frozen=True, slots=True)
class Speech:
    """Utterances end to end.

    Attributes:
        audio: int16 [frames * 480], 24 kHz.
        mel: float16 [frames, 80], `duologue.audio.mel.flow_mel` of it, 50 frames a second.
        f0: float16 [frames], Hz, 0 where unvoiced.
        phones: uint8 [frames], the teacher's phoneme, 0 for silence.
        starts: int64 [utterances + 1] on the CPU, first frame of each; each is a whole number of
            tokens long.
        texts: What each says.
        splits: Which utterances are of each split, as a range.
        codes: int16 [frames / 2], speech tokens, once the tokenizer has made them; else None.
    """

    audio: Tensor
    mel: Tensor
    f0: Tensor
    phones: Tensor
    starts: Tensor
    texts: list[str]
    splits: dict[str, range]
    codes: Tensor | None = None

    def frames(self, split: str) -> tuple[int, int]:
        """The stretch of frames of a split."""
        rows = self.splits[split]
        return int(self.starts[rows.start]), int(self.starts[rows.stop])


def load_speech(
    work: Path, device: torch.device, *, audio: bool = True, codes: bool = False
) -> Speech:
    """Read the data set of a work folder.

    Args:
        work: The folder.
        device: Where it is to lie.
        audio: Whether samples are needed, which are most of it; if not, there are none.
        codes: Whether speech tokens are.

    Raises:
        ModelError: a stage that comes before has not been run there.
    """
    folder = work / "speech"
    names = [*ARRAYS, *(["codes"] if codes else [])]
    try:
        arrays = {
            name: torch.from_numpy(np.load(folder / f"{name}.npy"))
            for name in names
            if audio or name != "audio"
        }
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        before = "`duologue train speech`" + (" and `duologue train tokenizer`" if codes else "")
        raise ModelError(f"{folder} is not whole ({error}); run {before} first") from error
    splits = {name: range(*index["splits"][name]) for name in SPLITS}
    starts = arrays.pop("starts")
    lying = {name: array.to(device) for name, array in arrays.items()}
    lying.setdefault("audio", torch.zeros(0, dtype=torch.int16, device=device))
    return Speech(**lying, starts=starts, texts=index["texts"], splits=splits)


def save_speech(speech: Speech, work: Path) -> None:
    """Write a data set."""
    folder = work / "speech"
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in ARRAYS.items():
        np.save(folder / f"{name}.npy", getattr(speech, name).cpu().numpy().astype(kind))
    splits = {name: [rows.start, rows.stop] for name, rows in speech.splits.items()}
    index = {"texts": speech.texts, "splits": splits}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def windows(low: int, high: int, size: int, count: int, multiple: int, device: torch.device):
    """Frames of random windows within [low, high), int64 [count, size].

    Windows begin at a multiple; nothing waits for the device.
    """
    places = (high - low - size) // multiple
    first = low + multiple * torch.randint(0, places + 1, (count, 1), device=device)
    return first + torch.arange(size, device=device)


def normal(mel: Tensor) -> Tensor:
    """Log-mel as the embedded model has it, float32."""
    return (mel.float() - MEL_MEAN) / MEL_SCALE


class LogMel(torch.nn.Module):
    """`duologue.audio.mel.flow_mel` on any device, of other sizes too."""

    def __init__(
        self,
        n_fft: int = FLOW_N_FFT,
        hop: int = FLOW_HOP,
        mels: int = FLOW_N_MELS,
        max_hz: float = FLOW_MAX_HZ,
    ):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.filters: Tensor
        self.window: Tensor
        filters = slaney_filters(RATE_HZ, n_fft, mels, max_hz)
        self.register_buffer("filters", torch.from_numpy(filters.copy()))
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, samples: Tensor) -> Tensor:
        """Samples [batch, n] to [batch, n // hop, mels]."""
        edge = (self.n_fft - self.hop) // 2
        padded = torch.nn.functional.pad(samples[:, None], (edge, edge), mode="reflect")[:, 0]
        spectrum = torch.stft(
            padded, self.n_fft, self.hop, window=self.window, center=False, return_complex=True
        )
        magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
        return torch.log((self.filters @ magnitude).clamp(min=1e-5)).transpose(1, 2)
