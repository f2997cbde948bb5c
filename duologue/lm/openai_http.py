"""Any server that speaks OpenAI's streaming chat completions (vLLM, SGLang, llama.cpp, ...)."""

from collections.abc import AsyncIterator
from typing import Any

from duologue.errors import EngineError
from duologue.lm.chunks import ChunkReader
from duologue.lm.engine import Message, Request, Step


class OpenAIHttp:
    """A chat-completions endpoint.

    Args:
        base_url: Up to and including /v1.
        model: The name under which the server knows the model.
        api_key: Sent as a bearer token; local servers ignore it.
        timeout_s: Longest wait for the next piece of an answer.
    """

    def __init__(
        self, base_url: str, model: str, *, api_key: str = "none", timeout_s: float = 20.0
    ):
        from openai import AsyncOpenAI

        self._url, self._model = base_url, model
        self._client = AsyncOpenAI(
            base_url=base_url, api_key=api_key, timeout=timeout_s, max_retries=1
        )

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`. Aborts by closing the connection."""
        from openai import OpenAIError

        body: dict[str, Any] = {
            "model": self._model,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.tools:
            body["tools"] = request.tools
        if request.repeat_penalty != 1.0:
            body["extra_body"] = {"repetition_penalty": request.repeat_penalty}
        reader = ChunkReader()
        try:
            async with await self._client.chat.completions.create(**body, stream=True) as chunks:
                async for chunk in chunks:
                    for step in reader.read(chunk.model_dump()):
                        yield step
        except OpenAIError as error:
            raise EngineError(
                f"{self._url}: {error}; expected an OpenAI-compatible server with model "
                f"{self._model!r}; check lm.base_url and lm.model"
            ) from error

    async def prewarm(self, messages: list[Message]) -> None:
        """Let the server read the prompt once; it keeps the prefix if it can."""
        async for _ in self.stream(Request(messages, max_tokens=1)):
            pass

    async def close(self) -> None:
        """Close the connection pool."""
        await self._client.close()
