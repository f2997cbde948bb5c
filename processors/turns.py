"""When the user's turn starts and ends, as pipecat turn strategies."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import (
    BaseUserTurnStopStrategy,
    SpeechTimeoutUserTurnStopStrategy,
    TurnAnalyzerUserTurnStopStrategy,
)

from duologue.duplex import MAX_HOLD_S, BargeIn, Decision, Heard
from processors.frames import FloorFrame, HoldFrame, ResumeFrame

PATIENCE_S = 3.5
"""Further silence that a speaker gets who has announced more; report G4 names 3 s."""

_MORE_TO_COME = re.compile(
    r"(\b(hm+|um+|uh+|er+|let me (think|see)|and|but|because|so|or|the|a|to|of|with|if)\W*"
    r"|嗯|那个|因为|但是|如果)[,，、….\s]*$",
    re.IGNORECASE,
)


class BargeInTurnStart(BaseUserTurnStartStrategy):
    """Holds the bot at the first sound, then commits to the user's turn or resumes the bot.

    Args:
        bot_text: What the bot says, to know its own echo in the microphone.
        clock: Monotonic seconds.
    """

    def __init__(self, bot_text: Callable[[], str], *, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._bot_text = bot_text
        self._clock = clock
        self._state = BargeIn()
        self._timer: asyncio.Task[None] | None = None

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        """Follow the floor, the VAD and the transcripts."""
        match frame:
            case FloorFrame():
                self._state.bot(frame.taken)
            case VADUserStartedSpeakingFrame():
                return await self._decide(self._state.onset(self._clock()))
            case VADUserStoppedSpeakingFrame():
                self._state.offset(self._clock() - frame.stop_secs)
            case TranscriptionFrame():
                return await self._heard(frame, final=True)
            case InterimTranscriptionFrame():
                return await self._heard(frame, final=False)
        return ProcessFrameResult.CONTINUE

    async def cleanup(self):
        """End the timer."""
        await self._stop_timer()
        await super().cleanup()

    async def _heard(
        self, frame: TranscriptionFrame | InterimTranscriptionFrame, *, final: bool
    ) -> ProcessFrameResult:
        if self._state.committed:
            return ProcessFrameResult.CONTINUE
        heard = Heard(
            getattr(frame.result, "text", frame.text),
            final,
            getattr(frame.result, "confidence", 0.0),
            getattr(frame.result, "no_speech", 0.0),
        )
        decision = self._state.words(self._clock(), heard, bot_text=self._bot_text())
        if final and decision is not Decision.COMMIT:
            # A backchannel is not what the user says in their turn.
            await self.trigger_reset_aggregation()
        return await self._decide(decision)

    async def _decide(self, decision: Decision) -> ProcessFrameResult:
        if decision is Decision.NONE:
            return ProcessFrameResult.CONTINUE
        await self._stop_timer()
        if decision is Decision.HOLD:
            await self.broadcast_frame(HoldFrame)
            self._timer = self.create_task(self._time_out())
        elif decision is Decision.RESUME:
            await self.broadcast_frame(ResumeFrame)
        else:
            await self.trigger_user_turn_started()
            return ProcessFrameResult.STOP
        return ProcessFrameResult.CONTINUE

    async def _time_out(self) -> None:
        await asyncio.sleep(MAX_HOLD_S)
        self._timer = None
        await self._decide(self._state.time_out())

    async def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            await self.cancel_task(timer)


class PatientStop(BaseUserTurnStopStrategy):
    """Mixed into a stop strategy: words that announce more ("let me think, hmm") get more time.

    Keeps the turn's transcript, which the strategies themselves do not.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._parts: list[str] = []
        self._patience: asyncio.Task[None] | None = None

    @property
    def said(self) -> str:
        """The turn's transcript so far."""
        return " ".join(self._parts)

    async def process_frame(self, frame: Frame) -> ProcessFrameResult | None:
        """Note transcripts; new speech ends the wait."""
        if isinstance(frame, VADUserStartedSpeakingFrame):
            await self._stop_waiting()
        elif isinstance(frame, TranscriptionFrame):
            if frame.text.strip():
                self._parts.append(frame.text.strip())
            elif self._parts:
                # The strategies take the newest transcript for all there is: a breath behind a
                # sentence would leave them waiting for words.
                frame = replace(frame, text=self.said)
            else:
                # Only a noise so far.
                await self.end_turn(None)
        return await super().process_frame(frame)

    async def trigger_user_turn_stopped(self, *, enable_user_speaking_frames: bool | None = None):
        """End the turn, or wait first."""
        if not announces_more(self.said):
            await self.end_turn(enable_user_speaking_frames)
        elif self._patience is None:
            self._patience = self.create_task(self._wait(enable_user_speaking_frames))

    async def end_turn(self, enable_user_speaking_frames: bool | None) -> None:
        """End the turn now."""
        await super().trigger_user_turn_stopped(
            enable_user_speaking_frames=enable_user_speaking_frames
        )

    async def handle_user_turn_started(self):
        """Forget the last turn."""
        self._parts = []
        await super().handle_user_turn_started()

    async def handle_user_turn_stopped(self):
        """The turn has ended, by whatever."""
        self._parts = []
        await self._stop_waiting()
        await super().handle_user_turn_stopped()

    async def cleanup(self):
        """End the wait."""
        await self._stop_waiting()
        await super().cleanup()

    async def _wait(self, enable_user_speaking_frames: bool | None) -> None:
        await asyncio.sleep(PATIENCE_S)
        self._patience = None
        await self.end_turn(enable_user_speaking_frames)

    async def _stop_waiting(self) -> None:
        task, self._patience = self._patience, None
        if task is not None:
            await self.cancel_task(task)


class SilenceTurnStop(PatientStop, SpeechTimeoutUserTurnStopStrategy):
    """Silence ends the turn."""


class SmartTurnStop(PatientStop, TurnAnalyzerUserTurnStopStrategy):
    """The turn analyzer ends the turn, or silence where it is not sure."""


class SpeculativeTurnStop(SmartTurnStop):
    """Asks the LM while the turn analyzer still waits for the user to go on.

    The analyzer answers "not finished" to many finished turns and then waits for silence. The LM
    uses that time: its answer is held back (pipecat's speculation gate) until the turn ends, and
    dropped if the user goes on.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._guess: str | None = None

    async def process_frame(self, frame: Frame) -> ProcessFrameResult | None:
        """Start a guess at a transcript of an unfinished turn; withdraw it at new speech."""
        if isinstance(frame, VADUserStartedSpeakingFrame):
            await self._withdraw()
        result = await super().process_frame(frame)
        if isinstance(frame, TranscriptionFrame) and self._may_guess():
            self._guess = self.said
            await self.trigger_user_turn_inference_triggered(
                speculation=UserTurnSpeculation(text=self._guess)
            )
        return result

    async def end_turn(self, enable_user_speaking_frames: bool | None) -> None:
        """End the turn; a guess that still holds is its answer."""
        guess, self._guess = self._guess, None
        if guess is not None and guess == self.said:
            await self.trigger_user_turn_finalized(
                enable_user_speaking_frames=enable_user_speaking_frames, confirms_speculation=True
            )
            return
        if guess is not None:
            await self.trigger_user_turn_speculation_cancelled()
        await super().end_turn(enable_user_speaking_frames)

    async def _reset(self):
        await self._withdraw()
        await super()._reset()

    def _may_guess(self) -> bool:
        waiting = self._vad_stopped and not self._vad_user_speaking and not self._turn_complete
        return waiting and bool(self._parts) and self._guess is None

    async def _withdraw(self) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            await self.trigger_user_turn_speculation_cancelled()


def announces_more(text: str) -> bool:
    """Whether the last words of `text` say that the speaker has not finished."""
    return bool(_MORE_TO_COME.search(text.strip()))
