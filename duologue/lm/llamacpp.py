"""llama.cpp in this process, through xllamacpp.

The library also opens an HTTP listener on a random loopback port; nothing here uses it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from duologue.errors import EngineError, ModelError
from duologue.lm.chunks import ChunkReader
from duologue.lm.engine import Message, Request, Step


class LlamaCpp:
    """One GGUF model in memory with `slots` sequences, each with its own prefix cache.

    Args:
        model: A *.gguf file, or a folder that holds one.
        threads: CPU threads while generating.
        prefill_threads: CPU threads while reading a prompt.
        context: Tokens of one sequence.
        slots: Answers at the same time; further ones wait.
    """

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
        self._pool = ThreadPoolExecutor(slots, "llamacpp")

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`. An abort takes effect at the next token (about 10 ms)."""
        loop = asyncio.get_running_loop()
        # Bounded by max_tokens: the model produces no more chunks than that.
        queue: asyncio.Queue[dict | BaseException | None] = asyncio.Queue()
        stop = threading.Event()

        def hand_over(item: dict | BaseException | None) -> bool:
            if not stop.is_set():
                loop.call_soon_threadsafe(queue.put_nowait, item)
            return stop.is_set()

        def generate() -> None:
            if stop.is_set():
                return
            try:
                self._server.handle_chat_completions(_body(request), hand_over)
                hand_over(None)
            except Exception as error:
                hand_over(error)

        future = loop.run_in_executor(self._pool, generate)
        reader = ChunkReader()
        try:
            while (chunk := await queue.get()) is not None:
                if isinstance(chunk, BaseException):
                    raise EngineError(f"llama.cpp failed: {chunk}") from chunk
                if "error" in chunk:
                    raise EngineError(f"llama.cpp failed: {chunk['error'].get('message')}")
                for step in reader.read(chunk):
                    yield step
        finally:
            stop.set()
            future.cancel()

    async def prewarm(self, messages: list[Message]) -> None:
        """Read `messages` into the prefix cache, so that a first answer starts in milliseconds."""
        async for _ in self.stream(Request(messages, max_tokens=1)):
            pass

    async def close(self) -> None:
        """Let the model go once its running answers have ended."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        del self._server


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
    return body
