"""A network without a spatial convolution: pixels meet by shifts alone, which are learnt."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchgraft.demo.data import digits
from torchgraft.demo.experiment import BOTH_LAYOUTS, Experiment, Network
from torchgraft.nn import Shift


class SampledShift(Shift):
    """The same layer made of PyTorch's sampling: the channels are its batch, so that each has a grid of its own."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H, W)."""
        height, width = input.shape[2:]
        rows = torch.arange(height, device=input.device) + self.ypos[:, None]
        columns = torch.arange(width, device=input.device) + self.xpos[:, None]
        # Between -1 and 1 for the outer borders of an image's pixels.
        rows, columns = (2 * rows + 1) / height - 1, (2 * columns + 1) / width - 1
        shape = (self.channels, height, width)
        grid = torch.stack((columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)), -1)
        return F.grid_sample(input.transpose(0, 1), grid, align_corners=False).transpose(0, 1)


class ShiftBlock(nn.Module):
    """A residual block: a shift between two 1x1 convolutions.

    Args:
        channels: channels of the input and of the output.
        shift: makes the layer in between, or what stands in its place.
        expansion: how many times wider the inside is.
    """

    def __init__(self, channels: int, shift: type[Shift] | type[nn.Identity], expansion: int = 2) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.expand = nn.Conv2d(channels, expansion * channels, 1)
        self.shift = shift(expansion * channels)
        self.activation = nn.GELU()
        self.project = nn.Conv2d(expansion * channels, channels, 1)
        if isinstance(self.shift, Shift):
            # Of an image, unlike a skeleton, neighbours lie in both directions.
            for offset in (self.shift.xpos, self.shift.ypos):
                nn.init.uniform_(offset, -2, 2)

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H, W)."""
        return input + self.project(self.activation(self.shift(self.expand(self.norm(input)))))


class ShiftNetwork(nn.Sequential):
    """Blocks on squares of 4 x 4 pixels, and a linear head. Every convolution in it is 1x1.

    Args:
        in_channels: channels of the images.
        classes: how many there are to tell apart.
        shift: the layer by which pixels meet.
        width: channels of a block.
        depth: blocks.

    Source: Jeon and Kim, Constructing Fast Network through Deconstruction of Convolution, 2018.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        shift: type[Shift] | type[nn.Identity],
        width: int = 64,
        depth: int = 3,
    ) -> None:
        super().__init__(
            nn.PixelUnshuffle(4),
            nn.Conv2d(16 * in_channels, width, 1),
            *(ShiftBlock(width, shift) for _ in range(depth)),
            nn.GroupNorm(1, width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        )


def _describe(rival: nn.Module, ours: nn.Module) -> str:
    convolutions = [each for each in ours.modules() if isinstance(each, nn.Conv2d)]
    largest = max(max(each.kernel_size) for each in convolutions)
    shifts = sum(isinstance(each, Shift) for each in ours.modules())
    return f"All {len(convolutions)} convolutions are {largest}x{largest}; only the {shifts} shifts mix pixels."


SHIFTS = Experiment(
    name="shift",
    title="Shifts and 1x1 convolutions on handwritten digits",
    rival=Network("grid_sample", lambda: ShiftNetwork(1, 10, SampledShift)),
    ours=Network("torchgraft", lambda: ShiftNetwork(1, 10, Shift)),
    load=digits,
    epochs=8,
    batch_size=32,
    learning_rate=1e-2,
    least_accuracy=0.95,
    # grid_sample rounds positions and not fractions: differences of 1e-5 by the end. A wrong gradient gives 0.1.
    tolerance=1e-2,
    timing_seconds=8.0,
    layouts=BOTH_LAYOUTS,
    without=lambda: ShiftNetwork(1, 10, nn.Identity),
    describe=_describe,
)
