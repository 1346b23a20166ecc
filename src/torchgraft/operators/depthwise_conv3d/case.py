"""One convolution of volumes as a sample of each of the three operators."""

from dataclasses import dataclass

from torchgraft.operators.depthwise import taps_inside
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow
from torchgraft.sampling import Drawn, Sample

PLAIN = VolumeWindow()


@dataclass(frozen=True)
class VolumeCase:
    """One convolution of volumes; a sample of each of the three operators is made of it."""

    name: str
    input: tuple[int, int, int, int, int]
    kernel: tuple[int, int, int]
    window: VolumeWindow = PLAIN
    multiplier: int = 1
    bias: bool = True
    channels_last: bool = False
    is_told: bool = True

    @property
    def output_channels(self) -> int:
        """Channels of the output."""
        return self.input[1] * self.multiplier

    @property
    def output(self) -> Drawn:
        """The output, or its gradient."""
        size = self.window.output_size(*self.input[2:], *self.kernel)
        return Drawn((self.input[0], self.output_channels, *size), self.channels_last)

    @property
    def weight(self) -> Drawn:
        """A kernel an output channel."""
        return Drawn((self.output_channels, 1, *self.kernel))

    @property
    def operations(self) -> int:
        """The operations of any of the three operators: two for each product of a tap and a voxel, none on padding."""
        return 2 * self.input[0] * self.output_channels * taps_inside(self.input[2:], self.kernel, self.window)

    def forward(self) -> Sample:
        """For depthwise_conv3d."""
        bias = Drawn((self.output_channels,)) if self.bias else None
        return Sample(self.name, (Drawn(self.input, self.channels_last), self.weight, bias, *self.window))

    def input_grad(self) -> Sample:
        """For depthwise_conv3d_input_grad."""
        layout = self.channels_last if self.is_told else None
        return Sample(self.name, (self.output, self.weight, *self.input[1:], layout, *self.window))

    def weight_grad(self) -> Sample:
        """For depthwise_conv3d_weight_grad."""
        input = Drawn(self.input, self.channels_last)
        return Sample(self.name, (self.output, input, *self.kernel, *self.window, None, self.channels_last))


def same(
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int] = (1, 1, 1),
    dilation: tuple[int, int, int] = (1, 1, 1),
) -> VolumeWindow:
    """The padding of a kernel of odd sides that keeps the size."""
    deep, tall, wide = (gap * (taps // 2) for taps, gap in zip(kernel, dilation, strict=True))
    return VolumeWindow(*stride, deep, tall, wide, deep, tall, wide, *dilation)
