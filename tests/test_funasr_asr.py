"""The FunASR service in a pipeline, in virtual time, on the real worker process."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    MetricsFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import ProcessingMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from duologue.asr.funasr_client import Funasr, FunasrTranscript
from duologue.asr.whisper import Transcript
from duologue.rehearsal import virtual
from processors.frames import FloorFrame
from services.funasr_asr import MAX_SPEECH_S, FunasrASR
from tests.fake_funasr import FAKE, Folders, pcm
from tests.workers import running


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.delenv("DUOLOGUE_FUNASR_PYTHON", raising=False)
    for name in ("DUOLOGUE_OFFLINE", "DUOLOGUE_HUB"):
        monkeypatch.delenv(name, raising=False)
    return Folders(tmp_path)


@pytest.fixture
def model(folders: Folders) -> Iterator[Funasr]:
    model = Funasr(str(folders.segments), interims=str(folders.interims), language="en")
    yield model
    model.close()


class Tap(FrameProcessor):
    """Notes what comes out of the service, and its errors."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        await self.push_frame(frame, direction)

    def texts(self, kind: type[TranscriptionFrame | InterimTranscriptionFrame]) -> list[str]:
        return [frame.text for frame in self.frames if isinstance(frame, kind)]


class Call:
    """A caller in front of the service, in virtual time."""

    def __init__(self, worker: PipelineWorker, before: Tap, after: Tap):
        self.worker, self.before, self.after = worker, before, after
        self.spoken = 0

    async def speak(self, seconds: float) -> None:
        """Audio in pieces of half a second, each at its time."""
        for _ in range(round(seconds * 2)):
            audio = pcm(8_000, first=self.spoken + 1)
            self.spoken += 8_000
            await self.worker.queue_frame(InputAudioRawFrame(audio, 16_000, 1))
            await asyncio.sleep(0.5)

    async def stretch(self, seconds: float) -> None:
        """Speech with its start and end."""
        await self.worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=0.1))
        await self.speak(seconds)
        await self.worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await asyncio.sleep(0.5)

    @property
    def errors(self) -> list[str]:
        return [frame.error for frame in self.before.frames if isinstance(frame, ErrorFrame)]


def call(
    model: Funasr,
    scenario: Callable[[Call], Awaitable[None]],
    service: type[FunasrASR] = FunasrASR,
    **options: float,
) -> None:
    async def main() -> None:
        before, after = Tap(), Tap()
        worker = PipelineWorker(
            Pipeline([before, service(model, **options), after]),
            params=PipelineParams(audio_in_sample_rate=16_000, enable_metrics=True),
            enable_rtvi=False,
            enable_turn_tracking=False,
        )
        async with running(worker):
            await scenario(Call(worker, before, after))

    virtual.run(main())


def test_a_stretch_of_speech_becomes_a_transcript_that_no_interruption_drops(
    model: Funasr,
) -> None:
    async def scenario(c: Call) -> None:
        await c.stretch(2)
        (frame,) = (f for f in c.after.frames if isinstance(f, TranscriptionFrame))
        assert frame.text == "32000 from 1 to 2000"
        assert frame.finalized and not frame.interruptible
        assert frame.result == FunasrTranscript(frame.text, "en", "happy", "speech")
        metrics = [m for f in c.after.frames if isinstance(f, MetricsFrame) for m in f.data]
        assert any(isinstance(metric, ProcessingMetricsData) for metric in metrics)

    call(model, scenario)


def test_noise_is_a_transcript_without_words(model: Funasr) -> None:
    async def scenario(c: Call) -> None:
        await c.worker.queue_frame(VADUserStartedSpeakingFrame())
        await c.worker.queue_frame(InputAudioRawFrame(bytes(16_000), 16_000, 1))
        await c.worker.queue_frame(VADUserStoppedSpeakingFrame())
        await asyncio.sleep(1)
        assert c.after.texts(TranscriptionFrame) == [""]

    call(model, scenario)


def test_words_made_up_from_noise_are_no_transcript(model: Funasr) -> None:
    class Doubtful(FunasrASR):
        def recognize(self, audio: bytes) -> Transcript:
            return Transcript("Thank you for watching.", confidence=-1.4, no_speech=0.9)

    async def scenario(c: Call) -> None:
        await c.stretch(2)
        assert c.after.texts(TranscriptionFrame) == [""]

    call(model, scenario, Doubtful)


def test_interims_grow_while_the_bot_has_the_floor(model: Funasr, folders: Folders) -> None:
    async def scenario(c: Call) -> None:
        await c.worker.queue_frame(FloorFrame(taken=True))
        for _ in range(2):
            await c.stretch(1.6)
            await asyncio.sleep(1)
        once = ["word0", "word0 word1", "word0 word1 word2"]
        assert c.after.texts(InterimTranscriptionFrame) == once * 2

    call(model, scenario)
    streamed = [entry["samples"] for entry in folders.log(folders.interims) if "samples" in entry]
    assert set(streamed) == {8_000}, "each look hands over what is new, once"
    assert folders.log(folders.interims)[-1]["chunk_size"] == [0, 8, 4]


def test_without_a_streaming_model_interims_are_recognised_anew(folders: Folders) -> None:
    model = Funasr(str(folders.segments))

    async def scenario(c: Call) -> None:
        await c.stretch(2)
        assert c.after.texts(InterimTranscriptionFrame) == [
            "8000 from 1 to 8000", "16000 from 1 to 16000", "24000 from 1 to 24000",
            "32000 from 1 to 2000",
        ]  # fmt: skip

    call(model, scenario, live_every_s=0.5)
    model.close()


def test_nobody_looks_at_unfinished_speech_when_nobody_asks(model: Funasr) -> None:
    async def scenario(c: Call) -> None:
        await c.stretch(3)
        assert c.after.texts(InterimTranscriptionFrame) == []
        assert len(c.after.texts(TranscriptionFrame)) == 1

    call(model, scenario, live_every_s=0)


def test_long_speech_is_recognised_in_parts_without_a_gap(model: Funasr) -> None:
    async def scenario(c: Call) -> None:
        await c.stretch(MAX_SPEECH_S + 4)
        parts = [text.split() for text in c.after.texts(TranscriptionFrame)]
        assert sum(int(part[0]) for part in parts) == c.spoken
        assert int(parts[1][2]) == (int(parts[0][4]) + 1) % 30_000
        interims = c.after.texts(InterimTranscriptionFrame)
        assert interims[-1].startswith("word0 ") and len(interims[-1]) < len(interims[-4])

    call(model, scenario)


@pytest.mark.parametrize("which", ["segments", "interims"])
def test_a_failure_is_reported_and_the_next_stretch_is_heard(
    model: Funasr, folders: Folders, which: str
) -> None:
    broken = getattr(folders, which) / "fail"

    async def scenario(c: Call) -> None:
        broken.touch()
        await c.stretch(2)
        assert ["IndexError" in error for error in c.errors] == [True]
        broken.unlink()
        c.spoken = 0
        await c.stretch(2)
        assert c.after.texts(TranscriptionFrame)[-1] == "32000 from 1 to 2000"
        assert len(c.errors) == 1

    call(model, scenario)


def test_a_session_leaves_no_stream_behind(model: Funasr) -> None:
    async def scenario(c: Call) -> None:
        await c.worker.queue_frame(FloorFrame(taken=True))
        await c.stretch(1)
        await c.stretch(1)

    call(model, scenario)
    assert sorted(model._forgotten) == [2], "the first was forgotten with the second's request"
