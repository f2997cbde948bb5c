"""Stage `hift`: mel to samples, after HiFi-GAN and HiFTNet (arXiv 2309.09493).

Crops of real speech go through the modules that speak later. The source follows the labelled f0
at first and the predicted f0 later on, as it does in use. In the later part some crops' mel is
blurred and noisy, since in use it comes from the flow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.errors import InputError
from duologue.token2wav.config import EMBEDDED, HiftConfig
from duologue.token2wav.hift import HiFT, Snake
from duologue.token2wav.receptive_field import receptive_field
from duologue.training.average import Average
from duologue.training.discriminators import (
    Discriminators,
    discriminator_loss,
    feature_loss,
    generator_loss,
)
from duologue.training.loop import Settings, Step, half, train
from duologue.training.source import excite
from duologue.training.spectral import MelLoss
from duologue.training.speech import LogMel, Speech, normal, windows

MEL_WEIGHT, FEATURE_WEIGHT = 45.0, 2.0
F0_SCALE_HZ = 100.0
"""About a voice's f0: the predictor's last layer begins with outputs of this size."""

START_LOG_MAGNITUDE = -3.0
"""Of every bin of the first spectra: the untrained vocoder is quiet."""

DEV_CROPS = 64
BETAS = (0.8, 0.99)
CLIP = 1000.0
"""Only gradients that are out of all bounds are cut."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the vocoder is trained; times are shares of the whole.

    Attributes:
        batch: Crops of a step.
        frames: Mel frames of a crop.
        peak: Highest learning rate, of vocoder and discriminators.
        width: Of the discriminators.
        adversarial_from: When the discriminators come in.
        own_f0: From when to when the source goes over from labelled to predicted f0.
        rough_from: When some mels begin to be blurred and noisy.
        rough: How many of them.
        compiled: Whether Triton fuses the kernels of the Snakes, which are a third of all.
    """

    batch: int = 32
    frames: int = 32
    peak: float = 4e-4
    width: int = 32
    adversarial_from: float = 0.12
    own_f0: tuple[float, float] = (0.3, 0.5)
    rough_from: float = 0.4
    rough: float = 0.3
    compiled: bool = False


RECIPE = Recipe()
WARM = Recipe(peak=3e-4, adversarial_from=0.0, own_f0=(-1.0, 0.0), rough_from=0.0)
"""For a vocoder that speaks already."""


@dataclass(frozen=True, slots=True)
class _Crops:
    """A batch: mel and f0 with a margin on either side, samples without.

    Attributes:
        mel: float32 [B, margin + T + margin, bins], as the vocoder takes it.
        f0: float32 [B, margin + T + margin], Hz.
        samples: float32 [B, T * samples_per_frame].
    """

    mel: Tensor
    f0: Tensor
    samples: Tensor


class HiftStage:
    """The vocoder with all that its steps need.

    Raises:
        InputError: a split is shorter than a crop.
    """

    name = "hift"

    def __init__(self, speech: Speech, settings: Settings, config: HiftConfig, recipe: Recipe):
        torch.manual_seed(settings.seed)
        # Shapes are fixed: the fastest convolutions are looked for once.
        torch.backends.cudnn.benchmark = settings.device.type == "cuda"
        self._speech, self._config, self._recipe = speech, config, recipe
        self.peak = recipe.peak
        self._device = device = settings.device
        self._margin = receptive_field(config).f0
        self.model = initialise(HiFT(config)).to(device)
        self.critics = Discriminators(recipe.width).to(device)
        self.average = Average(self.model)
        if recipe.compiled:
            for snake in filter(lambda module: isinstance(module, Snake), self.model.modules()):
                snake.compile(dynamic=False)
        self._mel_loss, self._mel = MelLoss().to(device), LogMel().to(device)
        samples = recipe.frames * config.samples_per_frame
        self._real = torch.zeros(recipe.batch, samples, device=device)
        self._sound = torch.zeros_like(self._real)
        self._own_f0, self._rough = torch.zeros(2, device=device)
        self._dev = self._dev_crops()
        self._dev_source = self._noise(DEV_CROPS), torch.rand(DEV_CROPS, device=device)
        # Looked up once: it waits for the device, which a step must not.
        self._train = self._stretch("train")
        self.steps = self._make_steps()
        self._active = ["alone"]

    def _make_steps(self) -> dict[str, Step]:
        parameters = list(self.model.parameters())
        alone = Step(parameters, self._reconstruct, betas=BETAS, clip=CLIP)
        fooling = Step(parameters, self._fool, betas=BETAS, clip=CLIP)
        # One optimiser goes on, whatever the loss.
        fooling.optimizer, fooling.rate = alone.optimizer, alone.rate
        for step in (alone, fooling):
            step.after.append(self.average.update)
        critics = Step(list(self.critics.parameters()), self._criticise, betas=BETAS, clip=CLIP)
        return {"alone": alone, "fooling": fooling, "critics": critics}

    def prepare(self) -> None:
        """Capture all steps while the learning rate is zero, so that what fails does so now."""
        for step in self.steps.values():
            step.run(0.0)

    def run(self, share: float, rate: float) -> None:
        """Take one step, when this share of the time has passed."""
        recipe = self._recipe
        low, high = recipe.own_f0
        self._own_f0.fill_(min(1.0, max(0.0, (share - low) / (high - low))))
        self._rough.fill_(recipe.rough if share >= recipe.rough_from else 0.0)
        alone = share < recipe.adversarial_from
        self._active = ["alone"] if alone else ["fooling", "critics"]
        for name in self._active:
            self.steps[name].run(rate)

    def figures(self) -> dict[str, float]:
        """Running means of what the steps say."""
        return {
            f"{name}_norm" if figure == "norm" else figure: float(value)
            for name in self._active
            for figure, value in self.steps[name].figures.items()
        }

    def look(self) -> dict[str, float]:
        """Of held-out speech, with predicted f0: log-mel L1, f0 error in Hz, right voicing."""
        model, crops = cast(HiFT, self.average.model), self._dev
        with torch.no_grad():
            predicted = model.f0_predictor(crops.mel)
            sound = self._speak(model, crops.mel, predicted, *self._dev_source)
            mel = (self._mel(sound) - self._mel(crops.samples)).abs().mean()
            heard, voiced = predicted > self._config.voiced_threshold_hz, crops.f0 > 0
            both = heard & voiced
            error = ((predicted - crops.f0).abs() * both).sum() / both.sum().clamp(min=1)
        right = (heard == voiced).float().mean()
        return {"dev_mel": float(mel), "dev_f0_hz": float(error), "dev_vuv": float(right)}

    def weights(self) -> dict[str, Tensor]:
        """As `token2wav.weights` names them."""
        average = self.average.model.state_dict()
        return {f"hift.{name}": tensor for name, tensor in average.items()}

    def state(self) -> dict[str, Any]:
        """What `load_state` goes on from."""
        return {
            "model": self.model.state_dict(),
            "critics": self.critics.state_dict(),
            "average": self.average.model.state_dict(),
            "optimizers": [step.state() for step in self._owners()],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, before `prepare`."""
        self.model.load_state_dict(state["model"])
        self.critics.load_state_dict(state["critics"])
        self.average.model.load_state_dict(state["average"])
        for step, saved in zip(self._owners(), state["optimizers"], strict=True):
            step.load_state(saved)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Vocoder and average; the discriminators begin anew."""
        weights = {name.removeprefix("hift."): tensor for name, tensor in weights.items()}
        for model in (self.model, self.average.model):
            model.load_state_dict(weights)

    def _owners(self) -> list[Step]:
        return [self.steps["alone"], self.steps["critics"]]

    def _reconstruct(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the vocoder alone."""
        _, total, figures = self._render(self._draw())
        return total, figures

    def _fool(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the vocoder against the discriminators."""
        crops = self._draw()
        sound, total, figures = self._render(crops)
        self.critics.requires_grad_(False)
        with half(self._device):
            with torch.no_grad():
                real = self.critics(crops.samples)
            heard = self.critics(sound)
        figures["adversarial"] = generator_loss(heard)
        figures["features"] = feature_loss(real, heard)
        total = total + figures["adversarial"] + FEATURE_WEIGHT * figures["features"]
        return total, figures

    def _criticise(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the discriminators, on what the vocoder's last step made."""
        self.critics.requires_grad_(True)
        with half(self._device):
            real, heard = self.critics(self._real), self.critics(self._sound)
        loss = discriminator_loss(real, heard)
        return loss, {"critics": loss}

    def _render(self, crops: _Crops) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Samples, what is wrong with them whoever listens, and figures."""
        predicted = self.model.f0_predictor(crops.mel)
        own = torch.rand(len(predicted), 1, device=self._device) < self._own_f0
        f0 = torch.where(own, predicted.detach(), crops.f0)
        phase = torch.rand(len(f0), device=self._device)
        sound = self._speak(self.model, crops.mel, f0, self._noise(len(f0)), phase)
        self._sound.copy_(sound.detach())
        self._real.copy_(crops.samples)
        # The median that L1 finds is 0 wherever a frame is more likely unvoiced than voiced.
        f0_error = (predicted - crops.f0).abs().mean()
        mel_error = self._mel_loss(sound, crops.samples)
        total = MEL_WEIGHT * mel_error + f0_error / F0_SCALE_HZ
        return sound, total, {"mel": mel_error, "f0_hz": f0_error}

    def _speak(
        self, model: HiFT, mel: Tensor, f0_hz: Tensor, noise: Tensor, phase: Tensor
    ) -> Tensor:
        """Samples of the frames between the margins."""
        inner = slice(self._margin, -self._margin)
        # One frame more: the phase leans on it.
        f0_hz = f0_hz[:, self._margin : 1 - self._margin]
        source = excite(self._config, model.m_source["l_linear"], f0_hz, noise, phase)
        return model.decode(mel[:, inner], source[:, : -self._config.samples_per_frame])

    def _noise(self, count: int) -> Tensor:
        shape = (count, self._recipe.frames + 1, self._config.samples_per_frame)
        return torch.randn(shape, device=self._device)

    def _draw(self) -> _Crops:
        """Random crops, some of them rough."""
        size = self._recipe.frames + 2 * self._margin
        crops = self._crops(windows(*self._train, size, self._recipe.batch, 1, self._device))
        return _Crops(roughened(crops.mel, self._rough), crops.f0, crops.samples)

    def _crops(self, frames: Tensor) -> _Crops:
        speech, per_frame = self._speech, self._config.samples_per_frame
        inner = frames[:, self._margin : -self._margin, None]
        places = inner * per_frame + torch.arange(per_frame, device=self._device)
        samples = speech.audio[places.flatten(1)].float() / 32768
        return _Crops(normal(speech.mel[frames]), speech.f0[frames].float(), samples)

    def _dev_crops(self) -> _Crops:
        """The same ones each time, spread over the split."""
        low, high = self._stretch("dev")
        size = self._recipe.frames + 2 * self._margin
        starts = torch.linspace(low, high - size, DEV_CROPS, device=self._device).long()
        return self._crops(starts[:, None] + torch.arange(size, device=self._device))

    def _stretch(self, split: str) -> tuple[int, int]:
        low, high = self._speech.frames(split)
        if high - low < (size := self._recipe.frames + 2 * self._margin):
            raise InputError(
                f"split {split!r} has {high - low} frames of speech, expected at least {size}; "
                "make more with `duologue train speech`"
            )
        return low, high


def roughened(mel: Tensor, share: Tensor) -> Tensor:
    """A share of mels [B, T, bins], by chance, blurred over bins and frames and with noise."""
    padded = F.pad(mel, (1, 1, 1, 1), mode="replicate")
    # Twice the mean of two: 1/4, 1/2, 1/4.
    blurred = F.avg_pool2d(F.avg_pool2d(padded, 2, 1), 2, 1)
    blur, level, chosen = torch.rand(3, len(mel), 1, 1, device=mel.device)
    # In units of the normalised mel: 0.1 to 0.3 nepers.
    noise = torch.randn_like(mel) * (0.04 + 0.07 * level)
    return torch.where(chosen < share, torch.lerp(mel, blurred, blur) + noise, mel)


def initialise(hift: HiFT) -> HiFT:
    """Weights to begin with: outputs as large as inputs, quiet residuals, a quiet voice at 100 Hz.

    Weight norm is folded in this layout, so the scale of weights is all that there is.
    """
    with torch.no_grad():
        for name, module in hift.named_modules():
            if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
                transposed = isinstance(module, nn.ConvTranspose1d)
                fan_in = module.in_channels * prod(module.kernel_size)
                if transposed:
                    fan_in /= prod(module.stride)
                gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
                module.weight.normal_(0, gain * fan_in**-0.5)
                module.get_parameter("bias").zero_()
        hift.conv_post.get_parameter("bias")[: hift.conv_post.out_channels // 2] = (
            START_LOG_MAGNITUDE
        )
        hift.get_parameter("m_source.l_linear.weight").fill_(0.5)
        hift.get_parameter("m_source.l_linear.bias").zero_()
        # The layout has no scale behind this layer.
        hift.f0_predictor.classifier.weight.mul_(F0_SCALE_HZ)
        hift.f0_predictor.classifier.bias.fill_(F0_SCALE_HZ)
    return hift


_GAINS = {
    "f0_predictor": 1.4,
    "ups": 1.4,
    # The source is quiet.
    "source_downs": 3.0,
    "convs2": 0.3,
    "conv_post": 0.5,
}


def train_hift(
    speech: Speech,
    settings: Settings,
    config: HiftConfig = EMBEDDED.hift,
    recipe: Recipe | None = None,
) -> Path:
    """Train; WORK/hift.safetensors."""
    recipe = recipe or (RECIPE if settings.start is None else WARM)
    return train(HiftStage(speech, settings, config, recipe), settings)
