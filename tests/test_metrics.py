"""What a conversation counts, traces and logs, and what it does not."""

import asyncio
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from loguru import logger
from pipecat.frames.frames import (
    Frame,
    LLMContextUserTurnFrame,
    LLMFullResponseStartFrame,
    MetricsFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.processors.frame_processor import FrameDirection
from prometheus_client import REGISTRY

from bots import ops_trace
from bots.ops import TOKEN, add_ops
from bots.ops_log import log_to
from duologue.errors import ConfigError
from duologue.limits import Places
from duologue.memory import Memory
from processors.frames import (
    AnswerDoneFrame,
    AnswerTextFrame,
    HoldFrame,
    ResumeFrame,
    VoiceAudioFrame,
)
from processors.metrics import ConversationMetrics
from processors.playout import Playout
from services.token2wav import Token2wav, Token2wavMetricsData
from tests.conversing import COUNT
from tests.fakes import FakeBatcher, ManualClock
from tests.phone_calls import dial, open_line


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"duologue_{name}", labels) or 0.0


class Counted:
    """What has been counted since the test began."""

    def __init__(self) -> None:
        self._before = self._all()

    @staticmethod
    def _all() -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
        }

    def __call__(self, name: str, *labels: str) -> float:
        key = (f"duologue_{name}", *labels)
        return self._all().get(key, 0.0) - self._before.get(key, 0.0)


@pytest.fixture
def counted() -> Counted:
    return Counted()


class Watched:
    """An observer that a test shows frames."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.events: list[dict[str, Any]] = []
        self.figures = ConversationMetrics("test", self.events.append, clock=self.clock)
        self.source: Any = Playout(Memory([]))

    async def see(self, *frames: Frame) -> None:
        for frame in frames:
            pushed = FramePushed(self.source, self.source, frame, FrameDirection.DOWNSTREAM, 0)
            await self.figures.on_push_frame(pushed)

    async def speak(self, seconds: float, turn: int = 1) -> None:
        rate = 24_000
        await self.see(VoiceAudioFrame(b"\0\0" * round(seconds * rate), rate, 1, turn=turn))


async def test_an_answer_in_real_time_and_its_gaps(counted):
    call = Watched()
    start = LLMFullResponseStartFrame()
    start.metadata["turn"] = 1
    await call.see(start, AnswerTextFrame("Well, ", turn=1))
    call.clock.now_s += 0.2
    await call.see(AnswerTextFrame("then.", turn=1))
    await call.speak(1.0)
    assert counted("first_audio_seconds_sum", "piper") == pytest.approx(0.2)
    call.clock.now_s += 0.9
    await call.speak(1.0)
    assert counted("underruns_total", "piper") == 0
    call.clock.now_s += 1.2
    await call.speak(1.0)
    assert counted("underruns_total", "piper") == 1
    assert counted("audio_seconds_total", "piper") == pytest.approx(3.0)
    # Sound of an answer that a newer one has taken the place of.
    await call.see(AnswerTextFrame("No.", turn=2))
    await call.speak(1.0, turn=1)
    assert counted("audio_seconds_total", "piper") == pytest.approx(3.0)


async def test_token2wav_has_its_own_figures(counted):
    call = Watched()
    call.source = Token2wav(FakeBatcher(), None)  # type: ignore[arg-type]
    await call.see(AnswerTextFrame("Well.", turn=1, spoken=True))
    await call.speak(0.5)
    assert counted("audio_seconds_total", "token2wav") == pytest.approx(0.5)
    spoken = Token2wavMetricsData(
        processor="x", model="token2wav", audio_s=0.5, rtf=0.1, queue_s=0.3
    )
    await call.see(MetricsFrame(data=[spoken]))
    assert counted("queue_wait_seconds_sum", "token2wav") == pytest.approx(0.3)


async def test_holds_and_what_came_of_them(counted):
    call = Watched()
    await call.see(HoldFrame(), ResumeFrame(), HoldFrame())
    await call.see(AnswerDoneFrame(turn=1, chars=9, interrupted=True))
    assert counted("barge_ins_total", "test", "resumed") == 1
    assert counted("barge_ins_total", "test", "committed") == 1
    await call.see(AnswerDoneFrame(turn=2, chars=0, interrupted=True), AnswerDoneFrame(turn=3))
    outcomes = {o: counted("answers_total", "test", o) for o in ("done", "interrupted", "unheard")}
    assert outcomes == {"done": 1, "interrupted": 1, "unheard": 1}
    await call.see(LLMContextUserTurnFrame("Hm?", ""))
    assert counted("turns_total", "test") == 1
    assert [event["type"] for event in call.events][-1] == "user"


def test_a_whole_conversation_is_counted(converse, say, counted):
    async def scenario(call):
        assert value("sessions", kind="room") >= 1
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_end", reason="done")
        (latency,) = call.of("latency")
        return latency

    latency = converse(scenario, ["The sea is deep."])
    assert counted("sessions_ended_total", "room", "done") == 1
    assert value("sessions", kind="room") == 0
    assert counted("turns_total", "room") == 1
    assert counted("answers_total", "room", "done") == 1
    for stage in ("asr", "end_of_turn", "lm", "voice", "total"):
        assert counted("stage_seconds_count", "room", stage) == 1
    total_s = counted("stage_seconds_sum", "room", "total")
    assert total_s == pytest.approx(latency["total_ms"] / 1000)
    assert counted("first_audio_seconds_count", "piper") == 1
    assert counted("underruns_total", "piper") == 0


QUESTION = "Tell me about the sea."
ANSWER = "Whales and lobsters live there."
SECRET = "porpoise"


@pytest.fixture
def logged():
    """A text for what is logged; nothing else gets it."""
    text = io.StringIO()
    yield text
    logger.remove()


async def talk(call, say) -> None:
    """A turn and an interruption."""
    await call.say(say(QUESTION))
    await call.wait_for("bot_end", reason="done")
    await call.say(say(QUESTION))
    await call.wait_for("state", state="speaking")
    await asyncio.sleep(1.5)
    await call.say(say("Stop, please."))
    await call.wait_for("bot_end", reason="done")
    assert [end["reason"] for end in call.of("bot_end")] == ["done", "interrupted", "done"]


def spoken_in(text: str) -> list[str]:
    words = [*QUESTION.lower().rstrip(".").split()[-1:], "whales", "lobsters", "word3", SECRET]
    return [word for word in words if word in text.lower()]


def test_no_word_is_logged(converse, say, logged):
    everything = io.StringIO()
    log_to(logged, verbose=True, environ={"DUOLOGUE_LOG": "json"})
    logger.add(everything, level="TRACE")
    converse(lambda call: talk(call, say), [ANSWER], [COUNT])
    assert not spoken_in(logged.getvalue())
    # They would be found.
    assert spoken_in(everything.getvalue())
    records = [json.loads(line)["record"] for line in logged.getvalue().splitlines()]
    turns = [record for record in records if record["message"] == "A turn is answered"]
    assert turns and turns[0]["extra"]["seconds"]["total"] > 0


def test_an_error_is_logged_without_what_was_said(logged):
    def careless(heard: str) -> None:
        raise ValueError(f"{len(heard)} letters are too many")

    log_to(logged, verbose=False, environ={})
    try:
        careless(SECRET)
    except ValueError:
        logger.exception("a call failed")
    assert "letters are too many" in logged.getvalue()
    assert not spoken_in(logged.getvalue())


def test_the_standard_librarys_records_are_ours(logged):
    import logging

    log_to(logged, verbose=False, environ={"DUOLOGUE_LOG": "json"})
    logging.getLogger("duologue.serving").warning("%s is hot", "tea")
    record = json.loads(logged.getvalue())["record"]
    assert (record["message"], record["name"]) == ("tea is hot", "duologue.serving")
    with pytest.raises(ConfigError, match="text or json"):
        log_to(logged, verbose=False, environ={"DUOLOGUE_LOG": "xml"})


async def test_who_runs_it_can_ask(monkeypatch):
    app, places = FastAPI(), Places(1, "line")
    add_ops(app, lambda: places)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/ready")).json()["ready"] is True
        with places.take():
            full = await client.get("/ready")
            assert (full.status_code, full.json()["active"]) == (503, 1)
            assert "full: 1 of 1" in full.json()["reason"]
        figures = await client.get("/metrics")
        assert "duologue_turns_total" in figures.text
        assert figures.headers["content-type"].startswith("text/plain; version=")
        monkeypatch.setenv(TOKEN, "secret")
        assert (await client.get("/metrics")).status_code == 401
        bearer = {"authorization": "Bearer secret"}
        assert (await client.get("/metrics", headers=bearer)).status_code == 200
        await places.drain(0)
        closing = await client.get("/ready")
        assert (closing.status_code, "closing" in closing.json()["reason"]) == (503, True)
        assert (await client.get("/health")).status_code == 200


@pytest.fixture
def collector(monkeypatch):
    """A collector of OpenTelemetry's that keeps the spans which arrive."""
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra `trace`")
    from opentelemetry import trace
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            sent = ExportTraceServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            spans.extend(s for r in sent.resource_spans for p in r.scope_spans for s in p.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    ops_trace.tracing.cache_clear()

    def collected():
        trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
        return spans

    yield collected
    trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    ops_trace.tracing.cache_clear()


async def test_a_turn_is_a_trace_without_words(whisper, say, collector):
    async with open_line(whisper, [ANSWER]) as line, dial(f"{line.ws}/ws") as call:
        await call.say(say(QUESTION))
        await call.heard(0.9)
    spans = await asyncio.to_thread(collector)
    names = {span.span_id: span.name for span in spans}
    parents = {span.name: names.get(span.parent_span_id) for span in spans}
    assert parents["turn"] == "conversation"
    assert {parents[stage] for stage in ("asr", "end_of_turn", "lm", "voice")} == {"turn"}
    assert not spoken_in(str(spans))


def test_a_collector_without_the_means_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(ops_trace, "EXPORTER", "opentelemetry.no_such_exporter")
    ops_trace.tracing.cache_clear()
    with pytest.raises(ConfigError, match=r"\.\[trace\]"):
        ops_trace.tracing()
    monkeypatch.undo()
    ops_trace.tracing.cache_clear()
    assert ops_trace.tracing() is False
