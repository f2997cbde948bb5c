"""The main path: load a token2wav model, then speak whole utterances, one stream, or many."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import get_args

import numpy as np

from duologue.engines.graph import Graph
from duologue.errors import ConfigError, EngineError
from duologue.metrics import STATE
from duologue.token2wav.batch import Batcher
from duologue.token2wav.checks import check_voice
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.layout import check_front_end, find_front_end
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.source import SourceWeights
from duologue.token2wav.step import FlowStep, FrontEndId, VocoderStep, VoicePrompt
from duologue.token2wav.stream import Schedule, Utterance
from duologue.token2wav.vocoder import Mode, Vocoder

ENGINES = {
    "onnx": "duologue.engines.onnx_model",
    "tensorrt": "duologue.engines.tensorrt_model",
    "torch": "duologue.engines.torch_model",
    "cudagraph": "duologue.engines.cudagraph.model",
    "embedded": "duologue.embedded.package",
}
"""Modules by name, imported when asked for; each has
`open_engine(folder, settings) -> Token2wav`."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What all engines are told.

    Attributes:
        sessions: Sessions at once.
        batch: Most of them in one run of an engine that makes its graphs by size.
        window: Mel frames of its own past that a session attends to.
        voices: Voices kept ready.
        max_prompt: Mel frames of the longest voice, 30 s as in the voice store. The CUDA engine
            sets aside about 0.7 MB a frame for each voice.
        mode: Whether streamed samples equal those of the whole utterance, or come earlier.
        threads: Of the CPU, for engines that run on it.

    Raises:
        ConfigError: an unknown mode, or a number that is not 1 or more.
    """

    sessions: int = 8
    batch: int = 64
    window: int = 100
    voices: int = 8
    max_prompt: int = 1500
    mode: Mode = "exact"
    threads: int = 1

    def __post_init__(self):
        for name in ("sessions", "batch", "window", "voices", "max_prompt", "threads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: found {value!r}, expected a whole number from 1 up")
        if self.mode not in get_args(Mode):
            expected = " or ".join(get_args(Mode))
            raise ConfigError(f"mode: found {self.mode!r}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Token2wav:
    """A loaded model: an engine for the flow and one for the vocoder.

    Attributes:
        flow: Speech tokens to mel.
        vocoder: Mel to samples.
        front_end: The models whose voices it takes; None if nobody knows, and all are taken.
    """

    flow: FlowStep
    vocoder: VocoderStep
    front_end: FrontEndId | None = None

    @property
    def config(self) -> Token2wavConfig:
        """Sizes and rates."""
        return self.flow.config

    def check_voice(self, voice: VoicePrompt) -> None:
        """Whether it can speak with a voice; whatever opens one checks it too.

        Raises:
            InputError: the voice was made by other models, or does not fit this one.
        """
        check_front_end(voice, self.front_end)
        check_voice(voice, self.config)

    def offline(
        self, utterances: Sequence[tuple[np.ndarray, VoicePrompt, int]]
    ) -> list[np.ndarray]:
        """Speak whole utterances at once.

        Args:
            utterances: For each its tokens int [n], its voice and the seed of its noise.

        Returns:
            Samples float32 [samples_per_token * n] each.

        Raises:
            InputError: a token is outside the codebook, or a voice does not fit the model.
        """
        for _, voice, _ in utterances:
            check_front_end(voice, self.front_end)
        mels = self.flow.offline(utterances)
        return self.vocoder.offline(mels, [seed for _, _, seed in utterances])

    def utterance(
        self, voice: VoicePrompt, seed: int, schedule: Schedule | None = None
    ) -> Utterance:
        """Speak one utterance as its tokens come.

        Raises:
            CapacityError: every session is taken.
            InputError: the voice does not fit the model.
        """
        check_front_end(voice, self.front_end)
        return Utterance(self.flow, self.vocoder, voice, seed, schedule)

    @classmethod
    def over_graphs(
        cls,
        config: Token2wavConfig,
        flow: FlowGraphs,
        f0: Graph,
        hift: Graph,
        source: SourceWeights,
        settings: EngineSettings,
    ) -> "Token2wav":
        """The generic engine, over graphs of any kind."""
        return cls(
            GraphFlow(
                flow,
                config,
                capacity=settings.sessions,
                window=settings.window,
                voices=settings.voices,
                max_prompt=settings.max_prompt,
            ),
            Vocoder(config.hift, f0, hift, source, capacity=settings.sessions, mode=settings.mode),
        )

    def batcher(self, *, max_batch: int = 64) -> Batcher:
        """Speak many utterances as their tokens come; to be closed."""
        return Batcher(self.flow, self.vocoder, max_batch=max_batch, front_end=self.front_end)


def load(folder: Path, engine: str = "onnx", settings: EngineSettings | None = None) -> Token2wav:
    """Load a model.

    Args:
        folder: A checkpoint; for "onnx" what `duologue engine export` made of one, for "tensorrt"
            with the plans built into it, for "embedded" what `duologue.training.pack` did.
        engine: "onnx", "tensorrt", "torch", "cudagraph" or "embedded".
        settings: Capacity and mode.

    Raises:
        ConfigError: no engine has this name.
        ModelError: the folder does not hold a whole model.
        EngineError: the engine cannot run here.
    """
    if engine not in ENGINES:
        near = get_close_matches(engine, ENGINES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ENGINES)}"
        raise ConfigError(f"unknown engine {engine!r}; {hint}")
    try:
        module = importlib.import_module(ENGINES[engine])
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the engine {engine!r} needs {error.name}; run: pip install -e '.[torch]'"
        ) from error
    model = module.open_engine(folder, settings or EngineSettings())
    for part in (model.flow, model.vocoder):
        STATE.watch("token2wav", part)
    return replace(model, front_end=find_front_end(folder))
