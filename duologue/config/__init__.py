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
from pydantic import Field, ValidationError, model_validator

from duologue.config.parts import (
    AsrConfig,
    Example,
    FamilyConfig,
    LmConfig,
    SpeechLmConfig,
    TalkerSection,
    Token2wavSection,
    TurnConfig,
    VadConfig,
    VoiceConfig,
)
from duologue.config.places import (
    DailyConfig,
    LimitsConfig,
    PhoneConfig,
    RoomConfig,
    ServeConfig,
)
from duologue.config.section import Section
from duologue.errors import ConfigError

ENV_PREFIX = "DUOLOGUE_"

__all__ = [
    "AsrConfig",
    "BotConfig",
    "DailyConfig",
    "Example",
    "FamilyConfig",
    "LimitsConfig",
    "LmConfig",
    "PhoneConfig",
    "RoomConfig",
    "Section",
    "ServeConfig",
    "SpeechLmConfig",
    "TalkerSection",
    "Token2wavSection",
    "TurnConfig",
    "VadConfig",
    "VoiceConfig",
    "load_config",
]


class BotConfig(Section):
    """A whole bot."""

    lang: Literal["en", "zh"] = Field(default="en", description="What both sides speak")
    room: RoomConfig = RoomConfig()
    daily: DailyConfig = DailyConfig()
    limits: LimitsConfig = LimitsConfig()
    phone: PhoneConfig = PhoneConfig()
    asr: AsrConfig = AsrConfig()
    vad: VadConfig = VadConfig()
    turn: TurnConfig = TurnConfig()
    lm: LmConfig = LmConfig()
    voice: VoiceConfig = VoiceConfig()
    speech_lm: SpeechLmConfig | None = None
    talker: TalkerSection | None = None
    token2wav: Token2wavSection | None = None
    serve: ServeConfig = ServeConfig()

    @property
    def speaks(self) -> str:
        """What says the bot's text: a talker's family, or the decoupled voice's model."""
        return self.talker.family if self.talker else self.voice.model

    @model_validator(mode="after")
    def _speech_lm_is_whole(self) -> "BotConfig":
        if self.speech_lm and self.lm.tool_choice == "rules":
            raise ValueError("lm.tool_choice: a speech LM calls tools itself: set model or none")
        if self.talker and self.speech_lm:
            raise ValueError("talker speaks the words of a text LM: leave speech_lm out")
        if self.talker and not self.token2wav:
            raise ValueError("talker speaks in tokens: set token2wav.model and token2wav.voice")
        parts = (self.talker, self.token2wav)
        embedded = sum(part is not None and part.engine == "embedded" for part in parts)
        if embedded == 1:
            raise ValueError("the embedded talker and token2wav go together: set both engines so")
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
