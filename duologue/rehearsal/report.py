"""The figures of a rehearsal, as a table or as data."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from duologue.rehearsal.levels import gaps
from duologue.rehearsal.timeline import RATE_HZ, Said, Timeline

STAGES = (
    "end_of_turn_ms",
    "asr_ms",
    "lm_first_token_ms",
    "voice_first_audio_ms",
    "total_ms",
    "outside_ms",
)
QUIET_BEFORE_S = 0.3


@dataclass(frozen=True, slots=True)
class Exchange:
    """One utterance and what came of it, until the caller speaks again.

    Attributes:
        name: The utterance.
        said: Its words, where they are known.
        heard: What the room understood.
        reply: The text of the answer, or of several.
        voice_to_voice_ms: From the end of the caller's speech to the bot's first sound.
        cut_off: The bot took the floor before the caller had ended: its sound began too early, it
            took the utterance for several turns, or the last words are missing from `heard`.
        longest_gap_ms: The longest silence inside the bot's answer; a voice that is fed too late
            stutters.
        stages: The page's own latencies; "outside_ms" is what they do not see of the whole, the way
            of the sound to the room and back.
    """

    name: str
    said: str
    heard: str
    reply: str
    voice_to_voice_ms: float | None
    cut_off: bool
    longest_gap_ms: float
    stages: dict[str, float | None]


def exchanges(timeline: Timeline) -> list[Exchange]:
    """One exchange for each utterance."""
    ends_s = [said.at_s for said in timeline.said[1:]] + [float("inf")]
    return [_exchange(timeline, *pair) for pair in zip(timeline.said, ends_s, strict=True)]


def _exchange(timeline: Timeline, said: Said, until_s: float) -> Exchange:
    events = [event for event in timeline.events if said.at_s <= event.at_s < until_s]
    turns = [event.data for event in events if event.data["type"] == "user"]
    turns = [data for data in turns if data["final"] and data["text"]]
    replies = {e.data["turn"]: e.data["text"] for e in events if e.data["type"] == "bot_text"}
    latency = next((e.data for e in events if e.data["type"] == "latency"), {})
    sound_s = timeline.bot.first_sound(said.end_s)
    voice_to_voice_ms = None
    if sound_s is not None and sound_s < until_s:
        voice_to_voice_ms = 1000 * (sound_s - said.end_s)
    heard = " ".join(data["text"] for data in turns)
    early = began_sound(timeline, said.start_s, said.end_s)
    return Exchange(
        name=said.clip.name,
        said=said.clip.text,
        heard=heard,
        reply=" ".join(replies.values()),
        voice_to_voice_ms=voice_to_voice_ms,
        cut_off=early or len(turns) > 1 or lacks_end(said.clip.text, heard),
        longest_gap_ms=_longest_gap_ms(timeline, said.end_s, until_s),
        stages=_stages(latency, voice_to_voice_ms),
    )


def _stages(latency: dict[str, Any], whole_ms: float | None) -> dict[str, float | None]:
    stages = {name: latency.get(name) for name in STAGES}
    total_ms = stages["total_ms"]
    if whole_ms is not None and total_ms is not None:
        stages["outside_ms"] = whole_ms - total_ms
    return stages


def _longest_gap_ms(timeline: Timeline, start_s: float, end_s: float) -> float:
    sound = timeline.bot.between(start_s, min(end_s, timeline.bot.end_s))
    return max((1000 * (end - start) for start, end in gaps(sound, RATE_HZ)), default=0.0)


def began_sound(timeline: Timeline, start_s: float, end_s: float) -> bool:
    """Whether the bot, silent before, becomes audible in this stretch of time."""
    sound_s = timeline.bot.first_sound(start_s - QUIET_BEFORE_S)
    return sound_s is not None and start_s <= sound_s < end_s


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return re.findall(r"[\w']+", text.lower())


def lacks_end(said: str, heard: str) -> bool:
    """Whether two or more of the last words said are missing from what was heard."""
    matcher = difflib.SequenceMatcher(None, words(said), words(heard), autojunk=False)
    operations = matcher.get_opcodes()
    if not operations:
        return False
    kind, start, end, heard_start, heard_end = operations[-1]
    return kind in ("delete", "replace") and (end - start) - (heard_end - heard_start) >= 2


def percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    """Number, median, 95th percentile and maximum of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p95 = np.percentile(known, [50, 95])
    return {"n": len(known), "p50": float(p50), "p95": float(p95), "max": max(known)}


def summary(found: list[Exchange]) -> dict[str, Any]:
    """Figures over all exchanges, in milliseconds, and the exchanges themselves."""
    stages = {name: percentiles(one.stages[name] for one in found) for name in STAGES}
    return {
        "voice_to_voice_ms": percentiles(one.voice_to_voice_ms for one in found),
        "stages": stages,
        "longest_gap_ms": percentiles(one.longest_gap_ms for one in found),
        "cut_off": sum(one.cut_off for one in found),
        "unanswered": sum(one.voice_to_voice_ms is None for one in found),
        "exchanges": [asdict(one) for one in found],
    }


def table(found: list[Exchange]) -> str:
    """One line for each exchange, then the percentiles."""
    names = ("voice to voice", *(name.removesuffix("_ms") for name in STAGES), "gap")
    head = ["", *names, ""]
    rows = [
        [
            one.name[:24],
            *map(_ms, (one.voice_to_voice_ms, *one.stages.values(), one.longest_gap_ms)),
            one.heard,
        ]
        for one in found
    ]
    figures = summary(found)
    columns = [figures["voice_to_voice_ms"], *figures["stages"].values(), figures["longest_gap_ms"]]
    for key in ("p50", "p95"):
        rows.append([key, *(_ms(column and column[key]) for column in columns), ""])
    return grid([head, *rows])


def grid(rows: list[list[str]]) -> str:
    """Cells in columns: the first and last flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]).rstrip())
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
