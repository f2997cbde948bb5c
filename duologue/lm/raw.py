"""Raw prompts: how they are asked for, and what their engines have in common."""

from collections.abc import Sequence
from dataclasses import replace

from duologue.errors import UsageError
from duologue.lm.conversation import Item
from duologue.lm.engine import Engine, Message, Request
from duologue.lm.modes import Mode
from duologue.lm.prompt import IdsPart
from duologue.lm.templates import prompt_ids, render
from duologue.lm.vocabulary import Vocabulary


def raw_request(
    engine: Engine,
    vocabulary: Vocabulary,
    defaults: Request,
    items: Sequence[Item],
    mode: Mode,
    thought: str | None = None,
) -> Request:
    """A request of these items, as ids where the engine takes some and a tokenizer makes them.

    Args:
        engine: Who is asked.
        vocabulary: The family, with its tokenizer.
        defaults: Sampling and tools; messages are replaced.
        items: The conversation, oldest first.
        mode: What goes in and comes out.
        thought: See `render`.

    Raises:
        UsageError: the family cannot do this.
    """
    parts = render(vocabulary, items, mode, defaults.tools, thought=thought)
    own_ids = any(book.token is None for book in vocabulary.profile.codebooks)
    if vocabulary.vocab is not None and engine.capabilities.prompt_ids and not own_ids:
        parts = (IdsPart(tuple(prompt_ids(vocabulary, parts))),)
    return replace(defaults, messages=[], tools=[], parts=parts)


class RawEngine:
    """Takes prompts in parts; messages need a chat template, which the server applies."""

    async def prewarm(self, messages: list[Message]) -> None:
        """Nothing to do without messages: the first request of a raw prompt fills the cache.

        Raises:
            UsageError: messages, which only a chat engine can turn into a prompt.
        """
        if messages:
            raise UsageError("prewarm a raw prompt by streaming its parts with max_tokens 1")


def check_raw(request: Request) -> None:
    """Refuse a request to a chat engine.

    Raises:
        UsageError: it has messages or tools.
    """
    if request.messages or request.tools:
        raise UsageError("a raw prompt has parts; messages and tools go to a chat engine")
