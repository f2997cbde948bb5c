"""From the caller's last word to the bot's first sound, in Chromium, and what a room costs.

Every question of a labelled set is asked on the room's real page. Beside the latencies: false
cut-offs, the room's CPU with nobody and with a silent caller, and what is left after ten calls.

    python -m benchmarks.latency [--limit N] [--set KEY=VALUE] [--json]
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from playwright.async_api import Browser

from bots.rehearse import RoomServer, chromium, open_page, room_server
from duologue.rehearsal.report import Exchange, exchanges, summary, table
from duologue.rehearsal.script import Utterance, perform, read_labels
from duologue.rehearsal.timeline import Clip

QUESTIONS = Path(__file__).parents[1] / "tests/data/questions"
# The models' prompts grow with a call; people's calls begin anew, too.
QUESTIONS_PER_CALL = 5
CYCLES = 10
WATCH_S = 10.0
KEEP_ALIVE_S = 6.0


async def ask(browser: Browser, url: str, clips: list[Clip]) -> list[Exchange]:
    """Ask in one call, each question once the last answer is over."""
    async with open_page(browser, url) as caller:
        await caller.connect()
        for clip in clips:
            try:
                await perform([Utterance(clip, "listening", 0.7)], caller, patience_s=25)
            except TimeoutError:
                # Not answered, or not to its end: the figures say so.
                break
        return exchanges(caller.timeline)


async def ask_all(browser: Browser, url: str, clips: list[Clip]) -> list[Exchange]:
    """Ask everything, in as many calls as that takes."""
    found: list[Exchange] = []
    while len(found) < len(clips):
        asked = await ask(browser, url, clips[len(found) : len(found) + QUESTIONS_PER_CALL])
        if not asked:
            raise TimeoutError(f"the room gave no chance to ask {clips[len(found)].name}")
        found += asked
        print(f"{len(found)} of {len(clips)} asked", file=sys.stderr)
    return found


def cpu_s(server: RoomServer) -> float:
    """CPU seconds that the room's processes have used."""
    room = psutil.Process(server.process.pid)
    times = [process.cpu_times() for process in (room, *room.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


async def cpu_percent(server: RoomServer) -> float:
    """Share of one core that the room uses for a while."""
    before, start = cpu_s(server), time.monotonic()
    await asyncio.sleep(WATCH_S)
    return 100 * (cpu_s(server) - before) / (time.monotonic() - start)


async def held(server: RoomServer) -> dict[str, float]:
    """What the room's process holds, once the browser's HTTP connections have timed out, too."""
    await asyncio.sleep(KEEP_ALIVE_S)
    room = psutil.Process(server.process.pid)
    return {
        "rss_mb": room.memory_info().rss / 1e6,
        "files": room.num_fds(),
        "sockets": len(room.net_connections()),
        "threads": room.num_threads(),
    }


async def call_and_leave(browser: Browser, server: RoomServer) -> None:
    """One call without a word, until its place is free again."""
    async with open_page(browser, server.url) as caller:
        await caller.connect()
        await caller.hang_up()
    await asyncio.to_thread(server.wait_until_empty)


async def costs(browser: Browser, server: RoomServer) -> dict[str, Any]:
    """CPU of an empty and of a quiet room, and what ten calls leave behind."""
    await call_and_leave(browser, server)
    empty = await cpu_percent(server)
    async with open_page(browser, server.url) as caller:
        await caller.connect()
        await asyncio.sleep(1)
        quiet = await cpu_percent(server)
    before = await held(server)
    for _ in range(CYCLES):
        await call_and_leave(browser, server)
    return {
        "cpu_percent": {"no_session": empty, "silent_session": quiet},
        "cycles": {"n": CYCLES, "before": before, "after": await held(server)},
    }


async def measure(server: RoomServer, clips: list[Clip]) -> tuple[list[Exchange], dict[str, Any]]:
    """The exchanges, and the costs."""
    async with chromium() as browser:
        cost = await costs(browser, server)
        return await ask_all(browser, server.url, clips), cost


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure answers on the page.")
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="a labelled set")
    parser.add_argument("--limit", type=int, help="ask only so many")
    parser.add_argument("--set", dest="flags", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    clips = [label.clip() for label in read_labels(options.questions)[: options.limit]]
    with room_server(*options.flags) as server:
        found, cost = asyncio.run(measure(server, clips))
    figures = summary(found) | cost
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(table(found))
    print(f"cut off: {figures['cut_off']} of {len(found)}, unanswered: {figures['unanswered']}")
    print(json.dumps(cost, indent=2))


if __name__ == "__main__":
    main()
