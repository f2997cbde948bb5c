"""A model family's stream as data: its codebooks, its special tokens, its modes."""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from duologue.errors import ConfigError, UsageError
from duologue.lm.modes import Mode


class Kind(IntEnum):
    """What an id or a name means to the demultiplexer."""

    TEXT = 0
    FRAMING = auto()
    """Neither text nor audio, and without a meaning of its own: never given out."""
    BEYOND = auto()
    """Where audio tokens lie, but in no codebook."""
    PAD = auto()
    OPEN = auto()
    CLOSE = auto()
    TOOL_OPEN = auto()
    TOOL_CLOSE = auto()
    THINK_OPEN = auto()
    THINK_CLOSE = auto()
    END = auto()
    AUDIO = auto()
    """The first codebook; the next one is one more."""


class ToolFormat(Enum):
    """What stands between a tool call's tags."""

    LINES = auto()
    """The word function, the name, JSON arguments: a line each."""
    JSON = auto()
    """One object with name and arguments."""


@dataclass(frozen=True, slots=True)
class Codebook:
    """One codebook as its tokens appear in the vocabulary.

    Attributes:
        name: The codec's name, which a decoder must know.
        size: Number of tokens.
        rate_hz: Tokens of one second; 0 for tokens that stand for a whole utterance.
        token: Form of a token's name; None where the ids are the model's own, without names.
        first_id: Id of token 0 where no tokenizer tells; None if not known publicly.
        first_number: The number in token 0's name.
        most: How many a turn may have.
    """

    name: str
    size: int
    rate_hz: float
    token: str | None
    first_id: int | None = None
    first_number: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Special:
    """A token with a meaning.

    Attributes:
        name: As in the tokenizer; None where the ids have no names.
        kind: The meaning.
        ids: Its id where no tokenizer tells; several where it is one of them and all are inert.
        required: Whether a tokenizer without it belongs to another family.
    """

    name: str | None
    kind: Kind
    ids: tuple[int, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """How the user's speech stands in a prompt.

    Attributes:
        opens: Token before it.
        closes: Token behind it.
        sound: Whether the model hears sound, or else tokens of the profile's codebooks.
        longest_s: Longest sound between two such tokens; 0 if there is no limit.
    """

    opens: str = ""
    closes: str = ""
    sound: bool = True
    longest_s: float = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """One family.

    Attributes:
        family: Its name.
        modes: What the public weights can do.
        text_ids: Ids below are text where no tokenizer tells.
        codebooks: In the order of the `Kind`s from AUDIO on; the last one tells the time.
        specials: Tokens with a meaning.
        frame: Codebook of each token in a frame, by index; () where tokens come in any order.
        speech_from_start: Whether audio needs no opening token.
        tools: Form of its tool calls; None if it has none.
        interleave: Text and audio tokens of one group, where the stream is made of groups.
        speech_prefix: Token at the end of a prompt that makes the model speak.
        thinks: Whether an answer begins with a thought, which the prompt opens.
        heard: How it takes the user's speech; None if it reads only.
        text_history: Whether a spoken answer may be remembered as text; False where nothing
            public shows that the model takes it.
        loses_arguments: Whether its own server, streaming, may lose a call's arguments.
    """

    family: str
    modes: tuple[Mode, ...]
    text_ids: int
    codebooks: tuple[Codebook, ...] = ()
    specials: tuple[Special, ...] = ()
    frame: tuple[int, ...] = ()
    speech_from_start: bool = False
    tools: ToolFormat | None = None
    interleave: tuple[int, int] | None = None
    speech_prefix: str | None = None
    thinks: bool = False
    heard: Heard | None = None
    text_history: bool = True
    loses_arguments: bool = False

    def check_mode(self, mode: Mode) -> None:
        """Refuse a mode that the family does not have.

        Raises:
            UsageError: naming the modes that it has.
        """
        if mode not in self.modes:
            raise UsageError(
                f"{self.family} cannot do {mode}, only {', '.join(self.modes)}; "
                "`duologue lm modes` shows which family can"
            )

    def check_decoder(self, codebook: str, size: int, rate_hz: float) -> None:
        """Refuse a decoder of other tokens than the family's last codebook.

        Raises:
            ConfigError: naming what the decoder takes and what the model gives.
        """
        takes = f"the decoder takes {codebook} ({size} tokens, {rate_hz:g}/s)"
        if not self.codebooks:
            raise ConfigError(f"{takes}, but {self.family} gives text alone; choose a TTS")
        book = self.codebooks[-1]
        if (codebook, size, rate_hz) != (book.name, book.size, book.rate_hz):
            raise ConfigError(
                f"{takes}, but {self.family} gives {book.name} ({book.size} tokens, "
                f"{book.rate_hz:g}/s); choose a decoder of that codebook"
            )
