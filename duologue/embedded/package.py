"""The folder that holds the embedded voice, read strictly; nothing in it is code.

package.json       the talker's sizes, where each graph's weights come from, and every file's hash
weights.safetensors  matrices as int8 with a scale for each output channel, the rest as float16
GRAPH.onnx         the graphs of the talker and of token2wav, without their weights
config.json, outside.safetensors  token2wav's sizes and the weights in no graph, as an export's
voice.safetensors  who speaks, as a file of the voice store
README.md          the model card

Weights are widened to float32 when a graph is loaded: on a CPU that is as fast as any kernel that
takes them as they are, and it says the same on every machine.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from duologue.embedded import FOLDER
from duologue.engines.graph import Graph
from duologue.engines.onnx import OnnxGraph
from duologue.engines.onnx_model import load_model
from duologue.errors import ModelError
from duologue.talker.config import CODES, Sound, TalkerConfig
from duologue.talker.engine import TalkerEngine, signature
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.layout import CONFIG
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.ports import SIGNATURES, Signature
from duologue.token2wav.step import VoicePrompt
from duologue.voices import VoiceStore

MANIFEST, WEIGHTS, VOICE, CARD = "package.json", "weights.safetensors", "voice", "README.md"
TALKER = "talker"

MAX_BYTES = 24 * 2**20
"""All files together: what a wheel may grow by."""

SCALE, TRANSPOSED = ":scale", "^T"
"""Ends of names: the scales of an int8 tensor, and a weight that a graph wants transposed."""

LATE = ("encoder_offline", "estimator_offline")
"""Graphs of whole utterances: they hold the same weights once more, and calls need none."""

MOST_SOUND = 250
"""Codes of a sound that is no word: ten seconds."""

M = TypeVar("M", bound=BaseModel)
Code = Annotated[int, Field(ge=0, lt=CODES)]
FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FileFacts(_Strict):
    """Size in bytes and SHA-256 of one file."""

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(_Strict):
    """What package.json says.

    Attributes:
        format: Of the folder.
        talker: Sizes of the talker.
        graphs: For each graph, its initializers and the weight that each takes.
        sounds: Codes of the sounds that are no words, see `duologue.talker.config.SOUNDS`.
        files: All other files.
    """

    format: Literal[1] = 1
    talker: TalkerConfig
    graphs: dict[str, dict[str, str]]
    sounds: dict[Sound, Annotated[list[Code], Field(min_length=1, max_length=MOST_SOUND)]]
    files: dict[FileName, FileFacts]


class Package:
    """An embedded voice, checked but not yet loaded.

    Args:
        folder: As `duologue.training.pack` writes it; default: the one that is part of duologue.

    Raises:
        ModelError: it is not there, not whole, damaged, or larger than `MAX_BYTES`.
    """

    def __init__(self, folder: Path = FOLDER):
        if not (folder / MANIFEST).is_file():
            raise ModelError(
                f"{folder}: found no {MANIFEST}; expected an embedded voice: install a duologue "
                "that has one, or make one with `duologue train`"
            )
        self.folder = folder
        self.manifest = self._checked_files()
        self._check_weights()

    def talker(self, *, capacity: int = 8, threads: int = 1) -> TalkerEngine:
        """The talker.

        Args:
            capacity: Requests at once.
            threads: Of one step.

        Raises:
            EngineError: ONNX Runtime cannot load it.
        """
        known = self.manifest
        graph = self._open(TALKER, signature(known.talker), threads)
        sounds = {str(name): codes for name, codes in known.sounds.items()}
        return TalkerEngine(graph, known.talker, capacity=capacity, sounds=sounds)

    def token2wav(self, settings: EngineSettings | None = None) -> Token2wav:
        """The decoder of its tokens.

        Raises:
            EngineError: ONNX Runtime cannot load a graph.
        """
        settings = settings or EngineSettings()

        def open_graph(name: str) -> Graph | None:
            if name not in self.manifest.graphs:
                return None
            ports = SIGNATURES[name](self._config)
            if name in LATE:
                return _Late(ports, lambda: self._open(name, ports, settings.threads))
            return self._open(name, ports, settings.threads)

        return load_model(self.folder, open_graph).engine(settings)

    def voice(self) -> VoicePrompt:
        """Who speaks."""
        return VoiceStore(self.folder).get(VOICE)

    def weight(self, name: str) -> np.ndarray:
        """A weight by its name in its graph's module, float32.

        Raises:
            ModelError: it is not finite, or not of a type that weights are kept in.
        """
        with self._reading() as file:
            stored = file.get_tensor(name.removesuffix(TRANSPOSED))
            wide = stored.astype(np.float32)
            if stored.dtype == np.int8:
                scale = file.get_tensor(name.removesuffix(TRANSPOSED) + SCALE)
                with np.errstate(invalid="ignore"):
                    wide *= self._fitting(scale, wide)
            elif stored.dtype != np.float16:
                raise self._damaged(f"{name} is {stored.dtype}, expected int8 or float16")
        if not np.isfinite(wide).all():
            raise self._damaged(f"{name} is not finite")
        return np.ascontiguousarray(wide.T) if name.endswith(TRANSPOSED) else wide

    @cached_property
    def _config(self) -> Token2wavConfig:
        return self._parsed(CONFIG, Token2wavConfig)

    def _open(self, name: str, ports: Signature, threads: int) -> OnnxGraph:
        wanted = self.manifest.graphs[name]
        weights = {initializer: self.weight(source) for initializer, source in wanted.items()}
        content = (self.folder / f"{name}.onnx").read_bytes()
        graph = OnnxGraph(content, threads=threads, weights=weights)
        if (graph.inputs, graph.outputs) != tuple(ports):
            raise self._damaged(f"{name}.onnx takes and gives something else than a {name}")
        return graph

    def _checked_files(self) -> Manifest:
        try:
            present = {path.name: path.stat().st_size for path in self.folder.iterdir()}
        except OSError as error:
            raise self._damaged(str(error)) from error
        if (total := sum(present.values())) > MAX_BYTES:
            raise self._damaged(f"{total} bytes, expected {MAX_BYTES} at most")
        manifest = self._parsed(MANIFEST, Manifest)
        del present[MANIFEST]
        if wrong := sorted(present.keys() ^ manifest.files.keys()):
            raise self._damaged(f"missing or unknown: {', '.join(wrong)}")
        for name, facts in manifest.files.items():
            content = (self.folder / name).read_bytes()
            if (len(content), hashlib.sha256(content).hexdigest()) != (facts.size, facts.sha256):
                raise self._damaged(f"{name} has changed")
        expected = {TALKER, *SIGNATURES} - {"campplus"}
        if wrong := sorted(manifest.graphs.keys() ^ expected):
            raise self._damaged(f"missing or unknown graphs: {', '.join(wrong)}")
        return manifest

    def _check_weights(self) -> None:
        sources = {s for graph in self.manifest.graphs.values() for s in graph.values()}
        wanted = {source.removesuffix(TRANSPOSED) for source in sources}
        with self._reading() as file:
            names = set(file.keys())
            scales = {
                name + SCALE for name in wanted & names if file.get_slice(name).get_dtype() == "I8"
            }
        if wrong := sorted(names ^ (wanted | scales)):
            raise self._damaged(f"missing or unknown weights: {', '.join(wrong[:5])}")

    def _fitting(self, scale: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """A scale for each channel of one axis of a weight."""
        sizes = [size for size in scale.shape if size > 1]
        fits = scale.ndim == weight.ndim and all(
            size in (1, whole) for size, whole in zip(scale.shape, weight.shape, strict=True)
        )
        if scale.dtype != np.float32 or not fits or len(sizes) > 1:
            raise self._damaged(
                f"scales {scale.dtype} {list(scale.shape)} for weights {list(weight.shape)}"
            )
        return scale

    def _reading(self) -> safe_open:
        try:
            return safe_open(self.folder / WEIGHTS, framework="numpy")
        except (OSError, SafetensorError) as error:
            raise self._damaged(f"{WEIGHTS}: {error}") from error

    def _parsed(self, name: str, kind: type[M]) -> M:
        try:
            return kind.model_validate_json((self.folder / name).read_bytes())
        except (OSError, ValidationError) as error:
            raise self._damaged(f"{name}: {' '.join(str(error).split())}") from error

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.folder}: a damaged embedded voice ({what}); install it again")


def find_package(voice: str) -> Package | None:
    """The embedded voice that is meant by a name or folder; None for a voice of another kind.

    Raises:
        ModelError: it is meant, but not there or damaged.
    """
    if voice == "embedded":
        return Package()
    return Package(Path(voice)) if (Path(voice) / MANIFEST).is_file() else None


def open_engine(folder: Path, settings: EngineSettings) -> Token2wav:
    """Load the decoder of an embedded voice.

    Raises:
        ModelError, EngineError: as `Package`.
    """
    return Package(folder).token2wav(settings)


class _Late:
    """A graph that is loaded when it first runs."""

    def __init__(self, ports: Signature, load: Callable[[], Graph]):
        self.inputs, self.outputs = ports
        self._load = load
        self._graph: Graph | None = None
        self._loading = threading.Lock()

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `Graph.run`."""
        with self._loading:
            self._graph = self._graph or self._load()
        return self._graph.run(arrays)
