"""What tells real speech from the vocoder's, and the losses between the two.

Multi-period (Kong et al. 2020, HiFi-GAN, arXiv 2010.05646) and multi-resolution spectrogram
discriminators (Jang et al. 2021, arXiv 2106.07889), on complex spectra (Défossez et al. 2022,
arXiv 2210.13438), narrow, since one voice is little to learn; least squares (Mao et al. 2017).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from duologue.training.spectral import Spectrum

PERIODS = (2, 3, 5, 7, 11)
WINDOWS = (512, 1024, 2048)
SLOPE = 0.1

Features = list[Tensor]
"""Of one discriminator, layer by layer; the last one is its verdict."""


class _Stack(nn.Module):
    """Convolutions with leaky ReLUs, whose outputs are all looked at."""

    def __init__(self, layers: Sequence[nn.Conv2d]):
        super().__init__()
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)

    def forward(self, x: Tensor) -> Features:
        """[B, channels, height, width] to the features."""
        features = []
        # Tensor cores want channels last.
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x), SLOPE)
            features.append(x)
        return [*features, self.layers[-1](x)]


class PeriodDiscriminator(nn.Module):
    """Looks at every `period`-th sample."""

    def __init__(self, period: int, width: int):
        super().__init__()
        self._period = period
        channels = (1, width, 2 * width, 4 * width, 8 * width)
        self.stack = _Stack(
            [
                *(
                    nn.Conv2d(fewer, more, (5, 1), (3, 1), (2, 0))
                    for fewer, more in zip(channels[:-1], channels[1:], strict=True)
                ),
                nn.Conv2d(channels[-1], channels[-1], (5, 1), padding=(2, 0)),
                nn.Conv2d(channels[-1], 1, (3, 1), padding=(1, 0)),
            ]
        )

    def forward(self, samples: Tensor) -> Features:
        """[B, n] to the features."""
        missing = -samples.shape[1] % self._period
        padded = F.pad(samples[:, None], (0, missing), mode="reflect")
        return self.stack(padded.unflatten(2, (-1, self._period)))


class SpectrumDiscriminator(nn.Module):
    """Looks at the complex spectrum at one resolution."""

    def __init__(self, n_fft: int, width: int):
        super().__init__()
        self.spectrum = Spectrum(n_fft, n_fft // 4)
        self._scale = n_fft**-0.5
        self.stack = _Stack(
            [
                nn.Conv2d(2, width, (3, 9), (1, 2), (1, 4)),
                *(nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)) for _ in range(3)),
                nn.Conv2d(width, width, (3, 3), padding=(1, 1)),
                nn.Conv2d(width, 1, (3, 3), padding=(1, 1)),
            ]
        )

    def forward(self, samples: Tensor) -> Features:
        """[B, n] to the features."""
        return self.stack(self.spectrum(samples).permute(0, 3, 1, 2) * self._scale)


class Discriminators(nn.Module):
    """All of them.

    Args:
        width: Channels of the first layers; multi-period ones grow to eight times as many.
    """

    def __init__(self, width: int = 32):
        super().__init__()
        self.members = nn.ModuleList(
            [
                *(PeriodDiscriminator(period, width) for period in PERIODS),
                *(SpectrumDiscriminator(n_fft, width) for n_fft in WINDOWS),
            ]
        )

    def forward(self, samples: Tensor) -> list[Features]:
        """[B, n], n at least 1024, to the features of each."""
        # Spectra are taken in float32, convolutions as autocast says.
        return [member(samples) for member in self.members]


def discriminator_loss(real: list[Features], sound: list[Features]) -> Tensor:
    """Verdicts are to be 1 on real speech and 0 on the vocoder's."""
    return _total([(1 - r[-1].float()).square().mean() for r in real]) + _total(
        [s[-1].float().square().mean() for s in sound]
    )


def generator_loss(sound: list[Features]) -> Tensor:
    """Verdicts on the vocoder's sound are to be 1."""
    return _total([(1 - s[-1].float()).square().mean() for s in sound])


def feature_loss(real: list[Features], sound: list[Features]) -> Tensor:
    """L1 between what the layers make of real speech and of the vocoder's."""
    return _total(
        [
            (r - s).abs().mean(dtype=torch.float32)
            for of_real, of_sound in zip(real, sound, strict=True)
            for r, s in zip(of_real[:-1], of_sound[:-1], strict=True)
        ]
    )


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum()
