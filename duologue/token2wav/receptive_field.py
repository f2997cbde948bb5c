"""How far HiFT looks to either side of a frame, worked out from its sizes."""

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from duologue.token2wav.config import HiftConfig


class _Span(NamedTuple):
    """Positions that one layer reads, both ends included."""

    low: int
    high: int

    def conv(self, kernel: int, stride: int = 1, padding: int = 0) -> "_Span":
        """What a convolution reads to write this span."""
        low, high = self.low * stride - padding, self.high * stride - padding
        return _Span(low, high + kernel - 1)

    def transposed(self, kernel: int, stride: int, padding: int) -> "_Span":
        """What a transposed convolution reads to write this span."""
        low = ceil((self.low + padding - kernel + 1) / stride)
        return _Span(low, (self.high + padding) // stride)

    def resblock(self, kernel: int, dilations: Sequence[int]) -> "_Span":
        """What a residual block reads to write this span."""
        reach = sum((kernel - 1) // 2 * (dilation + 1) for dilation in dilations)
        return _Span(self.low - reach, self.high + reach)


class ReceptiveField(NamedTuple):
    """Frames on either side that can change a frame.

    Attributes:
        mel: Of mel, for samples.
        source: Of source, for samples; the frame after them that its phase leans on included.
        f0: Of mel, for f0.
    """

    mel: int
    source: int
    f0: int


def receptive_field(config: HiftConfig) -> ReceptiveField:
    """Follow one frame of samples back through HiFT, layer by layer."""
    samples = config.samples_per_frame
    stft = (config.istft_n_fft, config.istft_hop, config.istft_n_fft // 2)
    span = _Span(0, samples - 1).transposed(*stft).conv(7, padding=3)
    kinds = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
    reach = 0
    for stage in reversed(range(len(config.upsample_rates))):
        blocks = [span.resblock(*kind) for kind in kinds]
        span = _Span(min(low for low, _ in blocks), max(high for _, high in blocks))
        stride = prod(config.upsample_rates[stage + 1 :])
        source = (
            span.resblock(
                config.source_resblock_kernel_sizes[stage],
                config.source_resblock_dilation_sizes[stage],
            )
            .conv(2 * stride if stride > 1 else 1, stride, stride // 2)
            .conv(*stft)
        )
        reach = max(reach, -source.low, source.high - samples + 1)
        if stride == 1:
            # One mirrored frame was put in front.
            span = _Span(span.low - 1, span.high - 1)
        rate, kernel = config.upsample_rates[stage], config.upsample_kernel_sizes[stage]
        span = span.transposed(kernel, rate, (kernel - rate) // 2)
    mel = span.conv(7, padding=3)
    # Behind the centre of a frame the phase leans on the next one. f0: five layers of kernel 3.
    return ReceptiveField(max(-mel.low, mel.high), ceil((reach + samples // 2) / samples), 5)
