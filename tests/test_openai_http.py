"""The OpenAI-compatible client against a scripted HTTP server; test_llamacpp.py has a real one."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from duologue.errors import CapacityError, ConfigError, EngineError
from duologue.lm.engine import Finish, Request, Step, TextDelta, ToolCall
from duologue.lm.openai_http import OpenAIHttp

ASK = Request([{"role": "user", "content": "Hello?"}], max_tokens=20, temperature=0.0)
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def event(data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def delta(finish: str | None = None, **fields) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})


DONE = event("[DONE]")
HELLO = [delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo."),
         delta("stop"), event({"choices": [], "usage": "?", "created": "now"}), DONE]  # fmt: skip


@dataclass
class Server:
    """What the scripted server saw and sent."""

    url: str = ""
    requests: list[tuple[dict, dict]] = field(default_factory=list)
    sent: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((await request.json(), dict(request.headers)))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def send(self, response: web.StreamResponse, *pieces: bytes) -> None:
        for piece in pieces:
            await response.write(piece)
            self.sent += 1


Handler = Callable[[Server, web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server()

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(server, request)
        finally:
            server.left.set()

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(url: str, **options) -> AsyncIterator[OpenAIHttp]:
    engine = OpenAIHttp(url, "small", **options)
    try:
        yield engine
    finally:
        await engine.close()


def script(*pieces: bytes) -> Handler:
    async def handler(server: Server, request: web.Request) -> web.StreamResponse:
        response = await server.open(request)
        await server.send(response, *pieces)
        return response

    return handler


async def collect(engine: OpenAIHttp, into: list[Step], request: Request = ASK) -> None:
    async with aclosing(engine.stream(request)) as steps:  # type: ignore[type-var]
        async for step in steps:
            into.append(step)


async def failure(handler: Handler, **options) -> tuple[EngineError, list[Step], Server]:
    steps: list[Step] = []
    async with serving(handler) as server, client(server.url, **options) as engine:
        with pytest.raises(EngineError) as caught:
            await collect(engine, steps)
    assert server.url in str(caught.value)
    assert "'small'" in str(caught.value)
    return caught.value, steps, server


async def test_text_streams_and_the_request_says_what_was_asked() -> None:
    steps: list[Step] = []
    async with serving(script(*HELLO)) as server, client(server.url, api_key=" k1\n") as engine:
        await collect(engine, steps)
    assert steps == [TextDelta("Hel"), TextDelta("lo."), Finish("stop")]
    body, headers = server.requests[0]
    assert headers["Authorization"] == "Bearer k1"
    assert body == {
        "model": "small", "messages": ASK.messages, "max_tokens": 20, "temperature": 0.0,
        "stream": True,
    }  # fmt: skip


async def test_a_wire_cut_at_every_byte_reads_the_same() -> None:
    wire = b": hello\r\n\r\n" + b"".join([delta(content="5 € 你好"), delta("stop"), DONE])
    steps: list[Step] = []
    bytewise = script(*(wire[n : n + 1] for n in range(len(wire))))
    async with serving(bytewise) as server, client(server.url) as engine:
        await collect(engine, steps)
    assert steps == [TextDelta("5 € 你好"), Finish("stop")]


async def test_tools_and_penalty_go_out_and_calls_come_in_pieces() -> None:
    pieces = [{"index": 0, "id": "a", "type": "function", "function": {"name": "clock"}},
              {"index": 0, "function": {"arguments": '{"zone": '}},
              {"index": 1, "id": "b", "function": {"name": "clock", "arguments": "{}"}},
              {"index": 0, "function": {"arguments": '"UTC"}'}}]  # fmt: skip
    wire = [delta(tool_calls=[item]) for item in pieces]
    steps: list[Step] = []
    async with (
        serving(script(delta(content="Wait."), *wire, delta("tool_calls"), DONE)) as server,
        client(server.url) as engine,
    ):
        await collect(engine, steps, Request(ASK.messages, tools=[TOOL], repeat_penalty=1.2))
    assert steps == [
        TextDelta("Wait."),
        ToolCall("a", "clock", '{"zone": "UTC"}'),
        ToolCall("b", "clock", "{}"),
        Finish("tool_calls"),
    ]
    body = server.requests[0][0]
    assert body["tools"] == [TOOL]
    assert body["repetition_penalty"] == body["repeat_penalty"] == 1.2


async def test_one_client_serves_answer_after_answer_on_one_connection() -> None:
    peers = set()

    async def handler(server: Server, request: web.Request) -> web.StreamResponse:
        assert request.transport
        peers.add(request.transport.get_extra_info("peername"))
        return await script(*HELLO)(server, request)

    async with serving(handler) as server, client(server.url) as engine:
        for _ in range(3):
            steps: list[Step] = []
            await collect(engine, steps)
            assert steps[-1] == Finish("stop")
    assert len(peers) == 1


@pytest.mark.parametrize(
    ("status", "message", "advice", "kind"),
    [
        (400, "Unrecognized argument: repetition_penalty", "lm.repeat_penalty to 1.0", EngineError),
        (400, "context length exceeded", "see the server's log", EngineError),
        (401, "Incorrect API key", "DUOLOGUE_LM_API_KEY", EngineError),
        (404, "The model does not exist", "check base_url and model", EngineError),
        (429, "Rate limit", "see the server's log", CapacityError),
        (500, "CUDA out of memory", "see the server's log", EngineError),
        (503, "Loading model", "see the server's log", CapacityError),
    ],
)
async def test_a_refusal_is_told_at_once_with_what_to_do(
    status: int, message: str, advice: str, kind: type
) -> None:
    async def handler(server: Server, request: web.Request) -> web.Response:
        server.requests.append((await request.json(), dict(request.headers)))
        error = {"error": {"message": message, "code": status}}
        return web.json_response(error, status=status, headers={"Retry-After": "30"})

    error, steps, server = await failure(handler)
    assert type(error) is kind
    assert message in str(error) and str(status) in str(error) and advice in str(error)
    assert not steps
    assert len(server.requests) == 1


@pytest.mark.parametrize("done", [b"", DONE])
@pytest.mark.parametrize(
    "error", [{"error": {"message": "out of memory", "code": 500}},
              {"object": "error", "message": "out of memory"}]
)  # fmt: skip
async def test_an_error_in_the_stream_ends_it(error: dict, done: bytes) -> None:
    told, steps, _ = await failure(script(delta(content="Hel"), event(error), done))
    assert steps == [TextDelta("Hel")]
    assert "out of memory" in str(told)


@pytest.mark.parametrize("end", [b"", DONE, delta()[:30]])
async def test_an_answer_without_an_end_is_an_error(end: bytes) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "clock", "arguments": "{}"}}
    told, steps, _ = await failure(script(delta(content="Hel"), delta(tool_calls=[call]), end))
    assert steps == [TextDelta("Hel")]
    assert "ends in the middle" in str(told)


async def test_a_connection_cut_in_the_stream_is_an_error() -> None:
    async def handler(server: Server, request: web.Request) -> web.StreamResponse:
        response = await server.open(request)
        await server.send(response, delta(content="Hel"), delta(content="lo")[:20])
        assert request.transport
        request.transport.abort()
        return response

    told, steps, server = await failure(handler)
    assert steps == [TextDelta("Hel")]
    assert "is the server running?" in str(told)
    assert len(server.requests) == 1


@pytest.mark.parametrize("text", ["<html>Sign in</html>", '{"error": "no such route"}', "data: {"])
async def test_an_answer_that_is_no_stream_is_an_error(text: str) -> None:
    async def handler(server: Server, request: web.Request) -> web.Response:
        return web.Response(text=text + "\n\n")

    _, steps, _ = await failure(handler)
    assert not steps


@pytest.mark.parametrize("stage", ["headers", "first piece", "comments", "next piece"])
async def test_a_slow_server_is_given_up(stage: str) -> None:
    async def handler(server: Server, request: web.Request) -> web.StreamResponse:
        if not server.requests:
            return await script(*HELLO)(server, request)
        server.left.clear()
        if stage == "headers":
            await asyncio.Event().wait()
        response = await server.open(request)
        if stage == "next piece":
            await server.send(response, delta(content="Hel"))
        while stage == "comments":
            await server.send(response, b": still here\n\n")
            await asyncio.sleep(0.02)
        await asyncio.Event().wait()
        return response

    steps: list[Step] = []
    async with serving(handler) as server, client(server.url, timeout_s=0.4) as engine:
        # What a process's first request costs is not the server's fault.
        async with client(server.url) as patient:
            await collect(patient, [])
        with pytest.raises(EngineError, match="no piece of an answer within 0.4 s"):
            await collect(engine, steps)
        async with asyncio.timeout(5):
            await server.left.wait()
    assert steps == ([TextDelta("Hel")] if stage == "next piece" else [])


async def endless(server: Server, request: web.Request) -> web.StreamResponse:
    response = await server.open(request)
    while True:
        await server.send(response, delta(content="la "))
        await asyncio.sleep(0.002)


async def test_closing_the_iterator_ends_the_generation() -> None:
    async with serving(endless) as server, client(server.url) as engine:
        for _ in range(3):
            server.left.clear()
            steps = engine.stream(ASK)
            assert await anext(steps) == TextDelta("la ")
            await steps.aclose()  # type: ignore[attr-defined]
            async with asyncio.timeout(0.1):
                await server.left.wait()
            sent = server.sent
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03):
                    await asyncio.Event().wait()
            assert server.sent == sent


@pytest.mark.parametrize("stage", ["headers", "first piece"])
async def test_an_interruption_before_the_first_piece_ends_the_request(stage: str) -> None:
    reached = asyncio.Event()

    async def handler(server: Server, request: web.Request) -> web.StreamResponse:
        response = await server.open(request) if stage == "first piece" else web.StreamResponse()
        reached.set()
        await asyncio.Event().wait()
        return response

    async with serving(handler) as server, client(server.url) as engine:
        task = asyncio.create_task(collect(engine, []))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(0.1):
            await server.left.wait()


async def test_no_task_stays_behind_an_abort() -> None:
    async with serving(endless) as server, client(server.url) as engine:
        await anext(warm := engine.stream(ASK))
        await warm.aclose()  # type: ignore[attr-defined]
        await server.left.wait()
        before = len(asyncio.all_tasks())
        for _ in range(10):
            server.left.clear()
            steps = engine.stream(ASK)
            await anext(steps)
            await steps.aclose()  # type: ignore[attr-defined]
            await server.left.wait()
        assert len(asyncio.all_tasks()) <= before


async def test_no_server_says_where_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    async with client(url) as engine:
        with pytest.raises(EngineError, match="is the server running") as caught:
            await collect(engine, [])
    assert url in str(caught.value) and "check base_url" in str(caught.value)
    assert "attempts failed" in str(caught.value), "the cause, not only that there is one"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000/v1", "http://h:99999/v1", "ftp://h/v1", "x"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url is .* expected an address"):
        OpenAIHttp(url, "small")


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="DUOLOGUE_LM_API_KEY") as caught:
        OpenAIHttp("http://127.0.0.1/v1", "small", api_key="sk-geheım")
    assert "sk-" not in str(caught.value)


async def test_an_empty_key_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a key meant for another server leave the machine."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    async with serving(script(*HELLO)) as server, client(server.url, api_key="") as engine:
        await collect(engine, [])
    assert server.requests[0][1]["Authorization"] == "Bearer none"
