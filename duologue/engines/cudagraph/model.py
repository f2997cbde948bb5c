"""A whole model on one NVIDIA GPU."""

from pathlib import Path

from duologue.engines.cudagraph.flow import CudaGraphFlow
from duologue.engines.cudagraph.vocoder import CudaGraphVocoder
from duologue.errors import ConfigError
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.weights import Model, load


def open_engine(folder: Path, settings: EngineSettings) -> Token2wav:
    """Load a checkpoint, in half precision.

    Raises:
        ModelError, ConfigError: a file is missing or not what it should be, or early mode is asked
            for, which this engine does not have.
        EngineError: there is no such device.
    """
    return engine_of(load(folder), settings)


def engine_of(model: Model, settings: EngineSettings) -> Token2wav:
    """Run a model in memory."""
    if settings.mode != "exact":
        raise ConfigError(f"mode: found {settings.mode!r}, the engine cudagraph has only 'exact'")
    flow = CudaGraphFlow(
        model.flow,
        model.config,
        sessions=settings.sessions,
        window=settings.window,
        voices=settings.voices,
        max_prompt=settings.max_prompt,
        max_batch=settings.batch,
    )
    vocoder = CudaGraphVocoder(model.hift, sessions=settings.sessions, max_batch=settings.batch)
    return Token2wav(flow, vocoder)
