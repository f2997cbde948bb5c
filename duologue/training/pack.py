"""Float checkpoints to the folder of the embedded voice: see `duologue.embedded.package`.

Weights are rounded first and exported then, so that the graphs are compared with modules of the
very weights that ship. An export holds its weights under names of its own, some transposed; each is
found again by its bytes, taken out, and replaced by the name of the weight.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from safetensors.torch import load_file as load_torch
from torch import nn

from duologue.embedded.package import (
    CARD,
    MANIFEST,
    MAX_BYTES,
    SCALE,
    TALKER,
    TRANSPOSED,
    VOICE,
    WEIGHTS,
    FileFacts,
    Manifest,
    Package,
)
from duologue.engines.export import TOLERANCE, difference, export_graph, export_onnx
from duologue.engines.graphs import GRAPHS, Weights
from duologue.engines.onnx import OnnxGraph
from duologue.engines.onnx_model import outside_tensors
from duologue.engines.plans import write_atomically
from duologue.engines.torch import TorchGraph
from duologue.errors import EngineError, ModelError
from duologue.talker.config import TalkerConfig
from duologue.talker.engine import signature
from duologue.talker.model import Talker
from duologue.token2wav.config import EMBEDDED, Token2wavConfig
from duologue.token2wav.flow import Flow
from duologue.token2wav.front_end import voice_digest
from duologue.token2wav.hift import HiFT
from duologue.token2wav.layout import CONFIG, OUTSIDE, front_end_metadata
from duologue.token2wav.step import FrontEndId
from duologue.token2wav.weights import Model
from duologue.training.sounds import FILE as SOUNDS_FILE
from duologue.training.voice import FILE as VOICE_FILE
from duologue.voices import ARRAYS, VoiceInfo

A = TypeVar("A")
T = TypeVar("T", bound=nn.Module)

SMALL = 4096
"""Values up to which a tensor stays float16."""

KEPT = 64
"""Values up to which a tensor stays in its graph; larger ones that are no weight are constants."""

MOST_CONSTANTS = 100_000
"""Bytes that a graph may hold besides its weights."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """The voice that ships.

    Attributes:
        name: Its name.
        tokens: Speech tokens of its clip, int32 [n].
        mel: Mel of the clip, as the model has it, float32 [2 n, mel_bins].
        embedding: Speaker embedding, float32 [spk_embed_dim].
    """

    name: str
    tokens: np.ndarray
    mel: np.ndarray
    embedding: np.ndarray


def pack(
    talker: Talker,
    model: Model,
    speaker: Speaker,
    folder: Path,
    *,
    card: str,
    sounds: Mapping[str, Sequence[int]],
    report: Callable[[str, float], None] = lambda graph, difference: None,
) -> Package:
    """Write an embedded voice.

    Args:
        talker: Text to speech tokens.
        model: Speech tokens to sound.
        speaker: Who speaks.
        folder: Where to; what it holds is replaced.
        card: The model card, Markdown.
        sounds: Codes of sounds that are no words.
        report: Told of each graph, and the relative rms difference of its file from its module.

    Raises:
        EngineError: a graph cannot be exported, a weight cannot be rounded, or it all is too large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    rounded = Rounded()
    talker = rounded.module(f"{TALKER}.", talker)
    model = model._replace(
        flow=rounded.module("flow.", model.flow), hift=rounded.module("hift.", model.hift)
    )
    graphs: dict[str, dict[str, str]] = {}
    for name, content, found in _exports(talker, model):
        bare, graphs[name] = rounded.without_weights(name, content)
        write_atomically(folder / f"{name}.onnx", bare)
        report(name, found)
    content = rounded.stored({source for graph in graphs.values() for source in graph.values()})
    write_atomically(folder / WEIGHTS, content)
    front_end = FrontEndId(model.config.codebook, hashlib.sha256(content).hexdigest())
    _write_rest(folder, model, speaker, front_end)
    write_atomically(folder / CARD, card.encode())
    files = {path.name: _facts(path) for path in sorted(folder.iterdir())}
    facts = {"talker": talker.config, "graphs": graphs, "sounds": sounds, "files": files}
    manifest = Manifest.model_validate(facts)
    write_atomically(folder / MANIFEST, manifest.model_dump_json(indent=1).encode())
    if (size := sum(path.stat().st_size for path in folder.iterdir())) > MAX_BYTES:
        raise EngineError(f"{folder}: {size} bytes, expected {MAX_BYTES} at most; shrink a model")
    return Package(folder)


def pack_work(
    work: Path,
    folder: Path,
    *,
    card: str,
    name: str = "embedded",
    talker: TalkerConfig | None = None,
    token2wav: Token2wavConfig = EMBEDDED,
    report: Callable[[str, float], None] = lambda graph, difference: None,
) -> Package:
    """Write an embedded voice of what the stages have left in a work folder.

    Args:
        work: Holds talker.safetensors, flow.safetensors, hift.safetensors, voice.safetensors and
            sounds.json.
        folder: As for `pack`, as `card` and `report`.
        card: The model card.
        name: Of the voice.
        talker: Sizes of the talker.
        token2wav: Sizes of the decoder.
        report: Told of each graph.

    Raises:
        ModelError: a file is missing, or is not of a model of these sizes.
        EngineError: as `pack`.
    """
    model = Model(token2wav, Flow(token2wav.flow), HiFT(token2wav.hift))
    speaks = Talker(talker or TalkerConfig())
    for module, stage in ((speaks, "talker"), (model.flow, "flow"), (model.hift, "hift")):
        tensors = _read(load_torch, work / f"{stage}.safetensors")
        try:
            module.load_state_dict(
                {key.removeprefix(f"{stage}."): tensor for key, tensor in tensors.items()}
            )
        except RuntimeError as error:
            why = " ".join(str(error).split())[:300]
            raise ModelError(f"{work}: {stage}.safetensors is of another model: {why}") from error
    clip = _read(load_file, work / VOICE_FILE)
    if set(clip) != set(ARRAYS):
        raise ModelError(
            f"{work / VOICE_FILE}: found {', '.join(clip)}, expected {', '.join(ARRAYS)}"
        )
    sounds = _read(lambda path: json.loads(path.read_bytes()), work / SOUNDS_FILE)
    speaker = Speaker(name, **clip)
    return pack(speaks, model, speaker, folder, card=card, sounds=sounds, report=report)


def _read(load: Callable[[Path], dict[str, A]], path: Path) -> dict[str, A]:
    try:
        return load(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read ({error}); run its stage first") from error


class Rounded:
    """Weights as they are stored, and modules that have exactly these."""

    def __init__(self) -> None:
        self._stored: dict[str, dict[str, np.ndarray]] = {}
        self._names: dict[bytes, str] = {}

    def module(self, prefix: str, module: T) -> T:
        """A copy of a module with the weights that can be stored."""
        module = copy.deepcopy(module).cpu().float().eval().requires_grad_(False)
        state = {}
        for name, tensor in module.state_dict().items():
            array = np.ascontiguousarray(tensor.numpy())
            # Transposed convolutions have the channels that come out second.
            stored, wide = rounded(prefix + name, array, axis=1 if name.startswith("ups.") else 0)
            self._stored[prefix + name] = stored
            self._names.setdefault(_key(wide), prefix + name)
            if wide.ndim == 2:
                self._names.setdefault(_key(wide.T), prefix + name + TRANSPOSED)
            state[name] = torch.from_numpy(wide)
        module.load_state_dict(state)
        return module

    def without_weights(self, graph: str, content: bytes) -> tuple[bytes, dict[str, str]]:
        """An ONNX file without its weights, and the weight that each initializer is to take.

        Raises:
            EngineError: it holds much that is no weight.
        """
        model, sources, kept = onnx.load_from_string(content), dict[str, str](), 0
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            name = self._names.get(_key(array)) if array.size > KEPT else None
            if name is None:
                kept += array.nbytes
                continue
            sources[tensor.name] = name
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in ("location", WEIGHTS), ("offset", 0), ("length", array.nbytes):
                tensor.external_data.add(key=key, value=str(value))
        if kept > MOST_CONSTANTS:
            raise EngineError(
                f"{graph}: its file holds {kept} bytes that are no weight, expected "
                f"{MOST_CONSTANTS} at most; the exporter has folded weights into constants"
            )
        return model.SerializeToString(deterministic=True), sources

    def stored(self, sources: set[str]) -> bytes:
        """The file of the weights that graphs take."""
        names = {source.removesuffix(TRANSPOSED) for source in sources}
        return save({k: v for name in sorted(names) for k, v in self._stored[name].items()})


def rounded(name: str, weight: np.ndarray, axis: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A weight as it is stored, and what it is when read again.

    Args:
        name: Of the weight.
        weight: float32.
        axis: That of its output channels, each of which has a scale.

    Raises:
        EngineError: it is not finite in what it is stored in.
    """
    # What overflows is refused below.
    with np.errstate(over="ignore", invalid="ignore"):
        if weight.ndim < 2 or weight.size <= SMALL:
            half = weight.astype(np.float16)
            stored, wide = {name: half}, half.astype(np.float32)
        else:
            others = tuple(at for at in range(weight.ndim) if at != axis)
            scale = np.abs(weight).max(others, keepdims=True) / np.float32(127)
            scale[scale == 0] = 1
            whole = np.rint(weight / scale).astype(np.int8)
            stored, wide = {name: whole, name + SCALE: scale}, whole.astype(np.float32) * scale
    if not (np.isfinite(weight).all() and np.isfinite(wide).all()):
        raise EngineError(f"{name}: found values up to {np.abs(weight).max()}, which do not fit")
    return stored, wide


def _key(array: np.ndarray) -> bytes:
    shape = ",".join(map(str, array.shape)).encode()
    return hashlib.sha256(shape + b":" + np.ascontiguousarray(array).tobytes()).digest()


def _exports(talker: Talker, model: Model) -> Iterator[tuple[str, bytes, float]]:
    """Each graph's name, file, and difference from its module."""
    content = export_talker(talker)
    yield TALKER, content, talker_difference(talker, content)
    weights = Weights(model, None)
    for name in GRAPHS:
        if name != "campplus":
            exported = export_graph(weights, name)
            yield name, exported.content, exported.difference


def export_talker(talker: Talker) -> bytes:
    """The graph `talker` in ONNX.

    Raises:
        EngineError: it cannot be exported.
    """
    return export_onnx(talker, *signature(talker.config), _talker_sample(talker, 2, 5, 3))


def talker_difference(talker: Talker, content: bytes) -> float:
    """The greatest relative rms difference of an export from its module, at several sizes.

    Raises:
        EngineError: it is too large.
    """
    graph, reference = OnnxGraph(content), TorchGraph(talker, *signature(talker.config))
    sizes = (2, 5, 3), (1, 1, 7), (1, 9, 0)
    found = max(difference(graph, reference, _talker_sample(talker, *each)) for each in sizes)
    if not found < TOLERANCE["fp32"]:
        raise EngineError(
            f"the talker's file differs from its module by {found:.2g} (relative rms); "
            f"expected less than {TOLERANCE['fp32']}"
        )
    return found


def _talker_sample(talker: Talker, batch: int, ids: int, past: int) -> dict[str, np.ndarray]:
    rng, config = np.random.default_rng(0), talker.config
    cache = signature(config).inputs[1].size({"batch": batch, "past": past})
    return {
        "ids": rng.integers(0, config.vocab_size, (batch, ids)),
        "past": rng.standard_normal(cache, np.float32),
    }


def _write_rest(folder: Path, model: Model, speaker: Speaker, front_end: FrontEndId) -> None:
    """What an export has beside its graphs, and the voice."""
    affine = model.flow.spk_embed_affine_layer
    outside = outside_tensors(
        affine.weight.detach().numpy(), affine.bias.detach().numpy(), model.hift.source_weights()
    )
    write_atomically(folder / OUTSIDE, save(outside, front_end_metadata(front_end)))
    write_atomically(folder / CONFIG, model.config.model_dump_json(indent=1).encode())
    arrays = {
        "tokens": speaker.tokens.astype(np.int32),
        "mel": speaker.mel.astype(np.float32),
        "embedding": speaker.embedding.astype(np.float32),
    }
    info = VoiceInfo(
        name=speaker.name,
        seconds=len(speaker.tokens) / model.config.token_rate_hz,
        source_rate_hz=model.config.hift.sample_rate_hz,
        digest=voice_digest(*arrays.values()),
        model=front_end.name,
        model_digest=front_end.digest,
    )
    content = save(arrays, {"voice": info.model_dump_json()})
    write_atomically(folder / f"{VOICE}.safetensors", content)


def _facts(path: Path) -> FileFacts:
    content = path.read_bytes()
    return FileFacts(size=len(content), sha256=hashlib.sha256(content).hexdigest())
