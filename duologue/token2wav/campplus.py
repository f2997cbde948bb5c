"""CAM++ speaker embeddings in torch (Wang et al. 2023, arXiv 2303.00332; modelscope/3D-Speaker).

A two-dimensional convolutional head over mel and time, then a densely connected TDNN whose layers
are gated by their context: the mean over the clip plus the mean over a segment of 100 frames.
Parameter names are those of 3D-Speaker's checkpoints. A gate is the same over a segment, so it is
computed once for each and not for each frame.
"""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from duologue.token2wav.onnx_weights import load_strictly, read_onnx_weights

BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of each dense block."""

GROWTH = 32
SEGMENT_FRAMES = 100
HEAD_CHANNELS = 32


class CAMPPlus(nn.Module):
    """Filter banks of a clip to the embedding of its speaker."""

    def __init__(self, n_bins: int = 80, embedding_size: int = 192):
        super().__init__()
        self.head = _Head()
        channels = 128
        layers: dict[str, nn.Module] = {
            "tdnn": _ConvNorm(HEAD_CHANNELS * (n_bins // 8), channels, kernel=5, stride=2)
        }
        for index, (n_layers, dilation) in enumerate(BLOCKS, start=1):
            layers[f"block{index}"] = _DenseBlock(n_layers, channels, dilation)
            channels += n_layers * GROWTH
            layers[f"transit{index}"] = _NormConv(channels, channels // 2)
            channels //= 2
        layers["out_nonlinear"] = _norm(channels)
        layers["dense"] = _ConvNorm(2 * channels, embedding_size, affine=False)
        self.xvector = nn.ModuleDict(layers)

    @classmethod
    def from_onnx(cls, path: Path) -> "CAMPPlus":
        """The weights of the public `campplus.onnx`.

        Raises:
            ModelError: the file is none, or holds other weights.
        """
        model = cls()
        weights = read_onnx_weights(path)
        load_strictly(model, _unfold_norms(model, weights), path)
        return model.eval()

    def forward(self, fbank: Tensor) -> Tensor:
        """[B, T, n_bins], its mean over T taken off, to [B, embedding_size]."""
        x = self.head(fbank.transpose(1, 2))
        x = self.xvector["tdnn"](x).relu()
        segments = _Segments.of(x)
        for index in range(1, len(BLOCKS) + 1):
            x = self.xvector[f"block{index}"](x, segments)
            x = self.xvector[f"transit{index}"](x)
        x = self.xvector["out_nonlinear"](x).relu()
        moments = torch.cat([x.mean(-1), x.std(-1, unbiased=True)], -1)
        return self.xvector["dense"](moments.unsqueeze(-1)).squeeze(-1)


class _Segments(NamedTuple):
    """Runs of 100 frames: `index` [T] says which one a frame is in, `pool` [T, S] averages each."""

    index: Tensor
    pool: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "_Segments":
        frames = x.shape[-1]
        index = torch.arange(frames, device=x.device) // SEGMENT_FRAMES
        n_segments = (frames + SEGMENT_FRAMES - 1) // SEGMENT_FRAMES
        inside = (index[:, None] == torch.arange(n_segments, device=x.device)).to(x.dtype)
        return cls(index, inside / inside.sum(0))


def _unfold_norms(model: nn.Module, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give back the norms that an exporter has folded into the convolution before them.

    Such a convolution has a bias where ours has none; it becomes the shift of the norm, which does
    nothing else any more. Norms are registered right behind the convolution whose output they take.
    """
    weights = dict(weights)
    leaves = [(name, leaf) for name, leaf in model.named_modules() if not list(leaf.children())]
    for (conv, _), (name, norm) in pairwise(leaves):
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        if f"{conv}.bias" in weights and f"{name}.running_mean" not in weights:
            shift = weights.pop(f"{conv}.bias")
            weights[f"{name}.running_mean"] = -shift
            weights[f"{name}.running_var"] = np.full_like(shift, 1 - norm.eps)
            if norm.affine:
                weights[f"{name}.weight"] = np.ones_like(shift)
                weights[f"{name}.bias"] = np.zeros_like(shift)
    return weights


def _norm(channels: int, *, affine: bool = True) -> "_Named":
    return _Named({"batchnorm": nn.BatchNorm1d(channels, affine=affine)})


class _Named(nn.ModuleDict):
    """One module below the name that checkpoints give it."""

    def forward(self, x: Tensor) -> Tensor:
        (module,) = self.values()
        return module(x)


class _ConvNorm(nn.Module):
    def __init__(
        self, n_in: int, n_out: int, *, kernel: int = 1, stride: int = 1, affine: bool = True
    ):
        super().__init__()
        self.linear = nn.Conv1d(n_in, n_out, kernel, stride, kernel // 2, bias=False)
        self.nonlinear = _norm(n_out, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlinear(self.linear(x))


class _NormConv(nn.Module):
    def __init__(self, n_in: int, n_out: int):
        super().__init__()
        self.nonlinear = _norm(n_in)
        self.linear = nn.Conv1d(n_in, n_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.nonlinear(x).relu())


class _DenseBlock(nn.ModuleDict):
    def __init__(self, n_layers: int, n_in: int, dilation: int):
        super().__init__(
            {f"tdnnd{i + 1}": _DenseLayer(n_in + i * GROWTH, dilation) for i in range(n_layers)}
        )

    def forward(self, x: Tensor, segments: _Segments) -> Tensor:
        for layer in self.values():
            x = torch.cat([x, layer(x, segments)], 1)
        return x


class _DenseLayer(nn.Module):
    def __init__(self, n_in: int, dilation: int):
        super().__init__()
        width = 4 * GROWTH
        self.nonlinear1 = _norm(n_in)
        self.linear1 = nn.Conv1d(n_in, width, 1, bias=False)
        self.nonlinear2 = _norm(width)
        self.cam_layer = _GatedConv(width, dilation)

    def forward(self, x: Tensor, segments: _Segments) -> Tensor:
        x = self.linear1(self.nonlinear1(x).relu())
        return self.cam_layer(self.nonlinear2(x).relu(), segments)


class _GatedConv(nn.Module):
    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.linear_local = nn.Conv1d(
            width, GROWTH, 3, padding=dilation, dilation=dilation, bias=False
        )
        self.linear1 = nn.Conv1d(width, width // 2, 1)
        self.linear2 = nn.Conv1d(width // 2, GROWTH, 1)

    def forward(self, x: Tensor, segments: _Segments) -> Tensor:
        context = x.mean(-1, keepdim=True) + x @ segments.pool
        gate = self.linear2(self.linear1(context).relu()).sigmoid()
        return self.linear_local(x) * gate[..., segments.index]


class _Head(nn.Module):
    """Divides the mel axis by 8 and keeps the time axis."""

    def __init__(self):
        super().__init__()
        channels = HEAD_CHANNELS
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(_ResidualBlock(channels, 2), _ResidualBlock(channels, 1))
        self.layer2 = nn.Sequential(_ResidualBlock(channels, 2), _ResidualBlock(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, (2, 1), 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n_bins, T] to [B, channels * n_bins // 8, T]."""
        x = F.relu(self.bn1(self.conv1(x.unsqueeze(1))))
        x = self.layer2(self.layer1(x))
        return F.relu(self.bn2(self.conv2(x))).flatten(1, 2)


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, (stride, 1), 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut.append(nn.Conv2d(channels, channels, 1, (stride, 1), bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))
