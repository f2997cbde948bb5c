"""OpenAI chat-completion chunks to steps: one reader for every server that speaks them."""

from collections.abc import Iterator
from typing import Any

from duologue.lm.engine import Finish, Step, TextDelta, ToolCall


class ChunkReader:
    """Collects the pieces of tool calls; text passes at once.

    A call is given out when its answer finishes: an answer that is cut off never yields a call
    with half its arguments (pipecat-ai/pipecat#4203).
    """

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, str]] = {}

    def read(self, chunk: dict[str, Any]) -> Iterator[Step]:
        """Steps of one chunk (a plain dict in the wire's form)."""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("content"):
                yield TextDelta(delta["content"])
            for piece in delta.get("tool_calls") or ():
                self._collect(piece)
            if choice.get("finish_reason"):
                yield from self._finish(choice["finish_reason"])

    def _collect(self, piece: dict[str, Any]) -> None:
        call = self._calls.setdefault(piece.get("index", 0), {"id": "", "name": "", "args": ""})
        function = piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["name"] += function.get("name") or ""
        call["args"] += function.get("arguments") or ""

    def _finish(self, reason: str) -> Iterator[Step]:
        if reason != "length":
            for index, call in sorted(self._calls.items()):
                yield ToolCall(call["id"] or f"call_{index}", call["name"], call["args"] or "{}")
        self._calls.clear()
        yield Finish(reason)
