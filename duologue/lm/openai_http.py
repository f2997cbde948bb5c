"""Any server that speaks OpenAI's streaming chat completions (vLLM, SGLang, llama.cpp, ...)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import HttpUrl, TypeAdapter, ValidationError

from duologue.errors import CapacityError, ConfigError, EngineError
from duologue.lm.chunks import ChunkReader
from duologue.lm.engine import Message, Request, Step

T = TypeVar("T")

CONNECT_S = 5.0
_KEY = "set DUOLOGUE_LM_API_KEY to a key that this server takes"
_ADVICE = {401: _KEY, 403: _KEY, 404: "check lm.base_url and lm.model"}
_BUSY = (429, 503)


class OpenAIHttp:
    """A chat-completions endpoint.

    Nothing is tried twice: in a conversation a late answer is worth less than an error.

    Args:
        base_url: Up to and including /v1.
        model: The name under which the server knows the model.
        api_key: Sent as a bearer token; local servers ignore it.
        timeout_s: Longest wait for the next piece of an answer.

    Raises:
        ConfigError: `base_url` is no http(s) address, or the key cannot be sent.
    """

    def __init__(
        self, base_url: str, model: str, *, api_key: str = "none", timeout_s: float = 20.0
    ):
        from openai import AsyncOpenAI, Timeout

        try:
            TypeAdapter(HttpUrl).validate_python(base_url)
        except ValidationError as error:
            raise ConfigError(
                f"lm.base_url is {base_url!r}, expected an address up to and including /v1, "
                "such as http://127.0.0.1:8000/v1"
            ) from error
        key = api_key.strip() or "none"
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("DUOLOGUE_LM_API_KEY has letters beyond ASCII; copy the key again")
        self._url, self._model, self._timeout_s = base_url, model, timeout_s
        self._client = AsyncOpenAI(
            base_url=base_url, api_key=key, timeout=Timeout(None, connect=CONNECT_S), max_retries=0
        )

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`. Aborts by closing the connection."""
        reader = ChunkReader()
        with self._explained():
            answer = self._client.chat.completions.create(**self._body(request), stream=True)
            async with await self._soon(answer) as chunks:
                while (chunk := await self._soon(anext(chunks, None))) is not None:
                    for step in reader.read(chunk.to_dict(warnings=False)):
                        yield step
            if not reader.finished:
                raise EngineError("the answer ends in the middle; the server or a proxy cut it off")

    async def prewarm(self, messages: list[Message]) -> None:
        """Let the server read the prompt once; it keeps the prefix if it can."""
        async for _ in self.stream(Request(messages, max_tokens=1)):
            pass

    async def close(self) -> None:
        """Close the connection pool."""
        await self._client.close()

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.tools:
            body["tools"] = request.tools
        if request.repeat_penalty != 1.0:
            # Not in OpenAI's API: the first name is vLLM's and SGLang's, the second llama.cpp's.
            penalty = request.repeat_penalty
            body["extra_body"] = {"repetition_penalty": penalty, "repeat_penalty": penalty}
        return body

    async def _soon(self, waiting: Awaitable[T]) -> T:
        # Bytes may trickle in (comments of a proxy) without any piece of the answer among them.
        async with asyncio.timeout(self._timeout_s):
            return await waiting

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Every failure as an `EngineError` that names the server and what to do."""
        from openai import APIConnectionError, APIStatusError, OpenAIError

        try:
            yield
        except EngineError as error:
            raise EngineError(f"{self._url}, model {self._model!r}: {error}") from error
        except TimeoutError as error:
            raise self._failure(
                f"no piece of an answer within {self._timeout_s:g} s", "is the server overloaded?"
            ) from error
        except APIConnectionError as error:
            found = str(error.__cause__ or error)
            raise self._failure(found, "is the server running? check lm.base_url") from error
        except APIStatusError as error:
            kind = CapacityError if error.status_code in _BUSY else EngineError
            advice = _ADVICE.get(error.status_code, "see the server's log")
            if "penalty" in str(error):
                advice = "set lm.repeat_penalty to 1.0, which sends none"
            raise self._failure(str(error), advice, kind) from error
        except (OpenAIError, ValueError) as error:
            raise self._failure(str(error), "see the server's log") from error

    def _failure(
        self, found: str, advice: str, kind: type[EngineError] = EngineError
    ) -> EngineError:
        return kind(
            f"{self._url}: {found[:300]}; expected an OpenAI-compatible server with model "
            f"{self._model!r}; {advice}"
        )
