"""FunASR's client and service against the real worker process and a scripted `funasr` module."""

import ast
import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
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
from pipecat.workers.runner import WorkerRunner

from duologue.asr import funasr_process, funasr_worker
from duologue.asr.funasr_client import Funasr, FunasrTranscript, parse
from duologue.asr.whisper import Transcript
from duologue.errors import ConfigError, EngineError, ModelError
from duologue.rehearsal import virtual
from processors.frames import FloorFrame
from services.funasr_asr import MAX_SPEECH_S, FunasrASR

FAKE = Path(__file__).with_name("fake_funasr")


def pcm(samples: int, first: int = 1) -> bytes:
    """16-bit PCM that counts up from `first`."""
    return (np.arange(first, first + samples) % 30_000).astype("<i2").tobytes()


class Folders:
    """The models' folders, and what the worker asked of them."""

    def __init__(self, root: Path):
        self.segments, self.interims, self.vad = (root / name for name in ("sense", "para", "fsmn"))
        for folder in (self.segments, self.interims, self.vad):
            folder.mkdir()
        (self.interims / "streaming").touch()

    def log(self, folder: Path) -> list[dict]:
        return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]

    def loads(self) -> int:
        return sum("load" in entry for entry in self.log(self.segments))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.delenv("DUOLOGUE_FUNASR_PYTHON", raising=False)
    monkeypatch.delenv("DUOLOGUE_OFFLINE", raising=False)
    return Folders(tmp_path)


@pytest.fixture
def model(folders: Folders) -> Iterator[Funasr]:
    model = Funasr(str(folders.segments), interims=str(folders.interims), language="en")
    yield model
    model.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", FunasrTranscript("Hello.")),
        ("<|en|><|NEUTRAL|><|Speech|><|withitn|>Hello.",
         FunasrTranscript("Hello.", "en", "neutral", "speech")),
        ("<|zh|><|HAPPY|><|Laughter|><|woitn|>你好 <|en|><|NEUTRAL|><|Speech|><|woitn|>ok",
         FunasrTranscript("你好 ok", "zh", "happy", "laughter")),
        ("<|en|><|NEUTRAL|><|Speech|><|withitn|>Ha <|en|><|SAD|><|Cry|><|withitn|>oh",
         FunasrTranscript("Ha oh", "en", "sad", "cry")),
        ("<|nospeech|><|EMO_UNKNOWN|><|Event_UNK|><|woitn|>", FunasrTranscript("")),
        ("<|nospeech|><|EMO_UNKNOWN|><|Cough|><|woitn|>.", FunasrTranscript("", event="cough")),
        ("<|zh|><|SAD|><|Speech|><|woitn|> 。", FunasrTranscript("", "zh", "sad", "speech")),
        ("<|yue|><|Speech|>a < b | c > d", FunasrTranscript("a < b | c > d", "yue", "", "speech")),
        ("", FunasrTranscript("")),
    ],
)  # fmt: skip
def test_tags_become_fields(text: str, expected: FunasrTranscript) -> None:
    assert parse(text) == expected


def test_the_models_are_loaded_as_funasr_wants_it(folders: Folders) -> None:
    model = Funasr(str(folders.segments), vad=str(folders.vad), threads=2)
    model.close()
    (entry,) = folders.log(folders.segments)
    assert entry["load"] == {
        "model": str(folders.segments),
        "vad_model": str(folders.vad),
        "vad_kwargs": {"trust_remote_code": False},
        "device": "cpu",
        "hub": "ms",
        "ncpu": 2,
        "disable_update": True,
        "disable_pbar": True,
        "trust_remote_code": False,
    }
    assert not entry["sees_our_folder"]


def test_audio_arrives_sample_by_sample_and_tags_come_back(model: Funasr, folders: Folders) -> None:
    heard = model.transcribe(pcm(16_000, first=3))
    assert heard == FunasrTranscript("16000 from 3 to 16002", "en", "happy", "speech")
    assert folders.log(folders.segments)[-1] == {
        "samples": 16_000, "language": "en", "use_itn": True, "merge_vad": True,
        "merge_length_s": 15,
    }  # fmt: skip
    assert model.transcribe(np.int16([-32768] + 1999 * [7]).tobytes()).text == (
        "2000 from -32768 to 7"
    )


def test_no_speech_is_an_empty_text(model: Funasr, folders: Folders) -> None:
    assert model.transcribe(bytes(32_000)) == FunasrTranscript("", event="speech")
    with_vad = Funasr(str(folders.segments), vad=str(folders.vad))
    assert with_vad.transcribe(bytes(32_000)) == FunasrTranscript("")
    asked = len(folders.log(folders.segments))
    for short in [b"", pcm(1_599)]:
        assert with_vad.transcribe(short) == FunasrTranscript("")
    assert len(folders.log(folders.segments)) == asked, "too short for the models' front ends"
    with_vad.close()


@pytest.mark.parametrize("step", [640, 14_000, 15_360, 100_000])
def test_a_stream_understands_the_same_however_it_is_fed(model: Funasr, step: int) -> None:
    audio = pcm(8_000 * 5)
    stream = model.stream()
    for start in range(0, len(audio), step):
        heard = stream.feed(audio[start : start + step])
    assert heard.text == "word0 word1 word2 word3 word4"
    assert stream.fed == len(audio)


def test_streams_do_not_mix_and_the_next_one_starts_afresh(model: Funasr) -> None:
    one, two = model.stream(), model.stream()
    for _ in range(3):
        first = one.feed(pcm(8_000))
        second = two.feed(pcm(16_000))
    assert first.text == "word0 word1 word2"
    assert second.text == "word0 word1 word2 word3 word4 word5"
    one.close()
    assert model.stream().feed(pcm(8_000)).text == "word0"
    assert two.feed(pcm(8_000)).text.endswith("word6")


def test_chinese_pieces_are_joined_without_spaces(
    model: Funasr, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = iter(["你好", "世界", "ok", "yes", "", "。"])
    monkeypatch.setattr(model, "feed", lambda stream, pcm: next(pieces))
    stream = model.stream()
    assert [stream.feed(b"").text for _ in range(6)] == [
        "你好", "你好世界", "你好世界ok", "你好世界ok yes", "你好世界ok yes", "你好世界ok yes。",
    ]  # fmt: skip


def test_the_worker_keeps_no_state_of_a_stream_that_has_ended(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FAKE)
    models = {"segments": str(folders.segments), "interims": str(folders.interims), "vad": None}
    worker = funasr_worker.Recognizer({**models, "device": "cpu", "hub": "ms", "threads": 1})
    audio = np.zeros(8_000, np.float32)
    for stream in range(3):
        worker.answer({"op": "stream", "stream": stream}, audio)
    assert len(worker._caches) == 3
    worker.answer({"op": "segment", "language": "en", "forget": [0, 2, 9]}, audio)
    assert list(worker._caches) == [1]
    sys.modules.pop("funasr")


def test_an_error_of_a_model_is_told_and_the_process_goes_on(
    model: Funasr, folders: Folders
) -> None:
    (folders.segments / "fail").touch()
    with pytest.raises(EngineError, match="^FunASR failed: IndexError: index 0 is out of bounds "):
        model.transcribe(pcm(8_000))
    (folders.segments / "fail").unlink()
    assert model.transcribe(pcm(8_000)).text == "8000 from 1 to 8000"
    assert folders.loads() == 1


def test_a_process_that_dies_is_started_again_and_no_word_is_lost(
    model: Funasr, folders: Folders
) -> None:
    (folders.segments / "crash").write_text("1")
    assert model.transcribe(pcm(8_000)).text == "8000 from 1 to 8000"
    assert folders.loads() == 2


def test_a_process_that_dies_twice_is_an_error(model: Funasr, folders: Folders) -> None:
    (folders.segments / "crash").write_text("2")
    with pytest.raises(EngineError, match=r"process ended \(9\) about to crash"):
        model.transcribe(pcm(8_000))
    assert model.transcribe(pcm(8_000)).text == "8000 from 1 to 8000"


def test_a_process_that_hangs_is_given_up(folders: Folders) -> None:
    (folders.segments / "hang").write_text("1")
    model = Funasr(str(folders.segments), answer_s=0.3)
    with pytest.raises(EngineError, match=r"no answer within 0\.3 s"):
        model.transcribe(pcm(8_000))
    assert folders.loads() == 1, "a late answer is not asked for twice"
    model._answer_s = 10
    assert model.transcribe(pcm(8_000)).text == "8000 from 1 to 8000"
    model.close()


def test_closing_ends_a_running_call_and_the_process(folders: Folders) -> None:
    (folders.segments / "hang").write_text("1")
    model = Funasr(str(folders.segments))
    assert model._process
    process = model._process._process
    with ThreadPoolExecutor(1) as other:
        call = other.submit(model.transcribe, pcm(8_000))
        while (folders.segments / "hang").exists():
            pass
        model.close()
        with pytest.raises(EngineError, match="has been closed"):
            call.result(5)
    assert process.returncode is not None
    assert folders.loads() == 1
    with pytest.raises(EngineError, match="has been closed"):
        model.transcribe(pcm(8_000))


def test_the_worker_ends_with_its_parent(folders: Folders) -> None:
    setup = {"segments": str(folders.segments), "interims": None, "vad": None}
    setup |= {"device": "cpu", "hub": "ms", "threads": 1}
    done = subprocess.run(
        [sys.executable, str(funasr_process.WORKER)],
        input=json.dumps(setup).encode() + b"\n",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == b'{"ready": true}\n', "what FunASR prints stays out of the protocol"
    assert b"funasr version" in done.stderr


def test_a_program_that_does_not_close_still_ends(folders: Folders) -> None:
    script = "import sys; from duologue.asr.funasr_client import Funasr; m = Funasr(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, folders.segments], check=True, timeout=20)


def test_without_funasr_the_error_says_how_to_get_it(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(EngineError, match="No module named 'funasr'") as caught:
        Funasr(str(folders.segments))
    for advice in ["duologue[funasr]", "DUOLOGUE_FUNASR_PYTHON", "kaldi-native-fbank"]:
        assert advice in str(caught.value)


@pytest.mark.parametrize("way", ["variable", "argument"])
def test_an_interpreter_that_is_none_is_refused(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "variable":
        monkeypatch.setenv("DUOLOGUE_FUNASR_PYTHON", "/no/python")
    with pytest.raises(ConfigError, match="DUOLOGUE_FUNASR_PYTHON: /no/python is no program"):
        Funasr(str(folders.segments), python="/no/python" if way == "argument" else None)


def test_a_model_that_funasr_lacks_is_a_short_error(folders: Folders) -> None:
    with pytest.raises(EngineError, match="is not registered.*check the models") as caught:
        Funasr("iic/nothing")
    assert len(str(caught.value)) < 700


def test_offline_means_offline(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    off = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    for name, value in [("DUOLOGUE_OFFLINE", "1"), ("DUOLOGUE_HUB", "0")]:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            Funasr(str(folders.segments)).close()
            assert folders.log(folders.segments)[-1]["environment"] == off
            with pytest.raises(ModelError, match="iic/SenseVoiceSmall: no such folder"):
                Funasr("iic/SenseVoiceSmall")
            with pytest.raises(ModelError, match="fsmn-vad: no such folder"):
                Funasr(str(folders.segments), vad="fsmn-vad")
    Funasr(str(folders.segments)).close()
    assert set(folders.log(folders.segments)[-1]["environment"].values()) == {None}


def test_the_worker_imports_nothing_that_its_python_may_lack() -> None:
    tree = ast.parse(funasr_process.WORKER.read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"json", "os", "sys", "numpy", "funasr"}


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
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        running = asyncio.create_task(runner.run(auto_end=True))
        await asyncio.sleep(0.5)
        try:
            await scenario(Call(worker, before, after))
        finally:
            await worker.cancel()
            await running

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
