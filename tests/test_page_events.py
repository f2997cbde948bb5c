"""What the page is told of the pipeline's frames."""

from typing import Any

import pytest
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.processors.frame_processor import FrameDirection

from duologue.memory import Memory
from processors.frames import AnswerTextFrame, FloorFrame
from processors.page import PageEvents
from processors.playout import Playout


class Told:
    """A page, and a clock that moves by a second with each frame."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now_s = 0.0
        self.page = PageEvents(self.events.append, clock=lambda: self.now_s)
        self.playout = Playout(Memory([]))

    async def see(self, *frames: Frame) -> None:
        for frame in frames:
            self.now_s += 1
            pushed = FramePushed(self.playout, self.playout, frame, FrameDirection.DOWNSTREAM, 0)
            await self.page.on_push_frame(pushed)

    @property
    def states(self) -> list[str]:
        return [event["state"] for event in self.events if event["type"] == "state"]


def said(text: str) -> TranscriptionFrame:
    return TranscriptionFrame(text, "user", "")


@pytest.fixture
def told() -> Told:
    return Told()


async def test_a_turn_without_a_word_leaves_nobody_thinking(told: Told) -> None:
    await told.see(UserStartedSpeakingFrame(), said(""), UserStoppedSpeakingFrame())

    assert told.states == ["hearing", "listening"]


async def test_the_floor_of_a_cut_answer_is_not_the_next_ones(told: Told) -> None:
    """An interruption before any sound may reach the playout after the user's turn has ended."""
    await told.see(UserStartedSpeakingFrame(), said("No, wait."), UserStoppedSpeakingFrame())
    await told.see(FloorFrame(taken=False), FloorFrame(taken=True))

    assert told.states == ["hearing", "thinking", "listening", "thinking"]


async def test_latency_is_that_of_the_answer_that_is_heard(told: Told) -> None:
    start = LLMFullResponseStartFrame()
    start.metadata["turn"] = 1
    audio = TTSAudioRawFrame(b"", 24_000, 1)
    await told.see(VADUserStoppedSpeakingFrame(stop_secs=0.5), said("What?"))
    await told.see(UserStoppedSpeakingFrame(), start, AnswerTextFrame("Never heard.", turn=1))
    await told.see(InterruptionFrame(), start, AnswerTextFrame("Heard.", turn=2), audio)

    (latency,) = [event for event in told.events if event["type"] == "latency"]
    assert latency["lm_first_token_ms"] == 5000
    assert latency["total_ms"] == 8500


async def test_a_thought_is_shown_as_it_grows_and_whole_at_its_end(told: Told) -> None:
    start = LLMFullResponseStartFrame()
    start.metadata["turn"] = 3
    for words in (["It ", "is."], ["So"]):
        told.page._clock = lambda: 0.0
        await told.see(start, LLMThoughtStartFrame(), *map(LLMThoughtTextFrame, words))
        await told.see(LLMThoughtEndFrame())
    thoughts = [(e["turn"], e["text"]) for e in told.events if e["type"] == "thought"]
    assert thoughts == [(3, "It "), (3, "It is."), (3, "So"), (3, "So")]
