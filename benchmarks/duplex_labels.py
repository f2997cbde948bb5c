"""The labels of tests/data/duplex and tests/data/questions: strict, an unknown key is an error."""

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

DATA = Path(__file__).parents[1] / "tests/data"
DUPLEX, QUESTIONS = DATA / "duplex", DATA / "questions"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Label(_Strict):
    """One clip of tests/data/*/labels.json.

    Attributes:
        file: Name beside labels.json: 16 kHz mono Ogg Opus.
        kind: What a listener must take it for.
        text: The words, or the name of a noise.
        source: Package and path, or the voice.
        licence: SPDX identifier where there is one.
        speaker: Who is heard; "none" for things.
        human: A recording, neither synthesised nor joined from pieces.
        onset_ms: First sound above the room.
        end_ms: End of the last.
    """

    file: str
    kind: Literal["backchannel", "interruption", "noise", "question", "request", "statement"]
    text: str
    source: str
    licence: str
    speaker: str
    human: bool
    onset_ms: int
    end_ms: int


class Question(Label):
    """A whole user turn.

    Attributes:
        turn_probability: smart-turn v3's, 200 ms after the end.
        asr_text: Whisper tiny.en's transcript.
        wer: Its word error rate against `text`.
    """

    turn_probability: float
    asr_text: str
    wer: float


AnyLabel = TypeVar("AnyLabel", bound=Label)


def read(folder: Path, model: type[AnyLabel]) -> list[AnyLabel]:
    """Every label of one set, in the order of its files.

    Raises:
        pydantic.ValidationError: labels.json does not follow the schema.
    """
    text = (folder / "labels.json").read_text(encoding="utf-8")
    return TypeAdapter(list[model]).validate_json(text)
