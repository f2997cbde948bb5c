"""Stage `talker`: a small causal LM from the bytes of a clause to its speech tokens.

Rows hold several utterances, each of which sees only itself, so that little is padding. Some codes
that the model reads are replaced at random, since at run time it reads its own. A head that only
training has tells the phonemes of the next token: without it, spelling is learnt late.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.talker.config import CODES, END, FIRST_CODE, TalkerConfig, text_ids
from duologue.talker.model import Talker
from duologue.training.loop import OneModel, Settings, half, train
from duologue.training.speech import FRAMES_PER_TOKEN, Speech
from duologue.training.tokenizer import PHONES

ROW = 512
"""Ids of a row."""

BATCH = 64
DROPOUT, LARGEST_NOISE, PHONE_WEIGHT = 0.2, 0.25, 0.4
NOTHING = -100
"""A label that has no loss."""

LABELS = 1 + FRAMES_PER_TOKEN


class Example(NamedTuple):
    """One utterance.

    Attributes:
        ids: int32 [n].
        labels: int32 [n, 3]: the next id, where it is a code or the end, and its two phonemes.
    """

    ids: np.ndarray
    labels: np.ndarray


class Network(nn.Module):
    """The talker, and the head for phonemes."""

    def __init__(self, config: TalkerConfig):
        super().__init__()
        self.talker = Talker(config)
        self.phones = nn.Linear(config.hidden_size, FRAMES_PER_TOKEN * PHONES)
        nn.init.normal_(self.talker.get_parameter("model.embed_tokens.weight"), std=0.02)
        for name, weight in self.talker.named_parameters():
            if name.endswith("proj.weight"):
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * config.layers) ** 0.5 if deep else 1))


def example(speech: Speech, codes: np.ndarray, phones: np.ndarray, row: int, text: str) -> Example:
    """The ids and labels of an utterance; `codes` and `phones` are those of all speech."""
    low, high = int(speech.starts[row]), int(speech.starts[row + 1])
    spoken = codes[low // FRAMES_PER_TOKEN : high // FRAMES_PER_TOKEN].astype(np.int32) + FIRST_CODE
    prompt = np.array(text_ids(text), np.int32)
    ids = np.concatenate([prompt, spoken, [END]])
    labels = np.full((len(ids), LABELS), NOTHING, np.int32)
    first = len(prompt) - 1
    labels[first:-1, 0] = ids[first + 1 :]
    labels[first : first + len(spoken), 1:] = phones[low:high].reshape(-1, FRAMES_PER_TOKEN)
    return Example(ids, labels)


def pack(examples: list[Example], order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of utterances: ids int32 [rows, n], labels int32 [rows, n, 3], document int16 [rows, n].

    First fit over a few open rows; what ends a row is padding of no document.
    """
    ids, labels, document = [], [], []
    open_rows: list[list[Example]] = []
    free: list[int] = []

    def close(index: int) -> None:
        row, left = open_rows.pop(index), free.pop(index)
        pad = Example(np.zeros(left, np.int32), np.full((left, LABELS), NOTHING, np.int32))
        ids.append(np.concatenate([part.ids for part in (*row, pad)]))
        labels.append(np.concatenate([part.labels for part in (*row, pad)]))
        sizes = [len(part.ids) for part in (*row, pad)]
        document.append(np.repeat(np.arange(len(sizes)), sizes))

    for i in order:
        size = len(examples[i].ids)
        if size > ROW:
            continue
        place = next((k for k, left in enumerate(free) if left >= size), None)
        if place is None:
            if len(free) == 16:
                close(int(np.argmin(free)))
            open_rows.append([])
            free.append(ROW)
            place = len(free) - 1
        open_rows[place].append(examples[i])
        free[place] -= size
    while open_rows:
        close(0)
    return np.stack(ids), np.stack(labels), np.stack(document).astype(np.int16)


class TalkerTask:
    """See `loop.Task`."""

    name, peak, weight_decay = "talker", 1.5e-3, 0.1

    def __init__(
        self, speech: Speech, settings: Settings, config: TalkerConfig, *, batch: int = BATCH
    ):
        assert speech.codes is not None
        self._batch, self._device = batch, settings.device
        torch.manual_seed(settings.seed)
        self.model = Network(config).to(settings.device)
        codes, phones = speech.codes.cpu().numpy(), speech.phones.cpu().numpy()
        examples = {
            split: [
                example(speech, codes, phones, row, speech.texts[row])
                for row in speech.splits[split]
            ]
            for split in ("train", "dev")
        }
        self._examples = examples["train"]
        self._random = np.random.default_rng(settings.seed)
        self._dev = self._rows(examples["dev"], np.arange(len(examples["dev"])))
        self._train = self._rows(self._examples, self._random.permutation(len(self._examples)))
        self._next = torch.zeros((), dtype=torch.int64, device=settings.device)
        self._steps = 0
        self._autocast = half(settings.device)

    def _rows(self, examples: list[Example], order: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        ids, labels, document = (torch.from_numpy(a) for a in pack(examples, order))
        return ids.to(self._device), labels.to(self._device), document.to(self._device)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of the next code and of its phonemes."""
        ids, labels, document = self._train
        rows = (self._next + torch.arange(self._batch, device=self._device)) % len(ids)
        self._next.add_(self._batch).remainder_(len(ids))
        read = self._disturbed(ids[rows].long())
        with self._autocast:
            code, phone = _losses(self.model, read, labels[rows].long(), document[rows], DROPOUT)
        return code + PHONE_WEIGHT * phone, {"code": code, "phone": phone}

    def _disturbed(self, ids: Tensor) -> Tensor:
        """Ids with codes replaced, at a rate of each row's own."""
        rate = LARGEST_NOISE * torch.rand(len(ids), 1, device=self._device)
        replaced = (torch.rand(ids.shape, device=self._device) < rate) & (ids >= FIRST_CODE)
        return torch.where(replaced, FIRST_CODE + torch.randint_like(ids, CODES), ids)

    def look(self, model: nn.Module) -> dict[str, float]:
        """Losses on the dev split, and how often the likeliest phonemes of the next token fit."""
        assert isinstance(model, Network)
        ids, labels, document = self._dev
        code, phone = _losses(model, ids.long(), labels.long(), document, 0.0)
        hidden, _ = model.talker.hidden(ids.long(), None, document=document)
        said = model.phones(hidden).unflatten(-1, (FRAMES_PER_TOKEN, PHONES)).argmax(-1)
        sounding = labels[..., 1:] > 0
        right = (said == labels[..., 1:])[sounding].float().mean()
        return {
            "dev_code": float(code),
            "dev_phone": float(phone),
            "dev_phone_accuracy": float(right),
        }

    def shipped(self, model: nn.Module) -> nn.Module:
        """The talker without the head for phonemes."""
        assert isinstance(model, Network)
        return model.talker

    def after_step(self) -> None:
        """Once all rows have been read, utterances are packed anew, into the same tensors."""
        self._steps += 1
        if self._steps * self._batch < len(self._train[0]):
            return
        self._steps = 0
        order = self._random.permutation(len(self._examples))
        fresh = self._rows(self._examples, order)
        rows = min(len(fresh[0]), len(self._train[0]))
        for kept, new in zip(self._train, fresh, strict=True):
            kept[:rows].copy_(new[:rows])


def _losses(
    model: Network, ids: Tensor, labels: Tensor, document: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropies of the next code and of its phonemes."""
    hidden, _ = model.talker.hidden(ids, None, document=document, dropout=dropout)
    logits = model.talker.head(hidden).float()
    code = F.cross_entropy(logits.flatten(0, 1), labels[..., 0].flatten(), ignore_index=NOTHING)
    phones = model.phones(hidden).float().unflatten(-1, (FRAMES_PER_TOKEN, PHONES))
    phone = F.cross_entropy(phones.flatten(0, 2), labels[..., 1:].flatten(), ignore_index=NOTHING)
    return code, phone


def train_talker(
    speech: Speech, settings: Settings, config: TalkerConfig, *, batch: int = BATCH
) -> Path:
    """Train; WORK/talker.safetensors."""
    return train(OneModel(TalkerTask(speech, settings, config, batch=batch)), settings)
