"""FunASR's client against the real worker process and a scripted `funasr` module."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from duologue.asr import funasr_process, funasr_worker
from duologue.asr.funasr_client import Funasr, FunasrTranscript, parse
from duologue.errors import ConfigError, EngineError, ModelError
from tests.fake_funasr import FAKE, Folders, pcm


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
