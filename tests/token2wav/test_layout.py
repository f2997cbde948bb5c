"""Whose voices a decoder takes: found in its folder, kept by copies of it, and insisted on."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from duologue.engines.torch_model import engine_of
from duologue.errors import InputError, ModelError
from duologue.token2wav.layout import SPEAKER, TOKENIZER, check_checkpoint, find_front_end
from duologue.token2wav.pipeline import EngineSettings, Token2wav, load
from duologue.token2wav.step import FrontEndId
from duologue.token2wav.weights import convert, load_preset, save
from tests.token2wav.flows import VOICE, make_tokens

OURS, THEIRS = FrontEndId("mini/token2wav", "a" * 64), FrontEndId("other/token2wav", "b" * 64)


def write_front_end(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER).write_bytes(b"t" * 1000)
    (folder / SPEAKER).write_bytes(b"s" * 300_000)


def test_copies_of_a_checkpoint_keep_its_front_end(tmp_path):
    """A conversion without the files still says which they were, and so does one of it."""
    source = tmp_path / "mini" / "token2wav"
    write_front_end(source)
    save(load_preset("tiny", 1), source)
    found = load(source, "torch").front_end
    assert found == find_front_end(source)
    assert found and found.name == "mini/token2wav"
    convert(source, tmp_path / "one")
    convert(tmp_path / "one", tmp_path / "two")
    assert load(tmp_path / "two", "torch").front_end == found
    save(load_preset("tiny", 1), tmp_path / "alone")
    assert load(tmp_path / "alone", "torch").front_end is None


@pytest.mark.parametrize("place", [0, 150_000, 299_999])
@pytest.mark.parametrize("name", [SPEAKER, TOKENIZER])
def test_other_files_are_another_front_end(tmp_path, name, place):
    write_front_end(tmp_path)
    before = find_front_end(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[place % len(content)] ^= 1
    (tmp_path / name).write_bytes(content)
    assert find_front_end(tmp_path) != before
    write_front_end(tmp_path)
    assert find_front_end(tmp_path) == before
    (tmp_path / name).write_bytes(content + b"\0")
    assert find_front_end(tmp_path) != before


def test_a_terabyte_is_named_at_once(tmp_path):
    write_front_end(tmp_path)
    os.truncate(tmp_path / TOKENIZER, 1 << 40)
    assert find_front_end(tmp_path)


@pytest.fixture(scope="module")
def model() -> Token2wav:
    plain = engine_of(load_preset("tiny", 3), EngineSettings(sessions=1, window=20))
    return replace(plain, front_end=OURS)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, voice: model.check_voice(voice),
        lambda model, voice: model.utterance(voice, 1),
        lambda model, voice: model.offline([(make_tokens(1, 3), voice, 1)]),
    ],
    ids=["check", "utterance", "offline"],
)
def test_a_voice_of_other_models_is_refused(model, use):
    with pytest.raises(InputError) as error:
        use(model, replace(VOICE, front_end=THEIRS))
    assert str(error.value) == (
        "voice: it was made with other/token2wav (bbbbbbbbbbbb), this decoder takes voices made "
        "with mini/token2wav (aaaaaaaaaaaa); make it again: "
        "duologue voices add NAME CLIP.wav --replace --model FOLDER"
    )


def test_a_batcher_refuses_it_and_takes_no_slot(model):
    with model.batcher() as batcher:
        with pytest.raises(InputError, match=r"made with other/token2wav"):
            batcher.open(replace(VOICE, front_end=THEIRS), 1, print)
        batcher.open(replace(VOICE, front_end=OURS), 1, print).cancel()


@pytest.mark.parametrize(
    "front_end", [None, OURS, replace(OURS, name="moved")], ids=["unknown", "same", "moved"]
)
def test_voices_of_its_own_models_are_taken(model, front_end):
    voice = replace(VOICE, front_end=front_end)
    model.check_voice(voice)
    model.utterance(voice, 1).cancel()
    replace(model, front_end=None).check_voice(replace(voice, front_end=THEIRS))


def test_a_voice_that_does_not_fit_is_seen_before_it_speaks(model):
    with pytest.raises(InputError, match="expected at least 3"):
        model.check_voice(replace(VOICE, tokens=VOICE.tokens[:2]))


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ((), r"holds neither config\.json nor flow\.yaml"),
        (("config.json",), r"found no model\.safetensors; expected a token2wav checkpoint"),
        (("flow.yaml", "hift.pt"), r"found no flow\.pt; expected"),
        (("flow.yaml",), r"found no flow\.pt and no hift\.pt; expected"),
    ],
)
def test_half_a_checkpoint_names_what_is_missing(tmp_path, there, says):
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=says):
        check_checkpoint(tmp_path)
