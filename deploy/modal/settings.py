"""What of a deployment stands in no set-up: DUOLOGUE_MODAL_... when `modal deploy` is called."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, ValidationError

from duologue.config import BotConfig, Section, load_config
from duologue.errors import ConfigError

PREFIX = "DUOLOGUE_MODAL_"
ROOT = Path(__file__).parents[2]
STORE = Path("/store")
"""Where the Volume of weights and voices lies."""
ENGINES = Path("/engines")
"""Where the Volume of what is built for one kind of GPU lies."""

Gpu = Literal[
    "T4", "L4", "A10", "L40S", "RTX-PRO-6000", "A100", "A100-80GB", "H100", "H200", "B200"
]
GPUS: tuple[Gpu, ...] = get_args(Gpu)
TENSORRT: dict[Gpu, str] = {
    "T4": "75",
    "A10": "86",
    "A100": "80",
    "A100-80GB": "80",
    "L4": "89",
    "L40S": "89",
    "RTX-PRO-6000": "120",
}
"""The compute capability of those that TensorRT-RTX builds for."""


class Deployment(Section):
    """One deployment.

    Modal takes any text for a GPU or a region, and fails when a container starts.
    """

    setup: str = Field(default="embedded", description="The bots' set-up, of bots/configs")
    region: Literal["us-east", "us-west", "eu-west"] = "us-east"
    warm: int = Field(default=1, ge=0, description="Bots that wait for a caller")
    most: int = Field(default=20, ge=1, description="Callers at once")
    call_s: int = Field(default=3600, ge=60, le=6 * 3600, description="Longest call")
    arrive_s: int = Field(default=120, ge=10, le=600, description="Wait for a caller who was sent")
    gpu: Gpu = "L4"
    engine: Literal["cudagraph", "tensorrt"] = "cudagraph"
    checkpoint: str = "Step-Audio-2-mini/token2wav"
    voice: str = "ada"
    sessions: int = Field(default=16, ge=1, description="Utterances at once on one GPU")
    lm: str = "Qwen/Qwen2.5-7B-Instruct"
    lm_warm: int = Field(default=1, ge=0)
    speech_warm: int = Field(default=1, ge=0)

    @property
    def visit_s(self) -> int:
        """What a container may run for one caller, who may call again until `call_s` have passed.

        Modal's own 300 s would cut calls.
        """
        return 2 * self.call_s + self.arrive_s + 120

    def environ(self) -> dict[str, str]:
        """The variables that say the same in a container."""
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in self}

    def bot(self, environ: Mapping[str, str] = os.environ) -> BotConfig:
        """The bots' set-up: one caller for each container, whose call ends before Modal cuts it."""
        # The tunnel's name is not known before a container has one.
        flags = [f"limits.session_s={self.call_s}", "limits.sessions=1", "room.host=0.0.0.0"]
        path = ROOT / "bots/configs" / f"{self.setup}.yaml"
        return load_config(path, flags=flags, environ=environ)

    def speech(self) -> list[str]:
        """What `duologue serve` is called with."""
        model = self.built if self.engine == "tensorrt" else self.source
        values = {
            "serve.host": "0.0.0.0",
            "serve.piper": "false",
            "serve.sessions": self.sessions,
            "token2wav.model": model,
            "token2wav.engine": self.engine,
            "token2wav.voice": self.voice,
            "token2wav.sessions": self.sessions,
        }
        flags = [f"--set={name}={value}" for name, value in values.items()]
        return ["serve", *flags]

    @property
    def source(self) -> Path:
        """token2wav's checkpoint."""
        return STORE / "models" / self.checkpoint

    @property
    def built(self) -> Path:
        """What was built for this kind of GPU."""
        name = f"{self.checkpoint.replace('/', '--')}-{self.sessions}"
        return ENGINES / self.gpu / name


def read(environ: Mapping[str, str] = os.environ) -> Deployment:
    """The deployment that the environment describes.

    Raises:
        ConfigError: an unknown name, a value out of range, or an engine that the GPU cannot have.
    """
    given = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX)
    }
    try:
        deployment = Deployment.model_validate(given)
    except ValidationError as error:
        problems = [
            f"{PREFIX}{str(p['loc'][0]).upper()}: {p['msg']}, found {p['input']!r}"
            for p in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from error
    if deployment.engine == "tensorrt" and deployment.gpu not in TENSORRT:
        raise ConfigError(
            f"{PREFIX}ENGINE: TensorRT-RTX builds nothing for {deployment.gpu}, only for "
            f"{', '.join(TENSORRT)}; set cudagraph"
        )
    return deployment
