"""Lines of a recorded or piped stream: ids, or what servers send, to ids or text."""

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, StrictInt, ValidationError, model_validator

from duologue.errors import EngineError, InputError
from duologue.lm.chunks import (
    WHOLE,
    CallPiece,
    CallPieces,
    Rejoined,
    Spoken,
    Words,
    problem_in,
)
from duologue.lm.engine import MalformedCall, ToolCall
from duologue.lm.events import EndReason

Piece = list[int] | str | ToolCall | MalformedCall | EndReason
"""Ids, text of a server that gives none, calls put apart, or that the server has finished."""


def read_lines(lines: Iterable[str]) -> Iterator[Piece]:
    """What each line gives.

    A line is an id, or a chunk of a completion in JSON, with or without "data:" before it. Blank
    lines, comments (":"), other fields of server-sent events and a byte order mark are skipped.

    Raises:
        InputError: another line.
        EngineError: a chunk reports an error.
    """
    stream = _Stream()
    for number, line in enumerate(lines, 1):
        text = line.removeprefix("\ufeff" if number == 1 else "").strip()
        text = text.removeprefix("data:").strip()
        if not text or text == "[DONE]" or text.startswith((":", "event:", "id:", "retry:")):
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        try:
            yield from stream.read({"token_id": value} if type(value) is int else value)
        except ValidationError as error:
            begun = f"{text[:80]!r}{', and so on' if len(text) > 80 else ''}"
            raise InputError(
                f"line {number} is {begun}; expected an id of at most 64 bits, or a completion's "
                "chunk in JSON"
            ) from error
    yield from stream.calls(whole=False)


_Id = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]


# What servers add to these fields is of no concern here, so unlike our own files they may.
class _Delta(BaseModel):
    content: Words | None = None
    text: Words | None = None
    tts_content: Spoken | None = None
    tool_calls: list[CallPiece] | None = None
    token_ids: list[_Id] | None = None
    """The ids of vLLM."""
    tokens: list[_Id] | None = None
    """The ids of llama.cpp."""
    token_id: _Id | None = None
    """The id of GLM-4-Voice's server."""

    def ids(self) -> list[int]:
        one = [] if self.token_id is None else [self.token_id]
        return self.token_ids or self.tokens or one


class _Choice(_Delta):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(_Choice):
    choices: list[_Choice] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("nothing of a chunk")
        return self


class _Stream:
    def __init__(self) -> None:
        self._speech = Rejoined()
        self._calls = CallPieces()
        self._gives_ids = False

    def read(self, value: Any) -> Iterator[Piece]:
        if isinstance(value, dict) and (problem := problem_in(value)):
            raise EngineError(f"the server broke the answer off: {problem[:300]}")
        chunk = _Chunk.model_validate(value)
        for choice in [chunk] if chunk.choices is None else chunk.choices:
            delta = choice.delta or choice
            self._calls.add(delta.tool_calls or ())
            if ids := choice.ids() or delta.ids():
                self._gives_ids = True
                yield ids
            else:
                yield from self._speech.texts(delta.tts_content, delta.content or delta.text)
            if choice.finish_reason:
                whole = choice.finish_reason in WHOLE
                yield from self.calls(whole=whole)
                yield EndReason.STOP if whole else EndReason.CUT

    def calls(self, *, whole: bool) -> Iterator[Piece]:
        """Calls that are put apart; ids hold them, too."""
        calls = self._calls.finish(whole=whole)
        if not self._gives_ids:
            yield from calls
