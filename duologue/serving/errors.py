"""What the server refuses, and the one table of statuses that gRPC and HTTP answer with."""

import asyncio
import logging
from contextlib import asynccontextmanager

from duologue.errors import CapacityError, DuologueError, EngineError, InputError, UsageError

log = logging.getLogger(__name__)


class UnknownVoice(UsageError):
    """No voice has that name."""


class VoiceExists(UsageError):
    """The name is taken."""


class NotLoaded(UsageError):
    """What is loaded cannot do this; the message names what is."""


class TooLarge(InputError):
    """More than a limit of the server; the message names the limit."""


class Stopping(CapacityError):
    """The server takes no more calls."""


class EngineGone(EngineError):
    """The engine's thread has ended; only a new process has another one."""


_STATUSES: list[tuple[type[Exception], str, int]] = [
    (UnknownVoice, "NOT_FOUND", 404),
    (VoiceExists, "ALREADY_EXISTS", 409),
    (NotLoaded, "FAILED_PRECONDITION", 422),
    (Stopping, "UNAVAILABLE", 503),
    (CapacityError, "RESOURCE_EXHAUSTED", 503),
    (TooLarge, "INVALID_ARGUMENT", 413),
    (InputError, "INVALID_ARGUMENT", 400),
    (EngineError, "INTERNAL", 500),
    (UsageError, "INVALID_ARGUMENT", 400),
    (TimeoutError, "DEADLINE_EXCEEDED", 408),
    (Exception, "INTERNAL", 500),
]


def status_of(error: Exception) -> tuple[str, int, str]:
    """The gRPC status, the HTTP status and the message for a client.

    An engine's failure may hold folders and addresses; these go to the log, not to the client.
    """
    code, http = next((c, h) for kind, c, h in _STATUSES if isinstance(error, kind))
    if code != "INTERNAL":
        return code, http, str(error)
    log.error("a call failed", exc_info=error)
    known = isinstance(error, DuologueError)
    what = "an engine" if known else "the server"
    return code, http, f"{what} failed; its log says why. Try again."


@asynccontextmanager
async def within(seconds: float, what: str):
    """A time limit whose error says what it is of.

    Raises:
        TimeoutError: `what` and the seconds.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"{what} {seconds:g} s") from error
        raise
