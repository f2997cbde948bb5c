"""The timeline of a call as an SVG: both voices, the room's states and events."""

from html import escape

import numpy as np

from duologue.rehearsal.levels import levels_db
from duologue.rehearsal.timeline import RATE_HZ, Timeline

PX_PER_S = 80
LANE = 60
LEFT = 70
BOTTOM_DB, TOP_DB = -60.0, -10.0
COLOURS = {
    "listening": "#e8ecea",
    "hearing": "#f3c9b5",
    "thinking": "#e9dfa8",
    "speaking": "#a9cfc9",
    "held": "#d7b3d8",
    "tool": "#b8c4e6",
}
MARKS = {"user": "#c0491d", "bot_end": "#0a6b66", "tool": "#4159b0", "particle": "#8a4fa0"}


def svg(timeline: Timeline) -> str:
    """Lanes from top to bottom: the caller, the bot, its states, its events."""
    end_s = max([timeline.bot.end_s, *(said.end_s for said in timeline.said)])
    start_s = min([timeline.bot.start_s, *(said.at_s for said in timeline.said)])
    draw = _Drawing(start_s, end_s)
    for said in timeline.said:
        draw.voice(0, said.at_s, said.clip.samples, "#d1501f", said.clip.name)
    draw.voice(1, timeline.bot.start_s, timeline.bot.samples, "#0a6b66")
    states = [event for event in timeline.events if event.data["type"] == "state"]
    ends_s = [event.at_s for event in states[1:]] + [end_s]
    for event, until_s in zip(states, ends_s, strict=True):
        draw.band(2, event.at_s, until_s, event.data["state"])
    for event in timeline.events:
        if label := _label(event.data):
            draw.mark(3, event.at_s, MARKS[event.data["type"]], label)
    return draw.document()


def _label(data: dict) -> str:
    match data:
        case {"type": "user", "final": True, "text": text}:
            return f"heard: {text}"
        case {"type": "bot_end", "reason": reason, "chars": chars}:
            return f"{reason} at {chars}"
        case {"type": "tool", "name": name, "status": status}:
            return f"{name} {status}"
        case {"type": "particle", "name": name}:
            return str(name)
    return ""


class _Drawing:
    def __init__(self, start_s: float, end_s: float):
        self._start_s = start_s
        self._width = LEFT + round((end_s - start_s) * PX_PER_S) + 20
        self._parts: list[str] = []
        for lane, name in enumerate(("caller", "bot", "state", "events")):
            self._text(4, lane * LANE + LANE / 2, name)
        for second in range(int(end_s - start_s) + 1):
            x = LEFT + second * PX_PER_S
            self._parts.append(f'<path d="M{x} 0V{4 * LANE}" stroke="#0002"/>')
            self._text(x + 2, 4 * LANE + 12, f"{second} s")

    def voice(
        self, lane: int, at_s: float, samples: np.ndarray, colour: str, name: str = ""
    ) -> None:
        """Levels of a voice, 10 ms a point."""
        levels = np.clip((levels_db(samples, RATE_HZ) - BOTTOM_DB) / (TOP_DB - BOTTOM_DB), 0, 1)
        middle, x = lane * LANE + LANE / 2, self._x(at_s)
        tops = [f"{x + i * PX_PER_S / 100:.1f} {middle - 26 * v:.1f}" for i, v in enumerate(levels)]
        feet = [f"{x + i * PX_PER_S / 100:.1f} {middle + 26 * v:.1f}" for i, v in enumerate(levels)]
        self._parts.append(f'<path d="M{" ".join([*tops, *feet[::-1]])}Z" fill="{colour}"/>')
        self._text(x, lane * LANE + 10, name)

    def band(self, lane: int, start_s: float, end_s: float, name: str) -> None:
        """A state that lasted."""
        x, y = self._x(start_s), lane * LANE + 15
        width = max(0.0, (end_s - start_s) * PX_PER_S)
        colour = COLOURS.get(name, "#ddd")
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="30" fill="{colour}">'
            f"<title>{escape(name)} {end_s - start_s:.2f} s</title></rect>"
        )
        if width > 8 * len(name):
            self._text(x + 3, y + 19, name)

    def mark(self, lane: int, at_s: float, colour: str, label: str) -> None:
        """Something that happened at once; its words show when pointed at."""
        x, y = self._x(at_s), lane * LANE + LANE / 2
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}">'
            f"<title>{at_s - self._start_s:.2f} s: {escape(label)}</title></circle>"
        )

    def document(self) -> str:
        """The whole file."""
        size = f'width="{self._width}" height="{4 * LANE + 20}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11">',
                '<rect width="100%" height="100%" fill="#fff"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _x(self, at_s: float) -> float:
        return LEFT + (at_s - self._start_s) * PX_PER_S

    def _text(self, x: float, y: float, text: str) -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif">{escape(text)}</text>'
        )
