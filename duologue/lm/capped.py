"""Answers that end when their turn has had its tokens, whatever the server thinks of max_tokens."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from duologue.limits import TurnBudget
from duologue.lm.engine import Capabilities, Engine, Finish, Ids, Message, Request, Step, TextDelta


class Capped:
    """An engine in front of another one.

    A delta of text counts as one token, which it is at least; the server's own count, where it
    tells, replaces that at the answer's end.

    Args:
        engine: The model.
        budget: Of the session's turns.
    """

    def __init__(self, engine: Engine, budget: TurnBudget):
        self._engine = engine
        self._budget = budget

    @property
    def capabilities(self) -> Capabilities:
        """See `Engine.capabilities`."""
        return self._engine.capabilities

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`."""
        left = min(request.max_tokens, self._budget.tokens)
        if left <= 0:
            yield Finish("length", 0)
            return
        seen = 0
        request = replace(request, max_tokens=left)
        try:
            async with aclosing(self._engine.stream(request)) as steps:  # type: ignore[type-var]
                async for step in steps:
                    if isinstance(step, Finish):
                        seen = max(seen, step.usage or 0)
                    elif seen >= left:
                        yield Finish("length", seen)
                        return
                    seen += tokens_of(step)
                    yield step
        finally:
            self._budget.tokens -= seen

    async def prewarm(self, messages: list[Message]) -> None:
        """See `Engine.prewarm`."""
        await self._engine.prewarm(messages)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()


def tokens_of(step: Step) -> int:
    """So many tokens a step stands for, at least."""
    if isinstance(step, Ids):
        return len(step.ids)
    return int(isinstance(step, TextDelta))
