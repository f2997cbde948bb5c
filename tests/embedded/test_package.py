"""Float checkpoints packed, read again without torch, and compared with what they were."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.numpy import load_file, save_file

from duologue.embedded import package as module
from duologue.embedded.package import MANIFEST, SCALE, Package
from duologue.engines.export import relative_rms
from duologue.engines.torch_model import engine_of
from duologue.errors import DuologueError, EngineError, InputError, ModelError
from duologue.talker.config import FIRST_CODE
from duologue.talker.engine import signature
from duologue.token2wav import pipeline
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.step import VocoderWork
from duologue.token2wav.stream import Schedule
from duologue.training.pack import MOST_CONSTANTS, Rounded, Speaker, pack, rounded
from tests.embedded.tiny import CARD, DECODER, SOUNDS, SPEAKER, TALKER, decoder, talker
from tests.token2wav.flows import make_voice

# Its fixture exports seven graphs.
pytestmark = pytest.mark.timeout(400)

TOKENS = np.random.default_rng(1).integers(0, DECODER.flow.vocab_size, 30, dtype=np.int32)
EIGHT_BITS = 0.03
"""Relative rms that eight bits may cost: about 1 % a matrix, over a few layers."""


@pytest.fixture(scope="module")
def model(package):
    return package.token2wav()


def test_the_talker_is_that_of_torch_within_eight_bits(package):
    ids = np.random.default_rng(0).integers(0, TALKER.vocab_size, (1, 12))
    with torch.inference_mode():
        hidden, _ = talker().hidden(torch.from_numpy(ids), None)
        expected = talker().head(hidden)[0].numpy()
    graph, logits = package._open("talker", signature(TALKER), 1), []
    past = np.zeros(graph.inputs[1].size({"batch": 1, "past": 0}), np.float32)
    for piece in np.split(ids, [3, 4, 9], axis=1):
        out = graph.run({"ids": piece, "past": past})
        logits.append(out["logits"][0])
        past = out["new_past"]
    assert past.shape[4] == ids.shape[1]
    assert 0 < relative_rms(np.stack(logits), expected[[2, 3, 8, 11]]) < EIGHT_BITS


def test_mel_and_sound_are_those_of_torch_within_eight_bits(package, model):
    reference = engine_of(decoder(), EngineSettings())
    utterance = (TOKENS, package.voice(), 7)
    [mel], [expected] = model.flow.offline([utterance]), reference.flow.offline([utterance])
    assert 0 < relative_rms(mel, expected) < EIGHT_BITS
    # Other f0 is another phase: samples are compared over one and the same source.
    source = np.random.default_rng(0).standard_normal((1, expected.shape[0] * 480), np.float32)
    arrays = {"mel": expected[None], "source": source}
    got, wav = (each.vocoder._hift.run(arrays)["wav"] for each in (model, reference))
    assert 0 < relative_rms(got, wav) < EIGHT_BITS
    f0, expected_f0 = (
        each.vocoder._f0.run({"mel": expected[None]})["f0_hz"] for each in (model, reference)
    )
    np.testing.assert_allclose(f0, expected_f0, atol=2)


def test_streamed_is_whole(package, model):
    voice, schedule = package.voice(), Schedule((4, 6))

    def streamed(pieces) -> np.ndarray:
        with model.utterance(voice, 7, schedule) as utterance:
            return np.concatenate([*map(utterance.push, pieces), utterance.finish()])

    whole = streamed([TOKENS])
    assert whole.shape == (len(TOKENS) * DECODER.samples_per_token,)
    for count in (len(TOKENS), 7):
        np.testing.assert_allclose(streamed(np.array_split(TOKENS, count)), whole, atol=1e-6)
    mel = np.random.default_rng(2).standard_normal((60, 80), np.float32)
    handle = model.vocoder.open(7)
    pieces = np.array_split(mel, 4)
    parts = [
        model.vocoder.step([VocoderWork(handle, piece, final)])[0]
        for piece, final in zip(pieces, [False] * 3 + [True], strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(parts), model.vocoder.one_shot(mel, 7), atol=1e-3)


def test_what_is_stored_is_small_and_what_was_meant(packed, package):
    stored = load_file(packed / "weights.safetensors")
    name = "talker.model.embed_tokens.weight"
    assert stored[name].dtype == np.int8 and stored[name + SCALE].shape == (TALKER.vocab_size, 1)
    weight = talker().get_parameter("model.embed_tokens.weight").numpy()
    step = np.abs(weight).max(1, keepdims=True) / 127
    assert (np.abs(package.weight(name) - weight) <= step * 0.501).all()
    np.testing.assert_array_equal(package.weight(f"{name}^T"), package.weight(name).T)
    assert {str(array.dtype) for array in stored.values()} == {"int8", "float16", "float32"}
    graphs = sum(path.stat().st_size for path in packed.glob("*.onnx"))
    assert graphs < 300_000
    assert (packed / "README.md").read_text() == CARD


def test_a_transposed_convolution_has_its_scales_by_what_comes_out(packed):
    scale = load_file(packed / "weights.safetensors")[f"hift.ups.0.weight{SCALE}"]
    assert scale.shape == (1, 16, 1)


def test_it_is_an_engine_that_knows_its_voices(packed, package):
    model = pipeline.load(packed, "embedded", EngineSettings(sessions=1))
    model.check_voice(package.voice())
    assert model.front_end and model.front_end.name == "duologue-25"
    stranger = make_voice(1)
    model.check_voice(stranger)
    made_elsewhere = type(stranger)(
        stranger.tokens,
        stranger.mel,
        stranger.embedding,
        stranger.digest,
        type(model.front_end)("Step-Audio-2-mini/token2wav", "00"),
    )
    with pytest.raises(InputError, match="it was made with Step-Audio-2-mini"):
        model.check_voice(made_elsewhere)


def test_no_torch_is_needed(packed):
    script = f"""
import asyncio, sys
from pathlib import Path
sys.modules["torch"] = sys.modules["onnx"] = None
from duologue.embedded.package import Package
from duologue.embedded.speak import speak
spoken = asyncio.run(speak(Package(Path({str(packed)!r})), "Hello there."))
assert len(spoken.samples) == spoken.audio_tokens * 960 > 0
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# Damage


def rehash(folder, name: str) -> None:
    """Make the manifest agree with a file again."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    content = (folder / name).read_bytes()
    facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"][name] = facts
    (folder / MANIFEST).write_text(json.dumps(manifest))


def reweigh(folder, change) -> None:
    """Change the weights, and the manifest with them."""
    path = folder / "weights.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    rehash(folder, path.name)


@pytest.mark.parametrize(
    "name",
    [
        "talker.onnx",
        "weights.safetensors",
        "config.json",
        "outside.safetensors",
        "voice.safetensors",
        "README.md",
    ],
)
def test_a_changed_file_is_refused(copied, name):
    path = copied / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"damaged embedded voice .{name} has changed"):
        Package(copied)


def test_a_missing_or_unknown_file_is_refused(copied):
    (copied / "hift.onnx").rename(copied / "extra.py")
    with pytest.raises(ModelError, match=r"missing or unknown: extra\.py, hift\.onnx"):
        Package(copied)


def test_an_oversized_folder_is_refused_unread(copied, monkeypatch):
    size = sum(path.stat().st_size for path in copied.iterdir())
    monkeypatch.setattr(module, "MAX_BYTES", size)
    Package(copied)
    monkeypatch.setattr(module, "MAX_BYTES", size - 1)
    with pytest.raises(ModelError, match=f"{size} bytes, expected {size - 1} at most"):
        Package(copied)


def test_a_folder_without_a_voice_says_what_to_do(tmp_path):
    with pytest.raises(ModelError, match=r"found no package\.json.*duologue train"):
        Package(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "format"),
        ("author", "me", "author"),
        ("files", {"../x": {"size": 0, "sha256": "0" * 64}}, "files"),
        ("graphs", {}, "graphs: campplus|missing or unknown graphs"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(copied, key, value, message):
    manifest = json.loads((copied / MANIFEST).read_bytes())
    manifest[key] = value
    (copied / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=message):
        Package(copied)


FLAWS = {
    "an unknown weight": (lambda t: t.update(more=np.zeros(3, np.float16)), "weights: more"),
    "a missing weight": (
        lambda t: t.pop("talker.model.norm.weight"),
        "weights: talker.model.norm.weight",
    ),
    "a missing scale": (
        lambda t: t.pop(f"talker.model.embed_tokens.weight{SCALE}"),
        "talker.model.embed_tokens.weight:scale",
    ),
}


@pytest.mark.parametrize(("change", "message"), FLAWS.values(), ids=list(FLAWS))
def test_weights_that_are_not_those_of_the_graphs_are_refused(copied, change, message):
    reweigh(copied, change)
    with pytest.raises(ModelError, match=message):
        Package(copied)


NORM, EMBED = "talker.model.norm.weight", "talker.model.embed_tokens.weight"


def _set(name, value):
    return lambda tensors: tensors.update({name: value(tensors[name])})


SICK = {
    "not a number": (_set(NORM, lambda a: a * np.float16("nan")), f"{NORM} is not finite"),
    "endless": (_set(EMBED + SCALE, lambda a: a * np.float32("inf")), f"{EMBED} is not finite"),
    "of another type": (_set(NORM, lambda a: a.astype(np.float32)), "is float32, expected int8"),
    "misshapen": (_set(NORM, lambda a: a[:-1]), "dimensions do not match"),
    "with scales of another": (_set(EMBED + SCALE, lambda a: a.T.copy()), "scales float32"),
    "with wide scales": (_set(EMBED + SCALE, lambda a: a.astype(np.float64)), "scales float64"),
}


@pytest.mark.parametrize(("change", "message"), SICK.values(), ids=list(SICK))
def test_sick_weights_are_refused_when_loaded(copied, change, message):
    reweigh(copied, change)
    with pytest.raises(EngineError, match=message):
        Package(copied).talker()


@pytest.mark.parametrize(("name", "other"), [("talker", "f0"), ("f0", "talker")])
def test_a_graph_of_another_kind_is_refused(copied, name, other):
    manifest = json.loads((copied / MANIFEST).read_bytes())
    manifest["graphs"][name] = manifest["graphs"][other]
    (copied / MANIFEST).write_text(json.dumps(manifest))
    (copied / f"{name}.onnx").write_bytes((copied / f"{other}.onnx").read_bytes())
    rehash(copied, f"{name}.onnx")
    reweigh(copied, lambda tensors: keep(tensors, manifest["graphs"]))
    package = Package(copied)
    with pytest.raises(ModelError, match=f"{name}.onnx takes and gives something else than a"):
        package.talker() if name == "talker" else package.token2wav()


def keep(tensors, graphs) -> None:
    """Leave only the weights that graphs take."""
    wanted = {source.removesuffix("^T") for graph in graphs.values() for source in graph.values()}
    for name in set(tensors):
        if name.removesuffix(SCALE) not in wanted:
            del tensors[name]


# Packing


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_what_cannot_be_stored_is_refused(value):
    for shape in ((3,), (100, 100)):
        weight = np.ones(shape, np.float32)
        weight[0] = value
        if shape == (3,) or not np.isfinite(value):
            with pytest.raises(EngineError, match=r"flow\.x: found values"):
                rounded("flow.x", weight, axis=0)
        else:
            assert rounded("flow.x", weight, axis=0)[1].max() == pytest.approx(value)


def test_a_graph_that_hides_its_weights_is_refused():
    hidden = numpy_helper.from_array(np.zeros(MOST_CONSTANTS // 4 + 1, np.float32), "x")
    content = helper.make_model(helper.make_graph([], "g", [], [], [hidden])).SerializeToString()
    with pytest.raises(EngineError, match=f"expected {MOST_CONSTANTS} at most"):
        Rounded().without_weights("talker", content)


def test_a_voice_that_is_too_large_is_not_made(tmp_path, monkeypatch):
    from duologue.training import pack as packing

    monkeypatch.setattr(packing, "MAX_BYTES", 1000)
    monkeypatch.setattr(packing, "_exports", lambda talker, model: iter(()))
    with pytest.raises(EngineError, match="expected 1000 at most; shrink a model"):
        pack(talker(), decoder(), SPEAKER, tmp_path, card=CARD, sounds=SOUNDS)
    with pytest.raises(DuologueError):
        Package(tmp_path)


def test_the_voice_comes_back(package):
    voice = package.voice()
    assert isinstance(SPEAKER, Speaker)
    np.testing.assert_array_equal(voice.tokens, SPEAKER.tokens)
    np.testing.assert_array_equal(voice.mel, SPEAKER.mel)
    assert FIRST_CODE + DECODER.flow.vocab_size == TALKER.vocab_size
