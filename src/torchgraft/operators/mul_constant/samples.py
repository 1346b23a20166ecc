"""Inputs for mul_constant: around the borders of a sixteen-byte access, of a block and of a thread's share."""

import math
from random import Random

from torchgraft.sampling import Benchmark, Budget, Distribution, Drawn, Large, Sample, Samples, any_size, log_uniform


def _draw(random: Random) -> Sample:
    shape = tuple(random.randint(0, 6) for _ in range(random.randint(0, 4)))
    return Sample(f"drawn {shape}", (Drawn(shape), random.uniform(-3, 3)))


def _stress(random: Random, budget: Budget) -> Sample:
    # Of one dimension, that the borders of blocks and shares are met; of several for what is not contiguous.
    shape: list[int] = []
    for _ in range(random.choice((1, 1, 2, 3, 4, 5))):
        shape.append(any_size(random, budget.elements // math.prod(shape), _SHARES))
    if random.random() < 0.02:
        shape[random.randrange(len(shape))] = 0
    constant = random.choice((0.0, -1.0, 3, 2.0**-20, random.uniform(-3, 3), random.uniform(-3, 3)))
    channels_last = len(shape) == 4 and random.random() < 0.5
    return Sample(f"drawn {tuple(shape)}", (Drawn(tuple(shape), channels_last), constant))


# Of a block's threads, of sixteen bytes each; and where a CPU shares them out.
_SHARES = (256, 512, 1024, 2048, 32768, 65536)

_TABLE = (
    Sample("scalar", (Drawn(()), 2.0)),
    Sample("one element", (Drawn((1,)), -0.5)),
    Sample("empty", (Drawn((0,)), 2.0)),
    Sample("empty in the middle", (Drawn((3, 0, 2)), 2.0)),
    Sample("seven elements, less than an access in half", (Drawn((7,)), 0.3)),
    Sample("eight elements", (Drawn((8,)), 0.3)),
    Sample("1025 elements, one more than a block in float", (Drawn((1025,)), 1.7)),
    Sample("more than a thread's share", (Drawn((3, 40001)), 1.7)),
    Sample("channels_last", (Drawn((2, 3, 5, 4), channels_last=True), 1.5)),
    Sample("five dimensions", (Drawn((2, 1, 3, 2, 2)), 1.5)),
    Sample("times zero", (Drawn((5,)), 0.0)),
    Sample("an integer constant", (Drawn((5,)), 3)),
)

_LARGE = Large(Sample("more than 2**31 elements", (Drawn((2**31 + 1031,)), 1.7)))

_BENCHMARKS = (
    Benchmark(Sample("64 Ki elements", (Drawn((2**16,)), 1.7)), "sizes"),
    Benchmark(Sample("4 Mi elements", (Drawn((2**22,)), 1.7)), "sizes", quick=True),
    Benchmark(Sample("16 Mi elements and 3", (Drawn((2**24 + 3,)), 1.7)), "sizes"),
    Benchmark(Sample("256 Mi elements", (Drawn((2**28,)), 1.7)), "sizes", devices=("cuda",)),
)


def _draw_of_networks(random: Random, budget: Budget) -> Benchmark | None:
    """A tensor of any size that activations have."""
    elements = round(log_uniform(random, 2**12, 2**27))
    fits = 2 * elements <= budget.elements
    return Benchmark(Sample(f"{elements:,} elements", (Drawn((elements,)), 1.7)), "drawn") if fits else None


samples = {
    "mul_constant": Samples(
        _TABLE,
        _draw,
        stress=_stress,
        large=(_LARGE,),
        benchmarks=_BENCHMARKS,
        rivals={"pytorch": lambda input, constant: input * constant},
        networks=Distribution(_draw_of_networks, "pytorch"),
    )
}
