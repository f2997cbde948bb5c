"""Voices: clips that can and cannot be used, the store, its command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from duologue.audio.clip import Clip, read_clip
from duologue.audio.pcm import read_audio, resample
from duologue.cli_voices import voices_app
from duologue.errors import DuologueError, InputError, ModelError, UsageError
from duologue.token2wav.config import FULL
from duologue.token2wav.front_end import VoiceFrontEnd
from duologue.voices import VoiceStore
from tests.voice_models import write_voice_models

DATA = Path(__file__).parent / "data/questions"
SPEECH = DATA / "question_17.ogg"
OTHER = DATA / "question_03.ogg"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("token2wav")
    write_voice_models(folder)
    return folder


@pytest.fixture(scope="module")
def front_end(models):
    return VoiceFrontEnd.load(models)


@pytest.fixture
def store(tmp_path):
    return VoiceStore(tmp_path / "voices")


def _write(path: Path, samples: np.ndarray, rate_hz: int = 16_000, subtype="PCM_16") -> Path:
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def test_silence_around_the_speech_goes(tmp_path):
    speech = read_audio(SPEECH)
    quiet = np.random.default_rng(1).normal(0, 1e-4, 40_000).astype(np.float32)
    padded = _write(tmp_path / "padded.wav", np.concatenate([quiet, speech, quiet]))
    plain, clip = read_clip(SPEECH), read_clip(padded)
    # At either end up to 0.1 s of it stays.
    assert plain.seconds <= clip.seconds < plain.seconds + 0.25
    assert clip.samples.max() == pytest.approx(speech.max(), abs=1e-3)


@pytest.mark.parametrize("rate_hz", [8_000, 44_100, 48_000])
@pytest.mark.parametrize(("channels", "subtype"), [(1, "PCM_16"), (2, "PCM_U8"), (2, "FLOAT")])
def test_any_form_of_a_clip_gives_the_same_voice(tmp_path, front_end, rate_hz, channels, subtype):
    speech = resample(read_audio(SPEECH), 16_000, rate_hz)
    path = _write(tmp_path / "a.wav", np.stack([speech] * channels, 1), rate_hz, subtype)
    clip = read_clip(path)
    voice, plain = front_end.listen(clip), front_end.listen(read_clip(SPEECH))
    assert clip.rate_hz == rate_hz
    assert abs(len(voice.tokens) - len(plain.tokens)) <= 1
    loud = plain.mel[:250, :40] > -4
    assert np.abs(voice.mel[:250, :40] - plain.mel[:250, :40])[loud].mean() < 0.3


@settings(max_examples=12, deadline=None)
@given(st.integers(8_000, 50_000), st.floats(3, 4))
def test_tokens_and_mel_are_of_one_length(front_end, rate_hz, seconds):
    n = int(seconds * rate_hz)
    samples = np.random.default_rng(n).normal(0, 0.1, n).astype(np.float32)
    voice = front_end.listen(Clip(samples, rate_hz))
    assert len(voice.tokens) == n * 25 // rate_hz
    assert voice.mel.shape == (FULL.frames_per_token * len(voice.tokens), 80)
    assert (voice.tokens.dtype, voice.mel.dtype) == (np.int32, np.float32)
    assert voice.embedding.shape == (192,)


def _loud(seconds: float, gain: float = 1.0) -> np.ndarray:
    speech = np.concatenate([read_audio(SPEECH)] * 6)
    return np.clip(gain * speech / np.abs(speech).max(), -1, 1)[: int(seconds * 16_000)]


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (np.zeros(64_000), r"found silence \(-200 dBFS\)"),
        (np.full(64_000, 0.3), "found silence"),
        (_loud(4, 0.012), r"found speech at -\d+ dBFS, expected at least -45; record louder"),
        (_loud(2), r"found 2\.0 s of speech, expected 3 to 30 s; record more"),
        (
            np.concatenate([np.zeros(32_000), _loud(2), np.zeros(32_000)]),
            r"found 2\.\d s of speech in 6\.0 s with the silence around it, expected 3 to 30 s",
        ),
        (_loud(31), r"found 3[01]\.\d s of speech.*, expected 3 to 30 s; cut the clip"),
        (np.zeros(16_000 * 121), r"found 121\.0 s of speech, expected 3 to 30 s; cut"),
        (_loud(5, 8), r"found \d+\.\d% of the samples clipped at full scale, expected at most 0"),
    ],
)
def test_a_clip_that_cannot_be_used_says_why(tmp_path, samples, says):
    with pytest.raises(InputError, match=says):
        read_clip(_write(tmp_path / "clip.wav", samples))


def test_clipping_is_seen_in_8_bits_and_full_scale_alone_is_none(tmp_path):
    with pytest.raises(InputError, match="clipped"):
        read_clip(_write(tmp_path / "clipped.wav", _loud(5, 8), subtype="PCM_U8"))
    read_clip(_write(tmp_path / "full.wav", _loud(5), subtype="PCM_U8"))


def test_opposite_channels_are_named(tmp_path):
    speech = _loud(4)
    with pytest.raises(InputError, match="do not cancel"):
        read_clip(_write(tmp_path / "clip.wav", np.stack([speech, -speech], 1)))


def test_what_is_no_audio_says_so(tmp_path):
    (tmp_path / "text.wav").write_text("no audio " * 100)
    with pytest.raises(InputError, match="are not audio"):
        read_clip(tmp_path / "text.wav")
    with pytest.raises(InputError, match="found nothing"):
        read_clip(tmp_path / "absent.wav")
    with pytest.raises(InputError, match="found 100 samples/s, expected 8000 to"):
        read_clip(_write(tmp_path / "slow.wav", np.ones(500), 100))


def test_a_voice_comes_back_as_it_was(store, front_end):
    info = store.add("joe", read_clip(SPEECH), front_end)
    voice, fresh = store.get("joe"), front_end.listen(read_clip(SPEECH))
    for array in ("tokens", "mel", "embedding"):
        np.testing.assert_array_equal(getattr(voice, array), getattr(fresh, array))
    assert voice.digest == fresh.digest == info.digest
    assert (info.source_rate_hz, info.model_digest) == (16_000, front_end.id.digest)
    assert voice.front_end == fresh.front_end == front_end.id
    assert store.list() == {"joe": info}
    assert [path.name for path in store.folder.glob("[!.]*")] == ["joe.safetensors"]


def test_voices_differ_and_may_be_named_in_any_script(store, front_end):
    store.add("小明", read_clip(SPEECH), front_end)
    store.add("Ann-2", read_clip(OTHER), front_end)
    assert store.names() == ["Ann-2", "小明"]
    assert store.get("小明").digest != store.get("Ann-2").digest


def test_a_name_is_taken_until_it_is_replaced_or_deleted(store, front_end):
    first = store.add("joe", read_clip(SPEECH), front_end)
    with pytest.raises(UsageError, match="'joe' exists"):
        store.add("joe", read_clip(OTHER), front_end)
    assert store.info("joe") == first
    assert store.add("joe", read_clip(OTHER), front_end, replace=True).digest != first.digest
    store.delete("joe")
    with pytest.raises(UsageError, match="unknown voice 'joe': known: none"):
        store.get("joe")


def test_an_unknown_name_gets_the_nearest(store, front_end):
    store.add("joanna", read_clip(SPEECH), front_end)
    for act in (store.get, store.delete, store.info):
        with pytest.raises(UsageError, match="unknown voice 'joana': did you mean 'joanna'"):
            act("joana")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../joe", "a/b", "a\\b", "/etc/x", ".joe", "-rf", "a b", "a\n", "x" * 49],
)
def test_no_name_leads_out_of_the_folder(store, front_end, name):
    for act in (
        store.get,
        store.delete,
        lambda name: store.add(name, read_clip(SPEECH), front_end),
    ):
        with pytest.raises(UsageError, match="expected a name of letters"):
            act(name)


def test_a_damaged_voice_is_no_voice(store, front_end):
    store.add("joe", read_clip(SPEECH), front_end)
    path = store.folder / "joe.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-200] + bytes(200))
    with pytest.raises(ModelError, match="its arrays have changed.; delete it and add it again"):
        store.get("joe")
    for damaged in (whole[:1000], b"", b"{}" * 100):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="a damaged voice"):
            store.get("joe")
    store.delete("joe")
    assert store.names() == []


def test_a_write_that_fails_leaves_the_old_voice(store, front_end, monkeypatch):
    before = store.add("joe", read_clip(SPEECH), front_end)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ModelError, match="No space left on device. Set DUOLOGUE_VOICES"):
        store.add("joe", read_clip(OTHER), front_end, replace=True)
    assert store.list() == {"joe": before}
    assert store.get("joe").digest == before.digest


RACER = """
import sys
from pathlib import Path
from duologue.audio.clip import read_clip
from duologue.errors import UsageError
from duologue.token2wav.front_end import VoiceFrontEnd
from duologue.voices import VoiceStore

store, front_end, won = VoiceStore(Path(sys.argv[1])), VoiceFrontEnd.load(Path(sys.argv[2])), 0
clip = read_clip(Path(sys.argv[3]))
for turn in range(20):
    try:
        store.add(f"voice{turn}", clip, front_end)
        won += 1
    except UsageError:
        store.get(f"voice{turn}")
print(won)
"""


def test_two_processes_may_write_at_once(store, models):
    """Each name goes to one of them, and neither ever reads half a voice."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store.folder, models, clip], stdout=subprocess.PIPE
        )
        for clip in (SPEECH, OTHER)
    ]
    won = [int(racer.communicate(timeout=100)[0]) for racer in racers]
    assert sum(won) == 20
    assert len(store.list()) == 20


def test_models_that_are_missing_are_named(models, tmp_path):
    (tmp_path / "campplus.onnx").write_bytes((models / "campplus.onnx").read_bytes())
    with pytest.raises(
        ModelError, match=r"found no speech_tokenizer_v2_25hz\.onnx; expected the folder"
    ):
        VoiceFrontEnd.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "clip", "says"),
    [
        ("a b", "absent.wav", "voice 'a b': expected a name of letters"),
        ("joe", "absent.wav", "voice 'joe' exists; choose another name, or replace it"),
        ("bob", "absent.wav", "absent.wav: found nothing"),
        ("bob", __file__, "are not audio"),
        ("bob", str(SPEECH), "absent-model"),
    ],
)
def test_the_command_names_the_nearest_mistake(store, front_end, name, clip, says):
    """All of these calls also name a model that is not there, which is looked at last."""
    store.add("joe", read_clip(SPEECH), front_end)
    args = ["add", name, clip, "--model", "absent-model", "--store", str(store.folder)]
    error = CliRunner().invoke(voices_app, args).exception
    assert isinstance(error, DuologueError)
    assert says in str(error)
    assert store.names() == ["joe"]


def test_the_command_adds_lists_and_deletes(models, tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLOGUE_VOICES", str(tmp_path / "mine"))

    def run(*args: str) -> str:
        result = CliRunner().invoke(voices_app, args, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    added = json.loads(run("add", "joe", str(SPEECH), "--model", str(models), "--json"))
    assert added["name"] == "joe"
    assert json.loads(run("list", "--json")) == [added]
    table = run("list")
    assert added["digest"][:12] in table
    assert f"{added['model']} ({added['model_digest'][:12]})" in table
    assert json.loads(run("list", "--json", "--store", str(tmp_path / "other"))) == []
    assert "joe" in run("add", "joe", str(OTHER), "--model", str(models), "--replace")
    assert json.loads(run("list", "--json"))[0]["digest"] != added["digest"]
    run("delete", "joe")
    assert json.loads(run("list", "--json")) == []


def test_a_damaged_voice_is_listed_as_such_among_the_others(store, front_end):
    info = store.add("joe", read_clip(SPEECH), front_end)
    (store.folder / "bob.safetensors").write_bytes(b"?")
    (store.folder / "zoe.safetensors").write_bytes(
        (store.folder / "joe.safetensors").read_bytes()[:-1]
    )
    listed = store.list()
    assert list(listed) == ["bob", "joe", "zoe"]
    assert listed["joe"] == info
    runner = CliRunner()
    table = runner.invoke(voices_app, ["list", "--store", str(store.folder)]).output
    rows = json.loads(
        runner.invoke(voices_app, ["list", "--json", "--store", str(store.folder)]).output
    )
    for row, name in ((0, "bob"), (2, "zoe")):
        says = f"{store.folder / name}.safetensors: a damaged voice"
        assert str(listed[name]).startswith(says)
        assert f"damaged: {says}" in table
        assert rows[row] == {"name": name, "problems": [str(listed[name])]}
    assert rows[1] == info.model_dump()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_voice_of_another_type(store, front_end, dtype):
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    store.add("joe", read_clip(SPEECH), front_end)
    path = store.folder / "joe.safetensors"
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    arrays["mel"] = arrays["mel"].to(getattr(torch, dtype))
    save_file(arrays, path, metadata)
    with pytest.raises(ModelError, match=rf"a damaged voice .*{dtype}"):
        store.get("joe")


def test_what_is_no_file_is_no_voice(store, front_end):
    """A folder, and a link to nothing; a new voice takes the place of the link."""
    (store.folder / "folder.safetensors").mkdir(parents=True)
    (store.folder / "link.safetensors").symlink_to(store.folder / "absent")
    assert store.list() == {}
    for name in ("folder", "link"):
        with pytest.raises(UsageError, match="known: none"):
            store.delete(name)
    store.add("link", read_clip(SPEECH), front_end)
    assert store.names() == ["link"]


def test_a_length_that_is_no_number_is_damage(store, front_end):
    from safetensors.numpy import load_file, save_file

    info = store.add("joe", read_clip(SPEECH), front_end)
    path = store.folder / "joe.safetensors"
    voice = info.model_copy(update={"seconds": "NaN"}).model_dump_json(warnings=False)
    save_file(load_file(path), path, {"voice": voice.replace('"NaN"', "NaN")})
    with pytest.raises(ModelError, match="a damaged voice"):
        store.info("joe")


def test_a_store_that_cannot_be_written_is_told_before_anything_is_computed(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "voices"):
        with pytest.raises(ModelError, match="file is not a folder. Set DUOLOGUE_VOICES"):
            VoiceStore(folder).check_name("joe")


def test_asking_makes_no_folder(store):
    for act in (store.get, store.delete, store.info):
        with pytest.raises(UsageError, match="unknown voice"):
            act("joe")
    assert store.check_name("joe") == "joe"
    assert not store.folder.exists()


def test_a_file_under_the_name_of_another_model(models, tmp_path):
    for name in ("campplus.onnx", "speech_tokenizer_v2_25hz.onnx"):
        (tmp_path / name).write_bytes((models / "campplus.onnx").read_bytes())
    with pytest.raises(ModelError, match="takes 1 inputs, expected 2; it is another model"):
        VoiceFrontEnd.load(tmp_path)


@pytest.mark.parametrize("act", [VoiceStore.names, VoiceStore.list, lambda store: store.get("joe")])
def test_a_store_that_is_a_file(store, act):
    store.folder.write_text("")
    with pytest.raises(ModelError, match=r"voices cannot be used: not a folder\. Set DUOLOGUE_VO"):
        act(store)
