"""llama.cpp in this process, through xllamacpp.

The library also opens an HTTP listener on a random loopback port; nothing here uses it.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

from duologue.errors import EngineError, ModelError, UsageError
from duologue.lm.abort import Aborts, AbortWatch
from duologue.lm.chunks import ChunkReader, CompletionReader, token_count
from duologue.lm.engine import Capabilities, Finish, Message, Request, Step
from duologue.lm.llamacpp_api import check_request, completion_body, read_completion, seed_at
from duologue.lm.server import pieces_of

Chunk = dict[str, Any]
HandOver = Callable[[Chunk], bool]
"""Takes a chunk in OpenAI's form and says whether to stop."""


class LlamaCpp:
    """One GGUF model in memory with `slots` sequences, each with its own prefix cache.

    Chat messages are answered in text and tool calls, raw prompts of text and ids in ids.

    Args:
        model: A *.gguf file, or a folder that holds one.
        threads: CPU threads while generating.
        prefill_threads: CPU threads while reading a prompt.
        context: Tokens of one sequence.
        slots: Answers at the same time; further ones wait.
    """

    capabilities = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)

    def __init__(
        self,
        model: Path,
        *,
        threads: int = 1,
        prefill_threads: int = 2,
        context: int = 2048,
        slots: int = 1,
    ):
        from xllamacpp import CommonParams, Server  # pyright: ignore[reportAttributeAccessIssue]

        files = sorted(model.glob("*.gguf")) if model.is_dir() else [model]
        if len(files) != 1 or not files[0].is_file():
            raise ModelError(f"{model}: expected one *.gguf file, found {len(files)}")
        params = CommonParams()
        params.model.path = str(files[0])
        params.n_ctx = context * slots
        params.n_parallel = slots
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = prefill_threads
        params.cache_ram_mib = (
            0  # its host prompt cache grows to gigabytes; the slots' own suffices
        )
        params.use_jinja = True
        params.ui = False
        params.verbosity = -1
        try:
            self._server = Server(params)
        except Exception as error:
            raise ModelError(
                f"{files[0]}: llama.cpp cannot load it ({error}); run `duologue models verify`"
            ) from error
        self._context = context
        self._pool = ThreadPoolExecutor(slots, "llamacpp")
        self._watch = AbortWatch()

    @property
    def aborts(self) -> Aborts:
        """What became of aborted requests."""
        return self._watch.aborts

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`. An abort takes effect at the next token (about 10 ms)."""
        if request.parts:
            check_request(request)
            pieces, reader = pieces_of(request.parts), CompletionReader()
            chunks = self._run(lambda hand_over: self._continue(request, pieces, hand_over))
        else:
            if request.stop_ids:
                raise UsageError("a chat of llama.cpp ends at stop texts, not at stop_ids")
            reader = ChunkReader()
            chunks = self._run(
                lambda hand_over: self._server.handle_chat_completions(_body(request), hand_over)
            )
        async with aclosing(chunks):
            async for chunk in chunks:
                if "error" in chunk:
                    raise EngineError(f"llama.cpp failed: {chunk['error'].get('message')}")
                for step in reader.read(chunk):
                    yield step
        if isinstance(reader, CompletionReader):
            reader.check()
            yield Finish(reader.reason or "stop", len(reader.ids))

    async def prewarm(self, messages: list[Message]) -> None:
        """Read `messages` into the prefix cache, so that a first answer starts in milliseconds."""
        async for _ in self.stream(Request(messages, max_tokens=1)):
            pass

    async def close(self) -> None:
        """Let the model go once its running answers have ended."""
        await self._watch.settle()
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        del self._server

    async def _run(self, produce: Callable[[HandOver], None]) -> AsyncGenerator[Chunk, None]:
        """What `produce` hands over in a thread; it is told to stop when this is closed."""
        loop = asyncio.get_running_loop()
        # Bounded by max_tokens: the model produces no more chunks than that.
        queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()
        stop, late = threading.Event(), list[Chunk | Exception | None]()

        def hand_over(item: Chunk | Exception | None) -> bool:
            if stop.is_set():
                late.append(item)
            else:
                loop.call_soon_threadsafe(queue.put_nowait, item)
            return stop.is_set()

        def generate() -> None:
            try:
                produce(hand_over)
                hand_over(None)
            except Exception as error:
                hand_over(error)

        future, ended = self._pool.submit(generate), False
        try:
            while isinstance(item := await queue.get(), dict):
                yield item
            ended = True
            if item is not None:
                raise EngineError(f"llama.cpp failed: {item}") from item
        finally:
            stop.set()
            if not (ended or future.cancel()):
                self._watch.follow(_stopped(future, late), at_most=1)

    def _continue(self, request: Request, prompt: list[int | str], hand_over: HandOver) -> None:
        """Answer a raw prompt, one request a token: nothing else has all ids, and it stops soonest.

        What a request costs beyond its token is below a millisecond.
        """
        seed = secrets.randbits(32) if request.seed is None else request.seed
        for position in range(request.max_tokens):
            found: list[Chunk] = []
            body = completion_body(request, prompt, 1, seed_at(seed, position))
            self._server.handle_completions(body | {"verbose": True}, found.append)
            if "error" in found[0]:
                hand_over(found[0])
                return
            ids, reason, before = read_completion(found[0].get("__verbose"), request.stop_ids)
            prompt += ids
            full = before + len(ids) >= self._context
            over = reason == "stop" or full or position + 1 == request.max_tokens
            choice = {"token_ids": ids, "finish_reason": reason if over else None}
            if hand_over({"choices": [choice]}) or over:
                return


async def _stopped(future: Future[None], late: list[Chunk | Exception | None]) -> int:
    """Wait until the thread has left the model; the tokens that nobody took."""
    await asyncio.wait({asyncio.wrap_future(future)})
    return sum(token_count(item) for item in late if isinstance(item, dict))


def _body(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": request.messages,
        "stream": True,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "repeat_penalty": request.repeat_penalty,
        "cache_prompt": True,
    }
    if request.tools:
        body["tools"] = request.tools
    if request.stop:
        body["stop"] = list(request.stop)
    if request.seed is not None:
        body["seed"] = request.seed
    return body
