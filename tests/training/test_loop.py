"""The loop of all stages: its clock, its checkpoints, and what it does when numbers break."""

import json

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

from duologue.errors import EngineError, UsageError
from duologue.training.loop import OneModel, Settings, Step, rate_at, train
from tests.training.made import CPU


class Line:
    """Finds a line through noisy points."""

    name, peak, weight_decay = "line", 0.05, 0.0

    def __init__(self, broken_after: int = 10**9):
        torch.manual_seed(3)
        self.model = nn.Linear(1, 1)
        self.steps, self.broken_after = 0, broken_after

    def loss(self):
        x = torch.linspace(-1, 1, 32)[:, None]
        error = (self.model(x) - (2 * x + 1)).square().mean()
        if self.steps >= self.broken_after:
            error = error * float("nan")
        return error, {"error": error}

    def look(self, model):
        return {"dev_slope": float(model.weight)}

    def shipped(self, model):
        return model

    def after_step(self):
        self.steps += 1


def settings(tmp_path, steps, **more) -> Settings:
    return Settings(tmp_path, 60.0, CPU, max_steps=steps, **more)


def test_rate_rises_and_falls_with_the_clock():
    assert rate_at(0.0, 0, 1.0) == pytest.approx(0.2)
    assert rate_at(0.0, 1000, 1.0) == 1.0
    assert rate_at(0.5, 1000, 1.0) == pytest.approx(0.5)
    assert rate_at(1.0, 1000, 1.0) == pytest.approx(0.0)
    assert rate_at(2.0, 1000, 1.0) == pytest.approx(0.0)


def test_a_stage_learns_and_logs(tmp_path):
    weights = load_file(train(OneModel(Line()), settings(tmp_path, 3000)))
    assert weights["weight"].item() == pytest.approx(2.0, abs=0.25)
    last = json.loads((tmp_path / "line.log.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3000 and last["error"] < 1e-2 and "dev_slope" in last


def test_resuming_goes_on_where_it_was(tmp_path):
    train(OneModel(Line()), settings(tmp_path / "whole", 40))
    train(OneModel(Line()), settings(tmp_path / "parts", 25))
    train(OneModel(Line()), settings(tmp_path / "parts", 40, resume=True))
    whole, parts = (
        torch.load(tmp_path / name / "line.resume.pt", weights_only=True)
        for name in ("whole", "parts")
    )
    assert parts["count"] == 40
    # The learning rate goes by the clock, which is not the same twice.
    for name, tensor in whole["stage"]["model"].items():
        torch.testing.assert_close(parts["stage"]["model"][name], tensor, rtol=1e-3, atol=1e-4)


def test_a_stage_begins_with_given_weights(tmp_path):
    first = train(OneModel(Line()), settings(tmp_path / "one", 40))
    again = train(OneModel(Line()), Settings(tmp_path / "two", 0.0, CPU, start=first))
    assert load_file(again) == load_file(first)


def test_a_stage_is_resumed_as_it_began(tmp_path):
    first = train(OneModel(Line()), settings(tmp_path, 3))
    with pytest.raises(UsageError, match="began without --start; resume it in the same way"):
        train(OneModel(Line()), settings(tmp_path, 5, resume=True, start=first))


@pytest.mark.parametrize("content", [None, b"no weights", save({"other": torch.zeros(1)})])
def test_weights_of_another_model_are_refused(tmp_path, content):
    path = tmp_path / "start.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"--start: .*start.safetensors .* 'line'"):
        train(OneModel(Line()), settings(tmp_path, 1, start=path))


def test_a_loss_that_is_no_number_ends_the_stage(tmp_path):
    with pytest.raises(EngineError, match="error, norm is no number"):
        train(OneModel(Line(broken_after=5)), settings(tmp_path, 10))


def test_gradients_are_cut_to_a_norm():
    weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    seen = []
    step = Step([weight], lambda: ((weight * 100).sum(), {}), clip=1.0, weight_decay=0.0)
    step.after.append(lambda: seen.append(weight.grad.norm().item()))
    step.run(0.1)
    assert seen == [pytest.approx(1.0, rel=1e-4)]
    assert step.figures["norm"].item() == pytest.approx(100 * 2**0.5, rel=1e-4)
