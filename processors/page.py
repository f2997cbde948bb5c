"""The page's view of a conversation: frames in, JSON events out (docs/page.md)."""

import time
from collections.abc import Callable
from typing import Any

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMContextUserTurnFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed

from duologue.tools import CallState
from processors.frames import (
    AnswerDoneFrame,
    AnswerTextFrame,
    FloorFrame,
    HeardFrame,
    HoldFrame,
    ParticleFrame,
    ResumeFrame,
    ToolStateFrame,
    VoiceAudioFrame,
)
from processors.playout import Playout

TEXT_EVERY_S = 0.2


class PageEvents(BaseObserver):
    """Sends transcripts, states, particles, tool calls and latencies.

    Args:
        send: Takes one JSON-able event; it must not block.
        clock: Monotonic seconds.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], *, clock: Callable[[], float] = time.monotonic
    ):
        super().__init__(observe_every_push=False)
        self._send = send
        self._clock = clock
        self._turn = 0
        self._text = self._sent_text = ""
        self._text_sent_s = -TEXT_EVERY_S
        self._thought, self._thought_sent_s = "", -TEXT_EVERY_S
        self._state = ""
        self._said: list[str] = []
        self._spoke = False
        self._stamps: dict[str, float] = {}
        self._seen: set[int] = set()

    async def on_push_frame(self, data: FramePushed):
        """Turn one frame into at most a few events."""
        frame = data.frame
        # A broadcast makes two frames, one each way.
        if frame.broadcast_sibling_id in self._seen:
            self._seen.discard(frame.broadcast_sibling_id)
            return
        if frame.broadcast_sibling_id is not None:
            self._seen.add(frame.id)
        if handler := _HANDLERS.get(type(frame)):
            handler(self, frame)
        # The transport cuts the same audio into frames of its own.
        elif isinstance(frame, TTSAudioRawFrame) and isinstance(data.source, Playout):
            self._on_audio_out()

    def _event(self, kind: str, **fields: Any) -> None:
        self._send({"type": kind, "turn": self._turn} | fields)

    def _user(self, text: str, *, final: bool = False) -> None:
        # The user's words belong to the answer that they will get.
        self._send({"type": "user", "turn": self._turn + 1, "text": text, "final": final})

    def _set_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._event("state", state=state)

    def _on_vad_start(self, frame: Frame) -> None:
        self._stamps.pop("speech_end", None)

    def _on_vad_stop(self, frame: VADUserStoppedSpeakingFrame) -> None:
        self._stamps = {"speech_end": self._clock() - frame.stop_secs}

    def _on_user_start(self, frame: Frame) -> None:
        self._set_state("hearing")

    def _on_user_stop(self, frame: Frame) -> None:
        self._stamp("turn_end")
        # A turn without a word gets no answer.
        self._set_state("thinking" if self._spoke else "listening")
        self._spoke = False

    def _on_interim(self, frame: InterimTranscriptionFrame) -> None:
        if getattr(frame.result, "credible", True):
            self._user(" ".join([*self._said, frame.text]))

    def _on_transcript(self, frame: TranscriptionFrame) -> None:
        self._stamp("transcript")
        if frame.text:
            self._spoke = True
            self._said.append(frame.text)
            self._user(" ".join(self._said))

    def _on_user_turn(self, frame: LLMContextUserTurnFrame) -> None:
        self._said.clear()
        self._user(frame.text, final=True)

    def _on_answer(self, frame: LLMFullResponseStartFrame) -> None:
        if turn := frame.metadata.get("turn"):
            self._turn, self._text_sent_s = turn, -TEXT_EVERY_S
            self._text = self._sent_text = ""

    def _on_text(self, frame: AnswerTextFrame) -> None:
        self._stamp("first_token")
        self._text += frame.text
        # A message for each token would cost more than the tokens; the rest follows at the end.
        if self._clock() - self._text_sent_s >= TEXT_EVERY_S:
            self._send_text()

    def _send_text(self, _: Frame | None = None) -> None:
        self._text_sent_s = self._clock()
        if self._text != self._sent_text:
            self._sent_text = self._text
            self._event("bot_text", text=self._text)

    def _on_thought_start(self, frame: Frame) -> None:
        self._thought, self._thought_sent_s = "", -TEXT_EVERY_S

    def _on_thought(self, frame: LLMThoughtTextFrame) -> None:
        self._thought += frame.text
        if self._clock() - self._thought_sent_s >= TEXT_EVERY_S:
            self._send_thought()

    def _send_thought(self, _: Frame | None = None) -> None:
        self._thought_sent_s = self._clock()
        self._event("thought", text=self._thought)

    def _on_interruption(self, frame: Frame) -> None:
        self._text = self._sent_text = ""
        # Those of an answer that nobody hears are not the next one's.
        for name in ("first_token", "first_audio"):
            self._stamps.pop(name, None)

    def _on_voice(self, frame: Frame) -> None:
        self._stamp("first_audio")

    def _on_audio_out(self) -> None:
        if self._state != "held":
            self._set_state("speaking")
        self._stamp("audio_out")
        self._send_latency()

    def _on_heard(self, frame: HeardFrame) -> None:
        self._send({"type": "bot_heard", "turn": frame.turn, "chars": frame.chars})

    def _on_done(self, frame: AnswerDoneFrame) -> None:
        reason = "interrupted" if frame.interrupted else "done"
        self._send({"type": "bot_end", "turn": frame.turn, "reason": reason, "chars": frame.chars})

    def _on_floor(self, frame: FloorFrame) -> None:
        if frame.taken and self._state == "listening":
            self._set_state("thinking")
        elif not frame.taken and self._state in ("speaking", "held", "tool", "thinking"):
            self._set_state("listening")

    def _on_hold(self, frame: Frame) -> None:
        self._set_state("held")

    def _on_resume(self, frame: Frame) -> None:
        self._set_state("speaking")
        # What was said meanwhile was a backchannel, not the start of a turn.
        self._said.clear()
        self._spoke = False
        self._user("")

    def _on_particle(self, frame: ParticleFrame) -> None:
        if frame.particle is not None:
            name, text = frame.particle.name, frame.particle.source
            self._event("particle", turn=frame.turn, name=name, text=text, rendered=frame.rendered)

    def _on_tool(self, frame: ToolStateFrame) -> None:
        if (call := frame.call) is None:
            return
        if call.state is CallState.RUNNING and self._state == "thinking":
            self._set_state("tool")
        self._event(
            "tool",
            turn=frame.turn,
            call_id=call.call_id,
            name=call.name,
            arguments=call.arguments,
            status=call.state.value,
            result=call.result.data if call.result else None,
        )

    def _on_error(self, frame: ErrorFrame) -> None:
        self._event("error", message=frame.error, fatal=frame.fatal)

    def _stamp(self, name: str) -> None:
        if "speech_end" in self._stamps:
            self._stamps.setdefault(name, self._clock())

    def _send_latency(self) -> None:
        if "turn_end" not in self._stamps:
            return
        stamps, self._stamps = self._stamps, {}

        def since(name: str, start: str) -> float | None:
            if name not in stamps or start not in stamps:
                return None
            return round(max(0.0, stamps[name] - stamps[start]) * 1000)

        self._event(
            "latency",
            asr_ms=since("transcript", "speech_end"),
            end_of_turn_ms=since("turn_end", "transcript"),
            lm_first_token_ms=since("first_token", "turn_end"),
            voice_first_audio_ms=since("first_audio", "first_token"),
            total_ms=since("audio_out", "speech_end"),
        )


_HANDLERS: dict[type[Frame], Callable[[PageEvents, Any], None]] = {
    VADUserStartedSpeakingFrame: PageEvents._on_vad_start,
    VADUserStoppedSpeakingFrame: PageEvents._on_vad_stop,
    UserStartedSpeakingFrame: PageEvents._on_user_start,
    UserStoppedSpeakingFrame: PageEvents._on_user_stop,
    InterruptionFrame: PageEvents._on_interruption,
    InterimTranscriptionFrame: PageEvents._on_interim,
    TranscriptionFrame: PageEvents._on_transcript,
    LLMContextUserTurnFrame: PageEvents._on_user_turn,
    LLMFullResponseStartFrame: PageEvents._on_answer,
    AnswerTextFrame: PageEvents._on_text,
    LLMFullResponseEndFrame: PageEvents._send_text,
    LLMThoughtStartFrame: PageEvents._on_thought_start,
    LLMThoughtTextFrame: PageEvents._on_thought,
    LLMThoughtEndFrame: PageEvents._send_thought,
    VoiceAudioFrame: PageEvents._on_voice,
    HeardFrame: PageEvents._on_heard,
    AnswerDoneFrame: PageEvents._on_done,
    FloorFrame: PageEvents._on_floor,
    HoldFrame: PageEvents._on_hold,
    ResumeFrame: PageEvents._on_resume,
    ParticleFrame: PageEvents._on_particle,
    ToolStateFrame: PageEvents._on_tool,
    ErrorFrame: PageEvents._on_error,
}
