"""Sections of a bot's parts: ears, turns, models, voices."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from duologue.config.section import Section
from duologue.embedded import FOLDER
from duologue.lm.formats.duologue_talker import DUOLOGUE_TALKER
from duologue.lm.modes import Mode


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

    engine: Literal["server", "embedded"] = "server"
    family: str = Field(default=DUOLOGUE_TALKER.family, description="As in `duologue lm modes`")
    base_url: str = ""
    model: str = ""
    instruction: str | None = Field(default=None, description="How to speak, where a family asks")
    clip_text: str | None = Field(
        default=None, description="The words of the voice's clip: the model goes on from it"
    )

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> "TalkerConfig":
        needed = ("family", "base_url", "model")
        if self.engine == "server":
            if missing := [name for name in needed if name not in self.model_fields_set]:
                raise ValueError(f"a talker on a server needs {', '.join(missing)} too")
        elif extra := self.model_fields_set & {*needed, "server", "tokenizer"}:
            raise ValueError(f"the embedded talker needs no {', '.join(sorted(extra))}")
        return self


class SpeechLmConfig(FamilyConfig):
    """A speech-text LM, in place of the text LM."""

    mode: Mode = Mode.T1_T2A2
    voice: Literal["tokens", "decoupled"] = Field(
        default="tokens", description="What says its answers: its own speech tokens, or `voice`"
    )
    budget: int = Field(
        default=8192, ge=256, description="Prompt tokens beyond which old speech becomes text"
    )
    history: Literal["words", "sound"] = Field(
        default="words",
        description="How a model that hears is given what it has answered; sound costs 25 tokens/s",
    )
    longest_turn_s: float = Field(
        default=60, gt=0, description="A longer turn is given in words to a model that hears"
    )
    max_thought: int = Field(
        default=512, ge=1, description="Tokens of a thought, in a family that thinks first"
    )

    @property
    def speaks_tokens(self) -> bool:
        """Whether its answers are heard through token2wav."""
        return self.mode.audio_out and self.voice == "tokens"


class Token2wavSection(Section):
    """The decoder of a speech-text LM's tokens."""

    model: Path = FOLDER
    engine: Literal["onnx", "torch", "cudagraph", "tensorrt", "embedded"] = "cudagraph"
    voice: str = Field(default="embedded", description="As in `duologue voices list`")
    sessions: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> "Token2wavSection":
        missing = [name for name in ("model", "voice") if name not in self.model_fields_set]
        if self.engine == "embedded" and "voice" not in missing:
            raise ValueError("the embedded token2wav has one voice: leave voice out")
        if self.engine != "embedded" and missing:
            raise ValueError(f"the engine {self.engine} needs {', '.join(missing)} too")
        return self


class VoiceConfig(Section):
    """The decoupled voice."""

    engine: Literal["piper"] = "piper"
    model: str = "piper-en_US-joe-medium"
    threads: int = Field(default=1, ge=1)
    speed: float = Field(default=1.0, gt=0.3, lt=3)
    particles: Literal["strip", "interject"] = "strip"
