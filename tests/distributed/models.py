"""Small models of the kinds that are trained on several devices, and data for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchgraft


class Block(nn.Module):
    """A block of ConvNeXt: a depthwise convolution, a norm over channels, and two linear layers."""

    def __init__(self, channels: int, checkpointed: bool) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 2 * channels)
        self.project = nn.Linear(2 * channels, channels)
        self.checkpointed = checkpointed

    def forward(self, images: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self._forward, images, use_reentrant=False)
        return self._forward(images)

    def _forward(self, images: Tensor) -> Tensor:
        pixels = self.norm(self.depthwise(images).permute(0, 2, 3, 1))
        return images + self.project(F.gelu(self.expand(pixels))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two blocks over patches, and a classifier."""

    def __init__(self, channels: int = 6, classes: int = 5, checkpointed: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, 2)
        self.blocks = nn.Sequential(*(Block(channels, checkpointed) for _ in range(2)))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class CharLLTM(nn.Module):
    """Predicts the next of some characters."""

    def __init__(self, characters: int = 7, units: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, units)
        self.lltm = torchgraft.nn.LLTM(units, units, batch_first=True)
        self.head = nn.Linear(units, characters)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.lltm(self.embedding(text))[0]).flatten(0, 1)


class Bottleneck(nn.Module):
    """A block of MobileNet: a linear layer to more channels, a depthwise convolution, and one back."""

    def __init__(self, channels: int = 6, wide: int = 12) -> None:
        super().__init__()
        self.expand = nn.Linear(channels, wide)
        self.depthwise = torchgraft.nn.DepthwiseConv2d(wide, 3, padding=1)
        self.project = nn.Linear(wide, channels)

    def forward(self, pixels: Tensor) -> Tensor:
        wide = self.depthwise(self.expand(pixels).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return pixels + self.project(F.gelu(wide))


class Bottlenecks(nn.Module):
    """Two of them, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Bottleneck(), Bottleneck())
        self.head = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(images.permute(0, 2, 3, 1)).mean((1, 2)))


def images(count: int, channels: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images that are made up, and their classes."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(count, channels, 8, 8, generator=generator, dtype=torch.float64)
    return drawn.to(device, dtype), torch.randint(5, (count,), generator=generator).to(device)


def text(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of characters, and the characters that follow them."""
    drawn = torch.randint(7, (count, 10), generator=torch.Generator().manual_seed(4)).to(device)
    return drawn[:, :-1], drawn[:, 1:]
