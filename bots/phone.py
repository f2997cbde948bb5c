"""The phone: calls that a provider (Twilio, or one like it) streams to a websocket."""

import asyncio
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape, quoteattr

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response, WebSocket
from loguru import logger
from pipecat.frames.frames import Frame, LLMMessagesAppendFrame, TranscriptionFrame, TTSSpeakFrame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.dtmf_aggregator import DTMFAggregator
from pipecat.processors.frame_processor import FrameDirection
from pipecat.workers.runner import WorkerRunner
from starlette.requests import HTTPConnection

from bots.assembly import Channel, build_session, load_listening
from bots.models import Models, load_models
from bots.ops import add_ops
from bots.phone_auth import Secrets, Tokens
from bots.phone_line import LEAD_S, RATE_HZ, LineSerializer, LineTransport
from bots.phone_start import Lobby, Start
from bots.room_http import BodyLimit
from bots.stopping import DrainingServer
from duologue import metrics
from duologue.addresses import is_loopback, listen
from duologue.config import BotConfig, PhoneConfig
from duologue.errors import CapacityError, InputError, UsageError
from duologue.limits import Places

NARROWBAND = Channel(in_rate_hz=RATE_HZ, out_rate_hz=RATE_HZ, lead_s=LEAD_S, kind="phone")
PING_S = 10.0
CHECK_S = 1.0
SILENT_LINE_S = 15.0
"""A call sends audio all the time; a line without any is dead."""
CLOSE_S = 2.0
TIDY_S = 1.0
KEYS_S = 2.0
TRY_AGAIN = 1013
BUSY = "All lines are busy. Please call again in a minute."


class Keypad(DTMFAggregator):
    """The caller's keys as a message to the LM; the first one interrupts the bot.

    Attributes:
        pressed: Called when the message goes out.
    """

    def __init__(self) -> None:
        super().__init__(timeout=KEYS_S, prefix="The caller pressed: ")
        self.pressed: Callable[[], None] = lambda: None

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM):
        """Pass frames on."""
        if isinstance(frame, TranscriptionFrame):
            # Not a transcript: no speech began that the turn strategies could end.
            message: Any = {"role": "user", "content": frame.text}
            frame = LLMMessagesAppendFrame([message], run_llm=True)
            self.pressed()
        await super().push_frame(frame, direction)


class Gate:
    """Lets in what the provider has signed.

    Args:
        config: The phone's part of the set-up.
        secrets: What the provider signs with; None lets in anyone.
    """

    def __init__(self, config: PhoneConfig, secrets: Secrets | None):
        public = config.public_url or f"http://{config.host}:{config.port}"
        self.base_url = public.rstrip("/")
        self.media_url = "ws" + self.base_url.removeprefix("http") + "/ws"
        self.secrets = secrets
        self.tokens = Tokens()

    def stream_url(self, call_id: str) -> str:
        """Where the call's audio is to come."""
        return f"{self.media_url}/{self.tokens.issue(call_id)}" if self.secrets else self.media_url

    def knows(self, connection: HTTPConnection, form: list[tuple[str, str]] | None = None) -> bool:
        """Whether the provider has signed this request, over the URL that it knows."""
        if self.secrets is None:
            # Behind no signature, pages of other sites must not reach a loopback address.
            return "origin" not in connection.headers
        scope = connection.scope
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        query = scope["query_string"].decode("latin-1")
        base = self.base_url if scope["type"] == "http" else self.media_url.removesuffix("/ws")
        url = f"{base}{path}" + (f"?{query}" if query else "")
        return self.secrets.verify(connection.headers, url, form or ())


class Phone:
    """The calls of one process.

    Args:
        models: What they share.
        config: The set-up.
    """

    def __init__(self, models: Models, config: BotConfig):
        self.config = config
        self.lines = Places(config.limits.sessions, "line")
        self._lobby = Lobby(config.limits.connecting)
        self._models = models
        self._ends: set[asyncio.Event] = set()
        self._tidying: asyncio.TimerHandle | None = None

    async def call(self, websocket: WebSocket, call_id: str | None) -> None:
        """Hold one call, until either side ends it; one that cannot be held is told why.

        A stream takes a line once it has said which call it is; one that is refused gives the line
        back before it is told. A peer that is slow at either keeps nobody else out.

        Args:
            websocket: The stream, not accepted yet.
            call_id: The call that it has to be; None for any.
        """
        try:
            await websocket.accept()
            self.lines.check()
            start = await self._lobby.start_of(websocket)
            if call_id is not None and start.call_id != call_id:
                raise InputError("the stream is not of the call that its URL was made for")
            with self.lines.take():
                logger.info(f"call {start.call_id} by {start.provider}, stream {start.stream_id}")
                await self._hold(websocket, start)
        except InputError as error:
            logger.warning(f"a call is refused: {error}")
            await _close(websocket, 1008, str(error))
        except CapacityError as error:
            metrics.refused("phone")
            await _close(websocket, TRY_AGAIN, str(error))
        except Exception:
            logger.exception("a call failed")
            await _close(websocket, 1011, "The call could not be held.")

    async def close(self) -> None:
        """Take no more calls, let those that run end for `limits.drain_s`, then end them."""
        await self.lines.drain(self.config.limits.drain_s)
        for ended in self._ends:
            ended.set()
        await self.lines.drain(CLOSE_S)
        if self._tidying:
            self._tidying.cancel()

    def _tidy_soon(self) -> None:
        """A session is full of cycles that hold models' memory: do not wait for it to add up.

        Once for all calls that end within a second, for those that go on feel it.
        """
        loop = asyncio.get_running_loop()
        if self._tidying is None or self._tidying.when() < loop.time():
            self._tidying = loop.call_later(TIDY_S, gc.collect)

    async def _hold(self, websocket: WebSocket, start: Start) -> None:
        ended = asyncio.Event()
        line = LineSerializer(start, ended)
        self._ends.add(ended)
        try:
            await self._converse(websocket, line, ended)
        finally:
            self._ends.discard(ended)
            self._tidy_soon()
        if line.refusal:
            raise InputError(line.refusal)

    async def _converse(
        self, websocket: WebSocket, line: LineSerializer, ended: asyncio.Event
    ) -> None:
        transport = LineTransport(websocket, line, call_s=self.config.limits.session_s)
        worker = await self.pipeline(transport)

        async def on_connected(*_: Any) -> None:
            if greeting := self.config.phone.greeting:
                await worker.queue_frame(TTSSpeakFrame(greeting))

        async def on_disconnected(*_: Any) -> None:
            ended.set()

        async def on_session_timeout(*_: Any) -> None:
            await worker.stop_when_done()

        transport.add_event_handler("on_client_connected", on_connected)
        transport.add_event_handler("on_client_disconnected", on_disconnected)
        transport.add_event_handler("on_session_timeout", on_session_timeout)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        watch = asyncio.create_task(_end_when_over(worker, transport, line, ended))
        try:
            await runner.run(auto_end=True)
        finally:
            watch.cancel()

    async def pipeline(self, transport: LineTransport) -> PipelineWorker:
        """What a call's audio goes through."""
        keypad = Keypad()
        session = build_session(
            self._models,
            self.config,
            await load_listening(self.config),
            inputs=[transport.input(), keypad],
            outputs=[transport.output()],
            channel=NARROWBAND,
        )
        if budget := session.tools.budget:
            keypad.pressed = budget.renew
        return session.worker


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    # It may be closed already.
    with suppress(RuntimeError):
        await websocket.close(code, reason[:120])


async def _end_when_over(
    worker: PipelineWorker, transport: LineTransport, line: LineSerializer, ended: asyncio.Event
) -> None:
    while not ended.is_set() and line.intake.silent_s < SILENT_LINE_S:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), CHECK_S)
    if line.refusal:
        transport.stay_open()
    await worker.cancel()


def create_app(phone: Phone, gate: Gate) -> FastAPI:
    """The phone's web application."""
    app = FastAPI(title="duologue phone", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit, max_bytes=phone.config.limits.body_bytes)
    add_ops(app, lambda: phone.lines)

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        return {"ready": True, "capacity": phone.lines.capacity, "active": phone.lines.taken}

    @app.post("/voice")
    async def voice(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace")
        form = parse_qsl(body, keep_blank_values=True)
        if not gate.knows(request, form):
            raise HTTPException(403, "The request is not signed by the provider.")
        call_id = dict(form).get("CallSid")
        if not call_id:
            raise HTTPException(400, "Expected a call's form with CallSid.")
        try:
            phone.lines.check()
        except CapacityError:
            metrics.refused("phone")
            return twiml(f"<Say>{escape(BUSY)}</Say><Hangup/>")
        url = quoteattr(gate.stream_url(call_id))
        return twiml(f"<Connect><Stream url={url}/></Connect>")

    @app.websocket("/ws")
    @app.websocket("/ws/{token}")
    async def media(websocket: WebSocket, token: str = "") -> None:
        signed = gate.knows(websocket)
        call_id = gate.tokens.redeem(token) if signed and gate.secrets else None
        if not signed or (gate.secrets and call_id is None):
            # Closing before accepting answers 403.
            await websocket.close()
            return
        await phone.call(websocket, call_id)

    return app


def twiml(verbs: str) -> Response:
    """An answer to the provider's webhook."""
    text = f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'
    return Response(text, media_type="application/xml")


def check(config: PhoneConfig) -> Secrets | None:
    """What the provider signs with, by TWILIO_AUTH_TOKEN; None without authentication.

    Raises:
        UsageError: what authentication needs is missing, or it is off on a public address.
    """
    if not config.auth:
        if not is_loopback(config.host):
            raise UsageError(
                f"--no-auth on {config.host}: anyone could call at your expense; leave it out, or "
                "listen on 127.0.0.1"
            )
        return None
    token = os.environ.get("TWILIO_AUTH_TOKEN", "").strip()
    if not token:
        raise UsageError(
            "TWILIO_AUTH_TOKEN is not set: without it nobody knows who calls; set it to your "
            "account's auth token, or try on this machine with --no-auth"
        )
    if config.public_url is None:
        raise UsageError(
            "--public-url is missing: the provider signs the URL that it calls; give the address "
            "under which it reaches this server, such as https://phone.example.org"
        )
    return Secrets(token, os.environ.get("TWILIO_SHARED_KEY") or None)


async def serve(config: BotConfig, *, ready: Callable[[], None] = lambda: None) -> None:
    """Load the models, then take calls until stopped.

    Args:
        config: The set-up.
        ready: Called when calls can come.

    Raises:
        EngineError: a model or an engine of the set-up is missing.
        UsageError: no authentication, or an address that cannot be listened on.
    """
    secrets = check(config.phone)
    sock = listen(config.phone.host, config.phone.port)
    await load_listening(config)
    models = await load_models(config)
    server = make_server(Phone(models, config), Gate(config.phone, secrets))
    ready()
    try:
        await server.serve([sock])
    finally:
        await models.close()


def make_server(phone: Phone, gate: Gate) -> DrainingServer:
    """The phone's web server; calls end before their connections do."""
    config = uvicorn.Config(
        create_app(phone, gate),
        log_level="warning",
        ws_max_size=phone.config.limits.message_bytes,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
    )
    return DrainingServer(config, phone.close)
