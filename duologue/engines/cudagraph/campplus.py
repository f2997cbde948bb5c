"""CAM++ on kernels, one CUDA graph for each length bucket: filter banks to speaker embeddings.

A dense layer is one launch: what is left of the layer before it, and its own share up to the
values whose mean over the clip gates its output (see `campplus_kernels.layer_kernel`).
"""

# A kernel is launched by an index, which its decorator gives it where triton is installed.
# pyright: reportIndexIssue=false

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from duologue.engines.cudagraph import campplus_kernels as kernels
from duologue.engines.cudagraph.campplus_weights import (
    CampplusWeights,
    Conv2d,
    DenseBlock,
    GatedConv,
    Product,
)
from duologue.engines.cudagraph.capture import Captured, Upload, find_device
from duologue.engines.cudagraph.ops import Batch
from duologue.engines.cudagraph.weights import Packer
from duologue.engines.graph import Port, check_arrays
from duologue.engines.torch import to_array
from duologue.errors import EngineError
from duologue.token2wav.campplus import SEGMENT_FRAMES, CAMPPlus

SHORTEST = 3
"""Frames of the shortest clip: two rows, as one has no deviation."""

ROWS, COLUMNS, DEPTH = 16, 32, 64
"""Rows and columns of one program of a dense layer, and depth of a turn."""

HEAD_ROWS = 64
TILES = 32
"""Tiles whose sums are read at once."""


class CudaGraphCampplus:
    """CAM++ on an NVIDIA GPU.

    Args:
        campplus: The weights.
        inputs: The port of the filter banks [batch, frames, bins], their mean taken off.
        outputs: The port of the embeddings [batch, size].
        dtype: Of matrices and activations; sums are float32.
        device: "cuda" or "cuda:1".
        shapes: Length buckets and batch sizes that are kept captured; the one unused for longest
            goes.

    Raises:
        EngineError: there is no such device.
    """

    def __init__(
        self,
        campplus: CAMPPlus,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        *,
        dtype: torch.dtype = torch.float16,
        device: str = "cuda",
        shapes: int = 16,
    ):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._device, self._dtype, self._kept = find_device(device), dtype, shapes
        self._weights = CampplusWeights(campplus, Packer(self._device, dtype))
        self._programs: OrderedDict[tuple[int, int], _Program] = OrderedDict()

    @torch.inference_mode()
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            EngineError: the input is missing, has another type or shape than its port, or is
                shorter than 3 frames.
        """
        check_arrays(self.inputs, arrays)
        (fbank,) = arrays.values()
        if fbank.shape[1] < SHORTEST:
            raise EngineError(
                f"input {self.inputs[0].name}: expected at least {SHORTEST} frames, "
                f"got {fbank.shape[1]}"
            )
        result = self._program(*fbank.shape)(fbank)
        return {self.outputs[0].name: to_array(self.outputs[0], result)}

    def _program(self, batch: int, frames: int, bins: int) -> "_Program":
        key = batch, segments_of(frames)
        if key not in self._programs:
            if len(self._programs) >= self._kept:
                self._programs.popitem(last=False)
            self._programs[key] = _Program(self._weights, *key, bins, self._dtype, self._device)
        self._programs.move_to_end(key)
        return self._programs[key]


def segments_of(frames: int) -> int:
    """Segments of the length bucket of so many frames: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    segments = -(-frames // (2 * SEGMENT_FRAMES))
    power = 1 << (segments - 1).bit_length()
    return power * 3 // 4 if segments <= power * 3 // 4 else power


class _Program:
    """A batch of clips of up to so many segments: what goes in, and the graph behind it."""

    def __init__(
        self, weights: CampplusWeights, batch: int, segments: int, bins: int, dtype: torch.dtype,
        device: torch.device,
    ):  # fmt: skip
        frames = 2 * SEGMENT_FRAMES * segments
        self._fbank = Upload((batch, frames, bins), torch.float32, device)
        self._meta = Upload((batch, 1), torch.int32, device)
        self._meta.host.fill_(frames)
        self._meta.send()
        step = Batch(self._meta.device, frames // 2, 1, dtype)
        network = Campplus(weights, step)
        self._call = Captured(lambda: network(self._fbank.device), device)

    def __call__(self, fbank: np.ndarray) -> Tensor:
        """Embeddings of fbank [batch, frames, bins]."""
        for upload in (self._fbank, self._meta):
            upload.wait()
        frames = fbank.shape[1]
        self._fbank.host[:, :frames].copy_(torch.from_numpy(fbank))
        self._meta.host.fill_(frames)
        for upload in (self._fbank, self._meta):
            upload.send()
        return self._call()


class _Hidden(NamedTuple):
    """What a dense layer has made until its gate: values [batch, rows, width], sums of tiles."""

    data: Tensor
    sums: Tensor
    conv: GatedConv


class Campplus:
    """The network over clips of up to so many frames.

    Args:
        weights: Packed.
        batch: A session is a clip; its meta is the frames of the clip, and it has half as many
            rows as filter banks.
    """

    def __init__(self, weights: CampplusWeights, batch: Batch):
        self._weights, self._batch = weights, batch
        self._clips, self._rows = batch.sessions, batch.frames
        exact = batch.dtype == torch.float32
        self._precision = {"PRECISION": "tf32x3" if exact else "tf32"}
        self._options = {"PDL": batch.pdl, "num_warps": 4, **batch.options()}
        # Tiles of whole segments.
        self._parts = triton.cdiv(SEGMENT_FRAMES, ROWS)
        self._tiles = self._rows // SEGMENT_FRAMES * self._parts

    def __call__(self, fbank: Tensor) -> Tensor:
        """float32 [batch, 2 * rows, bins] to [batch, size]."""
        x = self._tdnn(self._head(fbank))
        blocks = self._weights.blocks
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            x = self._block(block, x, following)
        return self._embedding(x)

    def _head(self, fbank: Tensor) -> Tensor:
        """[batch, 2 * rows, bins / 8 * channels]."""
        weights, batch = self._weights, self._batch
        bins, channels = fbank.shape[2], weights.channels
        x = batch.empty(*fbank.shape, channels)
        grid = (triton.cdiv(2 * self._rows * bins, HEAD_ROWS), self._clips)
        kernels.first_conv_kernel[grid](
            fbank, weights.first.weight, weights.first.bias, x, batch.meta, 2 * self._rows, bins,
            C=channels, BM=HEAD_ROWS, **self._options,
        )  # fmt: skip
        for block in weights.residuals:
            y = self._conv(x, block.conv1)
            x = self._conv(y, block.conv2, skip=x, shortcut=block.shortcut)
        return self._conv(x, weights.last).flatten(2)

    def _conv(
        self, x: Tensor, conv: Conv2d, *, skip: Tensor | None = None,
        shortcut: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        clips, frames, bins, channels = x.shape
        bins_out = (bins - 1) // conv.stride + 1
        out = self._batch.empty(clips, frames, bins_out, channels)
        skip_bins = bins_out if skip is None else skip.shape[2]
        grid = (triton.cdiv(frames * bins_out, HEAD_ROWS), clips)
        kernels.conv_kernel[grid](
            x, conv.weight, conv.bias, skip, shortcut, out, self._batch.meta,
            frames, bins, bins_out, skip_bins, STRIDE=conv.stride, SKIP=skip is not None,
            SKIP_STRIDE=skip_bins // bins_out, PROJECT=shortcut is not None,
            C=channels, BM=HEAD_ROWS, num_stages=4, **self._precision, **self._options,
        )  # fmt: skip
        return out

    def _tdnn(self, x: Tensor) -> Tensor:
        """The first columns of the first block's buffer."""
        weight, bias = self._weights.tdnn
        depth, columns = weight.shape
        width = x.shape[2]
        out = self._buffer(columns, self._weights.blocks[0])
        grid = (columns // COLUMNS, triton.cdiv(self._rows, ROWS), self._clips)
        kernels.tdnn_kernel[grid](
            x, weight, bias, out, self._batch.meta, x.shape[1], self._rows, width, out.shape[2],
            TAPS=depth // width, N=columns, BM=ROWS, BN=COLUMNS, BK=min(DEPTH, depth & -depth),
            num_stages=4, **self._precision, **self._options,
        )  # fmt: skip
        return out

    def _buffer(self, columns: int, block: DenseBlock | None) -> Tensor:
        """Room for so many columns and those that a block adds to them."""
        grown = block.transit.weight.shape[0] if block else columns
        return self._batch.empty(self._clips, self._rows, grown)

    def _block(self, block: DenseBlock, dense: Tensor, following: DenseBlock | None) -> Tensor:
        before = None
        for product, conv in block.layers:
            columns = product.weight.shape[1]
            data = self._buffer(columns, None)
            sums = torch.empty(
                self._clips, self._tiles, columns, dtype=torch.float32, device=data.device
            )
            self._layer(dense, before, product, data, sums)
            before = _Hidden(data, sums, conv)
        out = self._buffer(block.transit.weight.shape[1], following)
        self._layer(dense, before, block.transit, out, None)
        return out

    def _layer(
        self, dense: Tensor, before: _Hidden | None, product: Product, out: Tensor,
        sums: Tensor | None,
    ) -> None:  # fmt: skip
        """`layer_kernel`."""
        depth, columns = product.weight.shape
        data, before_sums, conv = before or (None, None, None)
        growth, squeezed, width = 16, 16, 16
        if conv:
            _, width, growth = conv.local.shape
            squeezed = conv.squeeze.shape[0]
        local, squeeze, squeeze_bias, gate, gate_bias, dilation = conv or [None] * 5 + [1]
        grid = (triton.cdiv(columns, COLUMNS), self._tiles, self._clips)
        kernels.layer_kernel[grid](
            dense, product.weight, product.bias, product.scale, product.shift, out, sums,
            data, before_sums, local, squeeze, squeeze_bias, gate, gate_bias,
            self._batch.meta, self._rows, self._tiles, dense.shape[2],
            depth - growth if conv else depth, out.shape[2], columns, dilation,
            GATED=conv is not None, RELU=product.relu, SUMS=sums is not None,
            WIDTH=width, SQUEEZED=squeezed, GROWTH=growth, SEGMENT=SEGMENT_FRAMES,
            PARTS=self._parts, BM=ROWS, BN=COLUMNS, BK=DEPTH, BP=TILES,
            num_stages=4, **self._precision, **self._options,
        )  # fmt: skip

    def _embedding(self, x: Tensor) -> Tensor:
        weight, bias = self._weights.embedding
        size, depth = weight.shape
        moments = x.new_empty((self._clips, depth), dtype=torch.float32)
        kernels.moments_kernel[(x.shape[2] // 16, self._clips)](
            x, moments, self._batch.meta, self._rows, x.shape[2], BT=128, BC=16, **self._options
        )
        out = x.new_empty((self._clips, size), dtype=torch.float32)
        kernels.embedding_kernel[(triton.cdiv(size, 4), self._clips)](
            moments,
            weight,
            bias,
            out,
            depth,
            size,
            BN=4,
            BK=triton.next_power_of_2(depth),
            **self._options,
        )
        return out
