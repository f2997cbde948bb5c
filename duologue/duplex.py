"""Barge-in in two steps: hold the bot at the first sound, then commit or resume by what it was.

A pure state machine; its owner keeps the time. Speech that starts while the bot has the floor only
holds it. Real words commit (the bot is cut off); a backchannel, a noise or the bot's own echo
resumes it.
"""

import re
from dataclasses import dataclass
from enum import Enum

SURE = -0.75
"""Mean log-probability above which a word is taken at its word."""

ECHO_TAIL_S = 0.6
"""The bot's sound has left the room this long after a hold: loop delay plus reverberation."""

MAX_HOLD_S = 1.7
"""Longest hold without words; keeps the promise to resume within 2 s of onset."""

_TOKEN = re.compile(r"[a-z']+|[\u4e00-\u9fff]", re.IGNORECASE)

# Words by which a listener shows attention without taking the floor, and the spellings that ASR
# gives to hums. Chinese ones are compared character by character.
BACKCHANNELS = frozenset(
    """
    aha ah ahh alright amazing aw awesome aww brilliant cool dear eh excellent exactly fantastic
    fine good gosh gotcha great ha haha hm hmm hmmm hmph huh indeed lovely mhm mhmm mm mmhm mmhmm 
    mmm mmmm nice oh ohh ok okay oo ooh perfect really right sir sure true ugh uh uhhuh uhm um umm
    whoa wonderful wow yay yeah yep yes yup 嗯 对 好 哦 啊 是 的 呃 哈 噢 哇 行
    """.split()
)
# Whisper also writes "thank you" for short sounds that are none.
PHRASES = re.compile(
    r"\b(i see|got it|of course|makes sense|that's (right|good|great|true)|thank you|thanks)\b"
)
# One of these is enough, even while the utterance goes on.
INTERRUPTERS = frozenset(
    "stop wait no hold pause quiet enough excuse sorry what hello help listen 停 等 不".split()
)


class Decision(Enum):
    """What to do with the bot's voice."""

    NONE = "none"
    HOLD = "hold"
    COMMIT = "commit"
    RESUME = "resume"


@dataclass(slots=True)
class BargeIn:
    """The decision for one session; times are seconds on the owner's clock.

    Attributes:
        floor: Whether the bot has the floor: it speaks, or is about to.
        held: Whether the bot is on hold.
        committed: Whether the speech now heard is the user's turn already. Speech that began under
            the bot's floor is judged by its words, even when the bot has finished meanwhile.
        echo: Whether the microphone hears the bot. From then on a sound no longer holds it (each
            echo would be a stutter); words that the bot has not said still commit.
    """

    floor: bool = False
    held: bool = False
    committed: bool = True
    echo: bool = False
    _held_s: float = 0.0
    _ended_s: float | None = None

    def bot(self, floor: bool) -> None:
        """The bot takes or leaves the floor."""
        self.floor = floor
        if not floor:
            self.held = False

    def onset(self, now_s: float) -> Decision:
        """The VAD hears speech begin."""
        self._ended_s = None
        self.committed = not self.floor
        if not self.floor:
            return Decision.COMMIT
        if self.held or self.echo:
            return Decision.NONE
        self.held, self._held_s = True, now_s
        return Decision.HOLD

    def offset(self, end_s: float) -> None:
        """The VAD has heard speech end at `end_s`; the final transcript will decide."""
        self._ended_s = end_s

    def words(
        self, now_s: float, text: str, *, final: bool, confidence: float = 0.0, bot_text: str = ""
    ) -> Decision:
        """ASR's view of the speech so far.

        Args:
            now_s: The time.
            text: Transcript from the onset on.
            final: Whether the speech has ended and this is its last transcript.
            confidence: The ASR's mean log-probability; a hum is often written as some word, but
                without conviction.
            bot_text: What the bot says, to know its echo.
        """
        if self.committed:
            return Decision.NONE
        real = takes_floor(text, final=final, sure=confidence > SURE)
        if real and not self._is_echo(now_s, text, bot_text, final):
            self.committed = True
            return Decision.COMMIT
        return self._resume() if final else Decision.NONE

    def time_out(self) -> Decision:
        """MAX_HOLD_S have passed: a long sound without words (music, a fan) holds no longer."""
        return self._resume()

    def _resume(self) -> Decision:
        if not self.held:
            return Decision.NONE
        self.held = False
        return Decision.RESUME

    def _is_echo(self, now_s: float, text: str, bot_text: str, final: bool) -> bool:
        """Whether the bot hears itself.

        A hold tells: the bot's echo falls silent with it, while a person who happens to use the
        bot's words speaks on.
        """
        fresh = unsaid(text, bot_text)
        if self.echo:
            return len(fresh) < 2 and INTERRUPTERS.isdisjoint(fresh)
        if len(fresh) * 3 > len(tokens(text)):
            return False
        until_s = now_s if self._ended_s is None else self._ended_s
        quick = until_s - self._held_s < ECHO_TAIL_S
        self.echo = quick and final
        return quick


def tokens(text: str) -> list[str]:
    """Words of `text` in lower case; each Chinese character is one."""
    return [token.lower().strip("'") for token in _TOKEN.findall(text.replace("-", ""))]


def unsaid(text: str, bot_text: str) -> list[str]:
    """Words of `text` that `bot_text` does not have."""
    said = set(tokens(bot_text))
    return [word for word in tokens(text) if word not in said]


def is_backchannel(words: list[str]) -> bool:
    """Whether these words only show attention."""
    rest = PHRASES.sub("", " ".join(words)).split()
    return len(words) <= 5 and BACKCHANNELS.issuperset(rest)


def takes_floor(text: str, *, final: bool, sure: bool = True) -> bool:
    """Whether a transcript holds words that take the floor.

    A known interrupter always does. Other words need an ASR that is sure of them, and a single word
    may still turn out to be a hum until the utterance has ended.
    """
    words = tokens(text)
    if not words or is_backchannel(words):
        return False
    return words[0] in INTERRUPTERS or (sure and (final or len(words) >= 2))
