"""The vocoder's weights as the kernels take them: channels padded, in half precision but for f0."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.engines.cudagraph.weights import Packer
from duologue.token2wav.hift import HiFT, ResBlock

CHANNELS = 16
"""Channels are padded with zeros to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution: weight [taps * in, out], bias float32 [out], and how it reads its input."""

    weight: Tensor
    bias: Tensor
    taps: int
    pad: int
    dilation: int = 1
    stride: int = 1
    out: int = 0


class Pair(NamedTuple):
    """Two convolutions of a residual block, and the parameters of the Snakes before each."""

    conv1: Conv
    conv2: Conv
    snake1: Tensor
    snake2: Tensor


class Stage(NamedTuple):
    """One stage: upsampling, the source's way down to it, residual blocks."""

    up: Conv
    down: Conv
    source: list[Pair]
    blocks: list[list[Pair]]


def _wide(channels: int) -> int:
    return -(-channels // CHANNELS) * CHANNELS


def _fill(x: Tensor, size: int, value: float = 0.0) -> Tensor:
    return F.pad(x, (0, size - x.shape[-1]), value=value)


class HiftWeights:
    """HiFT packed for the kernels.

    Args:
        hift: The weights.
        pack: Where and as what they go.
    """

    @torch.no_grad()
    def __init__(self, hift: HiFT, pack: Packer):
        self.config, self._pack = hift.config, pack
        self._exact = Packer(pack.full(torch.zeros(1)).device, torch.float32)
        layers = [layer for layer in hift.f0_predictor.condnet if isinstance(layer, nn.Conv1d)]
        self.f0 = [self._conv(layer, self._exact) for layer in layers]
        last = hift.f0_predictor.classifier
        self.f0_out = self._dense(last.weight[..., None], last.bias, self._exact)
        self.pre = self._conv(hift.conv_pre, pack)
        self.post = self._conv(hift.conv_post, pack)
        kinds = len(hift.config.resblock_kernel_sizes)
        self.stages = [
            Stage(
                self._transposed(hift.ups[stage]),  # pyright: ignore[reportArgumentType]
                self._conv(hift.source_downs[stage], pack),  # pyright: ignore[reportArgumentType]
                self._block(hift.source_resblocks[stage]),  # pyright: ignore[reportArgumentType]
                [
                    self._block(block)  # pyright: ignore[reportArgumentType]
                    for block in hift.resblocks[stage * kinds : (stage + 1) * kinds]
                ],
            )
            for stage in range(len(hift.ups))
        ]
        source = hift.source_weights()
        self.harmonics = pack.full(torch.from_numpy(source.harmonics))
        self.source_bias = source.bias
        self.source_gain = float(torch.from_numpy(source.harmonics).norm())
        size, bins = hift.config.istft_n_fft, hift.config.istft_n_fft // 2 + 1
        self.analysis = pack.full(_fill(hift.stft.analysis[:, 0].T, _wide(2 * bins)))
        synthesis = F.pad(hift.stft.synthesis[:, 0].unflatten(0, (2, bins)), (0, 0, 0, size - bins))
        self.cosines, self.sines = (pack.full(part) for part in synthesis)
        self.window = pack.full(torch.hann_window(size))

    def _conv(self, conv: nn.Conv1d, pack: Packer) -> Conv:
        assert conv.bias is not None
        made = self._dense(conv.weight, conv.bias, pack)
        pad = conv.padding[0]
        assert isinstance(pad, int)
        return replace(made, pad=pad, dilation=conv.dilation[0], stride=conv.stride[0])

    def _dense(self, weight: Tensor, bias: Tensor, pack: Packer) -> Conv:
        """From weight [out, in, taps]."""
        out, width, taps = weight.shape
        weight = weight.permute(2, 1, 0)
        weight = F.pad(weight, (0, _wide(out) - out, 0, _wide(width) - width)).flatten(0, 1)
        return Conv(pack.half(weight), pack.full(_fill(bias, _wide(out))), taps, 0, out=_wide(out))

    def _transposed(self, conv: nn.ConvTranspose1d) -> Conv:
        """As a convolution of three taps that gives all `rate` phases of an input frame at once."""
        rate, kernel = conv.stride[0], conv.kernel_size[0]
        pad, bias = conv.padding[0], conv.bias
        assert isinstance(pad, int) and bias is not None
        width, out = conv.weight.shape[:2]
        folded = torch.zeros(rate, _wide(out), width, 3, device=conv.weight.device)
        for phase in range(rate):
            for tap in range(kernel):
                offset, rest = divmod(phase + pad - tap, rate)
                if rest == 0:
                    folded[phase, :out, :, offset + 1] = conv.weight[:, :, tap].T
        made = self._dense(folded.flatten(0, 1), _fill(bias, _wide(out)).repeat(rate), self._pack)
        return replace(made, pad=1, out=_wide(out))

    def _block(self, block: ResBlock) -> list[Pair]:
        snakes = [
            [self._pack.full(_fill(snake.alpha, _wide(len(snake.alpha)), 1.0)) for snake in side]  # pyright: ignore[reportArgumentType]
            for side in (block.activations1, block.activations2)
        ]
        return [
            Pair(self._conv(conv1, self._pack), self._conv(conv2, self._pack), snake1, snake2)  # pyright: ignore[reportArgumentType]
            for conv1, conv2, snake1, snake2 in zip(
                block.convs1, block.convs2, *snakes, strict=True
            )
        ]
