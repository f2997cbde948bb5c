"""Barge-in in two steps: hold the bot at the first sound, then commit or resume by what it was.

A pure state machine; its owner keeps the time. Speech that starts while the bot has the floor only
holds it. Real words commit (the bot is cut off); a backchannel, a noise or the bot's own echo
resumes it.
"""

import re
from dataclasses import dataclass
from enum import Enum

ECHO_TAIL_S = 0.6
"""The bot's sound has left the room this long after a hold: loop delay plus reverberation."""

MAX_HOLD_S = 1.7
"""Longest hold without words; keeps the promise to resume within 2 s of onset."""

# How sure the ASR has to be (mean log-probability) and how long the sound has to be for words to
# take the floor. Tuned on the labelled recordings in tests/data/duplex.
# A backchannel is seldom as long: any words take the floor, the longer the less sure.
LONG_S, LONG_SURE = 0.55, -1.5
LONGER_S, LONGER_SURE = 0.65, -3.0
INTERRUPTER_S, INTERRUPTER_SURE = 0.05, -1.5
ONE_WORD_S, ONE_WORD_SURE = 0.25, -0.75
FINAL_SURE = -1.2
UNFINISHED_SURE = -1.2
ECHO_SURE = -0.95
MAX_NO_SPEECH = 0.6

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
    r"\b(i see( you)?|got it|of course|makes sense|that's (right|good|great|true)|thanks|thank you)"
    r"\b"
)
LAUGHTER = re.compile(r"(h[aeo]+)+h?")
# One of these is enough, even while the utterance goes on.
INTERRUPTERS = frozenset(
    "stop wait no hold pause quiet enough excuse sorry what hello hey help listen 停 等 不".split()
)
# So is one of these at its beginning: questions and objections.
OPENINGS = INTERRUPTERS | frozenset(
    "who why how when where which is are do does can could but actually".split()
)


class Decision(Enum):
    """What to do with the bot's voice."""

    NONE = "none"
    HOLD = "hold"
    COMMIT = "commit"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Heard:
    """A transcript of speech that began under the bot's floor.

    Attributes:
        text: The words.
        final: Whether the speech has ended.
        confidence: Mean log-probability; a hum is often written as some word, without conviction.
        no_speech: Probability that there was no speech at all.
    """

    text: str
    final: bool
    confidence: float = 0.0
    no_speech: float = 0.0


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
    _onset_s: float = 0.0
    _held_s: float = 0.0
    _ended_s: float | None = None

    def bot(self, floor: bool) -> None:
        """The bot takes or leaves the floor."""
        self.floor = floor
        if not floor:
            self.held = False

    def onset(self, now_s: float) -> Decision:
        """The VAD hears speech begin."""
        self._onset_s, self._ended_s = now_s, None
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

    def words(self, now_s: float, heard: Heard, *, bot_text: str = "") -> Decision:
        """ASR's view of the speech so far.

        Args:
            now_s: The time.
            heard: The transcript from the onset on.
            bot_text: What the bot says, to know its echo.
        """
        if self.committed:
            return Decision.NONE
        spoken_s = (now_s if self._ended_s is None else self._ended_s) - self._onset_s
        if takes_floor(heard, spoken_s) and not self._is_echo(now_s, heard, bot_text):
            self.committed = True
            self.echo = False
            return Decision.COMMIT
        return self._resume() if heard.final else Decision.NONE

    def time_out(self) -> Decision:
        """MAX_HOLD_S have passed: a long sound without words (music, a fan) holds no longer."""
        return self._resume()

    def _resume(self) -> Decision:
        if not self.held:
            return Decision.NONE
        self.held = False
        return Decision.RESUME

    def _is_echo(self, now_s: float, heard: Heard, bot_text: str) -> bool:
        """Whether the bot hears itself.

        A hold tells: the bot's echo falls silent with it, while a person who happens to use the
        bot's words speaks on.
        """
        fresh = unsaid(heard.text, bot_text)
        if self.echo:
            few = len(fresh) < (2 if heard.final else 3)
            return INTERRUPTERS.isdisjoint(fresh) and (few or heard.confidence < ECHO_SURE)
        if len(fresh) * 3 > len(tokens(heard.text)):
            return False
        until_s = now_s if self._ended_s is None else self._ended_s
        quick = until_s - self._held_s < ECHO_TAIL_S
        self.echo = quick and heard.final
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
    return all(word in BACKCHANNELS or LAUGHTER.fullmatch(word) for word in rest)


def takes_floor(heard: Heard, spoken_s: float) -> bool:
    """Whether a transcript of `spoken_s` seconds of speech holds words that take the floor."""
    words = tokens(heard.text)
    if not words or is_backchannel(words) or heard.no_speech > MAX_NO_SPEECH:
        return False
    sure = heard.confidence
    if spoken_s >= LONGER_S and sure > LONGER_SURE or spoken_s >= LONG_S and sure > LONG_SURE:
        return True
    if words[0] in OPENINGS:
        return spoken_s >= INTERRUPTER_S and sure > INTERRUPTER_SURE
    if len(words) == 1:
        return heard.final and spoken_s >= ONE_WORD_S and sure > ONE_WORD_SURE
    return sure > (FINAL_SURE if heard.final else UNFINISHED_SURE)
