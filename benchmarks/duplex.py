"""Does the bot give way to real words, and only to those? Measured in Chromium, as it is heard.

Every clip of a labelled set is played over the bot's voice on the room's real page.

    python -m benchmarks.duplex [--limit N] [--chinese] [--set KEY=VALUE] [--json]
"""

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from bots.rehearse import BrowserCaller, chromium, open_page, room_server
from duologue.rehearsal.levels import AUDIBLE_DB, FRAME_S, levels_db, quiet_after
from duologue.rehearsal.report import grid, percentiles
from duologue.rehearsal.script import Label, read_labels
from duologue.rehearsal.timeline import RATE_HZ, Clip, Said, Timeline

DATA = Path(__file__).parents[1] / "tests/data"
# Long answers, so that there is something to cut in on.
FLAGS = ["lm.max_tokens=150", "lm.max_sentences=null"]
PROMPTS = [
    "Tell me something about the moon.",
    "Can you tell me a story?",
    "Why is the sky blue?",
    "How do I boil an egg?",
]
CLIPS_PER_CALL = 12
PATIENCE_S = 60.0
INTO_ANSWER_S = 1.2
CHARS_LEFT = 70
SETTLED_S = 2.5
# Natural pauses of the voice are shorter than a hold.
HOLD_S = 0.25
FIGURES = ("hold_ms", "duck_ms", "commit_ms", "flush_ms", "resume_ms")


@dataclass(frozen=True, slots=True)
class Trial:
    """What one clip did; times count from the onset of its sound.

    Attributes:
        outcome: "stopped", "resumed" after a pause, or "unmoved".
        heard: What the room took it for.
        hold_ms: The page says that the bot pauses.
        duck_ms: The bot's level has fallen by 20 dB.
        commit_ms: The page says that the answer is cut off; `flush_ms` is the bot's last sound.
        resume_ms: The bot's sound is back.
    """

    name: str
    kind: str
    text: str
    outcome: str
    heard: str
    hold_ms: float | None
    duck_ms: float | None
    commit_ms: float | None
    flush_ms: float | None
    resume_ms: float | None


def judge(seen: Timeline, said: Said, kind: str) -> Trial:
    """Read a clip's effect from the timeline, once it has settled."""
    until_s = said.end_s + SETTLED_S
    events = [event for event in seen.events if said.start_s <= event.at_s <= until_s]

    def first_ms(*wanted: str) -> float | None:
        words = ((e, e.data.get("state") or e.data.get("reason")) for e in events)
        return next((1000 * (e.at_s - said.start_s) for e, word in words if word in wanted), None)

    hold_ms, commit_ms = first_ms("held", "hearing"), first_ms("interrupted")
    # A voice that nobody stopped has pauses, too.
    quiet = None if hold_ms is None else _quiet(seen, said)
    stopped = commit_ms is not None
    heard = [event.data["text"] for event in events if event.data["type"] == "user"]
    return Trial(
        name=said.clip.name,
        kind=kind,
        text=said.clip.text,
        outcome="stopped" if stopped else "unmoved" if hold_ms is None else "resumed",
        heard=max(heard, key=len, default=""),
        hold_ms=hold_ms,
        duck_ms=quiet and 1000 * quiet[0],
        commit_ms=commit_ms,
        flush_ms=1000 * _last_sound(seen, said, commit_ms) if commit_ms is not None else None,
        resume_ms=1000 * quiet[1] if quiet and not stopped else None,
    )


def _quiet(seen: Timeline, said: Said) -> tuple[float, float] | None:
    """Start and end of the bot's first silence, in seconds after the onset."""
    sound = seen.bot.between(said.start_s - 1, said.end_s + SETTLED_S)
    found = quiet_after(sound, RATE_HZ, 1.0, hold_s=HOLD_S)
    return found and (found[0] - 1, found[1] - 1)


def _last_sound(seen: Timeline, said: Said, commit_ms: float) -> float:
    """End of the old answer's sound; the next answer has not begun half a second later."""
    end_s = max(said.start_s + commit_ms / 1000, said.end_s) + 0.5
    levels = levels_db(seen.bot.between(said.start_s, end_s), RATE_HZ)
    (loud,) = (levels > AUDIBLE_DB).nonzero()
    return float(loud[-1] + 1) * FRAME_S if len(loud) else 0.0


def moment(seen: Timeline) -> str | None:
    """Whether it is time to "cut_in" on the bot, or to "ask" it something to talk about."""
    states = seen.all("state")
    since_s = seen.bot.end_s - states[-1].at_s
    if states[-1].data["state"] == "listening":
        return "ask" if since_s > 0.7 else None
    texts = seen.all("bot_text")
    if states[-1].data["state"] != "speaking" or since_s < INTO_ANSWER_S or not texts:
        return None
    latest = texts[-1].data
    heard = seen.all("bot_heard", turn=latest["turn"])
    chars = heard[-1].data["chars"] if heard else 0
    return "cut_in" if chars and len(latest["text"]) - chars > CHARS_LEFT else None


async def cut_in(caller: BrowserCaller, clip: Clip, prompts: list[Clip]) -> Said:
    """Play the clip over an answer that goes on for long enough, and wait until it has settled."""
    for prompt in prompts:
        if await caller.until(moment, PATIENCE_S) == "cut_in":
            break
        await caller.say(prompt)
        await caller.until(lambda seen: seen.all("state")[-1].data["state"] != "listening" or None)
    else:
        raise TimeoutError("the bot gave short answers only")
    said = await caller.say(clip)
    over_s = said.end_s + SETTLED_S
    await caller.until(lambda seen: seen.bot.end_s > over_s or None, PATIENCE_S)
    return said


async def call(browser: Browser, url: str, labels: list[Label], prompts: list[Clip]) -> list[Trial]:
    """As many trials as one call holds out for."""
    trials: list[Trial] = []
    async with open_page(browser, url) as caller:
        await caller.connect()
        for label in labels:
            try:
                said = await cut_in(caller, label.clip(), prompts)
            except TimeoutError as error:
                print(f"a new call: {error or 'nothing happens any more'}", file=sys.stderr)
                break
            trials.append(judge(caller.timeline, said, label.kind))
            print(trials[-1], file=sys.stderr, flush=True)
    return trials


async def run(url: str, labels: list[Label], prompts: list[Clip]) -> list[Trial]:
    """All trials, in as many calls as that takes."""
    trials: list[Trial] = []
    async with chromium() as browser:
        while left := labels[len(trials) :]:
            found = await call(browser, url, left[:CLIPS_PER_CALL], prompts)
            if not found:
                raise TimeoutError(f"the bot gave no chance to play {left[0].path.name}")
            trials += found
    return trials


def summary(trials: list[Trial]) -> dict[str, Any]:
    """Percentiles in milliseconds, and the confusion table with its two rates."""
    table = Counter((trial.kind, trial.outcome) for trial in trials)
    stops = [trial.outcome == "stopped" for trial in trials if trial.kind != "interruption"]
    hits = [trial.outcome == "stopped" for trial in trials if trial.kind == "interruption"]
    columns = {name: percentiles(getattr(t, name) for t in trials) for name in FIGURES}
    return columns | {
        "confusion": [{"kind": k, "outcome": o, "n": n} for (k, o), n in sorted(table.items())],
        "false_stops": sum(stops) / len(stops) if stops else None,
        "recall": sum(hits) / len(hits) if hits else None,
        "trials": [asdict(trial) for trial in trials],
    }


def show(figures: dict[str, Any]) -> None:
    rows = [["", "n", "p50", "p95", "max", ""]]
    for name in FIGURES:
        cells = [f"{value:.0f}" for value in (figures[name] or {}).values()] or [""] * 4
        rows.append([name, *cells, ""])
    print(grid(rows))
    for cell in figures["confusion"]:
        print(f"{cell['kind']:<14}{cell['outcome']:<10}{cell['n']}")
    for name in ("false_stops", "recall"):
        print(name, "–" if figures[name] is None else f"{100 * figures[name]:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure barge-in on the page.")
    parser.add_argument("--data", type=Path, default=DATA, help="holds duplex and questions")
    parser.add_argument("--limit", type=int, help="play about so many, spread over the set")
    parser.add_argument("--chinese", action="store_true", help="also clips in Chinese")
    parser.add_argument("--set", dest="flags", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    labels = [
        label
        for label in read_labels(options.data / "duplex")
        if options.chinese or not re.search("[\u4e00-\u9fff]", label.text)
    ]
    labels = labels[:: max(1, round(len(labels) / (options.limit or len(labels))))]
    asked = [label for label in read_labels(options.data / "questions") if label.text in PROMPTS]
    with room_server(*FLAGS, *options.flags) as server:
        trials = asyncio.run(run(server.url, labels, [label.clip() for label in asked]))
    figures = summary(trials)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
