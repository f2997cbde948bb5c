"""What a server may send in place of an answer: an error that says so, and nothing left behind."""

import asyncio

import pytest
from aiohttp import web

from duologue.errors import EngineError
from duologue.lm.completions import Completions
from duologue.lm.engine import Engine, Ids, Request, Step, TextDelta
from duologue.lm.openai_http import OpenAIHttp
from duologue.lm.prompt import IdsPart
from duologue.lm.servers import _metric
from tests.lm.fake_servers import FakeServer, event, serving

KINDS = ["chat", "vllm", "sglang", "trtllm", "openai"]
every_kind = pytest.mark.parametrize("kind", KINDS)
EMPTY = event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": None}]})


class Odd(FakeServer):
    """Sends the same pieces to everybody, for ever if it is endless."""

    def __init__(self, *pieces: bytes, status: int = 200, endless: bool = False):
        super().__init__()
        self.pieces, self.status, self.endless = pieces, status, endless
        self.left = asyncio.Event()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            status=self.status, headers={"Content-Type": "text/event-stream"}
        )
        await response.prepare(request)
        try:
            for piece in self.pieces:
                await response.write(piece)
            while self.endless:
                await response.write(self.pieces[-1])
                await asyncio.sleep(0)
        finally:
            self.left.set()
        return response

    def routes(self, app: web.Application) -> None:
        super().routes(app)
        app.router.add_post("/abort_request", self._nothing)
        app.router.add_get("/metrics", self._nothing)

    async def _nothing(self, request: web.Request) -> web.Response:
        return web.Response(text="<html>")


async def ask(server: Odd, kind: str, steps: list[Step]) -> None:
    engine: Engine
    async with serving(server):
        if kind == "chat":
            engine = OpenAIHttp(server.url, "small", timeout_s=5)
            request = Request([{"role": "user", "content": "?"}], max_tokens=9)
        else:
            engine = Completions(server.url, "small", server=kind, timeout_s=5)
            request = Request(parts=(IdsPart((1,)),), max_tokens=9)
        try:
            async for step in engine.stream(request):
                steps.append(step)
        finally:
            await engine.close()
            assert not [task for task in asyncio.all_tasks() if "Answer" in repr(task.get_coro())]


@every_kind
@pytest.mark.parametrize(
    "piece",
    [
        b"data: 5\n\n",
        b"data: null\n\n",
        b"data: [1]\n\n",
        b'data: "x"\n\n',
        b"data: <html>\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"choi\n\n',
        b"data: \xff\xfe\n\n",
        b"<html>502</html>",
        b"",
    ],
    ids=lambda piece: repr(piece[:16]),
)
async def test_what_is_no_answer_is_an_engine_error(kind: str, piece: bytes) -> None:
    with pytest.raises(EngineError, match="127.0.0.1"):
        await ask(Odd(piece), kind, [])


SAID = event({"choices": [{"index": 0, "text": "", "token_ids": [5], "finish_reason": None}]})


@pytest.mark.parametrize(
    "rest",
    [b"data: <html>\n\n", b"data: null\n\n", b"\xff\n\n", b"data: " + b"[" * 99_999 + b"\n\n"],
)
async def test_an_abort_that_is_answered_with_nonsense_is_unconfirmed(rest: bytes) -> None:
    aborted = asyncio.Event()

    class Nonsense(Odd):
        async def _nothing(self, request: web.Request) -> web.Response:
            aborted.set()
            return web.Response()

        async def _completions(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(SAID)
            await aborted.wait()
            await response.write(rest)
            return response

    async with serving(Nonsense()) as server:
        engine = Completions(server.url, "small", server="sglang", timeout_s=5)
        steps = engine.stream(Request(parts=(IdsPart((1,)),), max_tokens=9))
        assert await anext(steps) == Ids((5,))
        await steps.aclose()  # type: ignore[attr-defined]
        await engine.close()
        assert (engine.aborts.confirmed, engine.aborts.unconfirmed) == (0, 1)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "many"])
def test_a_metric_that_is_no_number_is_an_engine_error(value: str) -> None:
    with pytest.raises(EngineError, match="num_requests_running"):
        _metric(f'vllm:num_requests_running{{engine="0"}} {value}\n', "num_requests_running")


@every_kind
@pytest.mark.parametrize("status", [204, 302, 400, 404, 500, 502])
async def test_a_page_of_html_is_an_engine_error(kind: str, status: int) -> None:
    with pytest.raises(EngineError, match="127.0.0.1"):
        await ask(Odd(b"<html>", status=status), kind, [])


@every_kind
async def test_an_endless_stream_of_nothing_is_given_up(kind: str) -> None:
    server, steps = Odd(EMPTY, endless=True), list[Step]()
    with pytest.raises(EngineError, match="more events than the 9 tokens"):
        await ask(server, kind, steps)
    assert steps == []
    await server.left.wait()


@every_kind
async def test_half_a_surrogate_pair_is_no_character(kind: str) -> None:
    """No encoding holds one: it would break every later request, whose prompt has it."""
    text = r'"a\ud83d"'
    choice = f'{{"index": 0, "delta": {{"content": {text}}}, "text": {text}'
    steps: list[Step] = []
    server = Odd(event(f'{{"choices": [{choice}, "finish_reason": "stop"}}]}}'))
    await ask(server, kind, steps)
    assert steps[0] == TextDelta("a\ufffd")
