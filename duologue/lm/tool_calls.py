"""From what stands between a tool call's tags to a name and arguments, or to what is wrong."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from duologue.lm.formats import ToolFormat

MOST = 16_384
"""Characters or ids of one call; the server's own limits are of this order."""

_NAME = re.compile(r"[\w.-]{1,64}")


class Malformed(ValueError):
    """What is wrong with a call."""


@dataclass(slots=True)
class OpenCall:
    """A call whose closing tag has not come yet.

    Attributes:
        index: Place among the turn's calls.
        spelled: Whether its tags are spelled out where ids of their own exist.
        problem: What makes it malformed whatever it holds; "" so far.
        text: Its text so far.
        tokens: Its ids so far, where nothing decodes them.
    """

    index: int
    spelled: bool
    problem: str
    text: str = ""
    tokens: list[int] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Append text, up to the bound."""
        self._grow(len(self.text) + len(text))
        self.text = (self.text + text)[:MOST]

    def add_ids(self, tokens: list[int]) -> None:
        """Append ids, up to the bound."""
        self._grow(len(self.tokens) + len(tokens))
        self.tokens = (self.tokens + tokens)[:MOST]

    def spoil(self, problem: str) -> None:
        """Note the first thing that is wrong."""
        self.problem = self.problem or problem

    def _grow(self, size: int) -> None:
        if size > MOST:
            self.spoil(f"longer than {MOST}")


def parse_call(body: str, form: ToolFormat) -> tuple[str, str]:
    """(name, JSON text of the arguments) of a whole call.

    Raises:
        Malformed: it is none.
    """
    name, arguments = _from_lines(body) if form is ToolFormat.LINES else _from_json(body)
    return checked_call(name, arguments)


def checked_call(name: str, arguments: str) -> tuple[str, str]:
    """(name, JSON text of an object) of a call that was given in two parts.

    Raises:
        Malformed: it is none.
    """
    if not _NAME.fullmatch(name):
        raise Malformed(f"{name[:70]!r} is no tool's name")
    return name, _object(arguments)[0]


def _from_lines(body: str) -> tuple[str, str]:
    lines = body.strip().split("\n", 2)
    if len(lines) != 3 or lines[0].strip() != "function":
        raise Malformed("expected three lines: function, the name, JSON arguments")
    _, name, arguments = (line.strip() for line in lines)
    return name, arguments


def _from_json(body: str) -> tuple[str, str]:
    call = _load(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Malformed("expected an object with name and arguments")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _object(arguments)[1]
    return call["name"], json.dumps(arguments, ensure_ascii=False)


def _object(text: str) -> tuple[str, dict[str, Any]]:
    """The JSON text of an object, and the object."""
    value = _load(text)
    if isinstance(value, str):
        # Servers that encode the arguments of earlier calls twice make the model do the same.
        text, value = value, _load(value)
    if not isinstance(value, dict):
        raise Malformed(f"expected an object of arguments, got {text[:70]}")
    return text, value


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
