"""The command line: bad input gets one clear line and the right exit code, never a traceback."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import typer

from duologue.cli import app


@pytest.fixture
def question(tmp_path, say) -> np.ndarray:
    return say("What is the capital of France?")


def test_transcribe_says_what_was_said(run, tmp_path, question):
    path = tmp_path / "in.wav"
    soundfile.write(path, question, 16_000)
    code, out, err = run("transcribe", path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["text"] == "What is the capital of France?"
    assert run("transcribe", path) == (0, "What is the capital of France?\n", "")


@pytest.mark.parametrize(
    ("rate", "channels", "subtype", "kind"),
    [
        (8_000, 1, "PCM_U8", "WAV"),
        (44_100, 2, "PCM_16", "WAV"),
        (48_000, 1, "FLOAT", "WAV"),
        (22_050, 1, "PCM_24", "FLAC"),
        (48_000, 2, "VORBIS", "OGG"),
    ],
)
def test_transcribe_takes_any_common_audio(run, tmp_path, question, rate, channels, subtype, kind):
    import soxr

    path = tmp_path / f"in.{kind.lower()}"
    samples = np.clip(soxr.resample(question, 16_000, rate), -0.99, 0.99)
    soundfile.write(
        path, np.repeat(samples[:, None], channels, 1), rate, subtype=subtype, format=kind
    )
    code, out, _ = run("transcribe", path, "--json")
    assert code == 0
    assert "capital of fr" in json.loads(out)["text"].lower()


@pytest.mark.parametrize("command", ["transcribe", "talk"])
@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("missing.wav", None, "found nothing"),
        ("text.wav", b"this is no audio", "not audio"),
        ("empty.wav", b"", "not audio"),
        ("folder", ..., "found a folder"),
    ],
)
def test_unusable_input_is_named_in_one_line(run, tmp_path, command, name, content, found):
    path = tmp_path / name
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    output = ["-o", tmp_path / "out.wav"] if command == "talk" else []
    code, out, err = run(command, path, *output)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert str(path) in err
    assert found in err
    assert "expected" in err


def test_no_samples_and_too_many(run, tmp_path):
    path = tmp_path / "in.wav"
    soundfile.write(path, np.zeros(0), 16_000)
    assert run("transcribe", path)[0] == 3
    soundfile.write(path, np.zeros(8_000 * 7_200, np.int16), 8_000)
    code, _, err = run("talk", path, "-o", tmp_path / "out.wav")
    assert code == 3
    assert "7200 s" in err


def test_talk_answers_a_recording_from_any_folder(run, tmp_path, monkeypatch, question):
    monkeypatch.chdir(tmp_path)
    soundfile.write("in.wav", question, 16_000)
    code, out, err = run("talk", "in.wav", "-o", "out.wav", "--json")
    assert code == 0, err
    talk = json.loads(out)
    assert talk["transcript"] == "What is the capital of France?"
    assert "Paris" in talk["reply"]
    assert talk["timings_ms"]["total_ms"] > 0
    audio, rate = soundfile.read("out.wav")
    assert len(audio) / rate == pytest.approx(talk["audio_s"], abs=0.01)
    assert 0.05 < np.abs(audio).max() < 1.0


def test_talk_without_speech_says_so(run, tmp_path):
    soundfile.write(tmp_path / "in.wav", np.zeros(32_000), 16_000)
    code, _, err = run("talk", tmp_path / "in.wav", "-o", tmp_path / "out.wav")
    assert code == 3
    assert "no speech" in err


def test_speak_round_trips_through_recognition(run, tmp_path):
    path = tmp_path / "out.wav"
    code, out, _ = run("speak", "Hello **there**, (laughs) my friend. 😀", "-o", path, "--json")
    assert code == 0
    assert json.loads(out)["audio_s"] > 1
    assert json.loads(run("transcribe", path, "--json")[1])["text"] == "Hello there, my friend."


def test_wrong_calls(run, tmp_path):
    out = tmp_path / "out.wav"
    assert run("speak", "😀", "-o", out)[0] == 3
    assert run("speak", "Hello.", "-o", tmp_path / "no" / "out.wav")[0] == 3
    assert run("speak", "Hello.", "-o", out, "--lang", "xx")[0] == 2
    assert run("speak", "Hello.", "-o", out, "--voice", "piper-en_US-jo")[0] in (2, 4)
    assert run("speak", "Hello.", "-o", tmp_path / "out.mp3")[0] == 3
    assert run("speak")[0] == 2
    assert run("shout")[0] == 2
    code, _, err = run("talk", "in.wav", "-o", out, "--set", "lm.modle=x")
    assert code == 2
    assert "did you mean model?" in err
    code, _, err = run("room", "-c", "nothing")
    assert code == 2
    assert "embedded.yaml" in err


def test_doctor_reports_every_part(run):
    code, out, _ = run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 0, out
    assert checks["espeak-ng"]["ok"]
    assert checks["model smollm2-135m-instruct"]["found"] == "ready"
    assert checks["NVIDIA GPU"]["optional"]
    shown = list(zip(run("doctor")[1].splitlines(), checks.values(), strict=True))
    assert all(line[5:].startswith(f"{check['name']}  ") for line, check in shown)
    assert len({line[5:].index(f"  {check['found']}") for line, check in shown}) == 1


def test_every_command_is_in_a_document():
    root = Path(__file__).parents[1]
    documents = "".join(path.read_text() for path in [root / "README.md", *root.glob("docs/*.md")])
    commands: dict = vars(typer.main.get_command(app))["commands"]
    assert [name for name in commands if f"`duologue {name}" not in documents] == []


def test_convert_writes_safetensors(run, tmp_path):
    pytest.importorskip("torch")
    from duologue.token2wav.weights import load, load_preset, save

    save(load_preset("tiny", 1), tmp_path / "in")
    assert run("convert", tmp_path / "in", tmp_path / "out")[0] == 0
    assert load(tmp_path / "out").config.flow.encoder.num_blocks == 2
    assert run("convert", tmp_path / "none", tmp_path / "out")[0] == 4


def test_convert_names_the_nearest_mistake(run, tmp_path, monkeypatch):
    """That torch is not there is said last."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run("convert", tmp_path, tmp_path / "out")
    assert (code, "holds neither config.json nor flow.yaml" in err) == (4, True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    code, _, err = run("convert", tmp_path, tmp_path / "config.json")
    assert (code, "found a file, expected a folder" in err) == (2, True)
    code, _, err = run("convert", tmp_path, tmp_path / "out")
    assert (code, "pip install -e '.[torch]'" in err) == (4, True)
