"""One strict set-up per bot: a YAML file, overridden by environment and flags.

Every value `a.b` can be set by the variable DUOLOGUE_A__B or by the flag `--set a.b=VALUE`; the
flag wins. Secrets are not part of it: they come from the environment where they are used.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from duologue.errors import ConfigError
from duologue.lm.modes import Mode

ENV_PREFIX = "DUOLOGUE_"


class Section(BaseModel):
    """A part of the set-up; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RoomConfig(Section):
    """The browser room."""

    host: str = "127.0.0.1"
    port: int = Field(default=7860, ge=0, le=65535)
    capacity: int = Field(default=2, ge=1)
    ice_servers: list[str] = []
    idle_s: float = Field(
        default=600, gt=0, description="Seconds without speech after which a call ends"
    )


class AsrConfig(Section):
    """Speech recognition."""

    engine: Literal["whisper", "funasr"] = "whisper"
    model: str = "whisper-tiny.en"
    interims: str | None = Field(default=None, description="FunASR: a streaming model for interims")
    vad: str | None = Field(
        default=None, description="FunASR: a model that leaves out what is no speech"
    )
    threads: int = Field(default=1, ge=1)


class VadConfig(Section):
    """Voice activity detection."""

    engine: Literal["silero", "webrtcvad"] = "silero"
    confidence: float = Field(default=0.35, gt=0, lt=1)
    start_s: float = Field(default=0.1, gt=0)
    stop_s: float = Field(default=0.2, gt=0)


class TurnConfig(Section):
    """End of the user's turn."""

    end: Literal["smart-turn", "speech-timeout"] = "smart-turn"
    silence_s: float = Field(default=1.2, gt=0, description="Silence that ends a turn in any case")
    speculate: bool = True


class Example(Section):
    """An example exchange for models that follow examples better than instructions."""

    user: str
    assistant: str


class LmConfig(Section):
    """The language model."""

    engine: Literal["llamacpp", "openai"] = "llamacpp"
    model: str = "smollm2-135m-instruct"
    base_url: str | None = None
    threads: int = Field(default=1, ge=1)
    context: int = Field(default=2048, ge=256)
    max_tokens: int = Field(default=80, ge=1)
    max_sentences: int | None = Field(default=None, description="Where to cut a model that rambles")
    temperature: float = Field(default=0.0, ge=0)
    repeat_penalty: float = Field(default=1.1, ge=1)
    tool_choice: Literal["rules", "model", "none"] = "rules"
    system: str = "You are a friendly voice assistant. Answer in one or two short sentences."
    examples: list[Example] = []


class FamilyConfig(Section):
    """A speech-text model on a server."""

    family: str = Field(description="As in `duologue lm modes`")
    server: Literal["vllm", "sglang", "trtllm", "llamacpp", "openai"] = "vllm"
    base_url: str
    model: str
    tokenizer: Path | None = Field(default=None, description="Folder or file of its tokenizer.json")
    max_tokens: int = Field(default=2048, ge=1)
    temperature: float = Field(default=0.7, ge=0)
    repeat_penalty: float = Field(default=1.05, ge=1)


class TalkerConfig(FamilyConfig):
    """A model that makes the LM's text speech tokens, in place of `voice`."""

    instruction: str | None = Field(default=None, description="How to speak, where a family asks")
    clip_text: str | None = Field(
        default=None, description="The words of the voice's clip: the model goes on from it"
    )


class SpeechLmConfig(FamilyConfig):
    """A speech-text LM, in place of the text LM."""

    mode: Mode = Mode.T1_T2A2
    voice: Literal["tokens", "decoupled"] = Field(
        default="tokens", description="What says its answers: its own speech tokens, or `voice`"
    )
    budget: int = Field(
        default=8192, ge=256, description="Prompt tokens beyond which old speech becomes text"
    )

    @property
    def speaks_tokens(self) -> bool:
        """Whether its answers are heard through token2wav."""
        return self.mode.audio_out and self.voice == "tokens"


class Token2wavSection(Section):
    """The decoder of a speech-text LM's tokens."""

    model: Path
    engine: Literal["onnx", "torch", "cudagraph", "tensorrt"] = "cudagraph"
    voice: str = Field(description="As in `duologue voices list`")
    sessions: int = Field(default=8, ge=1)


class VoiceConfig(Section):
    """The decoupled voice."""

    engine: Literal["piper"] = "piper"
    model: str = "piper-en_US-joe-medium"
    threads: int = Field(default=1, ge=1)
    speed: float = Field(default=1.0, gt=0.3, lt=3)
    particles: Literal["strip", "interject"] = "strip"


class BotConfig(Section):
    """A whole bot."""

    lang: Literal["en", "zh"] = "en"
    room: RoomConfig = RoomConfig()
    asr: AsrConfig = AsrConfig()
    vad: VadConfig = VadConfig()
    turn: TurnConfig = TurnConfig()
    lm: LmConfig = LmConfig()
    voice: VoiceConfig = VoiceConfig()
    speech_lm: SpeechLmConfig | None = None
    talker: TalkerConfig | None = None
    token2wav: Token2wavSection | None = None

    @model_validator(mode="after")
    def _speech_lm_is_whole(self) -> "BotConfig":
        if self.speech_lm and self.lm.tool_choice == "rules":
            raise ValueError("lm.tool_choice: a speech LM calls tools itself: set model or none")
        if self.talker and self.speech_lm:
            raise ValueError("talker speaks the words of a text LM: leave speech_lm out")
        if self.talker and not self.token2wav:
            raise ValueError("talker speaks in tokens: set token2wav.model and token2wav.voice")
        if self.speech_lm and self.speech_lm.speaks_tokens and not self.token2wav:
            raise ValueError(
                f"speech_lm.mode {self.speech_lm.mode} speaks in tokens: set token2wav.model and "
                "token2wav.voice, or speech_lm.voice to decoupled"
            )
        return self


def load_config(
    path: Path, *, flags: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> BotConfig:
    """Read a set-up.

    Args:
        path: The YAML file.
        flags: `a.b=VALUE`, VALUE in YAML.
        environ: The environment.

    Raises:
        ConfigError: no such file, not YAML, an unknown key or a value of the wrong kind.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(file.name for file in path.parent.glob("*.yaml")))
        raise ConfigError(f"{path}: cannot be read; in its folder there are: {known}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {_one_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected sections such as `asr:`, found {type(data).__name__}")
    sources: dict[tuple[str, ...], str] = {}
    for source, key, value in [*_from_environ(environ), *_from_flags(flags)]:
        _put(data, key, value, source)
        sources[tuple(key)] = source
    try:
        return BotConfig.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{_source(_path(problem), sources) or path}: {_explain(problem)}"
            for problem in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from error


def _from_environ(environ: Mapping[str, str]) -> Iterable[tuple[str, list[str], str]]:
    for name, value in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            yield name, name.removeprefix(ENV_PREFIX).lower().split("__"), value


def _from_flags(flags: Iterable[str]) -> Iterable[tuple[str, list[str], str]]:
    for flag in flags:
        key, sign, value = flag.partition("=")
        if not sign:
            raise ConfigError(f"--set {flag}: expected KEY=VALUE, such as lm.max_tokens=60")
        yield f"--set {flag}", key.split("."), value


def _put(data: dict[str, Any], keys: list[str], value: str, source: str) -> None:
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: the value is not YAML: {_one_line(error)}") from error
    for key in keys[:-1]:
        if data.get(key) is None:
            data[key] = {}
        data = data[key]
        if not isinstance(data, dict):
            raise ConfigError(f"{source}: {key} is not a section")
    data[keys[-1]] = parsed


def _source(loc: tuple[str, ...], sources: Mapping[tuple[str, ...], str]) -> str | None:
    """What set the value at `loc`, or something in it."""
    return next((name for key, name in sources.items() if key[: len(loc)] == loc), None)


def _path(problem: Any) -> tuple[str, ...]:
    return tuple(map(str, problem["loc"]))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _explain(error: Any) -> str:
    """One line on one problem; an unknown key names the nearest known one."""
    if not error["loc"]:
        return error["msg"].removeprefix("Value error, ")
    *parents, last = error["loc"]
    where = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return f"{where}: {error['msg']}, found {error['input']!r}"
    section: Any = BotConfig
    for name in parents:
        annotation = getattr(section.model_fields.get(name), "annotation", Example)
        kinds = (annotation, *get_args(annotation))
        section = next((kind for kind in kinds if hasattr(kind, "model_fields")), Example)
    near = difflib.get_close_matches(str(last), section.model_fields, 1, 0.3)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(section.model_fields)}"
    return f"{where}: unknown key; {hint}"
