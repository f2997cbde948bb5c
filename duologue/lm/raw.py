"""What the engines of raw prompts have in common."""

from duologue.errors import UsageError
from duologue.lm.engine import Message, Request


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
