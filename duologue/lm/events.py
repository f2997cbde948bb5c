"""What a speech-text model's answer is made of, in the order in which it was decided."""

from dataclasses import dataclass
from enum import StrEnum

from duologue.particles import Particle as Mark


class DropReason(StrEnum):
    """Why something of the stream reaches nobody."""

    STRAY_AUDIO = "stray_audio"
    """An audio token outside speech, or beyond the number that a turn may have."""
    OUT_OF_RANGE = "out_of_range"
    """An id or a name beyond every codebook."""
    MISALIGNED = "misaligned"
    """An audio token that belongs to no whole frame."""
    FRAMING = "framing"
    """Framing that means nothing here, or is spelled out in the text."""
    UNDECODABLE = "undecodable"
    """Bytes that are no UTF-8."""


class EndReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    """The model's own end token."""
    CUT = "cut"
    """The stream ended without one: a token limit, an abort, a lost connection."""
    LOOP = "loop"
    """The model repeated itself; the rest is ignored and the request should be aborted."""
    IDLE = "idle"
    """Only pads or unusable ids came for a long time; as with a loop."""


@dataclass(frozen=True, slots=True)
class Event:
    """Where an event stands.

    Attributes:
        turn_id: The turn, as the caller numbers them.
        seq: Place among the turn's events, from 0.
        text_offset: Characters of text given out before (ids where nothing decodes them).
        audio_index: Tokens given out before: of its own codebook for audio, for everything else
            of the profile's last codebook, the one that tells the time.
    """

    turn_id: int
    seq: int
    text_offset: int
    audio_index: int


@dataclass(frozen=True, slots=True)
class TextDelta(Event):
    """Text of the answer, free of framing, particles and thoughts.

    Attributes:
        text: The characters; "" where nothing decodes ids.
        tokens: The ids, where nothing decodes them.
        voiced: Whether the stream's own audio says it.
    """

    text: str
    tokens: tuple[int, ...]
    voiced: bool


@dataclass(frozen=True, slots=True)
class AudioTokens(Event):
    """Tokens of one codebook, each in 0..size-1."""

    codebook: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Particle(Event):
    """A mark that steers the voice, taken out of the text at `text_offset`.

    The mark's own offsets count what the scanner saw, marks included.
    """

    mark: Mark


@dataclass(frozen=True, slots=True)
class Thought(Event):
    """A piece of reasoning, for nobody's ear; text and tokens as in `TextDelta`."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToolCallStarted(Event):
    """A call has begun; `ToolCallReady` or `ToolCallMalformed` of this index follows."""

    index: int


@dataclass(frozen=True, slots=True)
class ToolCallReady(Event):
    """A whole call.

    Attributes:
        index: Place among the turn's calls, from 0.
        name: The tool.
        arguments: JSON text of an object, not yet checked against the tool's schema.
    """

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallUndecoded(Event):
    """A whole call's ids, where nothing decodes them."""

    index: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToolCallMalformed(Event):
    """What looked like a call and is none: to be reported, never spoken, run or remembered.

    Attributes:
        index: Place among the turn's calls, from 0.
        problem: What is wrong with it.
        source: The beginning of its text.
        tokens: The beginning of its ids, where nothing decodes them.
    """

    index: int
    problem: str
    source: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """Ids, or names in a text stream, that reach nobody."""

    reason: DropReason
    tokens: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class TurnEnd(Event):
    """The last event of a turn.

    Attributes:
        reason: Why it ended.
        pads: Fillers that were skipped.
        dropped: What was dropped, counted.
    """

    reason: EndReason
    pads: int
    dropped: dict[DropReason, int]
