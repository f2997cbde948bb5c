"""The pipeline's own frames. `turn` is the answer's number in the session's memory."""

from dataclasses import dataclass, field

import numpy as np
from pipecat.frames.frames import DataFrame, LLMTextFrame, SystemFrame, TTSAudioRawFrame

from duologue.lm.engine import ToolCall
from duologue.particles import Particle
from duologue.tools import Call


@dataclass
class ToolCallFrame(DataFrame):
    """The LM has called a tool; ordered behind the text that came before it."""

    call: ToolCall | None = None


@dataclass
class ToolStateFrame(SystemFrame):
    """A call has entered a new state."""

    turn: int = 0
    call: Call | None = None


@dataclass
class ParticleFrame(SystemFrame):
    """A speech particle, taken out of the text."""

    turn: int = 0
    particle: Particle | None = None
    rendered: bool = False


@dataclass
class AnswerTextFrame(LLMTextFrame):
    """Text of an answer on its way to the voice, free of particles and thoughts.

    Parameters:
        turn: The answer.
        spoken: Whether speech tokens of the same answer say it.
    """

    turn: int = 0
    spoken: bool = False


@dataclass
class StreamFrame(DataFrame):
    """What a speech-text LM's stream says: text, or a particle in its place among the text.

    Parameters:
        item: The text, free of particles, or one of them.
        spoken: As of `AnswerTextFrame`.
    """

    item: str | Particle = ""
    spoken: bool = False


@dataclass
class UserSpeechFrame(DataFrame):
    """What the user has said in one stretch of speech, ahead of its transcript.

    Parameters:
        text: The words.
        audio: 16-bit mono PCM.
        rate_hz: Its rate.
        interruptible: As of the transcript, which an interruption may come from.
    """

    text: str = ""
    audio: bytes = b""
    rate_hz: int = 0
    interruptible: bool = field(default=False, init=False)


@dataclass
class SpeechTokensFrame(DataFrame):
    """Speech tokens of an answer on their way to token2wav.

    Parameters:
        turn: The answer.
        tokens: int32 [n].
    """

    turn: int = 0
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass
class VoiceAudioFrame(TTSAudioRawFrame):
    """Audio of an answer.

    Parameters:
        turn: The answer.
        words: (samples from this frame's start, characters said by then) of each word in it, where
            the voice knows; else `Memory.follow` tells.
    """

    turn: int = 0
    words: tuple[tuple[int, int], ...] = ()


@dataclass
class HeardFrame(SystemFrame):
    """The first `chars` characters of answer `turn` have been heard."""

    turn: int = 0
    chars: int = 0


@dataclass
class AnswerDoneFrame(SystemFrame):
    """Answer `turn` is over, heard to its end or cut off at `chars`."""

    turn: int = 0
    chars: int = 0
    interrupted: bool = False


@dataclass
class FloorFrame(SystemFrame):
    """The bot takes the floor (it will speak) or leaves it (all it had to say was heard)."""

    taken: bool = False


@dataclass
class HoldFrame(SystemFrame):
    """Stop the bot's sound, keep what it has to say."""


@dataclass
class ResumeFrame(SystemFrame):
    """Go on where `HoldFrame` stopped."""
