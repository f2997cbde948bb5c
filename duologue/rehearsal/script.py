"""What the caller says and when: some time after something has happened in the call."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from duologue.audio.pcm import read_audio
from duologue.errors import ConfigError
from duologue.rehearsal.timeline import RATE_HZ, Clip, Said, Timeline

T = TypeVar("T")
Anchor = Literal["start", "said", "bot_sound", "bot_end", "listening"]
MAX_UTTERANCE_S = 120.0
MAX_LINES = 1000
TAIL_S = 0.7
"""The last words are still on their way to the ear when the room says that it is done."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One thing to say.

    Attributes:
        clip: The sound.
        after: What it waits for. "start" is the call's own start, which makes `delay_s` a time of
            the call. The others look from the caller's last words on: "said" is their end,
            "bot_sound" the bot's first sound, "bot_end" the end of an answer, "listening" a room
            that has answered and has nothing left to say.
        delay_s: How long after that the clip's first sample is played.
    """

    clip: Clip
    after: Anchor = "listening"
    delay_s: float = 0.5


class Caller(Protocol):
    """Who performs a script: a browser on the room's page, or a stand-in for the transport."""

    timeline: Timeline

    async def say(self, clip: Clip, *, at_s: float = 0.0) -> Said:
        """Play a clip at a time of the timeline, or now if that has passed."""
        ...

    async def until(self, condition: Callable[[Timeline], T | None], timeout_s: float = 20.0) -> T:
        """Wait until the condition has a value; TimeoutError after `timeout_s`."""
        ...


async def perform(script: Iterable[Utterance], caller: Caller, *, patience_s: float = 30.0) -> None:
    """Say everything, each at its time, and hear the last answer out.

    Raises:
        TimeoutError: what an utterance waits for did not happen within `patience_s`.
    """
    for line in script:
        at_s = await caller.until(lambda seen, line=line: happened(seen, line.after), patience_s)
        await caller.say(line.clip, at_s=at_s + line.delay_s)
    over_s = await caller.until(lambda seen: happened(seen, "listening"), patience_s) + TAIL_S
    await caller.until(lambda seen: seen.bot.end_s if seen.bot.end_s > over_s else None, patience_s)


def happened(seen: Timeline, what: Anchor) -> float | None:
    """When the anchor was reached; None as long as it was not."""
    spoken_s = seen.said[-1].end_s if seen.said else 0.0
    if what == "start" or (not seen.said and what in ("said", "listening")):
        return seen.bot.start_s if len(seen.bot.samples) else None
    if what == "said":
        return spoken_s
    if what == "bot_end":
        event = seen.first("bot_end", spoken_s)
        return event.at_s if event else None
    sound_s = seen.bot.first_sound(spoken_s)
    if what == "bot_sound" or sound_s is None:
        return sound_s
    states = seen.all("state", sound_s)
    return states[-1].at_s if states and states[-1].data["state"] == "listening" else None


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    audio: Path | None = None
    text: str = Field("", max_length=1000)
    name: str = ""
    after: Anchor = "listening"
    delay_s: float = Field(0.5, ge=0, le=600)

    @model_validator(mode="after")
    def _has_words(self) -> "_Line":
        if not self.audio and not self.text:
            raise ValueError("give `audio`, a file, or `text`, which the voice then speaks")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    say: list[_Line] = Field(min_length=1, max_length=MAX_LINES)


def load_script(path: Path, speak: Callable[[str], np.ndarray]) -> list[Utterance]:
    """Read a script: YAML with a list `say` of utterances; audio paths start from its folder.

    Args:
        path: The script.
        speak: Speaks a text that has no audio, float32 [n] at 48 kHz.

    Raises:
        ConfigError: the script cannot be read, or a key or value is wrong.
        InputError: an audio file cannot be used.
    """
    try:
        lines = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).say
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check the path") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path}: not a script: {error}") from error
    return [Utterance(_clip(line, path.parent, speak), line.after, line.delay_s) for line in lines]


def _clip(line: _Line, folder: Path, speak: Callable[[str], np.ndarray]) -> Clip:
    if line.audio is None:
        return Clip.of(speak(line.text), line.name or line.text, line.text)
    return Clip.of(read_samples(folder / line.audio), line.name or line.audio.stem, line.text)


def read_samples(path: Path) -> np.ndarray:
    """A recording as float32 [n] at 48 kHz.

    Raises:
        InputError: not audio, or longer than two minutes.
    """
    return read_audio(path, rate_hz=RATE_HZ, max_s=MAX_UTTERANCE_S)


class Label(BaseModel):
    """A clip of a labelled set, which is a folder with clips and `labels.json`."""

    # What else a set records of its clips (source, licence, speaker) is not needed to play them.
    model_config = ConfigDict(extra="ignore")

    path: Path = Field(alias="file")
    kind: str
    text: str
    onset_ms: float
    end_ms: float

    def clip(self) -> Clip:
        """The clip itself.

        Raises:
            InputError: the audio file cannot be used.
        """
        start_s, end_s = self.onset_ms / 1000, self.end_ms / 1000
        return Clip(read_samples(self.path), start_s, end_s, self.path.stem, self.text)


def read_labels(folder: Path) -> list[Label]:
    """A labelled set.

    Raises:
        ConfigError: the labels cannot be read or lack a value.
    """
    path = folder / "labels.json"
    try:
        labels = TypeAdapter(list[Label]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path}: not the labels of a set of clips: {error}") from error
    return [label.model_copy(update={"path": folder / label.path}) for label in labels]
