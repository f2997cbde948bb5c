"""The vocoder's training on a few seconds of a synthetic voice, and its source signal."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from duologue.audio.mel import flow_mel
from duologue.errors import InputError
from duologue.token2wav import weights
from duologue.token2wav.config import TINY, HiftConfig
from duologue.token2wav.hift import HiFT
from duologue.token2wav.source import Source, SourceWeights
from duologue.training.hift import HiftStage, Recipe, roughened, train_hift
from duologue.training.loop import Settings
from duologue.training.source import excite
from duologue.training.speech import Speech
from tests.training.made import waiting_calls

CONFIG = HiftConfig(base_channels=16, f0_channels=16)
RECIPE = Recipe(batch=2, frames=8, width=2, peak=3e-3)
FRAMES = 200


@pytest.fixture(scope="module")
def speech() -> Speech:
    """Twenty harmonics of a wandering f0, with pauses."""
    frame = np.arange(FRAMES)
    f0 = np.where(frame % 50 < 40, 130 + 30 * np.sin(frame / 20), 0)
    angle = 2 * np.pi * np.cumsum(np.repeat(f0, 480)) / 24_000
    sound = 0.1 * sum(np.sin(k * angle) / k for k in range(1, 21))
    noise = np.random.default_rng(0).normal(0, 0.003, len(angle))
    audio = (32767 * (sound + noise)).astype(np.int16)
    mel = flow_mel((audio / 32768).astype(np.float32))
    none = range(2, 2)
    return Speech(
        audio=torch.from_numpy(audio),
        mel=torch.from_numpy(mel).half(),
        f0=torch.from_numpy(f0).half(),
        phones=torch.zeros(FRAMES, dtype=torch.uint8),
        starts=torch.tensor([0, FRAMES - 50, FRAMES]),
        texts=["one", "two"],
        splits={"train": range(0, 1), "dev": range(1, 2), "test": none, "short": none},
    )


def settings(work: Path, **more) -> Settings:
    return Settings(work, minutes=60, device=torch.device("cpu"), **more)


def stage(speech: Speech, work: Path, recipe: Recipe = RECIPE) -> HiftStage:
    return HiftStage(speech, settings(work), CONFIG, recipe)


def values(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("phase", [None, [0.2, 0.9]])
def test_the_source_is_the_one_of_use(phase):
    rng = np.random.default_rng(1)
    f0 = rng.uniform(60, 300, (2, 30)).astype(np.float32) * (rng.random((2, 30)) > 0.3)
    noise = rng.normal(size=(2, 30, CONFIG.samples_per_frame)).astype(np.float32)
    merge = nn.Linear(CONFIG.nb_harmonics + 1, 1)
    ours = excite(
        CONFIG,
        merge,
        torch.from_numpy(f0),
        torch.from_numpy(noise),
        None if phase is None else torch.tensor(phase, dtype=torch.float64),
    )
    harmonics = merge.weight.detach().numpy()[0]
    source = Source(CONFIG, SourceWeights(harmonics, float(merge.bias.detach())))
    theirs = source.excite(f0, noise, None if phase is None else np.array(phase))
    np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=2e-6)
    ours.square().sum().backward()
    assert merge.weight.grad is not None and merge.weight.grad.abs().min() > 0


def test_it_learns(speech, tmp_path):
    """The mel alone, then with discriminators; f0 too."""
    training = stage(speech, tmp_path)
    before = training.look()
    for _ in range(15):
        training.run(0.0, RECIPE.peak)
    midway = training.figures()
    for _ in range(2):
        training.run(0.9, RECIPE.peak)
    assert {"mel", "f0_hz", "adversarial", "features", "critics"} <= training.figures().keys()
    assert "adversarial" not in midway
    training.average.model.load_state_dict(training.model.state_dict())
    after = training.look()
    assert after["dev_mel"] < 0.85 * before["dev_mel"]
    assert after["dev_f0_hz"] < before["dev_f0_hz"]


def test_each_side_learns_only_from_its_own_loss(speech, tmp_path):
    training = stage(speech, tmp_path)
    vocoder, critics = values(training.model), values(training.critics)
    training.steps["fooling"].run(1e-3)
    moved = [not torch.equal(*pair) for pair in zip(vocoder, values(training.model), strict=True)]
    assert all(moved)
    assert same(critics, values(training.critics))
    vocoder = values(training.model)
    training.steps["critics"].run(1e-3)
    assert same(vocoder, values(training.model))
    assert not same(critics, values(training.critics))


def test_no_step_waits_for_the_device(speech, tmp_path):
    training = stage(speech, tmp_path)
    # The first steps make the optimisers' state, outside of any capture.
    training.prepare()
    for step in training.steps.values():
        assert not waiting_calls(lambda step=step: step._loss()[0])


def test_it_saves_what_loads_and_goes_on(speech, tmp_path):
    first = train_hift(speech, settings(tmp_path, max_steps=2), CONFIG, RECIPE)
    saved = torch.load(tmp_path / "hift.resume.pt")["stage"]["model"]
    # No step is left to take.
    path = train_hift(speech, settings(tmp_path, max_steps=2, resume=True), CONFIG, RECIPE)
    again = torch.load(tmp_path / "hift.resume.pt")["stage"]["model"]
    assert path == first and all(torch.equal(saved[name], again[name]) for name in saved)
    lines = (tmp_path / "hift.log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 2]
    begun = Settings(tmp_path / "begun", 0.0, torch.device("cpu"), start=path)
    begun_with = load_file(train_hift(speech, begun, CONFIG, RECIPE))
    assert same(list(begun_with.values()), list(load_file(path).values()))
    vocoder = HiFT(CONFIG)
    tensors = {name.removeprefix("hift."): t for name, t in load_file(path).items()}
    vocoder.load_state_dict(tensors)
    config = TINY.model_copy(update={"hift": CONFIG})
    model = weights.random_weights(config, 0)._replace(hift=vocoder)
    weights.save(model, tmp_path / "whole")
    loaded = weights.load(tmp_path / "whole").hift
    assert same(values(loaded), values(vocoder))


def test_resuming_brings_everything_back(speech, tmp_path):
    one = stage(speech, tmp_path)
    one.run(0.9, 1e-3)
    other = stage(speech, tmp_path)
    other.load_state(copy.deepcopy(one.state()))
    for training in (one, other):
        torch.manual_seed(5)
        training.run(0.9, 1e-3)
    assert same(values(one.model), values(other.model))
    assert same(values(one.critics), values(other.critics))
    assert same(values(one.average.model), values(other.average.model))


def test_roughness_comes_by_chance():
    torch.manual_seed(0)
    mel = torch.randn(40, 12, 80)
    assert torch.equal(roughened(mel, torch.tensor(0.0)), mel)
    changed = (roughened(mel, torch.tensor(0.3)) != mel).flatten(1)
    assert 4 <= changed.any(1).sum() <= 20
    assert torch.equal(changed.any(1), changed.all(1))
    # Blur makes it smoother than the noise makes it rough.
    assert roughened(mel, torch.tensor(1.0)).diff(dim=1).std() < mel.diff(dim=1).std()


def test_too_little_speech_is_said(speech, tmp_path):
    with pytest.raises(InputError, match="'dev' has 50 frames of speech, expected at least 51"):
        stage(speech, tmp_path, replace(RECIPE, frames=41))
