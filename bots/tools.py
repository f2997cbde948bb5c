"""The room's tools: the time in a zone, and a timer that speaks up when it fires."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from num2words import num2words

from duologue.errors import InputError
from duologue.tools import ToolRegistry, ToolResult

MAX_TIMERS = 16
MAX_NUMBER = 10_000
SECONDS = {"second": 1, "minute": 60, "hour": 3600}
NUMBERS = {num2words(n).replace("-", " "): n for n in range(1, 121)} | {"a": 1, "an": 1}


def room_tools(
    announce: Callable[[str], Awaitable[None]],
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    *,
    now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ToolRegistry:
    """The tools of one session.

    Args:
        announce: Says something of the bot's own accord.
        spawn: Makes a task that lives as long as the session.
        now: The local time, with its zone.
        sleep: Waits some seconds.
    """
    registry = ToolRegistry()
    timers: set[asyncio.Task[None]] = set()

    place = r"(?P<place>[\w ]+?)(?: right)?(?: now)?\W*$"

    @registry.tool(
        rf"\bwhat time .*\bin {place}",
        rf"\btime is it in {place}",
        rf"\bthe (?:current )?time in {place}",
        r"\bwhat time is it\b",
        r"\bwhat(?:'s| is) the (?:current )?time\b",
    )
    async def current_time(place: str = "") -> ToolResult:
        """Tell the current time, here or in a city or time zone such as Tokyo or Europe/Paris."""
        moment = now() if not place else now().astimezone(zone_of(place))
        clock = f"{moment:%I:%M %p}".lstrip("0")
        where = f" in {place.strip().title()}" if place else ""
        return ToolResult({"time": moment.isoformat(timespec="minutes")}, f"It is {clock}{where}.")

    @registry.tool(
        r"timer (?:for|of) (?P<amount>[\w ]+?)[ -](?P<unit>second|minute|hour)s?\b",
        r"\ban? (?P<amount>\w+(?:[ -]\w+)?)[ -](?P<unit>second|minute|hour)s? timer",
        r"remind me in (?P<amount>[\w ]+?) (?P<unit>second|minute|hour)s?\b",
        cancel_on_barge_in=False,
    )
    async def set_timer(amount: str, unit: str) -> ToolResult:
        """Set a timer, such as amount "5" and unit "minute"; it speaks up when it fires."""
        seconds = number_of(amount) * SECONDS[unit.rstrip("s")]
        if len(timers) >= MAX_TIMERS:
            raise InputError(f"{MAX_TIMERS} timers are running already")
        length = f"{amount.strip()} {unit}{'' if seconds == SECONDS[unit] else 's'}"

        async def fire() -> None:
            await sleep(seconds)
            await announce(f"Your timer for {length} is done.")

        task = spawn(fire(), f"timer {length}")
        timers.add(task)
        task.add_done_callback(timers.discard)
        return ToolResult({"seconds": seconds}, f"Okay, a timer for {length}.")

    return registry


@cache
def _zones() -> dict[str, str]:
    """City, in lower case, to zone name."""
    return {zone.rsplit("/")[-1].replace("_", " ").lower(): zone for zone in available_timezones()}


def zone_of(place: str) -> ZoneInfo:
    """The time zone of a city or zone name.

    Raises:
        InputError: no zone has that name.
    """
    wanted = place.strip().removeprefix("the ").lower()
    if wanted in _zones():
        return ZoneInfo(_zones()[wanted])
    for zone in available_timezones():
        if zone.lower() == wanted.replace(" ", "_"):
            return ZoneInfo(zone)
    raise InputError(f"no time zone is known for {place!r}; name a large city, such as Tokyo")


def number_of(text: str) -> int:
    """A whole number from 1 to MAX_NUMBER, in digits or English words.

    Raises:
        InputError: neither.
    """
    words = text.replace("-", " ").strip().lower()
    number = int(words[:9]) if words.isdecimal() else NUMBERS.get(words, 0)
    if not 1 <= number <= MAX_NUMBER:
        raise InputError(f"{text!r} is not a number from 1 to {MAX_NUMBER}")
    return number
