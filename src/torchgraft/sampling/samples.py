"""Samples: the inputs on which an operator is checked and measured."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchgraft.layout import CHANNELS_LAST


@dataclass(frozen=True)
class Drawn:
    """A tensor argument: normally distributed values of a shape, contiguous or channels_last.

    Integers and booleans are drawn evenly from a range; complex numbers have both parts. `graft check` also asks values
    that are much larger, smaller or all alike, as far as `low`, `high`, `values`, `ordered` and `distinct` allow them.

    Attributes:
        shape: of the tensor.
        channels_last: whether a tensor of three to five dimensions has its channels, the second, side by side.
        scale: the standard deviation. What is fed back into itself grows, error and all, unless its weights are small.
        values: what it holds instead, taken in turn, where only certain values are of interest.
        rounded: a dtype that the values are rounded to first, whatever the dtype of the tensor.
        dtype: of the tensor, where it is another than that of the call: of indices, masks and codes.
        low: the smallest value that makes sense: 0 for probabilities. None: 0 for integers, and no limit for others.
        high: the largest value that makes sense, which real numbers may reach; integers stay below it, as indices stay
            below a size. None: 2 for integers, and no limit for others. Real numbers with both limits are drawn evenly
            between them; with one limit, normally distributed numbers are reflected at it.
        distinct: whether no integer is drawn twice, and `values` are not begun anew; there must be as many as elements.
        ordered: whether the values rise.
    """

    shape: tuple[int, ...]
    channels_last: bool = False
    scale: float = 1.0
    values: tuple[float, ...] | None = None
    rounded: torch.dtype | None = None
    dtype: torch.dtype | None = None
    low: float | None = None
    high: float | None = None
    distinct: bool = False
    ordered: bool = False

    @property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return torch.Size(self.shape).numel()

    def make(self, device: torch.device | str, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """The tensor, its values drawn where the generator is and rounded to the dtype; on `meta` it has none."""
        device, dtype = torch.device(device), self.dtype or dtype
        if self.channels_last and len(self.shape) == 3:
            # PyTorch has no name for this layout.
            turned = (self.shape[0], self.shape[2], self.shape[1])
            plain = replace(self, channels_last=False).make(device, dtype, generator)
            return torch.empty(turned, device=device, dtype=dtype).transpose(1, 2).copy_(plain)
        layouts = CHANNELS_LAST if self.channels_last else {}
        layout = layouts.get(len(self.shape), torch.contiguous_format)
        if device.type == "meta":
            return torch.empty(self.shape, dtype=dtype, device=device, memory_format=layout)
        if self.values is not None:
            if self.distinct and self.elements > len(self.values):
                raise ValueError(f"values must hold {self.elements} different values, got {len(self.values)}")
            turns = torch.tensor(self.values, dtype=torch.float64).repeat(-(-self.elements // len(self.values)))
            values = turns[: self.elements].reshape(self.shape)
        elif not (dtype.is_floating_point or dtype.is_complex):
            values = self._integers(generator)
        elif generator.device.type == device.type != "cpu" and not self.ordered and self.low is self.high is None:
            # A dtype of its own would take several times the memory of what may be most of a card.
            drawn = torch.empty(self.shape, dtype=dtype, device=device, memory_format=layout).normal_(
                std=self.scale, generator=generator
            )
            return drawn if self.rounded is None else drawn.to(self.rounded).to(dtype)
        else:
            exact = torch.complex128 if dtype.is_complex else torch.float64
            values = self.scale * torch.randn(self.shape, generator=generator, dtype=exact, device=generator.device)
            values = self._within_limits(values)
            if self.rounded is not None:
                values = values.to(self.rounded)
        if self.ordered:
            values = values.flatten().sort().values.reshape(self.shape)
        return values.to(device, dtype).contiguous(memory_format=layout)

    @property
    def integers(self) -> range:
        """The integers that may be drawn."""
        return range(0 if self.low is None else int(self.low), 2 if self.high is None else int(self.high))

    def _integers(self, generator: torch.Generator) -> Tensor:
        """Whole numbers of the range."""
        device, among = generator.device, self.integers
        if not self.distinct:
            return torch.randint(among.start, among.stop, self.shape, generator=generator, device=device)
        if len(among) < self.elements:
            raise ValueError(
                f"low and high must span {self.elements} different integers, got {among.start} and {among.stop}"
            )
        chosen = torch.randperm(len(among), generator=generator, device=device)[: self.elements]
        return chosen.reshape(self.shape) + among.start

    def _within_limits(self, values: Tensor) -> Tensor:
        """Normally distributed real numbers, moved between `low` and `high`."""
        if self.low is None:
            return values if self.high is None else self.high - values.abs()
        if self.high is None:
            return self.low + values.abs()
        # The normal distribution function turns normally distributed numbers into evenly distributed ones.
        return self.low + (self.high - self.low) * torch.special.ndtr(values / self.scale)


# No function inside another: one that calls itself is a reference cycle, which would keep what it holds in memory until
# Python looks for cycles.
def with_made(argument: Any, make: Callable[[Drawn], Tensor]) -> Any:
    """Returns an argument of a sample with what `make` gives for each `Drawn`, also in lists."""
    if isinstance(argument, (list, tuple)):
        return [with_made(each, make) for each in argument]
    return make(argument) if isinstance(argument, Drawn) else argument


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Attributes:
        name: for a person.
        arguments: of the call, in the order of the schema; `Drawn` stands for a tensor, also in a list. Those at the
            end that are what the schema says by default may be left out.
        tf32: whether it permits products of float32 to be computed in tf32. Its values must be such as tf32 holds, as
            the result is compared with the exact one. It is measured in float32 alone, where all may use tf32.
    """

    name: str
    arguments: tuple[Any, ...]
    tf32: bool = False

    def make(
        self, device: torch.device | str, dtype: torch.dtype, seed: int = 0, *, on_device: bool = False
    ) -> tuple[Any, ...]:
        """The arguments; the same for the same seed.

        Args:
            device: where to make the tensors.
            dtype: of the tensors.
            seed: of their values.
            on_device: whether a device may draw values of its own, which is quick, where all else have the same.
        """
        generator = torch.Generator(device if on_device else "cpu").manual_seed(seed)
        return tuple(with_made(each, lambda drawn: drawn.make(device, dtype, generator)) for each in self.arguments)

    @property
    def tensors(self) -> tuple[Drawn, ...]:
        """The tensor arguments, those in lists one by one."""
        single = [list(each) if isinstance(each, (list, tuple)) else [each] for each in self.arguments]
        return tuple(argument for each in single for argument in each if isinstance(argument, Drawn))

    @property
    def elements(self) -> int:
        """How many elements all tensor arguments have together."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def is_empty(self) -> bool:
        """Whether a tensor argument has no elements."""
        return any(0 in tensor.shape for tensor in self.tensors)


@dataclass(frozen=True)
class Large:
    """A sample of more than 2**31 elements, and how its result is compared a part at a time.

    Attributes:
        sample: the call. Its tensors are made on the device, in a dtype of two bytes.
        batched: the places of the arguments that are cut along their first dimension, all at once.
        combine: what the parts' results make together: 'concatenate' along the first dimension, or 'sum'.
    """

    sample: Sample
    batched: tuple[int, ...] = (0,)
    combine: Literal["concatenate", "sum"] = "concatenate"


@dataclass(frozen=True)
class ModuleSample:
    """A layer over an operator, and an input for it."""

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: tuple[Drawn, ...]


@dataclass(frozen=True)
class Benchmark:
    """A sample on which an operator's speed is measured.

    Attributes:
        sample: the call; its name is the row's.
        suite: the rows that it is shown and averaged with.
        devices: the kinds of device whose suite it belongs to.
        quick: whether it is one of the few rows of a quick run.
        large: how its result is verified in parts, where all of it in float64 would not fit.
        operations: the arithmetic that it takes at least, where that is less than the operator's `flops` count.
        dtypes: in which it is measured if nobody names any; None: those that are usual on the device.
    """

    sample: Sample
    suite: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    quick: bool = False
    large: Large | None = None
    operations: int | None = None
    dtypes: tuple[torch.dtype, ...] | None = None


@dataclass(frozen=True)
class Distribution:
    """Calls as networks make them, as a distribution: what `graft bench --draw` draws its rows from.

    Attributes:
        draw: a row from a source of randomness, or None where what it drew is larger than the budget: then it is called
            again. It draws layouts and sizes; the dtype is drawn for it.
        against: the rival or yardstick that stands beside each row.
        passes: what is timed of each row: 'forward'; 'forward_backward', with the gradients of all tensor arguments; or
            `<argument>_grad`, the gradient of one of them.
        rivals: functions, by name, that stand beside these rows alone, in addition to the rivals of the samples.
    """

    draw: Callable[[Random, "Budget"], "Benchmark | None"]
    against: str
    passes: tuple[str, ...] = ("forward", "forward_backward")
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """The largest sizes of a call that is drawn at random.

    Attributes:
        elements: how many elements its tensors may have together, roughly.
        products: how many products its definition may add up, in all elements of its result together.
    """

    elements: int
    products: int


class SizedRandom(Random):
    """A source of randomness that notes each size drawn from it, and in which a size can be replaced.

    Attributes:
        sizes: each size that was drawn, and the largest that it may be.
        replaced: sizes to return in the place of those drawn, by their number among `sizes`.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sizes: list[tuple[int, int]] = []
        self.replaced: dict[int, int] = {}

    def size(self, drawn: int, most: int) -> int:
        """The size that was drawn, or what replaces it."""
        size = min(self.replaced.get(len(self.sizes), drawn), max(most, drawn))
        self.sizes.append((size, most))
        return size


def draw_at_border(draw: Callable[[Random], Sample], random: Random, answers: Callable[[Sample], int]) -> Sample:
    """A sample just before or after a size at which a library makes another choice, found by bisection.

    One of the sizes that `any_size` or `movable` drew is moved and all else drawn as before. Where no such size is
    found the sample is as drawn.

    Args:
        draw: draws a sample.
        random: a source of randomness.
        answers: what the rules of a library answer about a sample, as one number.
    """
    seed = random.getrandbits(64)

    def drawn(replaced: dict[int, int]) -> tuple[Sample, list[tuple[int, int]]]:
        sized = SizedRandom(seed)
        sized.replaced = replaced
        return draw(sized), sized.sizes

    sample, sizes = drawn({})
    asked = answers(sample)
    movable = [number for number, (_, most) in enumerate(sizes) if most > 1]
    for number in random.sample(movable, min(len(movable), 3)) if asked else ():
        here, most = sizes[number]
        for there in random.sample((1, most), 2):
            if there == here or answers(drawn({number: there})[0]) == asked:
                continue
            while abs(here - there) > 1:
                # Sizes far apart are halved as numbers of digits.
                is_far = max(here, there) > 4 * min(here, there)
                middle = math.isqrt(here * there) if is_far else (here + there) // 2
                if answers(drawn({number: middle})[0]) == asked:
                    here = middle
                else:
                    there = middle
            return drawn({number: random.choice((here, there))})[0]
    return sample


def log_uniform(random: Random, least: float, most: float) -> float:
    """A number between two bounds whose logarithm is drawn evenly: 10 to 20 is as likely as 100 to 200."""
    return math.exp(random.uniform(math.log(least), math.log(most)))


def rounded(random: Random, size: float, multiple: int, share: float) -> int:
    """A size as an int of at least 1. A share of all cases is rounded to a multiple of another number."""
    step = multiple if random.random() < share else 1
    return max(step, round(size / step) * step)


# Widths of vectors, tiles and warps.
_STEPS = (4, 8, 16, 32, 64)


def any_size(random: Random, most: int, borders: Sequence[int] = ()) -> int:
    """A random size from 1 to `most`: small ones are as likely as large ones, and two of three are next to a limit.

    Args:
        random: a source of randomness.
        most: the largest size; at least 1 is returned in any case.
        borders: sizes at which this operator's code makes a choice. What is drawn is one of them, a multiple of
            what vectors and tiles are wide, a power of two, or one more or less.
    """
    most = max(most, 1)
    size = round(math.exp(random.uniform(0, math.log(most))))
    beside = random.choice((-1, 0, 0, 1))
    kind = random.random()
    near = [border for border in borders if border <= most + 1]
    if kind < 0.25 and near:
        size = random.choice(near) + beside
    elif kind < 0.5:
        step = random.choice(_STEPS)
        size = round(size / step) * step + beside
    elif kind < 0.65:
        size = 2 ** round(math.log2(size)) + beside
    return movable(random, min(max(size, 1), most), most)


def movable(random: Random, size: int, most: int) -> int:
    """A drawn size that a search for such limits may change, from 1 to `most`."""
    return random.size(size, most) if isinstance(random, SizedRandom) else size


class ReplacedLayer(NamedTuple):
    """A layer of PyTorch's, and the layer made of an operator that replaces it: the costs of calling them are compared.

    Attributes:
        name: of the operator's layer.
        replaced: the name of PyTorch's.
        ours: makes the operator's layer, on a `device`.
        theirs: makes PyTorch's with the same sizes, on a `device`.
        input_size: of what both are called with; so small that a kernel takes no time.
    """

    name: str
    replaced: str
    ours: Callable[..., torch.nn.Module]
    theirs: Callable[..., torch.nn.Module]
    input_size: tuple[int, ...]


@dataclass(frozen=True)
class Samples:
    """The inputs on which an operator is checked and measured.

    Attributes:
        table: named samples, each there for a reason that its name tells: an empty tensor where the operator takes one,
            one element, and a size on either side of every border that a kernel has.
        draw: any valid sample, from a source of randomness; small enough for a numerical gradient.
        stress: any valid sample, from a source of randomness, about as large as a budget allows: thousands of them are
            called. None: as `draw`.
        gpu_table: more named samples, as large as it takes to reach kernels that pay only then: a GPU is asked all of
            them, and a CPU, which would take minutes, the one that is named.
        summed: how many products one element of the result is a sum of, from all arguments of a call, with defaults;
            tensors are on `meta`. Errors grow with it.
        large: samples of more than 2**31 elements.
        non_finite: whether on a sample, as it is in the table, the definition says what becomes of NaN and infinity.
        kinks: whether on a sample the reference's gradient is the definition also at kinks, as that of relu at 0. If
            not, any finite one is right there.
        modules: the layers made of the operator.
        replaced: the layers of PyTorch's that such layers replace.
        benchmarks: what its speed is measured on.
        rivals: what else computes the same, by name; each takes the operator's arguments.
        yardsticks: what computes something else of the same sizes, by name, where nothing quick computes the same: it
            is timed and shown apart, and cannot be verified. Each takes the operator's arguments, and makes a call
            without arguments and the tensors that its gradients are asked of.
        rival_roundings: how often a rival of that name may round on the way to a result, where most do less.
        backward_work: how many times the operations of the forward pass the gradients of all tensors take; None: once
            for each tensor of two dimensions and more, as where each pair of them is multiplied.
        moved: the bytes that a call must read and write at least, from its arguments; None: each tensor argument once
            and each result once.
        networks: the calls that networks make, from which rows are drawn on which nothing was tuned; None: there are
            no rows to draw.
    """

    table: Sequence[Sample]
    draw: Callable[[Random], Sample] | None = None
    stress: Callable[[Random, Budget], Sample] | None = None
    gpu_table: Sequence[Sample] = ()
    summed: Callable[..., int] = lambda *arguments: 1
    large: Sequence[Large] = ()
    non_finite: Callable[[Sample], bool] = lambda sample: True
    kinks: Callable[[Sample], bool] = lambda sample: True
    modules: Sequence[ModuleSample] = ()
    replaced: Sequence[ReplacedLayer] = ()
    benchmarks: Sequence[Benchmark] = ()
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    yardsticks: Mapping[str, Callable[..., tuple[Callable[[], Any], Sequence[Tensor]]]] = field(default_factory=dict)
    rival_roundings: Mapping[str, int] = field(default_factory=dict)
    backward_work: int | None = None
    moved: Callable[..., int] | None = None
    networks: Distribution | None = None

    @property
    def named(self) -> tuple[Sample, ...]:
        """All samples that have names."""
        return (*self.table, *self.gpu_table)

    @property
    def smallest(self) -> Sample:
        """The sample with the fewest elements that is not empty."""
        return min((sample for sample in self.table if not sample.is_empty), key=lambda sample: sample.elements)
