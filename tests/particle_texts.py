"""Text through the scanner and on to a speech engine, for the tests of particles."""

from collections.abc import Iterable

from duologue.particles import (
    Composer,
    Control,
    Particle,
    Scanner,
    Text,
    Thought,
    Utterance,
    lexicon_for,
    renderer_for,
)

Event = Text | Particle | Thought | Control


def scanned(*deltas: str, family: str = "") -> list[Event]:
    """The events of one turn as they come."""
    scanner = Scanner(lexicon_for(family))
    return [event for delta in deltas for event in scanner.feed(delta)] + scanner.flush()


def joined(events: Iterable[Event]) -> list[Event]:
    """Joins neighbouring events of a kind, which a delta's edge may part."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if type(event) is type(last) and not isinstance(event, Particle):
            out[-1] = type(event)(last.text + event.text, last.start, event.end)
        else:
            out.append(event)
    return out


def scan(*deltas: str) -> list[Event]:
    return joined(scanned(*deltas))


def said(*deltas: str) -> str:
    return "".join(event.text for event in scan(*deltas) if isinstance(event, Text))


def particles(text: str, family: str = "") -> list[Particle]:
    return [event for event in scanned(text, family=family) if isinstance(event, Particle)]


def names(text: str, family: str = "") -> list[str]:
    return [particle.name for particle in particles(text, family)]


def compose(engine: str, *deltas: str, family: str = "", **options) -> list[Utterance]:
    """The requests for one turn; options as of `renderer_for`."""
    return Composer(renderer_for(engine, **options)).compose(scanned(*deltas, family=family))


def texts(utterances: list[Utterance]) -> list[str]:
    return [utterance.text for utterance in utterances]
