"""HiFT, the vocoder, in PyTorch: log-mel to f0, and log-mel with a source signal to samples.

HiFTNet (Li et al. 2023, arXiv 2309.09493) as CosyVoice 2 and Step-Audio 2 have it: a neural source
filter with an ISTFT head. Parameter names are those of the public `hift.pt`, its weight norm
folded. What runs between the two graphs, the source signal, is in `source.py`.
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.token2wav.config import HiftConfig
from duologue.token2wav.source import SourceWeights

MAX_MAGNITUDE = 100.0
"""No bin of the spectrum that becomes sound is louder."""


class _Float32(nn.Module):
    """Keeps its 32 bits when the model around it is cast to half precision."""

    def _apply(self, fn, recurse=True):
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


class Snake(_Float32):
    """x + sin(alpha x)^2 / alpha for each channel (Ziyin et al. 2020, arXiv 2006.08195)."""

    def __init__(self, channels: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, n] to the same; the sine is taken in float32."""
        alpha = self.alpha[:, None]
        wide = x.float()
        return (wide + torch.sin(wide * alpha).square() / (alpha + 1e-9)).to(x.dtype)


class ResBlock(nn.Module):
    """Pairs of a dilated and a plain convolution, each pair with its own residual."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]):
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            padding = (kernel - 1) * dilation // 2
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=padding)

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, n] to the same."""
        layers = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in layers:
            x = x + conv2(snake2(conv1(snake1(x))))
        return x


class F0Predictor(_Float32):
    """Log-mel to f0. In float32 always: the phase of the source is its running sum."""

    def __init__(self, config: HiftConfig):
        super().__init__()
        layers, channels = [], config.mel_bins
        for _ in range(5):
            layers += [nn.Conv1d(channels, config.f0_channels, 3, padding=1), nn.ELU()]
            channels = config.f0_channels
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """[B, T, mel_bins] to Hz, [B, T]."""
        hidden = self.condnet(mel.float().transpose(1, 2))
        return self.classifier(hidden.transpose(1, 2)).squeeze(-1).abs()


class Stft(_Float32):
    """Centred STFT and its inverse as convolutions with fixed bases, periodic Hann window.

    Equals torch.stft and torch.istft, but has no complex numbers and does not check the window on
    the host, so it can be exported and captured. Spectra are [B, n_fft + 2, frames]: real parts,
    then imaginary parts.
    """

    def __init__(self, n_fft: int, hop: int):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        sample = torch.arange(n_fft, dtype=torch.float64)
        bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64)
        angle = 2 * torch.pi / n_fft * bins[:, None] * sample
        waves = torch.cat([angle.cos(), -angle.sin()])[:, None]
        window = torch.hann_window(n_fft, dtype=torch.float64)
        # Each bin between the first and the last stands for its mirror image too.
        weight = torch.full_like(bins, 2 / n_fft)
        weight[[0, -1]] = 1 / n_fft
        self.analysis: Tensor
        self.synthesis: Tensor
        self.envelope: Tensor
        for name, basis in {
            "analysis": waves * window,
            "synthesis": waves * window * weight.repeat(2)[:, None, None],
            "envelope": window.square()[None, None],
        }.items():
            self.register_buffer(name, basis.float(), persistent=False)

    def transform(self, samples: Tensor) -> Tensor:
        """Samples [B, n] to a spectrum of n / hop + 1 frames."""
        half = self.n_fft // 2
        padded = F.pad(samples.float()[:, None], (half, half), mode="reflect")
        return F.conv1d(padded, self.analysis, stride=self.hop)

    def inverse(self, spectrum: Tensor) -> Tensor:
        """A spectrum of m frames to samples [B, (m - 1) * hop]."""
        # Fewer windows overlap at either end.
        envelope = self._overlap_add(torch.ones_like(spectrum[:1, :1]), self.envelope)
        return (self._overlap_add(spectrum, self.synthesis) / envelope).squeeze(1)

    def _overlap_add(self, frames: Tensor, basis: Tensor) -> Tensor:
        return F.conv_transpose1d(frames, basis, stride=self.hop, padding=self.n_fft // 2)


class HiFT(nn.Module):
    """The whole vocoder. Cast to half precision, f0, sines, exponents and ISTFT stay in float32."""

    def __init__(self, config: HiftConfig):
        super().__init__()
        self.config = config
        n_fft = config.istft_n_fft
        rates = config.upsample_rates
        # Channels before the first and behind each stage.
        channels = [config.base_channels >> stage for stage in range(len(rates) + 1)]
        self.f0_predictor = F0Predictor(config)
        self.m_source = nn.ModuleDict({"l_linear": nn.Linear(config.nb_harmonics + 1, 1)})
        self.stft = Stft(n_fft, config.istft_hop)
        self.conv_pre = nn.Conv1d(config.mel_bins, channels[0], 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(before, behind, kernel, rate, padding=(kernel - rate) // 2)
            for before, behind, kernel, rate in zip(
                channels[:-1], channels[1:], config.upsample_kernel_sizes, rates, strict=True
            )
        )
        # The spectrum of the source is brought down to the rate of each stage.
        strides = [prod(rates[stage + 1 :]) for stage in range(len(rates))]
        self.source_downs = nn.ModuleList(
            nn.Conv1d(n_fft + 2, width, 2 * stride if stride > 1 else 1, stride, stride // 2)
            for width, stride in zip(channels[1:], strides, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations)
            for width, kernel, dilations in zip(
                channels[1:],
                config.source_resblock_kernel_sizes,
                config.source_resblock_dilation_sizes,
                strict=True,
            )
        )
        kinds = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
        self.resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations)
            for width in channels[1:]
            for kernel, dilations in kinds
        )
        self.conv_post = nn.Conv1d(channels[-1], n_fft + 2, 7, padding=3)

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Log-mel [B, T, mel_bins] and source [B, samples_per_frame * T] to samples like source."""
        dtype = self.conv_pre.weight.dtype
        spectrum = self.stft.transform(source).to(dtype)
        x = self.conv_pre(mel.transpose(1, 2).to(dtype))
        stages = len(self.ups)
        for stage in range(stages):
            x = self.ups[stage](F.leaky_relu(x, self.config.lrelu_slope))
            if stage == stages - 1:
                # A centred STFT has one frame more; the reference mirrors one at the left.
                x = torch.cat([x[..., 1:2], x], -1)
            x = x + self.source_resblocks[stage](self.source_downs[stage](spectrum))
            x = self._fuse(stage, x)
        # 0.01, unlike the slope of the stages.
        return self._sound(self.conv_post(F.leaky_relu(x, 0.01)).float())

    def _fuse(self, stage: int, x: Tensor) -> Tensor:
        """The mean of the residual blocks of a stage, which differ in kernel."""
        kinds = len(self.resblocks) // len(self.ups)
        blocks = self.resblocks[stage * kinds : (stage + 1) * kinds]
        total = blocks[0](x)
        for block in blocks[1:]:
            total = total + block(x)
        return total / kinds

    def _sound(self, x: Tensor) -> Tensor:
        """Log magnitude and angle, [B, n_fft + 2, m], to samples [B, (m - 1) * hop]."""
        magnitude, phase = x.chunk(2, dim=1)
        magnitude, phase = magnitude.exp().clamp(max=MAX_MAGNITUDE), phase.sin()
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1)
        limit = self.config.audio_limit
        return self.stft.inverse(spectrum).clamp(-limit, limit)

    def source_weights(self) -> SourceWeights:
        """What the source signal needs of the checkpoint."""
        weight = self.get_parameter("m_source.l_linear.weight").detach()
        bias = self.get_parameter("m_source.l_linear.bias").detach()
        return SourceWeights(weight.float().cpu().numpy().ravel(), float(bias))


class F0Graph(nn.Module):
    """The graph `f0`: mel [B, T, mel_bins] -> f0_hz [B, T]."""

    def __init__(self, hift: HiFT):
        super().__init__()
        self.f0_predictor = hift.f0_predictor

    def forward(self, mel: Tensor) -> Tensor:
        """Hz for each frame, never negative; below `voiced_threshold_hz` means unvoiced."""
        return self.f0_predictor(mel)


class HiftGraph(nn.Module):
    """The graph `hift`: mel [B, T, mel_bins], source [B, n] -> wav [B, n] of T frames."""

    def __init__(self, hift: HiFT):
        super().__init__()
        self.hift = hift

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        """float32 samples within `audio_limit`."""
        return self.hift.decode(mel, source)
