"""Hold, resume, interruption and the heard position, in virtual time."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from duologue.memory import Memory
from duologue.rehearsal import virtual
from processors.frames import AnswerDoneFrame, HeardFrame, HoldFrame, ResumeFrame, VoiceAudioFrame
from processors.playout import CHUNK_S, REWIND_S, Playout, quietest
from tests.workers import running

RATE = 24_000
BUFFER_S = 0.1
LEAD_S = 0.08


class Tap(FrameProcessor):
    """Notes what comes out, with the time."""

    def __init__(self):
        super().__init__()
        self.frames: list[tuple[float, Frame]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        await super().process_frame(frame, direction)
        self.frames.append((asyncio.get_running_loop().time(), frame))
        await self.push_frame(frame, direction)

    def audio(self) -> list[tuple[float, np.ndarray]]:
        return [
            (at, np.frombuffer(f.audio, "<i2"))
            for at, f in self.frames
            if isinstance(f, TTSAudioRawFrame)
        ]

    def of(self, kind):
        return [(at, frame) for at, frame in self.frames if isinstance(frame, kind)]


@dataclass
class Stage:
    worker: PipelineWorker
    tap: Tap
    memory: Memory
    messages: list[dict] = field(default_factory=list)

    async def answer(self, seconds: float, text: str = "one two three four five six") -> int:
        """Queue an answer whose words are spread evenly; sample n has the value n % 30000 + 1."""
        turn = self.memory.begin()
        self.memory.add(turn, text)
        start = LLMFullResponseStartFrame()
        start.metadata["turn"] = turn
        samples = (np.arange(round(seconds * RATE)) % 30_000 + 1).astype("<i2")
        ends = [i for i, c in enumerate(text + " ") if c == " "]
        step = len(samples) // len(ends)
        words = tuple(((n + 1) * step, end) for n, end in enumerate(ends))
        frame = VoiceAudioFrame(samples.tobytes(), RATE, 1, turn=turn, words=words)
        await self.worker.queue_frames([start, frame, LLMFullResponseEndFrame()])
        return turn


def stage(scenario):
    """Run a scenario on a playout between nothing and a tap."""

    async def main():
        loop = asyncio.get_running_loop()
        messages: list[dict] = []
        memory, tap = Memory(messages), Tap()
        playout = Playout(memory, lead_s=LEAD_S, buffer_s=BUFFER_S, clock=loop.time)
        worker = PipelineWorker(
            Pipeline([playout, tap]), enable_rtvi=False, enable_turn_tracking=False
        )
        async with running(worker):
            return await scenario(Stage(worker, tap, memory, messages))

    return virtual.run(main())


def test_audio_leaves_in_real_time_and_whole():
    async def scenario(s: Stage):
        await s.answer(1.0)
        await asyncio.sleep(2)
        audio = s.tap.audio()
        joined = np.concatenate([chunk for _, chunk in audio])
        assert np.array_equal(joined, np.arange(RATE) % 30_000 + 1)
        for n, (at, _) in enumerate(audio):
            assert at >= audio[0][0] + n * CHUNK_S - LEAD_S - 1e-6
        assert audio[-1][0] == pytest.approx(audio[0][0] + 1.0 - LEAD_S, abs=2 * CHUNK_S)

    stage(scenario)


def test_words_are_heard_when_the_ear_has_them_and_the_answer_closes_after_the_last():
    async def scenario(s: Stage):
        turn = await s.answer(1.2)
        await asyncio.sleep(3)
        start = s.tap.audio()[0][0]
        heard = s.tap.of(HeardFrame)
        assert [f.chars for _, f in heard] == [3, 7, 13, 18, 23, 27]
        for n, (at, frame) in enumerate(heard, 1):
            assert frame.turn == turn
            assert at == pytest.approx(start + 0.2 * n + BUFFER_S, abs=CHUNK_S)
        ((at, done),) = s.tap.of(AnswerDoneFrame)
        assert (done.chars, done.interrupted) == (27, False)
        assert at >= heard[-1][0]

    stage(scenario)


def test_interruption_stops_at_once_and_keeps_the_heard_words():
    async def scenario(s: Stage):
        turn = await s.answer(6.0)
        await asyncio.sleep(2.5)
        asked = asyncio.get_running_loop().time()
        await s.worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(3)
        assert max(at for at, _ in s.tap.audio()) <= asked + CHUNK_S
        assert s.messages == [{"role": "assistant", "content": "one two"}]
        ((_, done),) = s.tap.of(AnswerDoneFrame)
        assert (done.turn, done.chars, done.interrupted) == (turn, 7, True)
        assert not [f for at, f in s.tap.of(HeardFrame) if at > asked]

    stage(scenario)


def test_hold_fades_within_a_chunk_and_resume_loses_nothing():
    async def scenario(s: Stage):
        loop = asyncio.get_running_loop()
        await s.answer(2.0)
        await asyncio.sleep(0.7)
        held_at = loop.time()
        await s.worker.queue_frame(HoldFrame())
        await asyncio.sleep(1.0)
        before = s.tap.audio()
        assert before[-1][0] <= held_at + 2 * CHUNK_S
        assert abs(int(before[-1][1][-1])) < 500
        await s.worker.queue_frame(ResumeFrame())
        await asyncio.sleep(3.0)
        played = np.concatenate([chunk for _, chunk in before[:-1]])
        rest = np.concatenate([chunk for _, chunk in s.tap.audio()[len(before) :]])
        whole = np.arange(2 * RATE) % 30_000 + 1
        assert np.array_equal(rest, whole[len(whole) - len(rest) :])
        overlap_s = (len(played) + len(rest) - len(whole)) / RATE
        assert 0 <= overlap_s <= REWIND_S + LEAD_S + CHUNK_S
        resumed = len(whole) - len(rest)
        assert resumed in [0, *(8000 * n for n in range(1, 6))], "not at the start of a word"
        assert [f.chars for _, f in s.tap.of(HeardFrame)] == [3, 7, 13, 18, 23, 27]

    stage(scenario)


def test_an_answer_that_arrives_on_hold_waits():
    async def scenario(s: Stage):
        await s.worker.queue_frame(HoldFrame())
        await asyncio.sleep(0.1)
        await s.answer(0.5)
        await asyncio.sleep(1.0)
        assert not s.tap.audio()
        await s.worker.queue_frame(ResumeFrame())
        await asyncio.sleep(1.0)
        assert sum(len(chunk) for _, chunk in s.tap.audio()) == RATE // 2

    stage(scenario)


def test_the_tail_is_heard_before_the_end():
    """The session ends while the bot still speaks (report J6)."""

    async def scenario(s: Stage):
        await s.answer(1.0)
        await s.worker.queue_frame(EndFrame())
        await asyncio.sleep(3.0)
        assert sum(len(chunk) for _, chunk in s.tap.audio()) == RATE
        assert s.tap.of(EndFrame)[0][0] >= s.tap.audio()[-1][0]

    stage(scenario)


@pytest.mark.parametrize("reported", [250, 0])
def test_the_pages_buffer_moves_the_heard_position(reported):
    async def scenario(s: Stage):
        message = {"type": "playback", "buffer_ms": reported}
        await s.worker.queue_frame(InputTransportMessageFrame(message=message))
        await asyncio.sleep(0.1)
        await s.answer(0.6)
        await asyncio.sleep(2.0)
        first = s.tap.of(HeardFrame)[0][0] - s.tap.audio()[0][0]
        assert first == pytest.approx(0.1 + reported / 1000, abs=CHUNK_S)

    stage(scenario)


@pytest.mark.parametrize("bad", [{"type": "playback", "buffer_ms": "x"}, {"type": "x"}, "text", 7])
def test_nonsense_from_the_page_changes_nothing(bad):
    async def scenario(s: Stage):
        await s.worker.queue_frame(InputTransportMessageFrame(message=bad))
        await s.answer(0.2)
        await asyncio.sleep(1.0)
        assert len(s.tap.audio()) == 10

    stage(scenario)


def test_quietest_finds_the_pause():
    samples = np.full(1000, 900, np.int16)
    samples[640:700] = 3
    assert quietest(samples, 500, 50) == 650
    assert quietest(samples[:10], 500, 50) == 0


def test_where_the_voice_knows_no_words_the_played_seconds_tell_them():
    async def scenario(s: Stage):
        turn = s.memory.begin()
        s.memory.add(turn, "0123456789" * 2)
        s.memory.follow(turn, lambda seconds: int(seconds * 10), lambda: 2.0)
        start = LLMFullResponseStartFrame()
        start.metadata["turn"] = turn
        halves = [
            VoiceAudioFrame(np.ones(RATE, "<i2").tobytes(), RATE, 1, turn=turn) for _ in range(2)
        ]
        await s.worker.queue_frames([start, *halves, LLMFullResponseEndFrame()])
        await asyncio.sleep(0.5)
        await s.worker.queue_frame(HoldFrame())
        await asyncio.sleep(1)
        await s.worker.queue_frame(ResumeFrame())
        await asyncio.sleep(1)
        first = s.tap.audio()[0][0]
        heard = [frame.chars for _, frame in s.tap.of(HeardFrame)]
        assert heard == list(range(1, heard[-1] + 1)) and 5 < heard[-1] < 15
        assert s.tap.of(HeardFrame)[0][0] == pytest.approx(first + 0.1 + BUFFER_S, abs=CHUNK_S)
        await s.worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(0.1)
        kept = s.messages[-1]["content"]
        assert kept == ("0123456789" * 2)[: len(kept)] and 0 <= len(kept) - heard[-1] <= 1
        assert s.memory.played_s(turn) == pytest.approx(len(kept) / 10, abs=0.1)

    stage(scenario)
