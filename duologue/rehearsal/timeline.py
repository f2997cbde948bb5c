"""What happened in a rehearsal, on one clock: the caller's speech, the bot's sound, the events."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duologue.rehearsal.levels import first_sound, speech_span

RATE_HZ = 48_000
MAX_RECORDING_S = 1800.0
MAX_EVENTS = 50_000


@dataclass(frozen=True, slots=True)
class Clip:
    """Something to say.

    Attributes:
        samples: float32 [n] at 48 kHz.
        start_s: Where the speech in it begins, in seconds from its first sample.
        end_s: Where that ends.
        name: What a report calls it.
        text: The words, where they are known.
    """

    samples: np.ndarray = field(repr=False)
    start_s: float
    end_s: float
    name: str = ""
    text: str = ""

    @classmethod
    def of(cls, samples: np.ndarray, name: str = "", text: str = "") -> "Clip":
        """Find the speech by its energy; where there is none, all of it counts."""
        span = speech_span(samples, RATE_HZ) or (0.0, len(samples) / RATE_HZ)
        return cls(samples, *span, name, text)


@dataclass(frozen=True, slots=True)
class Said:
    """A clip that was played, its first sample at `at_s`."""

    clip: Clip
    at_s: float

    @property
    def start_s(self) -> float:
        """When the speech began."""
        return self.at_s + self.clip.start_s

    @property
    def end_s(self) -> float:
        """When the speech ended."""
        return self.at_s + self.clip.end_s


@dataclass(frozen=True, slots=True)
class Event:
    """A message of the room to its page; `data["type"]` is its kind."""

    at_s: float
    data: dict[str, Any]


class Recording:
    """A voice as it was received. Missing stretches are silence; beyond half an hour it is full."""

    def __init__(self) -> None:
        self.start_s = 0.0
        self._buffer = np.zeros(0, np.float32)
        self._length = 0

    @property
    def samples(self) -> np.ndarray:
        """float32 [n] at 48 kHz from `start_s` on."""
        return self._buffer[: self._length]

    @property
    def end_s(self) -> float:
        """When the last sample was received."""
        return self.start_s + self._length / RATE_HZ

    def add(self, at_s: float, samples: np.ndarray) -> None:
        """Append float32 [n] at 48 kHz, received at `at_s`; what overlaps is overwritten."""
        if not self._length:
            self.start_s = at_s
        start = max(0, round((at_s - self.start_s) * RATE_HZ))
        end = start + len(samples)
        if end > MAX_RECORDING_S * RATE_HZ:
            return
        if end > len(self._buffer):
            grown = np.zeros(max(2 * len(self._buffer), end, 30 * RATE_HZ), np.float32)
            grown[: self._length] = self.samples
            self._buffer = grown
        self._buffer[start:end] = samples
        self._length = max(self._length, end)

    def between(self, start_s: float, end_s: float) -> np.ndarray:
        """The samples of this stretch of time, float32 [n]."""
        first, last = (round((t - self.start_s) * RATE_HZ) for t in (start_s, end_s))
        return self.samples[max(0, first) : max(0, last)]

    def first_sound(self, after_s: float) -> float | None:
        """When the voice is first to be heard from `after_s` on."""
        at_s = first_sound(self.samples, RATE_HZ, after_s - self.start_s)
        return None if at_s is None else self.start_s + at_s


class Timeline:
    """The record of one call.

    Attributes:
        said: The caller's utterances, in order.
        bot: The bot's voice as it came in.
        mic: The caller's microphone as it was recorded; empty unless a driver fills it.
        events: What the room told its page, in order.
    """

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.bot = Recording()
        self.mic = Recording()
        self.events: list[Event] = []

    def add_event(self, at_s: float, data: dict[str, Any]) -> None:
        """Note an event; beyond the bound, new ones are dropped."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(at_s, data))

    def all(self, kind: str, since_s: float = 0.0, **fields: Any) -> list[Event]:
        """Every event of a kind with these fields, from `since_s` on."""
        wanted = {"type": kind, **fields}.items()
        return [e for e in self.events if e.at_s >= since_s and wanted <= _flat(e.data).items()]

    def first(self, kind: str, since_s: float = 0.0, **fields: Any) -> Event | None:
        """The first event of a kind with these fields, from `since_s` on."""
        return next(iter(self.all(kind, since_s, **fields)), None)

    def bot_text(self, turn: int) -> str:
        """The text of an answer, heard or not."""
        texts = self.all("bot_text", turn=turn)
        return texts[-1].data["text"] if texts else ""


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """The fields that can be compared by value."""
    return {key: value for key, value in data.items() if not isinstance(value, dict | list)}
