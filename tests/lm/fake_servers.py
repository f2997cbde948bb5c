"""Stand-ins for servers that cannot run here, with the behaviour that their sources document.

vLLM: vllm/entrypoints/openai/completion; SGLang: sglang/srt/entrypoints/openai; trtllm-serve:
tensorrt_llm/serve/openai_protocol.py, postprocess_handlers.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PACE_S = 0.001
"""Between two tokens."""


def successor(ids: Iterable[int]) -> int:
    """The model behind all of them: an id that depends on every id before it."""
    mixed = 0
    for token in ids:
        mixed = (mixed * 31 + token + 1) % 1_000_003
    return mixed % 300


def ids_after(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(successor(ids))
    return ids[len(prompt) :]


def spelled(ids: Iterable[int]) -> str:
    return "".join(f"<audio_{token}>" for token in ids)


def event(data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


class FakeServer:
    """A server's completions endpoint.

    Args:
        gives_ids: Whether it knows how to give ids.
        deaf: Whether it goes on whatever the client does.
        per_chunk: Tokens of one chunk.
        lost: Places of tokens that are generated and counted but never sent.
        broken_at: Tokens after which an error stands in the stream.
        broken_by: What stands there.
        cut_at: Tokens after which the connection breaks.
    """

    def __init__(
        self,
        *,
        gives_ids: bool = True,
        deaf: bool = False,
        per_chunk: int = 1,
        lost: Sequence[int] = (),
        broken_at: int = -1,
        broken_by: object = None,
        cut_at: int = -1,
    ):
        self.gives_ids, self.deaf, self.per_chunk = gives_ids, deaf, per_chunk
        self.lost, self.broken_at, self.cut_at = lost, broken_at, cut_at
        self.broken_by = broken_by or {"error": {"message": "EngineCore died", "code": 500}}
        self.silent = False
        """Whether it sends nothing at all."""
        self.url = ""
        self.runner: web.AppRunner | None = None
        self.requests: list[dict[str, Any]] = []
        self.running = 0
        self.asked = asyncio.Event()
        """Set by every request."""
        self.generated = 0
        self.peers: set[Any] = set()
        self._orphans: set[asyncio.Task] = set()

    tells_prompt = True

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._completions)

    def check(self, body: dict[str, Any]) -> str:
        """What is wrong with a request."""
        return ""

    def wants_ids(self, body: dict[str, Any]) -> bool:
        return bool(body.get("return_token_ids"))

    def aborted(self, body: dict[str, Any]) -> bool:
        return False

    async def stop(self) -> None:
        for task in self._orphans:
            task.cancel()
        if self.runner:
            await self.runner.cleanup()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if request.transport:
            self.peers.add(request.transport.get_extra_info("peername"))
        if problem := self.check(body):
            return web.json_response({"error": {"message": problem}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        self.asked.set()
        done, deserted = 0, False
        try:
            async for done, piece in self._answer(body):
                if done == self.cut_at and request.transport:
                    request.transport.abort()
                await response.write(piece)
        except (asyncio.CancelledError, ConnectionError):
            deserted = self.deaf
            raise
        finally:
            if deserted:
                self._orphans.add(asyncio.create_task(self._go_on(body["max_tokens"] - done)))
            else:
                self.running -= 1
        return response

    async def _go_on(self, tokens: int) -> None:
        """Work for nobody."""
        for _ in range(tokens):
            await asyncio.sleep(PACE_S)
            self.generated += 1
        self.running -= 1

    async def _answer(self, body: dict[str, Any]) -> AsyncIterator[tuple[int, bytes]]:
        """(tokens so far, what goes out)."""
        prompt = body.get("prompt", "chat")
        prompt = list(map(ord, prompt)) if isinstance(prompt, str) else prompt
        count, stop_ids = body["max_tokens"], body.get("stop_token_ids") or ()
        ids: list[int] = []
        reason, sent = None, 0
        while reason is None:
            await asyncio.sleep(PACE_S)
            if self.silent and not self.aborted(body):
                continue
            ids += ids_after([*prompt, *ids], 1)
            self.generated += 1
            if self.aborted(body):
                reason = "abort"
            elif ids[-1] in stop_ids:
                reason = "stop"
            elif len(ids) == count:
                reason = "length"
            if len(ids) == self.broken_at:
                yield len(ids), event(self.broken_by)
                return
            if reason or len(ids) - sent >= self.per_chunk:
                new = [ids[n] for n in range(sent, len(ids)) if n not in self.lost]
                yield len(ids), event(self._chunk(body, new, reason, None if sent else prompt))
                sent = len(ids)
        if body.get("stream_options", {}).get("include_usage"):
            yield len(ids), event({"choices": [], "usage": {"completion_tokens": len(ids)}})
        yield len(ids), event("[DONE]")

    def _chunk(
        self, body: dict[str, Any], ids: list[int], reason: str | None, prompt: list[int] | None
    ) -> dict[str, Any]:
        shown = spelled(ids) if body.get("skip_special_tokens") is False else ""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        choice |= {"text": shown} if "prompt" in body else {"delta": {"content": spelled(ids)}}
        if self.gives_ids and self.wants_ids(body):
            choice["token_ids"] = ids
            choice |= {"prompt_token_ids": prompt} if self.tells_prompt else {}
        return {"object": "text_completion", "choices": [choice], "usage": None}


class FakeVllm(FakeServer):
    """Ends a request whose client has left, unless deaf; counts in /metrics.

    Args:
        prefix: Of the metrics' names.
    """

    def __init__(self, *, prefix: str = "vllm", **options):
        super().__init__(**options)
        self.prefix = prefix
        self.looked: Callable[[], None] = lambda: None
        """Called before anybody sees the metrics."""

    def routes(self, app: web.Application) -> None:
        super().routes(app)
        app.router.add_get("/metrics", self._metrics)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.looked()
        labels = '{engine="0",model_name="small"}'
        return web.Response(
            text=f"# HELP {self.prefix}:num_requests_running Number of requests in batches.\n"
            f"# TYPE {self.prefix}:num_requests_running gauge\n"
            f"{self.prefix}:num_requests_running{labels} {self.running}.0\n"
            f"{self.prefix}:num_requests_waiting{labels} 0.0\n"
            f"{self.prefix}:generation_tokens_total{labels} {self.generated}.0\n"
        )


class FakeSglang(FakeServer):
    """Ends every request whose id begins with the one to abort, unless deaf."""

    def __init__(self, **options):
        super().__init__(**options)
        self.to_abort: list[str] = []

    def routes(self, app: web.Application) -> None:
        super().routes(app)
        app.router.add_post("/abort_request", self._abort)

    def aborted(self, body: dict[str, Any]) -> bool:
        return any(body["rid"].startswith(rid) for rid in self.to_abort) and not self.deaf

    async def _abort(self, request: web.Request) -> web.Response:
        self.to_abort.append((await request.json())["rid"])
        return web.Response()


class FakeTrtllm(FakeServer):
    """Refuses fields it does not know; gives ids in place of text if it need not detokenize."""

    tells_prompt = False
    KNOWN = set(
        "model prompt max_tokens seed stop stream stream_options temperature top_p top_k"
        " repetition_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens"
        " skip_special_tokens spaces_between_special_tokens detokenize add_special_tokens".split()
    )

    def check(self, body: dict[str, Any]) -> str:
        unknown = set(body) - self.KNOWN
        return f"Extra inputs are not permitted: {unknown}" if unknown else ""

    def wants_ids(self, body: dict[str, Any]) -> bool:
        return body.get("detokenize") is False


class FakeLlama(FakeServer):
    """llama-server while it reads a prompt: nothing comes until its client has left.

    Args:
        slots: What /slots shows by then; "mine" stands for the seed of the request.
    """

    def __init__(self, slots: list[dict[str, Any]] | None):
        super().__init__()
        self.slots = slots

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/completion", self._wait)
        app.router.add_post("/v1/chat/completions", self._wait)
        app.router.add_get("/slots", self._slots)

    async def _wait(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.asked.set()
        await asyncio.Event().wait()
        return web.Response()

    async def _slots(self, request: web.Request) -> web.Response:
        if self.slots is None:
            return web.json_response({"error": {"message": "no --slots"}}, status=501)
        mine = str(self.requests[-1]["seed"])
        return web.Response(text=json.dumps(self.slots).replace('"mine"', mine))


class Scripted(FakeServer):
    """Sends the same pieces to every chat."""

    def __init__(self, *pieces: bytes):
        super().__init__()
        self.pieces = pieces

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._chat)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in self.pieces:
            await response.write(piece)
        return response


@asynccontextmanager
async def serving(server: FakeServer, port: int = 0) -> AsyncIterator[FakeServer]:
    app = web.Application(client_max_size=2**26)
    server.routes(app)
    server.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await server.runner.setup()
    await web.TCPSite(server.runner, "127.0.0.1", port).start()
    server.url = f"http://127.0.0.1:{server.runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await server.stop()
