"""One shift as a sample of each of the four operators."""

from dataclasses import dataclass

from torchgraft.sampling import Drawn, Sample

Values = tuple[float, ...]


@dataclass(frozen=True)
class ShiftCase:
    """One shift; a sample of each of the four operators is made of it.

    Attributes:
        name: the sample's.
        input: (N, C, T, V).
        stride: rows between results.
        x: offsets along a row, taken in turn by the channels; None: normally distributed.
        y: offsets along a column.
        channels_last: the layout of what has four dimensions.
    """

    name: str
    input: tuple[int, int, int, int]
    stride: int = 1
    x: Values | None = None
    y: Values | None = None
    channels_last: bool = False

    @property
    def offsets(self) -> tuple[Drawn, Drawn]:
        """The offset of each channel, along x and along y."""
        return Drawn((self.input[1],), values=self.x), Drawn((self.input[1],), values=self.y)

    @property
    def images(self) -> Drawn:
        """The input."""
        return Drawn(self.input, self.channels_last)

    @property
    def output(self) -> Drawn:
        """The output, or its gradient."""
        batch, channels, height, width = self.input
        return Drawn((batch, channels, height // self.stride, width), self.channels_last)

    def forward(self) -> Sample:
        """For shift."""
        return Sample(self.name, (self.images, *self.offsets, self.stride))

    def input_grad(self) -> Sample:
        """For shift_input_grad."""
        return Sample(self.name, (self.output, *self.offsets, self.input[2], self.channels_last, self.stride))

    def with_input(self) -> Sample:
        """For shift_offset_grad and shift_grads."""
        return Sample(self.name, (self.output, self.images, *self.offsets, self.stride))
