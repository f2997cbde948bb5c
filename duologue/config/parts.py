"""Sections of a bot's parts: ears, turns, models, voices."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from duologue.config.section import Section
from duologue.embedded import FOLDER
from duologue.lm.formats.duologue_talker import DUOLOGUE_TALKER
from duologue.lm.modes import Mode
from duologue.talker.config import TEMPERATURE


class AsrConfig(Section):
    """Speech recognition."""

    engine: Literal["whisper", "funasr"] = Field(default="whisper", description="What recognises")
    model: str = Field(default="whisper-tiny.en", description="A model's name or folder")
    interims: str | None = Field(default=None, description="FunASR: a streaming model for interims")
    vad: str | None = Field(
        default=None, description="FunASR: a model that leaves out what is no speech"
    )
    threads: int = Field(default=1, ge=1, description="Of the CPU")


class VadConfig(Section):
    """Voice activity detection."""

    engine: Literal["silero", "webrtcvad"] = Field(default="silero", description="What detects")
    confidence: float = Field(default=0.35, gt=0, lt=1, description="From which on sound is speech")
    start_s: float = Field(default=0.1, gt=0, description="Speech after which it has begun")
    stop_s: float = Field(default=0.2, gt=0, description="Silence after which it has ended")


class TurnConfig(Section):
    """End of the user's turn."""

    end: Literal["smart-turn", "speech-timeout"] = Field(
        default="smart-turn", description="What ends a turn: a model's judgement, or silence alone"
    )
    silence_s: float = Field(default=1.2, gt=0, description="Silence that ends a turn in any case")
    speculate: bool = Field(default=True, description="Ask the LM before a turn's end is certain")


class Example(Section):
    """An example exchange for models that follow examples better than instructions."""

    user: str = Field(description="What the user says")
    assistant: str = Field(description="What the bot answers")


class LmConfig(Section):
    """The language model."""

    engine: Literal["llamacpp", "openai"] = Field(
        default="llamacpp", description="In this process, or a server that speaks OpenAI's protocol"
    )
    model: str = Field(
        default="smollm2-135m-instruct", description="A model's name or file; the server's name"
    )
    base_url: str | None = Field(default=None, description="Of the server, up to and with /v1")
    threads: int = Field(default=1, ge=1, description="Of the CPU")
    context: int = Field(default=2048, ge=256, description="Tokens of a call's prompt and answer")
    max_tokens: int = Field(default=80, ge=1, description="Of an answer")
    max_sentences: int | None = Field(default=None, description="Where to cut a model that rambles")
    temperature: float = Field(default=0.0, ge=0, description="0 takes the likeliest token")
    repeat_penalty: float = Field(default=1.1, ge=1, description="1 for none")
    tool_choice: Literal["rules", "model", "none"] = Field(
        default="rules", description="What decides that a tool is called"
    )
    system: str = Field(
        default="You are a friendly voice assistant. Answer in one or two short sentences.",
        description="The system prompt",
    )
    examples: list[Example] = Field(default=[], description="Exchanges before the first one")


class FamilyConfig(Section):
    """A speech-text model on a server."""

    family: str = Field(description="As in `duologue lm modes`")
    server: Literal["vllm", "sglang", "trtllm", "llamacpp", "openai"] = Field(
        default="vllm", description="What serves it, for its way to abort; openai for any other"
    )
    base_url: str = Field(description="Of the server, up to and with /v1")
    model: str = Field(description="The server's name of the model")
    tokenizer: Path | None = Field(default=None, description="Folder or file of its tokenizer.json")
    max_tokens: int = Field(default=2048, ge=1, description="Of an answer, or of a clause's speech")
    temperature: float = Field(default=0.7, ge=0, description="0 takes the likeliest token")
    repeat_penalty: float = Field(default=1.05, ge=1, description="1 for none")


class TalkerSection(FamilyConfig):
    """A model that makes the LM's text speech tokens, in place of `voice`."""

    engine: Literal["server", "embedded"] = Field(
        default="server", description="A model on a server, or the embedded voice's own"
    )
    family: str = Field(default=DUOLOGUE_TALKER.family, description="As in `duologue lm modes`")
    base_url: str = Field(default="", description="Of the server, up to and with /v1")
    model: str = Field(default="", description="The server's name of the model")
    instruction: str | None = Field(default=None, description="How to speak, where a family asks")
    clip_text: str | None = Field(
        default=None, description="The words of the voice's clip: the model goes on from it"
    )

    @model_validator(mode="before")
    @classmethod
    def _embedded_one_is_cooler(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("engine") == "embedded":
            return {"temperature": TEMPERATURE, "repeat_penalty": 1.0, **values}
        return values

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> "TalkerSection":
        needed = ("family", "base_url", "model")
        if self.engine == "server":
            if missing := [name for name in needed if name not in self.model_fields_set]:
                raise ValueError(f"a talker on a server needs {', '.join(missing)} too")
        elif extra := self.model_fields_set & {*needed, "server", "tokenizer"}:
            raise ValueError(f"the embedded talker needs no {', '.join(sorted(extra))}")
        return self


class SpeechLmConfig(FamilyConfig):
    """A speech-text LM, in place of the text LM."""

    mode: Mode = Field(default=Mode.T1_T2A2, description="As in `duologue lm modes`")
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

    model: Path = Field(default=FOLDER, description="Folder of a checkpoint or an export")
    engine: Literal["onnx", "torch", "cudagraph", "tensorrt", "embedded", "remote"] = Field(
        default="cudagraph", description="What runs its graphs"
    )
    urls: list[str] = Field(
        default=[], description="Speech servers that engine remote asks: grpc(s):// or triton(s)://"
    )
    voice: str = Field(default="embedded", description="As in `duologue voices list`")
    sessions: int = Field(default=8, ge=1, description="Utterances at once")

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> "Token2wavSection":
        if self.engine == "embedded" and "voice" in self.model_fields_set:
            raise ValueError("the embedded token2wav has one voice: leave voice out")
        needed = {"embedded": (), "remote": ("urls", "voice")}.get(self.engine, ("model", "voice"))
        if missing := [name for name in needed if name not in self.model_fields_set]:
            raise ValueError(f"the engine {self.engine} needs {', '.join(missing)} too")
        if self.engine != "remote" and self.urls:
            raise ValueError(f"the engine {self.engine} runs here: leave urls out, or set remote")
        return self


class VoiceConfig(Section):
    """The decoupled voice."""

    engine: Literal["piper"] = Field(default="piper", description="What speaks")
    model: str = Field(default="piper-en_US-joe-medium", description="A voice's name or folder")
    threads: int = Field(default=1, ge=1, description="Of the CPU")
    speed: float = Field(default=1.0, gt=0.3, lt=3, description="2 is twice as fast")
    particles: Literal["strip", "interject"] = Field(
        default="strip", description="What becomes of a laugh and its like: nothing, or a word"
    )
