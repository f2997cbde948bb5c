"""The seam between the pipeline and any language model.

An engine knows no pipecat. Closing the iterator that `stream` returns aborts the request.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from duologue.lm.prompt import Part

Message = dict[str, Any]
"""One chat message in OpenAI's form: role, content, and for tools tool_calls or tool_call_id.

A content that is a list may hold `TextPart` and `AudioPart` besides OpenAI's own content parts.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked: chat messages, or a prompt as it is.

    Attributes:
        messages: The whole conversation, system prompt first.
        tools: OpenAI function schemas that the model may call.
        max_tokens: Upper bound of the answer.
        temperature: 0 is greedy.
        repeat_penalty: 1.0 is off; small models need it.
        parts: The whole prompt, framing included, instead of `messages` and `tools`.
        stop: Texts that end the answer.
        stop_ids: Token ids that end the answer; the answer's last id is the one that did.
        seed: Makes sampling repeatable as far as the server can; None draws one.
        request_id: The caller's name for the request, for the server's log.
        loses_arguments: Whether the server may send a call and never its arguments: then a call
            without any is malformed, unless its tool takes none.
    """

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 256
    temperature: float = 0.7
    repeat_penalty: float = 1.0
    parts: tuple[Part, ...] = ()
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    request_id: str = ""
    loses_arguments: bool = False


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text; after a raw prompt its special tokens are spelled out."""

    text: str


@dataclass(frozen=True, slots=True)
class Ids:
    """The next token ids of the answer, at least one; 0 is an id like any other."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call; `arguments` is JSON text of an object, not checked against the schema."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """What a server gives as a call and is none: to be reported, never run or remembered.

    Attributes:
        problem: What is wrong with it.
        source: The beginning of its name and arguments.
    """

    problem: str
    source: str

    def __str__(self) -> str:
        return f"the model's tool call cannot be read: {self.problem}: {self.source[:200]!r}"


@dataclass(frozen=True, slots=True)
class Finish:
    """The last step.

    Attributes:
        reason: Why the answer ended ("stop", "length", "tool_calls").
        usage: Generated tokens as the server counts them, None if it does not tell.
    """

    reason: str
    usage: int | None = None


Step = TextDelta | Ids | ToolCall | MalformedCall | Finish


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, whatever its model can.

    Attributes:
        token_ids: Answers to raw prompts come as `Ids`.
        prompt_ids: Raw prompts (`Request.parts`) may hold ids.
        audio_in: Sound can be part of a message.
        verified_abort: After an abort the engine finds out whether the server has stopped.
    """

    token_ids: bool = False
    prompt_ids: bool = False
    audio_in: bool = False
    verified_abort: bool = False


class Engine(Protocol):
    """Any language model."""

    @property
    def capabilities(self) -> Capabilities:
        """What requests it can take and what its answers are made of."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Step]:
        """Yield the answer's steps; closing the iterator aborts it.

        Raises:
            EngineError: the model or its server failed.
            UsageError: the engine cannot take such a request.
        """
        ...

    async def prewarm(self, messages: list[Message]) -> None:
        """Load what a first answer needs, such as the prompt's KV cache."""
        ...

    async def close(self) -> None:
        """Release the model or the connection."""
        ...
