"""Raw prompts to any server that speaks OpenAI's streaming completions, answered in token ids."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from duologue.lm.abort import Aborts
from duologue.lm.chunks import CompletionReader
from duologue.lm.engine import Capabilities, Finish, Request, Step
from duologue.lm.exchange import Exchange, wire_name
from duologue.lm.http_client import HttpClient
from duologue.lm.raw import RawEngine, check_raw
from duologue.lm.server import Call

SLICE_TOKENS = 64
"""Most tokens that an abort which does nothing can waste."""


class Completions(RawEngine):
    """A completions endpoint of vLLM, SGLang, trtllm-serve, llama.cpp or another server.

    Answers come as `Ids` where the server gives ids, otherwise as `TextDelta` with special tokens
    spelled out. After an abort that was not seen to work, the engine asks for `SLICE_TOKENS` at a
    time and goes on behind the ids so far, so that the next such abort cannot waste more. It stays
    so, because a server that ignores an abort once will do so again. What cannot be continued is
    asked for whole: an answer in text, one that a stop text may end, one to a prompt of text of
    which the server does not tell the ids.

    Args:
        base_url: Up to and including /v1.
        model: The name under which the server knows the model.
        server: What it is: "vllm", "sglang", "trtllm", "llamacpp" or "openai" for others.
        api_key: Sent as a bearer token; local servers ignore it.
        timeout_s: Longest wait for the next piece of an answer.

    Raises:
        ConfigError: a `base_url` that is no http(s) address, a key that cannot be sent, or an
            unknown kind of server.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        server: str,
        api_key: str = "none",
        timeout_s: float = 20.0,
    ):
        http = HttpClient(base_url, model, api_key=api_key, timeout_s=timeout_s)
        self._exchange = Exchange(http, server)
        self._gives_ids = self._tells_prompts = False

    @property
    def capabilities(self) -> Capabilities:
        """See `Engine.capabilities`."""
        return self._exchange.server.capabilities

    @property
    def aborts(self) -> Aborts:
        """What became of aborted requests."""
        return self._exchange.watch.aborts

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`; takes `Request.parts` of text and ids."""
        check_raw(request)
        server = self._exchange.server
        call = Call(request, server.prompt(request))
        usage: int | None = 0
        while True:
            call.name = wire_name(request)
            left = request.max_tokens - call.position
            call.limit = min(left, self._slice(call) or left)
            reader = CompletionReader()
            steps = self._exchange.steps(call, server.open(call), reader)
            try:
                async with aclosing(steps):
                    async for step in steps:
                        yield step
            finally:
                self._gives_ids |= reader.gives_ids
                self._tells_prompts |= bool(reader.prompt_ids)
            usage = None if usage is None or reader.usage is None else usage + reader.usage
            call.position += len(reader.ids)
            whole = call.limit == left or len(reader.ids) < call.limit
            if reader.reason != "length" or whole:
                yield Finish(reader.reason or "stop", usage)
                return
            call.prompt = [*(reader.prompt_ids or call.prompt), *reader.ids]

    async def close(self) -> None:
        """See the last aborts through and close the connection pool."""
        await self._exchange.close()

    def _slice(self, call: Call) -> int | None:
        """Tokens to ask for at a time, None for all."""
        if always := self._exchange.server.always_sliced:
            return always
        known = self._tells_prompts or not isinstance(call.prompt, str)
        bounded = self.aborts.unconfirmed and self._gives_ids and known and not call.request.stop
        return SLICE_TOKENS if bounded else None
