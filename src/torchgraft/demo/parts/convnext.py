"""A small network in the manner of ConvNeXt, of PyTorch's own layers, before and after `torchgraft.graft`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchgraft.demo.data import digits
from torchgraft.demo.experiment import BOTH_LAYOUTS, Experiment, Network
from torchgraft.nn.grafting import graft, graft_report


class ConvNeXtBlock(nn.Module):
    """A residual block: a depthwise 7x7 mixes pixels, two 1x1 mix channels.

    Args:
        channels: channels of the input and of the output.
        expansion: how many times wider the inside is.
    """

    def __init__(self, channels: int, expansion: int = 4) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.GroupNorm(1, channels)
        self.expand = nn.Conv2d(channels, expansion * channels, 1)
        self.activation = nn.GELU()
        self.project = nn.Conv2d(expansion * channels, channels, 1)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H, W)."""
        inside = self.activation(self.expand(self.norm(self.depthwise(input))))
        return input + self.scale * self.project(inside)


class SmallConvNeXt(nn.Sequential):
    """A stem that halves the image, stages of blocks with a halving between them, and a linear head.

    The normalisation is `GroupNorm` with one group, which, unlike a `LayerNorm` over channels, leaves the memory
    layout of the images as it is.

    Args:
        in_channels: channels of the images.
        classes: how many there are to tell apart.
        widths: channels of each stage.
        depths: blocks of each stage.

    Source: Liu et al., A ConvNet for the 2020s, 2022.
    """

    def __init__(
        self, in_channels: int, classes: int, widths: Sequence[int] = (24, 48), depths: Sequence[int] = (2, 2)
    ) -> None:
        layers: list[nn.Module] = []
        channels = in_channels
        for width, depth in zip(widths, depths, strict=True):
            layers += [nn.Conv2d(channels, width, 2, stride=2), nn.GroupNorm(1, width)]
            layers += [ConvNeXtBlock(width) for _ in range(depth)]
            channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _build() -> nn.Module:
    return SmallConvNeXt(in_channels=1, classes=10)


def _build_grafted() -> nn.Module:
    model = graft(_build())
    if not graft_report(model).grafted:
        raise RuntimeError("no layer was grafted")
    return model


def _build_without() -> nn.Module:
    """Without the layers that are grafted, which keep the shape of their input."""
    model = _build()
    for name in graft_report(model).graftable:
        model.set_submodule(name, nn.Identity())
    return model


def _describe(rival: nn.Module, ours: nn.Module) -> str:
    report = graft_report(ours)
    convolutions = len(report.grafted) + len(report.left)
    return f"{len(report.grafted)} of {convolutions} convolutions are depthwise and were grafted."


CONVNEXT = Experiment(
    name="convnext",
    title="A small ConvNeXt on handwritten digits",
    rival=Network("PyTorch", _build),
    ours=Network("torchgraft", _build_grafted),
    load=digits,
    epochs=10,
    batch_size=32,
    learning_rate=2e-3,
    least_accuracy=0.97,
    # Rounding alone gives differences of 1e-6; a wrong gradient gives 0.1.
    tolerance=1e-3,
    # A median over some fifty steps of each of the six networks on two CPU cores.
    timing_seconds=12.0,
    layouts=BOTH_LAYOUTS,
    without=_build_without,
    describe=_describe,
)
