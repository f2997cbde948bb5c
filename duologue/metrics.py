"""What a process counts for Prometheus; the same names wherever sessions are held.

`kind` is how a session came: "grpc", "http", "room", "phone" or "daily". `engine` is what did the
work.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from duologue.errors import CapacityError, InputError, UsageError
from duologue.state_metrics import StateBytes

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)

SESSIONS = Gauge("duologue_sessions", "Sessions that run.", ["kind"])
ENDED = Counter("duologue_sessions_ended", "Sessions that ended.", ["kind", "outcome"])
FIRST_AUDIO = Histogram(
    "duologue_first_audio_seconds",
    "From the first of what is to be said to its first sound.",
    ["engine"],
    buckets=_SECONDS,
)
QUEUE_WAIT = Histogram(
    "duologue_queue_wait_seconds", "Work's wait for its engine.", ["engine"], buckets=_SECONDS
)
AUDIO_SECONDS = Counter("duologue_audio_seconds", "Sound made.", ["engine"])
UNDERRUNS = Counter(
    "duologue_underruns", "Times when a listener in real time ran out of sound.", ["engine"]
)
TURNS = Counter("duologue_turns", "Turns of users that were answered to.", ["kind"])
ANSWERS = Counter(
    "duologue_answers", "Answers that are over: heard to their end, or cut.", ["kind", "outcome"]
)
STAGE = Histogram(
    "duologue_stage_seconds",
    "Parts of the time from a user's last sound to the bot's first, and all of it.",
    ["kind", "stage"],
    buckets=_SECONDS,
)
BARGE_INS = Counter(
    "duologue_barge_ins", "Holds of the bot by a sound, and what came of them.", ["kind", "outcome"]
)
LM_ABORTS = Counter(
    "duologue_lm_aborts", "Aborted requests, by whether the server was seen to stop.", ["confirmed"]
)
LM_WASTED = Counter("duologue_lm_wasted_tokens", "Tokens generated after their request's abort.")
STATE = StateBytes()
"""What engines hold for sessions; whatever loads an engine has it watched."""
REGISTRY.register(STATE)
ERRORS = Counter("duologue_errors", "Errors that a conversation went on after.", ["kind"])


def render() -> bytes:
    """Everything counted so far, in the form of `CONTENT_TYPE`."""
    return generate_latest()


@dataclass(slots=True)
class Session:
    """One session.

    Attributes:
        outcome: How it ended: "done", "cancelled", "timeout", "refused" (no place), "invalid" (bad
            input) or "failed"; empty until then, or for `session` to tell it by the exception.
    """

    outcome: str = ""


@contextmanager
def session(kind: str) -> Iterator[Session]:
    """Count a session from here to the end of the block, with how it ended."""
    this = Session()
    SESSIONS.labels(kind).inc()
    try:
        yield this
    except BaseException as error:
        this.outcome = this.outcome or _outcome(error)
        raise
    finally:
        SESSIONS.labels(kind).dec()
        ENDED.labels(kind, this.outcome or "done").inc()


def refused(kind: str) -> None:
    """Count a session for which there was no place."""
    ENDED.labels(kind, "refused").inc()


def _outcome(error: BaseException) -> str:
    if isinstance(error, CapacityError):
        return "refused"
    if isinstance(error, InputError | UsageError):
        return "invalid"
    if isinstance(error, TimeoutError):
        return "timeout"
    # CancelledError and GeneratorExit are no Exceptions.
    return "failed" if isinstance(error, Exception) else "cancelled"


@dataclass(slots=True)
class Listener:
    """Times one utterance as a listener in real time has it.

    Attributes:
        engine: What makes the sound.
        clock: Monotonic seconds.
    """

    engine: str
    clock: Callable[[], float] = monotonic
    _since_s: float = field(init=False)
    _until_s: float | None = None

    def __post_init__(self):
        self._since_s = self.clock()

    def hear(self, seconds: float) -> None:
        """So much sound arrives now."""
        now_s = self.clock()
        if self._until_s is None:
            FIRST_AUDIO.labels(self.engine).observe(now_s - self._since_s)
        elif now_s > self._until_s:
            UNDERRUNS.labels(self.engine).inc()
        self._until_s = max(now_s, self._until_s or now_s) + seconds
        AUDIO_SECONDS.labels(self.engine).inc(seconds)
