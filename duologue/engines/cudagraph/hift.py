"""HiFT on kernels: mel of a batch of windows to samples."""

# A kernel is launched by an index, which its decorator gives it where triton is installed.
# pyright: reportIndexIssue=false

from math import prod
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from duologue.engines.cudagraph import vocoder_kernels as kernels
from duologue.engines.cudagraph.capture import Lanes
from duologue.engines.cudagraph.vocoder_weights import Conv, HiftWeights, Pair, Stage
from duologue.token2wav import noise

LARGE_BATCH = 16384
"""Rows of activations from which on tiles are large."""


class Tile(NamedTuple):
    """Rows and most columns of one program of a convolution, and its warps."""

    rows: int
    columns: int
    warps: int


SMALL, LARGE = Tile(64, 64, 4), Tile(128, 128, 8)


class Signal(NamedTuple):
    """Activations of one rate.

    Attributes:
        data: [batch, time, channels], or three of them [3, batch, time, channels] to be averaged.
        rate: A row of n frames has `rate * n + plus` real entries.
        plus: See rate.
    """

    data: Tensor
    rate: int
    plus: int = 0


class Hift:
    """The network over windows of up to so many frames.

    Args:
        weights: Packed.
        meta: int32 [batch, columns] on the device, see `vocoder_kernels`.
        frames: Frames of the longest window.
        lanes: Four streams, or none.
    """

    def __init__(self, weights: HiftWeights, meta: Tensor, frames: int, lanes: Lanes):
        self._weights, self._meta, self._frames, self._lanes = weights, meta, frames, lanes
        self._config, self._batch = weights.config, meta.shape[0]
        self._alive: list[Tensor] = []

    def __call__(self, mel: Tensor, phase: Tensor, frames_out: int) -> Tensor:
        """Samples float32 [batch, samples_per_frame * frames_out], from the frame SKIP on.

        Args:
            mel: float32 [batch, time, mel_bins], from the first frame that f0 looks at on.
            phase: Of the source, float64 [slots]; brought forward.
            frames_out: Frames to give out.
        """
        config, weights = self._config, self._weights
        with self._lanes.lane(3):
            x = self._conv(Signal(mel, 1), weights.pre, shift=True)
        spectrum = self._spectrum(self._source(mel, phase))
        self._lanes.join(3)
        rates = config.upsample_rates
        fused = [self._down(spectrum, index, stage) for index, stage in enumerate(weights.stages)]
        x, rate = Signal(x, 1), 1
        for index, stage in enumerate(weights.stages):
            rate *= rates[index]
            x = self._stage(x, stage, fused[index], rate, last=index == len(rates) - 1)
        log = self._conv(x, weights.post, slope=0.01, dtype=torch.float32)
        out = self._sound(log, frames_out)
        self._alive.clear()
        return out

    def _source(self, mel: Tensor, phase: Tensor) -> Tensor:
        """The source signal, float32 [batch, frames, samples_per_frame]."""
        config, weights, size = self._config, self._weights, self._frames
        x = mel
        for layer in weights.f0:
            x = self._conv(Signal(x, 1), layer, mel=True, elu=True, dtype=torch.float32)
        x = self._conv(Signal(x, 1), weights.f0_out, mel=True, dtype=torch.float32)
        f0, cycles = (self._empty((self._batch, size), torch.float32) for _ in range(2))
        kernels.phase_kernel[(self._batch,)](
            x, f0, cycles, phase, self._meta, size, x.shape[1], float(config.sample_rate_hz),
            float(config.samples_per_frame), N=x.shape[2], COLS=kernels.COLUMNS,
            BT=triton.next_power_of_2(size), num_warps=4,
        )  # fmt: skip
        samples = config.samples_per_frame
        source = self._empty((self._batch, size, samples), torch.float32)
        kernels.source_kernel[(size, self._batch)](
            f0, cycles, weights.harmonics, source, self._meta, size,
            float(config.sample_rate_hz), weights.source_bias, weights.source_gain,
            config.nsf_alpha, config.nsf_sigma, config.voiced_threshold_hz,
            SAMPLES=samples, H=config.nb_harmonics + 1, STREAM=noise.SOURCE,
            COLS=kernels.COLUMNS, BLOCKS=triton.next_power_of_2(-(-samples // 4)), num_warps=4,
        )  # fmt: skip
        return source

    def _spectrum(self, source: Tensor) -> Signal:
        config, basis = self._config, self._weights.analysis
        rate = config.samples_per_frame // config.istft_hop
        count, channels = rate * self._frames + 1, basis.shape[1]
        out = self._empty((self._batch, count, channels), self._weights.pre.weight.dtype)
        kernels.stft_kernel[(triton.cdiv(count, 64), self._batch)](
            source, basis, out, self._meta, self._frames, count,
            SAMPLES=config.samples_per_frame, HOP=config.istft_hop, SIZE=config.istft_n_fft,
            PAD=channels, COLS=kernels.COLUMNS, BM=64, num_warps=4,
        )  # fmt: skip
        return Signal(out, rate, 1)

    def _down(self, spectrum: Signal, index: int, stage: Stage) -> tuple[Tensor, Tensor]:
        """The source at a stage's rate, and the Snake of it that its residual block begins with."""
        rate = prod(self._config.upsample_rates[: index + 1])
        count = rate * self._frames + (index == len(self._weights.stages) - 1)
        first = stage.source[0].snake1[None]
        data, snakes = self._fork(spectrum, stage.down, first, count=count)
        return data, snakes[0]

    def _stage(
        self, x: Signal, stage: Stage, source: tuple[Tensor, Tensor], rate: int, *, last: bool
    ) -> Signal:
        """Upsample, add the source, and leave three residual blocks to be averaged."""
        plus, width = int(last), stage.up.out
        count = rate * self._frames + plus
        with self._lanes.lane(0):
            up = self._empty((self._batch, count, width), self._weights.pre.weight.dtype)
            self._conv(x, stage.up, slope=self._config.lrelu_slope, out=up[:, plus:])
            if last:
                # A centred STFT has one frame more; the reference mirrors one at the left.
                up[:, 0].copy_(up[:, 2])
        begins = torch.stack([block[0].snake1 for block in stage.blocks])
        self._alive.append(begins)
        data, snake = source
        for pair, following in zip(stage.source[:-1], stage.source[1:], strict=True):
            data, snake = self._pair(pair, data, snake, following.snake1, rate, plus)
        middle = self._middle(stage.source[-1], snake, rate, plus)
        self._lanes.join(0)
        fused, snakes = self._fork(middle, stage.source[-1].conv2, begins, residuals=(data, up))
        thirds = self._empty((len(stage.blocks), *fused.shape), fused.dtype)
        for index, block in enumerate(stage.blocks):
            with self._lanes.lane(index):
                self._block(block, fused, snakes[index], thirds[index], (rate, plus))
        self._lanes.join(*range(len(stage.blocks)))
        return Signal(thirds, rate, plus)

    def _block(
        self, block: list[Pair], data: Tensor, snake: Tensor, out: Tensor, rate: tuple[int, int]
    ) -> None:
        """A residual block of data, whose first Snake is taken already."""
        for pair, following in zip(block[:-1], block[1:], strict=True):
            data, snake = self._pair(pair, data, snake, following.snake1, *rate)
        middle = self._middle(block[-1], snake, *rate)
        self._conv(middle, block[-1].conv2, residuals=(data,), out=out)

    def _pair(
        self, pair: Pair, data: Tensor, snake: Tensor, following: Tensor, rate: int, plus: int
    ) -> tuple[Tensor, Tensor]:
        middle = self._middle(pair, snake, rate, plus)
        data, snakes = self._fork(middle, pair.conv2, following[None], residuals=(data,))
        return data, snakes[0]

    def _middle(self, pair: Pair, snake: Tensor, rate: int, plus: int) -> Signal:
        """Between the convolutions of a pair; only the Snake of it is needed."""
        snakes = self._empty((1, *snake.shape), snake.dtype)
        self._conv(Signal(snake, rate, plus), pair.conv1, out=snakes[0], snake=pair.snake2[None])
        return Signal(snakes[0], rate, plus)

    def _fork(
        self, x: Signal, conv: Conv, snake: Tensor, *, count: int = 0,
        residuals: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """A convolution's output, and Snakes of it for those that follow."""
        shape = (self._batch, count or x.data.shape[-2], conv.out)
        data = self._empty(shape, x.data.dtype)
        snakes = self._empty((len(snake), *shape), x.data.dtype)
        self._conv(x, conv, out=data, snakes=snakes, snake=snake, residuals=residuals)
        return data, snakes

    def _conv(
        self, x: Signal, conv: Conv, *, out: Tensor | None = None, snakes: Tensor | None = None,
        snake: Tensor | None = None, residuals: tuple[Tensor, ...] = (), slope: float = 0.0,
        elu: bool = False, shift: bool = False, mel: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        """`conv_kernel`; with `snake` but without `snakes` only the Snake is written, to `out`."""
        batch, time, width = x.data.shape[-3:]
        columns = conv.weight.shape[1]
        if out is None:
            time = self._frames if shift else time
            out = self._empty((batch, time, columns), dtype or conv.weight.dtype)
        count = out.shape[1] * out.shape[2] // columns
        tile = LARGE if batch * count >= LARGE_BATCH else SMALL
        block = min(tile.columns, columns & -columns)
        grid = (triton.cdiv(columns, block), triton.cdiv(batch * count, tile.rows))
        first, second = (*residuals, None, None)[:2]
        kernels.conv_kernel[grid](
            x.data, conv.weight, conv.bias, out, first, second, out if snakes is None else snakes,
            snake, self._meta, batch * count, count, x.data.stride(-3), x.data.stride(0),
            out.stride(0), 0 if snakes is None else snakes.stride(0),
            conv.taps, conv.pad, conv.dilation, conv.stride, x.rate, x.plus,
            K=width, N=columns, THIRDS=x.data.dim() == 4, SLOPE=slope, ELU=elu,
            SHIFT=shift, MEL=mel, STORE=snake is None or snakes is not None,
            RESIDUALS=len(residuals),
            ACTS=0 if snake is None else len(snake), COLS=kernels.COLUMNS,
            PRECISION="tf32x3" if conv.weight.dtype == torch.float32 else "tf32",
            BM=tile.rows, BN=block, BK=min(64, width & -width), num_warps=tile.warps,
            num_stages=3,
        )  # fmt: skip
        return out

    def _sound(self, log: Tensor, frames_out: int) -> Tensor:
        config, weights = self._config, self._weights
        size, count = config.istft_n_fft, log.shape[1]
        pieces = self._empty((self._batch, count, size), torch.float32)
        kernels.spectrum_kernel[(triton.cdiv(self._batch * count, 64),)](
            log, weights.cosines, weights.sines, pieces, self._batch * count, N=log.shape[2],
            BINS=size // 2 + 1, SIZE=size, BM=64, num_warps=4,
        )  # fmt: skip
        samples = config.samples_per_frame * frames_out
        out = torch.empty(self._batch, samples, dtype=torch.float32, device=log.device)
        kernels.overlap_kernel[(triton.cdiv(samples, 1024), self._batch)](
            pieces, weights.window, out, self._meta, count, samples, config.audio_limit,
            SAMPLES=config.samples_per_frame, HOP=config.istft_hop, SIZE=size,
            COLS=kernels.COLUMNS, BN=1024, num_warps=4,
        )  # fmt: skip
        return out

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=self._meta.device)
        if self._lanes.parallel:
            self._alive.append(x)
        return x
