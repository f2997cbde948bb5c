"""CAM++'s weights as the kernels take them: each batch norm folded into the product beside it.

A norm behind a product goes into its weight; one before a ReLU that a product follows stays a
scale and a shift of each channel.
"""

# Torch knows the children of a ModuleDict as modules of any kind.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
from torch import Tensor, nn

from duologue.engines.cudagraph.weights import Packer
from duologue.token2wav.campplus import CAMPPlus


class Conv2d(NamedTuple):
    """A 3x3 convolution: weight [9, in, out] (or [9, out] of one channel), bias float32 [out]."""

    weight: Tensor
    bias: Tensor
    stride: int


class Residual(NamedTuple):
    """A residual block; the shortcut [in, out], if any, has its bias in conv2."""

    conv1: Conv2d
    conv2: Conv2d
    shortcut: Tensor | None


class Product(NamedTuple):
    """`[relu] (relu(x * scale + shift) @ weight + bias)`; weight [in, out], the others float32."""

    scale: Tensor
    shift: Tensor
    weight: Tensor
    bias: Tensor
    relu: bool


class GatedConv(NamedTuple):
    """A dilated convolution [3, in, out], and its gate: [squeezed, in], then [out, squeezed]."""

    local: Tensor
    squeeze: Tensor
    squeeze_bias: Tensor
    gate: Tensor
    gate_bias: Tensor
    dilation: int


class DenseBlock(NamedTuple):
    """A densely connected block and the product that follows it."""

    layers: list[tuple[Product, GatedConv]]
    transit: Product


class CampplusWeights:
    """CAM++ packed for the kernels.

    Args:
        campplus: The weights.
        pack: Where and as what they go.

    Attributes:
        first: Convolution of the filter banks, float32.
        residuals: Blocks of the head.
        last: Last convolution of the head.
        tdnn: Weight [taps * width, out] for rows of bins of channels, and bias.
        blocks: Dense blocks.
        embedding: Weight [out, 2 * channels] and bias, float32.
    """

    @torch.no_grad()
    def __init__(self, campplus: CAMPPlus, pack: Packer):
        self._pack = pack
        head, xvector = campplus.head, campplus.xvector
        weight, bias = _folded(head.conv1.weight, head.bn1)
        self.first = Conv2d(pack.full(_taps(weight)[:, 0]), pack.full(bias), 1)
        self.residuals = [self._residual(block) for block in (*head.layer1, *head.layer2)]
        self.last = self._conv(head.conv2, head.bn2)
        self.channels = head.conv2.out_channels
        self.tdnn = self._tdnn(xvector["tdnn"])
        self.blocks = []
        last = sum(name.startswith("block") for name in xvector)
        for index in range(1, last + 1):
            transit = xvector[f"transit{index}"]
            # Only behind the last transit there is a norm of its own; else the layers have theirs.
            after = _only(xvector["out_nonlinear"]) if index == last else None
            layers = [self._layer(layer) for layer in xvector[f"block{index}"].values()]
            self.blocks.append(
                DenseBlock(layers, self._product(transit.nonlinear, transit.linear, after))
            )
        weight, bias = _folded(xvector["dense"].linear.weight, _only(xvector["dense"].nonlinear))
        self.embedding = pack.full(weight[..., 0]), pack.full(bias)

    def _conv(self, conv: nn.Conv2d, norm: nn.Module, more: Tensor | float = 0.0) -> Conv2d:
        weight, bias = _folded(conv.weight, norm)
        pack = self._pack
        return Conv2d(pack.half(_taps(weight)), pack.full(bias + more), conv.stride[0])

    def _residual(self, block: nn.Module) -> Residual:
        shortcut, more = None, 0.0
        if len(block.shortcut):
            weight, more = _folded(block.shortcut[0].weight, block.shortcut[1])
            shortcut = self._pack.half(weight[:, :, 0, 0].T)
        conv1 = self._conv(block.conv1, block.bn1)
        return Residual(conv1, self._conv(block.conv2, block.bn2, more), shortcut)

    def _tdnn(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        weight, bias = _folded(layer.linear.weight, _only(layer.nonlinear))
        # The checkpoint counts channels of bins, the kernels bins of channels.
        weight = weight.unflatten(1, (self.channels, -1)).permute(3, 2, 1, 0).flatten(0, 2)
        return self._pack.half(weight), self._pack.full(bias)

    def _layer(self, layer: nn.Module) -> tuple[Product, GatedConv]:
        cam, pack = layer.cam_layer, self._pack
        conv = GatedConv(
            pack.half(cam.linear_local.weight.permute(2, 1, 0)),
            pack.half(cam.linear1.weight[..., 0]),
            pack.full(cam.linear1.bias),
            pack.half(cam.linear2.weight[..., 0]),
            pack.full(cam.linear2.bias),
            cam.linear_local.dilation[0],
        )
        return self._product(layer.nonlinear1, layer.linear1, _only(layer.nonlinear2)), conv

    def _product(self, before: nn.Module, linear: nn.Conv1d, after: nn.Module | None) -> Product:
        scale, shift = _scale_shift(_only(before))
        if after is None:
            weight, bias = linear.weight, torch.zeros(linear.out_channels, device=shift.device)
        else:
            weight, bias = _folded(linear.weight, after)
        pack = self._pack
        return Product(
            pack.full(scale),
            pack.full(shift),
            pack.half(weight[..., 0].T),
            pack.full(bias),
            after is not None,
        )


def _only(named: nn.Module) -> nn.Module:
    (module,) = named.children()
    return module


def _scale_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """What a batch norm does to each channel."""
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    assert norm.running_mean is not None and norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift + norm.bias if norm.affine else shift


def _folded(weight: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight [out, ...] and bias of a convolution and the norm behind it."""
    scale, shift = _scale_shift(norm)
    return weight * scale.view(-1, *[1] * (weight.dim() - 1)), shift


def _taps(weight: Tensor) -> Tensor:
    """From [out, in, bins, time] to [taps, in, out], time before bins."""
    return weight.permute(3, 2, 1, 0).flatten(0, 1)
