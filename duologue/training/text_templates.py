"""Sentences from templates: {slot} is filled, [a|b|] is one of several."""

import random
import re
from collections.abc import Callable, Mapping

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Slots = Mapping[str, Callable[[], str]]


def expand(template: str, slots: Slots, rng: random.Random) -> str:
    """Returns one sentence of a template; the slot {Name} has a capital, {name} may."""
    while _CHOICE.search(template):
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    said = _SLOT.sub(lambda match: _fill(match[1], slots), template).strip()
    return said[:1].upper() + said[1:]


def _fill(name: str, slots: Slots) -> str:
    said = slots[name.lower()]()
    return said[:1].upper() + said[1:] if name[0].isupper() else said


def make_slots(data: Mapping[str, list[str]], rng: random.Random) -> dict[str, Callable[[], str]]:
    """Slots of the stage's word lists, by their singular, and of numbers as they are written."""

    def one_of(words: list[str]) -> Callable[[], str]:
        return lambda: rng.choice(words)

    lists = {
        "units": "units", "weekday": "weekdays", "month": "months", "color": "colors",
        "acronym": "acronyms", "name": "names", "surname": "surnames", "city": "cities",
        "country": "countries", "state": "states", "language": "languages", "food": "foods",
        "thing": "things", "room": "rooms", "weather": "weather", "activity": "activities",
        "topic": "topics", "animal": "animals",
    }  # fmt: skip
    months, n = data["months"], rng.randint

    def money() -> str:
        amount = rng.choice(
            [str(n(1, 99)), f"{n(1, 999)}.{n(1, 99):02}", f"{n(1, 20)},{n(0, 999):03}"]
        )
        return rng.choice("$$$€£") + amount

    def big() -> str:
        exact = f"{n(2, 999)},{n(0, 999):03}"
        return rng.choice([exact, f"{n(2, 900)} million", f"{n(1, 9)}.{n(1, 9)} billion"])

    def clock() -> str:
        return f"{n(1, 12)}:{rng.choice([0, 15, 30, 45, n(0, 59)]):02}" + rng.choice(
            ["", " AM", " PM"]
        )

    return {slot: one_of(data[name]) for slot, name in lists.items()} | {
        "letter": one_of(list(_LETTERS)),
        "small": lambda: str(rng.choice([n(0, 20), n(0, 100)])),
        "number": lambda: str(rng.choice([n(0, 100), n(101, 999), n(1000, 9999)])),
        "big": big,
        "decimal": lambda: f"{n(0, 100)}.{n(0, 99)}",
        "percent": lambda: f"{rng.choice([str(n(0, 100)), f'{n(0, 99)}.{n(1, 9)}'])}%",
        "ordinal": lambda: _ordinal(n(1, 31)),
        "year": lambda: str(rng.choice([n(1100, 1999), n(1900, 1999), n(2000, 2040)])),
        "date": lambda: f"{rng.choice(months)} {_ordinal(n(1, 31))}, {n(1900, 2040)}",
        "monthday": lambda: f"{rng.choice(months)} {_ordinal(n(1, 31))}",
        "temp": lambda: f"{n(-20, 105)}" + rng.choice(["°", "°F", "°C", " degrees"]),
        "fraction": lambda: rng.choice(["1/2", "1/3", "2/3", "1/4", "3/4", "1/5", "1/8"]),
        "phone": lambda: f"{n(200, 999)}-{n(200, 999)}-{n(0, 9999):04}",
        "digits": lambda: " ".join(str(n(0, 9)) for _ in range(n(3, 6))),
        "code": lambda: f"{rng.choice(_LETTERS)}{n(1, 40)}",
        "money": money,
        "clock": clock,
    }  # fmt: skip


def _ordinal(number: int) -> str:
    tail = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number in (11, 12, 13) else tail}"
