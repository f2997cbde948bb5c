"""The seam between the pipeline and any language model.

An engine knows no pipecat. Closing the iterator that `stream` returns aborts the request.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]
"""One chat message in OpenAI's form: role, content, and for tools tool_calls or tool_call_id."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked.

    Attributes:
        messages: The whole conversation, system prompt first.
        tools: OpenAI function schemas that the model may call.
        max_tokens: Upper bound of the answer.
        temperature: 0 is greedy.
        repeat_penalty: 1.0 is off; small models need it.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 256
    temperature: float = 0.7
    repeat_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call; `arguments` is JSON text as the model wrote it, not yet checked."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The last step: why the answer ended ("stop", "length", "tool_calls")."""

    reason: str


Step = TextDelta | ToolCall | Finish


class Engine(Protocol):
    """Any language model."""

    def stream(self, request: Request) -> AsyncIterator[Step]:
        """Yield the answer's steps; closing the iterator aborts it.

        Raises:
            EngineError: the model or its server failed.
        """
        ...

    async def prewarm(self, messages: list[Message]) -> None:
        """Load what a first answer needs, such as the prompt's KV cache."""
        ...

    async def close(self) -> None:
        """Release the model or the connection."""
        ...
