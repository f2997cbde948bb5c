"""Barge-in in two steps: hold the bot at the first sound, then commit or resume by what it was.

A pure state machine; its owner keeps the time. Speech that starts while the bot has the floor only
holds it. Real words commit (the bot is cut off); a backchannel, a noise or the bot's own echo
resumes it.
"""

import re
from dataclasses import dataclass
from enum import Enum

SURE = -0.8
"""Mean log-probability above which a word is taken at its word."""

MAX_HOLD_S = 1.7
"""Longest hold without words; keeps the promise to resume within 2 s of onset."""

_TOKEN = re.compile(r"[a-z']+|[\u4e00-\u9fff]", re.IGNORECASE)

# Words by which a listener shows attention without taking the floor, and the spellings that ASR
# gives to hums. Chinese ones are compared character by character.
BACKCHANNELS = frozenset(
    """
    aha ah ahh alright amazing aw awesome aww brilliant cool dear eh excellent exactly fantastic
    fine good gosh gotcha great ha haha hm hmm hmmm hmph huh indeed lovely mhm mhmm mm mmhm mmhmm mmm
    mmmm nice oh ohh ok okay oo ooh perfect really right sir sure true ugh uh uhhuh uhm um umm
    whoa wonderful wow yay yeah yep yes yup 嗯 对 好 哦 啊 是 的 呃 哈 噢 哇 行
    """.split()
)
PHRASES = re.compile(r"\b(i see|got it|of course|makes sense|that's (right|good|great|true))\b")
# One of these is enough, even while the utterance goes on.
INTERRUPTERS = frozenset(
    "stop wait no hold pause quiet enough excuse sorry what hey hello help listen 停 等 不".split()
)


class Decision(Enum):
    """What to do with the bot's voice."""

    NONE = "none"
    HOLD = "hold"
    COMMIT = "commit"
    RESUME = "resume"


@dataclass(slots=True)
class BargeIn:
    """The decision for one session.

    Attributes:
        floor: Whether the bot has the floor: it speaks, or is about to.
        held: Whether the bot is on hold.
        committed: Whether the speech now heard has already been taken as the user's turn.
    """

    floor: bool = False
    held: bool = False
    committed: bool = False
    _echo: bool = False

    def bot(self, floor: bool) -> None:
        """The bot takes or leaves the floor."""
        self.floor = floor
        self._echo = False
        if not floor:
            self.held = False

    def onset(self) -> Decision:
        """The VAD hears speech begin."""
        self.committed = not self.floor
        if not self.floor:
            return Decision.COMMIT
        # The bot has just been heard in the microphone: a pause for each echo would be a stutter.
        if self.held or self._echo:
            return Decision.NONE
        self.held = True
        return Decision.HOLD

    def words(
        self, text: str, *, final: bool, confidence: float = 0.0, bot_text: str = ""
    ) -> Decision:
        """ASR's view of the speech so far.

        Args:
            text: Transcript from the onset on.
            final: Whether the speech has ended and this is its last transcript.
            confidence: The ASR's mean log-probability; a hum is often written as some word, but
                without conviction.
            bot_text: What the bot has said last, to know its echo.
        """
        if not self.floor or self.committed:
            return Decision.NONE
        if takes_floor(text, final=final, sure=confidence > SURE):
            if final and self._is_echo(text, bot_text):
                self._echo = True
                return self._resume()
            if not self._is_echo(text, bot_text):
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

    @staticmethod
    def _is_echo(text: str, bot_text: str) -> bool:
        """Whether these words are a run of what the bot has just said."""
        heard, said = tokens(text), tokens(bot_text)
        width = len(heard)
        return width > 0 and any(
            said[at : at + width] == heard for at in range(len(said) - width + 1)
        )


def tokens(text: str) -> list[str]:
    """Words of `text` in lower case; each Chinese character is one."""
    return [token.lower().strip("'") for token in _TOKEN.findall(text.replace("-", ""))]


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
