"""One convolution of sequences as a sample of each of the three operators."""

from dataclasses import dataclass

from torchgraft.operators.depthwise import taps_inside
from torchgraft.operators.depthwise_conv1d.window import SequenceWindow
from torchgraft.sampling import Drawn, Sample

PLAIN = SequenceWindow()


@dataclass(frozen=True)
class SequenceCase:
    """One convolution of sequences; a sample of each of the three operators is made of it."""

    name: str
    input: tuple[int, int, int]
    kernel: int
    window: SequenceWindow = PLAIN
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
        """The gradient of the output."""
        size = self.window.output_size(self.input[2], self.kernel)
        return Drawn((self.input[0], self.output_channels, *size), self.channels_last)

    @property
    def weight(self) -> Drawn:
        """A kernel an output channel."""
        return Drawn((self.output_channels, 1, self.kernel))

    @property
    def operations(self) -> int:
        """The operations of any of the three operators: two for each product of a tap and an element."""
        taps = taps_inside(self.input[2:], (self.kernel,), self.window)
        return 2 * self.input[0] * self.output_channels * taps

    def forward(self) -> Sample:
        """For depthwise_conv1d."""
        bias = Drawn((self.output_channels,)) if self.bias else None
        return Sample(self.name, (Drawn(self.input, self.channels_last), self.weight, bias, *self.window))

    def input_grad(self) -> Sample:
        """For depthwise_conv1d_input_grad."""
        layout = self.channels_last if self.is_told else None
        return Sample(self.name, (self.output, self.weight, *self.input[1:], layout, *self.window))

    def weight_grad(self) -> Sample:
        """For depthwise_conv1d_weight_grad."""
        input = Drawn(self.input, self.channels_last)
        return Sample(self.name, (self.output, input, self.kernel, *self.window, None, self.channels_last))


def same(kernel: int, stride: int = 1, dilation: int = 1) -> SequenceWindow:
    """The padding of a kernel of odd length that keeps the length."""
    side = dilation * (kernel // 2)
    return SequenceWindow(stride, side, side, dilation)


def causal(kernel: int, dilation: int = 1) -> SequenceWindow:
    """The padding of a kernel that sees no later element, as much behind: what lies there is cut off by who calls."""
    side = dilation * (kernel - 1)
    return SequenceWindow(1, side, side, dilation)
