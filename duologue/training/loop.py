"""The loop that every stage shares: steps against the clock, averaged weights, a log, checkpoints.

A stage ends by the clock, not by a count of steps: its learning rate rises over the first steps
and falls to zero at the end of its minutes, however fast the machine is. Small models are bound by
the launching of kernels, so on a GPU the whole step, from the drawing of a batch to the average of
the weights, is one CUDA graph; a stage's `loss` must therefore have fixed shapes and never wait
for the device.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from duologue.errors import EngineError, UsageError
from duologue.training.average import Average
from duologue.training.log import Log

WARM_UP = 300
"""Steps over which the learning rate rises."""

LOG_S, LOOK_S, SAVE_S = 10.0, 45.0, 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a stage is run.

    Attributes:
        work: Where data and checkpoints of all stages lie.
        minutes: How long it trains.
        device: Where.
        seed: Of weights and batches.
        resume: Whether to go on from the stage's last checkpoint.
        start: Weights to begin with, as the stage writes them; None for random ones.
        max_steps: Ends earlier; None for by the clock alone.
    """

    work: Path
    minutes: float
    device: torch.device
    seed: int = 0
    resume: bool = False
    start: Path | None = None
    max_steps: int | None = None


class Stage(Protocol):
    """What `train` drives.

    Attributes:
        name: Of its files in the work folder.
        peak: Highest learning rate.
    """

    name: str
    peak: float

    def prepare(self) -> None:
        """Called before the first step, behind `load_state`."""
        ...

    def run(self, share: float, rate: float) -> None:
        """Take one step, when this share of the time has passed, at a learning rate."""
        ...

    def figures(self) -> dict[str, float]:
        """Running means of what steps say."""
        ...

    def look(self) -> dict[str, float]:
        """Figures on held-out speech."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """What ships: the averaged weights."""
        ...

    def state(self) -> dict[str, Any]:
        """What `load_state` goes on from."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Begin with these instead of random ones."""
        ...


class Task(Protocol):
    """One model with one loss, which `OneModel` makes a stage."""

    name: str
    peak: float
    weight_decay: float

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        ...

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw a batch; what to minimise, and figures for the log, all scalars on the device."""
        ...

    def look(self, model: nn.Module) -> dict[str, float]:
        """Figures of the averaged model on held-out speech."""
        ...

    def shipped(self, model: nn.Module) -> nn.Module:
        """The part of the averaged model that ships."""
        ...

    def after_step(self) -> None:
        """Called between steps; a place to renew what batches are drawn from."""
        ...


class Step:
    """One optimisation step, captured as a CUDA graph where there is a GPU.

    Args:
        parameters: What is trained.
        loss: As `Task.loss`.
        betas: Of AdamW.
        weight_decay: Of matrices; vectors have none.
        clip: Largest norm of the gradient.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        loss: Callable[[], tuple[Tensor, dict[str, Tensor]]],
        *,
        betas: tuple[float, float] = (0.9, 0.98),
        weight_decay: float = 0.01,
        clip: float = 1.0,
    ):
        self._parameters, self._loss, self._clip = parameters, loss, clip
        device = parameters[0].device
        self._captures = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=self.rate if self._captures else 0.0,
            betas=betas,
            capturable=self._captures,
            fused=self._captures,
        )
        self.figures: dict[str, Tensor] = {}
        self.after: list[Callable[[], None]] = []
        """Run behind each update, inside the graph."""

        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, rate: float) -> None:
        """Take one step at a learning rate."""
        self.rate.fill_(rate)
        if not self._captures:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._eager()
        else:
            if self._graph is None:
                self._graph = self._capture()
            self._graph.replay()

    def state(self) -> dict[str, Any]:
        """The optimiser's."""
        return self.optimizer.state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, before the first step."""
        self.optimizer.load_state_dict(dict(state))
        for group in self.optimizer.param_groups:
            # Loading makes it another tensor.
            group["lr"] = self.rate if self._captures else 0.0

    def _eager(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        total, figures = self._loss()
        total.backward()
        figures["norm"] = clip_gradients(self._parameters, self._clip)
        self.optimizer.step()
        for act in self.after:
            act()
        for name, value in figures.items():
            # A running mean; the first value starts it.
            if name in self.figures:
                self.figures[name].lerp_(value.detach().float(), 0.02)
            else:
                self.figures[name] = value.detach().float().clone()

    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._eager()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._eager()
        return graph


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients down to a norm, without waiting for the device; their norm before that."""
    gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients, foreach=True)
    nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=True)
    return norm


def half(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU, where a step is a graph: what a cache keeps would be that graph's."""
    return torch.autocast(
        device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False
    )


def rate_at(share: float, step: int, peak: float) -> float:
    """The learning rate when this share of the time has passed: linear up, cosine down to zero."""
    return peak * min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


class OneModel:
    """A stage of one model: its step, and the average of its weights.

    Args:
        task: The model, its loss, and how it is judged.
    """

    def __init__(self, task: Task):
        self.task, self.name, self.peak = task, task.name, task.peak
        trained = [p for p in task.model.parameters() if p.requires_grad]
        self._step = Step(trained, task.loss, weight_decay=task.weight_decay)
        self.average = Average(task.model)
        self._step.after.append(self.average.update)

    def prepare(self) -> None:
        """Nothing has to be."""

    def run(self, share: float, rate: float) -> None:
        """See `Stage`, as all of the following."""
        self._step.run(rate)
        self.task.after_step()

    def figures(self) -> dict[str, float]:
        """Running means."""
        return {name: float(value) for name, value in self._step.figures.items()}

    def look(self) -> dict[str, float]:
        """On held-out speech."""
        with torch.no_grad():
            return self.task.look(self.average.model)

    def weights(self) -> dict[str, Tensor]:
        """The average."""
        return self.task.shipped(self.average.model).state_dict()

    def state(self) -> dict[str, Any]:
        """Model, average and optimiser."""
        return {
            "model": self.task.model.state_dict(),
            "average": self.average.model.state_dict(),
            "optimizer": self._step.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """All three."""
        self.task.model.load_state_dict(state["model"])
        self.average.model.load_state_dict(state["average"])
        self._step.load_state(state["optimizer"])

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Model and average alike."""
        for model in (self.task.model, self.average.model):
            self.task.shipped(model).load_state_dict(weights)


def train(stage: Stage, settings: Settings) -> Path:
    """Run a stage to the end of its time.

    Returns:
        WORK/<stage>.safetensors, which is renewed every minute.

    Raises:
        UsageError: weights to begin with that are of another model, or a stage that is resumed
            in another way than it began.
        EngineError: the loss is no number any more.
    """
    run = _Run(stage, settings)
    limit, whole = settings.max_steps or math.inf, 60 * settings.minutes
    while run.count < limit and (seconds := run.seconds()) < whole:
        stage.run(seconds / whole, rate_at(seconds / whole, run.count, stage.peak))
        run.stepped()
    run.look()
    return run.save()


def _begin_with(stage: Stage, path: Path) -> None:
    try:
        stage.load_weights(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UsageError(
            f"--start: {path} does not hold the weights of {stage.name!r}, expected what "
            f"`duologue train {stage.name}` writes: {str(error).splitlines()[0]}"
        ) from error


class _Run:
    """Counts, logs and saves what a stage does."""

    def __init__(self, stage: Stage, settings: Settings):
        self._began = time.monotonic()
        self._stage, self._device = stage, settings.device
        self._log = Log(settings.work, stage.name, resume=settings.resume)
        self._weights = settings.work / f"{stage.name}.safetensors"
        self._resume = settings.work / f"{stage.name}.resume.pt"
        self._started = settings.start is not None
        self.count = 0
        if settings.resume and self._resume.is_file():
            state = torch.load(self._resume, map_location=settings.device, weights_only=True)
            if state["started"] != self._started:
                raise UsageError(
                    f"--resume: {self._resume} began {'with' if state['started'] else 'without'} "
                    "--start; resume it in the same way"
                )
            stage.load_state(state["stage"])
            self.count = state["count"]
            self._began -= state["seconds"]
        elif settings.start is not None:
            _begin_with(stage, settings.start)
        stage.prepare()
        self._logged = self._looked = self._saved = self.seconds()

    def seconds(self) -> float:
        """Of training until now, earlier runs included."""
        return time.monotonic() - self._began

    def stepped(self) -> None:
        """Called after each step."""
        self.count += 1
        if self.count % 10 == 0 and self._device.type == "cuda":
            # Steps are only queued; the clock is not to run away from them.
            torch.cuda.synchronize()
        now = self.seconds()
        if now - self._looked >= LOOK_S:
            self.look()
        elif now - self._logged >= LOG_S:
            self._write({})
        if now - self._saved >= SAVE_S:
            self.save()

    def look(self) -> None:
        """Write a line with figures on held-out speech."""
        self._write(self._stage.look())
        self._looked = self.seconds()

    def _write(self, more: dict[str, float]) -> None:
        figures = self._stage.figures()
        if broken := [name for name, value in figures.items() if not math.isfinite(value)]:
            raise EngineError(
                f"after {self.count} steps {', '.join(broken)} is no number; resume from "
                f"{self._resume} with another seed, or lower the learning rate"
            )
        self._log.write(step=self.count, seconds=self.seconds(), **figures, **more)
        self._logged = self.seconds()

    def save(self) -> Path:
        """Write weights and state, each as a whole or not at all; where the weights are."""
        self._saved = self.seconds()
        aside = self._resume.with_suffix(".part")
        state = {"stage": self._stage.state(), "count": self.count, "seconds": self._saved}
        state["started"] = self._started
        torch.save(state, aside)
        aside.replace(self._resume)
        weights = {name: t.cpu().contiguous() for name, t in self._stage.weights().items()}
        save_file(weights, aside)
        aside.replace(self._weights)
        return self._weights
