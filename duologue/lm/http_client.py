"""One connection pool to an OpenAI-compatible server, and the answers that stream from it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from pydantic import HttpUrl, TypeAdapter, ValidationError

from duologue.errors import CapacityError, ConfigError, EngineError

CONNECT_S = 5.0
_KEY = "set DUOLOGUE_LM_API_KEY to a key that this server takes"
_ADVICE = {401: _KEY, 403: _KEY, 404: "check base_url and model"}
_BUSY = (429, 503)

SPARE = 64
"""Events without a token that an answer may have beside those with one."""

Chunk = dict[str, Any]
"""One event of an answer, in the wire's form."""


class Answer:
    """A streaming answer, read in a task of its own: who stops listening does not close it.

    Args:
        chunks: The events; opened when first read.

    Attributes:
        ended: Whether its last event, or the error that ended it, has been taken.
    """

    def __init__(self, chunks: AsyncGenerator[Chunk, None]):
        # Bounded: see `_events`.
        self._queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(chunks))
        self.ended = False

    async def next(self) -> Chunk | None:
        """The next event, None behind the last one."""
        item = None if self.ended else await self._queue.get()
        self.ended = not isinstance(item, dict)
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self) -> None:
        """Cut the connection, if it still stands."""
        self.ended = True
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _read(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        last: Exception | None = None
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self._queue.put_nowait(chunk)
        except Exception as error:
            last = error
        finally:
            self._queue.put_nowait(last)


class HttpClient:
    """A server and a model on it.

    Nothing is tried twice: in a conversation a late answer is worth less than an error. After a
    failure the next request gets a fresh connection.

    Args:
        base_url: Up to and including /v1.
        model: The name under which the server knows the model.
        api_key: Sent as a bearer token; local servers ignore it.
        timeout_s: Longest wait for the next piece of an answer.

    Raises:
        ConfigError: `base_url` is no http(s) address, or the key cannot be sent.
    """

    def __init__(self, base_url: str, model: str, *, api_key: str, timeout_s: float):
        from openai import AsyncOpenAI, Timeout

        try:
            TypeAdapter(HttpUrl).validate_python(base_url)
        except ValidationError as error:
            raise ConfigError(
                f"base_url is {base_url!r}, expected an address up to and including /v1, "
                "such as http://127.0.0.1:8000/v1"
            ) from error
        key = api_key.strip() or "none"
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("DUOLOGUE_LM_API_KEY has letters beyond ASCII; copy the key again")
        self.model = model
        self._url, self._timeout_s = base_url, timeout_s
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._client = AsyncOpenAI(
            base_url=base_url, api_key=key, timeout=Timeout(None, connect=CONNECT_S), max_retries=0
        )

    def chat(self, body: dict[str, Any]) -> Answer:
        """Ask for a chat completion."""
        return Answer(_events(self._client.chat.completions.create, body))

    def completions(self, body: dict[str, Any]) -> Answer:
        """Ask for a completion of a raw prompt."""
        return Answer(_events(self._client.completions.create, body))

    async def single(self, path: str, body: dict[str, Any]) -> object:
        """Post to a path of the server's own API, which answers in one piece of JSON."""
        return await self._client.post(self._root + path, body=body, cast_to=object)

    async def post(self, path: str, body: dict[str, Any]) -> None:
        """Post to a path of the server's own API.

        Raises:
            EngineError: it refuses, or does not answer.
        """
        with self.explained():
            await self._client.post(self._root + path, body=body, cast_to=str)

    async def get(self, path: str) -> str:
        """Text under a path of the server's own API.

        Raises:
            EngineError: it refuses, or does not answer.
        """
        with self.explained():
            return await self._client.get(self._root + path, cast_to=str)

    async def soon(self, answer: Answer) -> Chunk | None:
        """The answer's next event, within the time-out."""
        # Bytes may trickle in (comments of a proxy) without any piece of the answer among them.
        async with asyncio.timeout(self._timeout_s):
            return await answer.next()

    async def close(self) -> None:
        """Close the connection pool."""
        await self._client.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Every failure as an `EngineError` that names the server and what to do."""
        from openai import APIConnectionError, APIStatusError, OpenAIError

        try:
            yield
        except EngineError as error:
            raise EngineError(f"{self._url}, model {self.model!r}: {error}") from error
        except TimeoutError as error:
            raise self._failure(
                f"no piece of an answer within {self._timeout_s:g} s", "is the server overloaded?"
            ) from error
        except APIConnectionError as error:
            found = str(error.__cause__ or error)
            raise self._failure(found, "is the server running? check base_url") from error
        except APIStatusError as error:
            kind = CapacityError if error.status_code in _BUSY else EngineError
            advice = _ADVICE.get(error.status_code, "see the server's log")
            if "penalty" in str(error):
                advice = "set lm.repeat_penalty to 1.0, which sends none"
            raise self._failure(str(error), advice, kind) from error
        except (OpenAIError, ValueError, RecursionError) as error:
            raise self._failure(str(error), "see the server's log") from error

    def _failure(
        self, found: str, advice: str, kind: type[EngineError] = EngineError
    ) -> EngineError:
        return kind(
            f"{self._url}: {found[:300]}; expected an OpenAI-compatible server with model "
            f"{self.model!r}; {advice}"
        )


async def _events(
    create: Callable[..., Awaitable[Any]], body: dict[str, Any]
) -> AsyncGenerator[Chunk, None]:
    from openai import BaseModel

    left = body["max_tokens"] + SPARE
    async with await create(**body, stream=True) as chunks:
        async for chunk in chunks:
            if not isinstance(chunk, BaseModel):
                raise EngineError(
                    f"expected a completion chunk, got {str(chunk)[:200]}; is this an "
                    "OpenAI-compatible server?"
                )
            if not left:
                raise EngineError(f"more events than the {body['max_tokens']} tokens asked for")
            left -= 1
            yield chunk.to_dict(warnings=False)
