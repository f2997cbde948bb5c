"""Speech of a teacher voice, with the phoneme and the pitch of every frame.

A Piper voice (VITS) is cut in two: text to latents runs on all cores by ONNX Runtime, latents to
samples in batches on the training device, where nearly all of its arithmetic is. Sixteen cores and
a GPU make hours of speech in a minute.
"""

import json
import lzma
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from duologue.errors import ModelError
from duologue.training.latents import LATENT, Latent, latents
from duologue.training.pitch import pitch
from duologue.training.speech import FRAMES_PER_TOKEN, HOP, RATE_HZ, SPLITS, LogMel, Speech
from duologue.tts.piper import DURATIONS
from duologue.tts.piper import HOP as TEACHER_HOP

SOUND = "/dec/Tanh_output_0"
UP, DOWN = 160, 147
"""24 kHz over 22.05 kHz."""

SILENT_IDS = 16
"""Piper's ids below this are pads, marks and the space."""

BATCH_FRAMES = 60_000
"""Latent frames that one batch holds, padding included."""


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence of `duologue train texts`."""

    text: str
    ids: list[int]
    split: str


def read_texts(path: Path) -> list[Text]:
    """The sentences of a texts.jsonl.xz.

    Raises:
        ModelError: it is missing or damaged.
    """
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [Text(row["text"], row["ids"], row["split"]) for row in rows]
    except (OSError, EOFError, ValueError, KeyError, lzma.LZMAError) as error:
        raise ModelError(f"{path} cannot be read ({error}); run `duologue train texts`") from error


def synthesize(
    texts: list[Text], voice: Path, device: torch.device, *, minutes: float, jobs: int, seed: int
) -> Speech:
    """Speak as many sentences as the time allows, those of the held-out splits first.

    Args:
        texts: What to say; the training split is taken in a random order.
        voice: Folder of the Piper voice.
        device: Where samples, mel and pitch are computed.
        minutes: How long; everything that has been begun is finished.
        jobs: Processes for the first half.
        seed: Of the order, and of each sentence's pace and liveliness. The teacher's own noise
            cannot be seeded.
    """
    order = np.random.default_rng(seed).permutation(len(texts))
    held = [i for i in order if texts[i].split != "train"]
    rows = held + [i for i in order if texts[i].split == "train"]
    model = next(iter(sorted(voice.glob("*.onnx"))), None)
    if model is None:
        raise ModelError(f"{voice}: found no *.onnx; run `duologue models fetch`")
    with tempfile.TemporaryDirectory() as aside:
        front = Path(aside, "front.onnx")
        cut(model, front)
        back = Back(model).to(device).eval()
        sentences = [(int(i), texts[i].ids) for i in rows]
        made: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        with torch.no_grad():
            made_latents = latents(front, sentences, jobs=jobs, minutes=minutes, seed=seed)
            for batch in _batches(made_latents):
                made.update(_finish(batch, [texts[item.row].ids for item in batch], back, device))
    return _lay(texts, made)


def cut(model: Path, front: Path) -> None:
    """Write the teacher's first half, which gives latents and durations."""
    import onnx
    from onnx.utils import Extractor

    inputs = ["input", "input_lengths", "scales"]
    onnx.save(Extractor(onnx.load(model)).extract_model(inputs, [LATENT, DURATIONS]), front)


class Back(torch.nn.Module):
    """The teacher's second half, as its nodes say: a HiFi-GAN generator."""

    def __init__(self, model: Path):
        import onnx
        from onnx.helper import get_attribute_value
        from onnx.numpy_helper import to_array

        super().__init__()
        graph = onnx.load(model).graph
        self._nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []
        for node in graph.node:
            if node.name.startswith("/dec/"):
                attributes = {a.name: get_attribute_value(a) for a in node.attribute}
                self._nodes.append((node.op_type, list(node.input), node.output[0], attributes))
        needed = {name for _, names, _, _ in self._nodes for name in names}
        for tensor in graph.initializer:
            if tensor.name in needed:
                array = torch.from_numpy(to_array(tensor).astype(np.float32))
                self.register_buffer(tensor.name.replace(".", "-"), array)
        self._constants = {
            node.output[0]: float(to_array(node.attribute[0].t))
            for node in graph.node
            if node.op_type == "Constant" and node.output[0] in needed
        }

    def forward(self, latent: Tensor) -> Tensor:
        """[batch, channels, n] to samples [batch, 256 n]."""
        values: dict[str, Any] = {**self._constants, LATENT: latent}
        for name, buffer in self.named_buffers():
            values[name.replace("-", ".")] = buffer
        for kind, names, output, attributes in self._nodes:
            values[output] = _OPERATORS[kind]([values[name] for name in names], attributes)
        return values[SOUND][:, 0]


def _convolve(inputs: list[Tensor], attributes: dict[str, Any]) -> Tensor:
    [before, behind], [dilation] = attributes["pads"], attributes["dilations"]
    assert before == behind
    return F.conv1d(*inputs, padding=before, dilation=dilation)  # type: ignore[misc]


def _convolve_up(inputs: list[Tensor], attributes: dict[str, Any]) -> Tensor:
    [before, _], [stride] = attributes["pads"], attributes["strides"]
    return F.conv_transpose1d(*inputs, stride=stride, padding=before)  # type: ignore[misc]


_OPERATORS = {
    "Conv": _convolve,
    "ConvTranspose": _convolve_up,
    "LeakyRelu": lambda inputs, attributes: F.leaky_relu(inputs[0], attributes["alpha"]),
    "Add": lambda inputs, _: inputs[0] + inputs[1],
    "Div": lambda inputs, _: inputs[0] / inputs[1],
    "Tanh": lambda inputs, _: torch.tanh(inputs[0]),
}


def _batches(latents: Iterator[Latent]) -> Iterator[list[Latent]]:
    """Utterances of similar lengths together, so that little is padding."""
    waiting: list[Latent] = []
    for item in latents:
        waiting.append(item)
        if len(waiting) == 1024:
            yield from _cut_batches(waiting)
            waiting = []
    yield from _cut_batches(waiting)


def _cut_batches(items: list[Latent]) -> Iterator[list[Latent]]:
    batch: list[Latent] = []
    for item in sorted(items, key=lambda item: item.latent.shape[1]):
        if batch and item.latent.shape[1] * (len(batch) + 1) > BATCH_FRAMES:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _finish(
    batch: list[Latent], ids: list[list[int]], back: Back, device: torch.device
) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """Audio, mel, pitch and phonemes of each utterance of a batch, on the CPU."""
    sizes = [item.latent.shape[1] for item in batch]
    latent = np.zeros((len(batch), len(batch[0].latent), max(sizes) + 8), np.float16)
    for index, item in enumerate(batch):
        latent[index, :, : sizes[index]] = item.latent
    sound = back(torch.from_numpy(latent).to(device).float())
    lengths = torch.tensor(sizes, device=device)[:, None] * TEACHER_HOP
    silenced = sound * (torch.arange(sound.shape[1], device=device) < lengths)
    # Rounded, because all that follows is to be of the samples that are kept.
    audio = (resample(silenced) * 32_767).round().clamp(-32_768, 32_767)
    frames = [_whole_tokens(size * TEACHER_HOP * UP // DOWN) for size in sizes]
    wide = F.pad(audio, (0, max(0, max(frames) * HOP - audio.shape[1])))[:, : max(frames) * HOP]
    mel = LogMel().to(device)(wide / 32_768).half().cpu()
    hz = pitch(wide / 32_768, RATE_HZ, HOP).half().cpu()
    samples = wide.to(torch.int16).cpu()
    for index, (item, count) in enumerate(zip(batch, frames, strict=True)):
        phones = torch.from_numpy(phones_of_frames(ids[index], item.edges, count))
        # Copies, so that a batch's padding is not kept.
        yield (
            item.row,
            (
                samples[index, : count * HOP].clone(),
                mel[index, :count].clone(),
                hz[index, :count].clone(),
                phones,
            ),
        )


def _whole_tokens(samples: int) -> int:
    """Frames that hold so many samples, in whole tokens."""
    size = HOP * FRAMES_PER_TOKEN
    return FRAMES_PER_TOKEN * ((samples + size - 1) // size)


def phones_of_frames(ids: list[int], edges: np.ndarray, frames: int) -> np.ndarray:
    """The phoneme at the middle of each frame, uint8 [frames], 0 for silence.

    Args:
        ids: Piper's; 0 stands between any two and shares its time between them.
        edges: Where each id ends, in samples at the teacher's rate.
        frames: At 24 kHz.
    """
    sounds, ends = np.array(ids[::2]), np.concatenate([[0], edges]).astype(np.float64)
    if len(ids) > 1 and ids[1] != 0:
        sounds = np.array(ids)
        middles = ends[1:-1]
    else:
        # Ids 0, 2, 4, .. are sounds; each pad between is cut in the middle.
        pads = np.arange(1, len(ids), 2)
        middles = (ends[pads] + ends[pads + 1]) / 2
        middles = middles[: len(sounds) - 1]
    centre = (np.arange(frames) + 0.5) * HOP * DOWN / UP
    at = np.searchsorted(middles, centre, side="right")
    phones = np.where(sounds < SILENT_IDS, 0, sounds)[np.minimum(at, len(sounds) - 1)]
    return np.where(centre < ends[-1], phones, 0).astype(np.uint8)


def resample(samples: Tensor) -> Tensor:
    """[batch, n] at 22.05 kHz to 24 kHz: a windowed sinc for each of 160 phases."""
    half = 24
    k = torch.arange(-half + 1, half + 1, dtype=torch.float64)
    at = k[None] - torch.arange(UP, dtype=torch.float64)[:, None] * DOWN % UP / UP
    cut_off = 0.97
    taps = torch.sinc(at * cut_off) * cut_off
    taps = (taps * torch.cos(torch.pi * at / (2 * (half + 1))).square()).float().to(samples.device)
    count = samples.shape[1] * UP // DOWN
    blocks = -(-count // UP)
    padded = F.pad(samples, (half - 1, blocks * DOWN + 2 * half - samples.shape[1]))
    bases = (torch.arange(UP, device=samples.device) * DOWN // UP)[:, None]
    kernel = samples.new_zeros(UP, DOWN + 2 * half)
    kernel.scatter_(1, bases + torch.arange(2 * half, device=samples.device), taps)
    phases = F.conv1d(padded[:, None], kernel[:, None], stride=DOWN)[..., :blocks]
    return phases.transpose(1, 2).flatten(1)[:, :count]


def _lay(texts: list[Text], made: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]]) -> Speech:
    """Utterances end to end, by split."""
    rows, splits = [], {}
    for split in SPLITS:
        of_split = [row for row in made if texts[row].split == split]
        splits[split] = range(len(rows), len(rows) + len(of_split))
        rows += of_split
    parts = list(zip(*(made[row] for row in rows), strict=True))
    audio, mel, f0, phones = (torch.cat(part) for part in parts)
    lengths = torch.tensor([0] + [len(made[row][1]) for row in rows])
    return Speech(
        audio, mel, f0, phones, lengths.cumsum(0), [texts[row].text for row in rows], splits
    )
