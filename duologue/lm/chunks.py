"""OpenAI chat-completion chunks to steps: one reader for every server that speaks them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from duologue.errors import EngineError
from duologue.lm.engine import Finish, Step, TextDelta, ToolCall

WHOLE = {"stop", "tool_calls", "function_call"}
"""Finish reasons after which a call has all its arguments; others ("length", "abort") cut it."""

_IDS = itertools.count(1)


# What servers add to these fields is of no concern here, so unlike our own files they may.
class _Function(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _Piece(BaseModel):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(BaseModel):
    content: str | None = None
    tool_calls: list[_Piece] | None = None


class _Choice(BaseModel):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(BaseModel):
    choices: list[_Choice] | None = None


@dataclass(slots=True)
class _Call:
    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class ChunkReader:
    """Collects the pieces of tool calls; text passes at once.

    A call is given out when its answer finishes: an answer that is cut off never yields a call
    with half its arguments (pipecat-ai/pipecat#4203).

    Attributes:
        finished: Whether the answer's last step has been given out; what follows is ignored.
    """

    def __init__(self) -> None:
        self.finished = False
        self._calls: list[_Call] = []

    def read(self, chunk: dict[str, Any]) -> Iterator[Step]:
        """Steps of one chunk (a plain dict in the wire's form).

        Raises:
            EngineError: the chunk reports an error, or is no chat-completion chunk.
        """
        if problem := _problem(chunk):
            raise EngineError(f"the server broke the answer off: {problem}")
        try:
            choices = _Chunk.model_validate(chunk).choices or []
        except ValidationError as error:
            raise EngineError(
                f"expected a chat-completion chunk, got {str(chunk)[:200]}; "
                "is this an OpenAI-compatible chat model?"
            ) from error
        for choice in choices:
            if self.finished:
                return
            delta = choice.delta or _Delta()
            if delta.content:
                yield TextDelta(delta.content)
            for piece in delta.tool_calls or ():
                self._collect(piece)
            if choice.finish_reason:
                yield from self._finish(choice.finish_reason)

    def _collect(self, piece: _Piece) -> None:
        call = self._call(piece.index, piece.id or "")
        function = piece.function or _Function()
        name = function.name or ""
        # Some servers send the whole name again with every piece.
        call.name += "" if name == call.name else name
        call.arguments += function.arguments or ""

    def _call(self, index: int | None, call_id: str) -> _Call:
        """The call that a piece belongs to; servers without indexes tell calls apart by id."""
        newest = self._calls[-1].index if self._calls else 0
        index = newest if index is None else index
        known = [call for call in self._calls if call.index == index]
        if not known or (call_id and known[-1].call_id not in ("", call_id)):
            known = [_Call(index)]
            self._calls += known
        known[-1].call_id = known[-1].call_id or call_id
        return known[-1]

    def _finish(self, reason: str) -> Iterator[Step]:
        self.finished = True
        if reason in WHOLE:
            for call in sorted(self._calls, key=lambda call: call.index):
                # Nine letters and digits: what the strictest chat templates take as an id.
                call_id = call.call_id or f"call{next(_IDS):05d}"
                yield ToolCall(call_id, call.name, call.arguments or "{}")
        yield Finish(reason)


def _problem(chunk: dict[str, Any]) -> str:
    """The message of an error that stands where a chunk should; "" for a chunk."""
    error = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or "")
