"""Tool choice by rule, for models too small to choose.

A request whose newest user message matches a tool's phrase calls that tool instead of the model;
the tool's own words are the answer. Everything else goes to the model.
"""

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace

from duologue.lm.engine import (
    Capabilities,
    Engine,
    Finish,
    Message,
    Request,
    Step,
    TextDelta,
    ToolCall,
)
from duologue.tools import ToolRegistry


class RuleRouted:
    """An engine in front of another one."""

    def __init__(self, engine: Engine, tools: ToolRegistry):
        self._engine = engine
        self._tools = tools
        self._ids = itertools.count(1)

    @property
    def capabilities(self) -> Capabilities:
        """See `Engine.capabilities`."""
        return self._engine.capabilities

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`."""
        newest = request.messages[-1] if request.messages else {}
        if newest.get("role") == "user" and (route := self._tools.route(newest["content"])):
            yield ToolCall(f"rule_{next(self._ids)}", *route)
            yield Finish("tool_calls")
        elif newest.get("role") == "tool":
            yield TextDelta(json.loads(newest["content"]).get("say") or "Done.")
            yield Finish("stop")
        else:
            plain = replace(request, tools=[], messages=without_calls(request.messages))
            steps = self._engine.stream(plain)
            try:
                async for step in steps:
                    yield step
            finally:
                await steps.aclose()  # type: ignore[attr-defined]

    async def prewarm(self, messages: list[Message]) -> None:
        """See `Engine.prewarm`."""
        await self._engine.prewarm(messages)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()


def without_calls(messages: list[Message]) -> list[Message]:
    """The conversation as plain talk: calls and results left out, neighbours of a role merged."""
    plain: list[Message] = []
    for message in messages:
        if message["role"] == "tool" or not message["content"]:
            continue
        if plain and plain[-1]["role"] == message["role"] and message["role"] != "system":
            plain[-1] = {**plain[-1], "content": f"{plain[-1]['content']} {message['content']}"}
        else:
            plain.append({"role": message["role"], "content": message["content"]})
    return plain
