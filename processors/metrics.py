"""A conversation's figures for Prometheus, its spans for OpenTelemetry, and a log line a turn."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from loguru import logger
from opentelemetry import trace
from pipecat.frames.frames import MetricsFrame
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.utils.tracing.turn_trace_observer import TurnTraceObserver

from duologue import metrics
from processors.frames import AnswerTextFrame, VoiceAudioFrame
from processors.page import PageEvents
from services.token2wav import Token2wav, Token2wavMetricsData

STAGES = {
    "asr_ms": "asr",
    "end_of_turn_ms": "end_of_turn",
    "lm_first_token_ms": "lm",
    "voice_first_audio_ms": "voice",
    "total_ms": "total",
}
"""A latency event's fields and the stages that they time, one after another; `total` is all."""


class ConversationMetrics(BaseObserver):
    """Counts what happens; none of it holds what anybody said.

    Turns, latencies and barge-ins are those of the page's events, so that both show the same.

    Args:
        kind: How the session came.
        send: Takes the page's events.
        voice: Name of the engine behind `Voice`.
        clock: Monotonic seconds.

    Attributes:
        turns: Makes the span of each turn, if turns are traced.
    """

    def __init__(
        self,
        kind: str,
        send: Callable[[dict[str, Any]], None] | None = None,
        *,
        voice: str = "piper",
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(observe_every_push=False)
        self.turns: TurnTraceObserver | None = None
        self._kind = kind
        self._send = send
        self._voice = voice
        self._clock = clock
        self._page = PageEvents(self._take, clock=clock)
        self._counted = ExitStack()
        self._state = ""
        # The answer that is being made, and who listens to it from its first text on.
        self._answer = 0
        self._listener = metrics.Listener(voice, clock)

    async def on_pipeline_started(self):
        """Count the session."""
        self._counted.enter_context(metrics.session(self._kind))

    async def cleanup(self):
        """The session is over."""
        self._counted.close()
        await super().cleanup()

    async def on_push_frame(self, data: FramePushed):
        """Count one frame."""
        frame = data.frame
        if isinstance(frame, VoiceAudioFrame):
            self._hear(frame, "token2wav" if isinstance(data.source, Token2wav) else self._voice)
        elif isinstance(frame, AnswerTextFrame):
            self._begin(frame.turn)
        elif isinstance(frame, MetricsFrame):
            for figures in frame.data:
                if isinstance(figures, Token2wavMetricsData):
                    metrics.QUEUE_WAIT.labels("token2wav").observe(figures.queue_s)
        await self._page.on_push_frame(data)

    def _begin(self, turn: int) -> None:
        if turn != self._answer:
            self._answer = turn
            self._listener = metrics.Listener(self._voice, self._clock)

    def _hear(self, frame: VoiceAudioFrame, engine: str) -> None:
        if frame.turn == self._answer:
            self._listener.engine = engine
            self._listener.hear(frame.num_frames / frame.sample_rate)

    def _take(self, event: dict[str, Any]) -> None:
        """Count an event of the page, then pass it on."""
        match event["type"]:
            case "user" if event["final"]:
                metrics.TURNS.labels(self._kind).inc()
            case "bot_end":
                self._count_answer(event)
            case "state":
                if (self._state, event["state"]) == ("held", "speaking"):
                    metrics.BARGE_INS.labels(self._kind, "resumed").inc()
                self._state = event["state"]
            case "latency":
                self._time(event)
            case "error":
                metrics.ERRORS.labels(self._kind).inc()
        if self._send:
            self._send(event)

    def _count_answer(self, event: dict[str, Any]) -> None:
        outcome = event["reason"]
        if outcome == "interrupted":
            # A guess that the user's next words have overtaken is no interruption.
            outcome = "interrupted" if event["chars"] else "unheard"
        metrics.ANSWERS.labels(self._kind, outcome).inc()
        if outcome == "interrupted":
            metrics.BARGE_INS.labels(self._kind, "committed").inc()

    def _time(self, event: dict[str, Any]) -> None:
        spent_s = {
            stage: event[name] / 1000 for name, stage in STAGES.items() if event[name] is not None
        }
        for stage, seconds in spent_s.items():
            metrics.STAGE.labels(self._kind, stage).observe(seconds)
        logger.bind(kind=self._kind, turn=event["turn"], seconds=spent_s).info("A turn is answered")
        self._trace(spent_s)

    def _trace(self, spent_s: dict[str, float]) -> None:
        """Put the stages under pipecat's span of the turn."""
        parent = self.turns and self.turns.get_current_turn_context()
        if not parent or "total" not in spent_s:
            return
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        at_ns = time.time_ns() - round(spent_s.pop("total") * 1e9)
        for stage, seconds in spent_s.items():
            span = trace.get_tracer("duologue").start_span(stage, context, start_time=at_ns)
            at_ns += round(seconds * 1e9)
            span.end(at_ns)
