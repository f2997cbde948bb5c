"""Stage `tokenizer`: mel to 25 speech tokens a second, supervised by the teacher's phonemes.

Finite scalar quantisation (Mentzer et al. 2023, arXiv 2309.15505) with eight digits of three
values, as S3 tokenizers have it (Du et al. 2024, arXiv 2412.10117). What a token must tell is the
two phonemes and the pitch of its frames, and coarsely their mel: what text can predict comes first.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.errors import EngineError
from duologue.training.loop import OneModel, Settings, half, train
from duologue.training.speech import FRAMES_PER_TOKEN, MELS, Speech, normal, windows

DIGITS, LEVELS = 8, 3
CODES = LEVELS**DIGITS
PHONES = 256
WIDTH = 256
WINDOW = 160
"""Frames of a training window."""

BATCH = 192
MARGIN = 48
"""Silent frames around an utterance, more than the encoder sees: codes do not depend on padding."""
GATE = 0.80
"""Held-out phoneme accuracy below which flow and talker are not worth training."""


class Block(nn.Module):
    """A ConvNeXt block (Liu et al. 2022, arXiv 2201.03545) over time; norms are by frame."""

    def __init__(self, width: int, kernel: int, dropout: float):
        super().__init__()
        self.mix = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """[batch, n, width] to the same."""
        y = self.norm(self.mix(x.transpose(1, 2)).transpose(1, 2))
        y = self.shrink(F.gelu(self.grow(y)))
        return x + F.dropout(y, self.dropout, self.training)


class Tokenizer(nn.Module):
    """Encoder, quantiser, and the heads that only training needs."""

    def __init__(self, width: int = WIDTH, dropout: float = 0.1):
        super().__init__()
        self.stem = nn.Conv1d(MELS, width, 3, padding=1)
        self.fine = nn.Sequential(*(Block(width, 7, dropout) for _ in range(3)))
        self.down = nn.Linear(FRAMES_PER_TOKEN * width, width)
        self.coarse = nn.Sequential(*(Block(width, 7, dropout) for _ in range(4)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, DIGITS))
        self.back = nn.Linear(DIGITS, width)
        self.context = nn.Sequential(*(Block(width, 5, dropout) for _ in range(2)))
        self.alone = nn.Sequential(nn.Linear(DIGITS, width), nn.GELU(), nn.Linear(width, width))
        heads = FRAMES_PER_TOKEN * (PHONES + MELS + 2)
        self.heads = nn.Linear(width, heads)
        self.phones_alone = nn.Linear(width, FRAMES_PER_TOKEN * PHONES)

    def digits(self, mel: Tensor) -> Tensor:
        """Normal mel [batch, frames, 80] to digits -1, 0, 1, [batch, frames / 2, 8]."""
        x = self.fine(self.stem(mel.transpose(1, 2)).transpose(1, 2))
        x = self.coarse(self.down(x.unflatten(1, (-1, FRAMES_PER_TOKEN)).flatten(2)))
        bounded = torch.tanh(self.last(x))
        # The rounding has no gradient of its own.
        return bounded + (bounded.round() - bounded).detach()

    def codes(self, mel: Tensor) -> Tensor:
        """Normal mel [batch, frames, 80] to tokens, int64 [batch, frames / 2]."""
        places = LEVELS ** torch.arange(DIGITS, device=mel.device)
        return ((self.digits(mel).round().long() + 1) * places).sum(-1)

    def read(self, digits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Digits to what they tell of each frame.

        Returns:
            Phoneme logits [batch, frames, 256], those of each token without its neighbours, mel
            [batch, frames, 80], and log2 pitch with voicing logit [batch, frames, 2].
        """
        wide = self.heads(self.context(self.back(digits)))
        frames = wide.unflatten(2, (FRAMES_PER_TOKEN, -1)).flatten(1, 2)
        alone = self.phones_alone(self.alone(digits)).unflatten(2, (FRAMES_PER_TOKEN, -1))
        phones, mel, pitch = frames.split([PHONES, MELS, 2], -1)
        return phones, alone.flatten(1, 2), mel, pitch


class TokenizerTask:
    """See `loop.Task`."""

    name, peak, weight_decay = "tokenizer", 1.5e-3, 0.02

    def __init__(self, speech: Speech, settings: Settings, *, batch: int = BATCH):
        self._speech, self._batch = speech, batch
        torch.manual_seed(settings.seed)
        self.model = Tokenizer().to(settings.device)
        self._autocast = half(settings.device)
        device = settings.device
        self._bounds = speech.frames("train")
        lengths = self._bounds[1] - self._bounds[0]
        self._window = min(WINDOW, lengths // 4 * 2)
        self._device = device

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of phonemes, and how far mel and pitch are off."""
        at = windows(*self._bounds, self._window, self._batch, 1, self._device)
        mel = normal(self._speech.mel[at])
        # Louder, softer and hissier than the teacher ever is.
        loud = 0.3 * torch.randn(self._batch, 1, 1, device=self._device)
        noisy = mel + loud + 0.1 * torch.randn_like(mel)
        with self._autocast:
            phones, alone, told, pitch = self.model.read(self.model.digits(noisy))
        labels = self._speech.phones[at].long()
        f0 = self._speech.f0[at].float()
        voiced = (f0 > 0).float()
        phone = F.cross_entropy(phones.float().flatten(0, 1), labels.flatten())
        lone = F.cross_entropy(alone.float().flatten(0, 1), labels.flatten())
        shape = (told.float() - mel).abs().mean()
        octaves = (pitch[..., 0].float() - torch.log2(f0.clamp(min=60) / 110) * 2).abs()
        tone = (octaves * voiced).sum() / voiced.sum().clamp(min=1)
        voicing = F.binary_cross_entropy_with_logits(pitch[..., 1].float(), voiced)
        total = phone + 0.5 * lone + 0.6 * shape + 0.5 * tone + 0.2 * voicing
        right = (phones.argmax(-1) == labels).float().mean()
        figures = {"loss": total, "phone": phone, "alone": lone, "mel": shape, "tone": tone}
        return total, {**figures, "accuracy": right}

    def look(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on the dev split, frame by frame outside silence, and how codes are used."""
        assert isinstance(model, Tokenizer)
        low, high = self._speech.frames("dev")
        mel, labels = self._speech.mel[low:high], self._speech.phones[low:high].long()
        phones, alone, told, _ = model.read(model.digits(normal(mel)[None]))
        sounding = labels > 0
        counts = torch.bincount(model.codes(normal(mel)[None])[0], minlength=CODES).float()
        share = counts[counts > 0] / counts.sum()
        return {
            "dev_accuracy": float((phones[0].argmax(-1) == labels)[sounding].float().mean()),
            "dev_alone": float((alone[0].argmax(-1) == labels)[sounding].float().mean()),
            "dev_mel": float((told[0] - normal(mel)).abs().mean()),
            "dev_bits": float(-(share * share.log2()).sum()),
            "dev_codes": float((counts > 0).sum()),
        }

    def shipped(self, model: nn.Module) -> nn.Module:
        """All of it."""
        return model

    def after_step(self) -> None:
        """Windows are drawn anew each step."""


def train_tokenizer(
    speech: Speech, settings: Settings, *, batch: int = BATCH, gate: float = GATE
) -> Path:
    """Train, and write the codes of all speech too; WORK/tokenizer.safetensors.

    Raises:
        EngineError: its held-out phoneme accuracy is below `gate`.
    """
    stage = OneModel(TokenizerTask(speech, settings, batch=batch))
    path = train(stage, settings)
    if (accuracy := stage.look()["dev_accuracy"]) < gate:
        raise EngineError(
            f"the tokenizer tells {accuracy:.0%} of held-out phonemes, expected {gate:.0%}; train "
            "it for longer (--resume) or on more speech"
        )
    model = stage.average.model
    assert isinstance(model, Tokenizer)
    np.save(settings.work / "speech" / "codes.npy", encode(model, speech))
    return path


def encode(model: Tokenizer, speech: Speech, *, frames: int = 60_000) -> np.ndarray:
    """The codes of all speech, int16 [frames / 2]; each utterance alone, as its text is alone.

    Args:
        model: The tokenizer.
        speech: What to encode.
        frames: Most frames of one batch, padding included.
    """
    starts = speech.starts.tolist()
    codes = np.zeros(starts[-1] // FRAMES_PER_TOKEN, np.int16)
    order = sorted(range(len(starts) - 1), key=lambda i: starts[i + 1] - starts[i])
    with torch.no_grad():
        for batch in _batches(order, starts, frames):
            longest = starts[batch[-1] + 1] - starts[batch[-1]] + 2 * MARGIN
            mel = speech.mel.new_full((len(batch), longest, MELS), float(np.log(1e-5)))
            for row, i in enumerate(batch):
                said = speech.mel[starts[i] : starts[i + 1]]
                mel[row, MARGIN : MARGIN + len(said)] = said
            found = model.codes(normal(mel))[:, MARGIN // FRAMES_PER_TOKEN :].cpu().numpy()
            for row, i in enumerate(batch):
                low, high = starts[i] // FRAMES_PER_TOKEN, starts[i + 1] // FRAMES_PER_TOKEN
                codes[low:high] = found[row, : high - low]
    return codes


def _batches(order: Sequence[int], starts: Sequence[int], frames: int):
    batch: list[int] = []
    for i in order:
        if batch and (starts[i + 1] - starts[i]) * (len(batch) + 1) > frames:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
