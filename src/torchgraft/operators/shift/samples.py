"""Inputs for shift and its gradients: the traps in which published kernels were caught, each by name."""

from dataclasses import replace
from math import isfinite
from random import Random
from typing import Any

from torchgraft.nn import Shift
from torchgraft.operators.shift import benchmarks, reference
from torchgraft.operators.shift.case import ShiftCase
from torchgraft.sampling import Budget, Drawn, Large, ModuleSample, Sample, Samples, any_size

_NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
# Larger than any image, and not than what float16 holds.
_HUGE = (60000.0, -60000.0, 30000.5, -30000.5)

_CASES = (
    ShiftCase("as in Shift-GCN", (2, 5, 9, 7), x=(1e-8, -1e-8), y=(-2.7, 0.4, 2.1, -0.3, 1.6)),
    ShiftCase("as in Shift-GCN, stride 2", (2, 4, 9, 5), 2, x=(1e-8, -1e-8), y=(-2.2, 0.9, 2.6, -0.1)),
    ShiftCase("x and y", (2, 3, 8, 6), x=(0.3, -1.4, 2.6), y=(-0.6, 1.2, -2.3)),
    ShiftCase("stride 2", (2, 3, 8, 6), 2, x=(0.3, -1.4, 2.6), y=(-0.6, 1.2, -2.3)),
    ShiftCase("stride 3", (2, 3, 11, 5), 3, x=(0.3, -1.4, 2.6), y=(-0.6, 1.2, -2.3)),
    ShiftCase("stride 4 and an odd rest", (1, 3, 15, 4), 4, x=(0.3, -1.4, 0.6), y=(-4.6, 1.2, 3.3)),
    ShiftCase("one row of results", (2, 3, 5, 4), 5),
    # Larger than what is exported, as PyTorch takes a program with an empty result for one of such sizes alone.
    ShiftCase("no row of results", (2, 9, 9, 6), 11),
    # Larger than what is differentiated numerically, as there is a kink.
    ShiftCase("whole offsets", (2, 8, 7, 6), x=(0.0, 1.0, -1.0, 2.0), y=(0.0, -2.0, 3.0, 0.0, 1.0)),
    ShiftCase("whole along x alone", (2, 8, 7, 6), 2, x=(0.0, 1.0, -1.0), y=(0.3, -2.6, 1.7)),
    ShiftCase("whole along y alone", (2, 8, 7, 6), x=(0.3, -2.6, 1.7), y=(0.0, 1.0, -1.0)),
    ShiftCase("a whole offset short of nothing", (2, 8, 7, 6), x=(-1e-9, 1e-9), y=(1e-9, -1e-9, -1e-30)),
    ShiftCase("huge offsets", (1, 4, 5, 4), x=_HUGE, y=(0.2, -0.3, *_HUGE)),
    ShiftCase("huge along y", (1, 4, 5, 4), x=(0.4,), y=_HUGE),
    ShiftCase("farther than 2**62", (1, 4, 5, 4), x=(5e18, -5e18, 4e18, -4e18), y=(0.3, -4e18, 5e18, -5e18)),
    ShiftCase("half in at the right and below", (1, 4, 5, 4), x=(3.5, 0.5, 2.5), y=(0.5, 4.5, 3.5)),
    ShiftCase("half in at the left and above", (1, 4, 5, 4), x=(-4.5, -0.5, -3.5), y=(-0.5, -5.5, -4.5)),
    ShiftCase("just out on every side", (1, 4, 5, 4), x=(4.2, -5.3, 0.1, 0.2), y=(0.1, 0.3, 5.2, -6.4)),
    ShiftCase("one pixel", (3, 4, 1, 1)),
    ShiftCase("one row", (2, 3, 1, 9)),
    ShiftCase("one column", (2, 3, 9, 1)),
    ShiftCase("one column, stride 2", (2, 3, 9, 1), 2),
    ShiftCase("one channel", (2, 1, 6, 7)),
    ShiftCase("empty batch", (0, 3, 6, 7)),
    ShiftCase("no rows", (2, 3, 0, 5)),
    ShiftCase("no columns", (2, 3, 5, 0)),
    ShiftCase("no channels", (2, 0, 5, 4)),
    ShiftCase("vector channels", (1, 48, 6, 5)),
    ShiftCase("vector channels, stride 2", (1, 64, 9, 3), 2),
    ShiftCase("a channel more than a vector", (2, 33, 7, 5)),
    ShiftCase("prime sizes", (3, 13, 17, 19), x=(0.3, -1.4, 2.6), y=(-3.6, 4.2, -6.3, 0.1)),
    ShiftCase("prime sizes, stride 3", (3, 13, 17, 19), 3, x=(0.3, -1.4, 2.6), y=(-3.6, 4.2, -6.3, 0.1)),
    ShiftCase("a skeleton's planes", (2, 3, 300, 25), x=(1.4, -0.3, 0.0), y=(-2.7, 12.4, 0.0)),
    ShiftCase("a skeleton's planes, stride 2", (1, 3, 300, 25), 2, x=(1.4, -0.3, 0.0), y=(-2.7, 12.4, 0.0)),
    ShiftCase("far along y", (1, 40, 120, 20), x=(0.7,), y=(-100.5, 90.2, 0.3)),
    ShiftCase("far along y, stride 2", (1, 40, 120, 5), 2, x=(0.7,), y=(-100.5, 90.2, 0.3)),
    ShiftCase("one row more than a tile of float", (1, 2, 81, 50)),
    ShiftCase("a tile of float", (1, 2, 80, 50)),
    ShiftCase("one row more than a tile of half", (2, 2, 163, 51), 2),
    ShiftCase("a row longer than half a block of threads", (1, 2, 5, 301), x=(0.3, -1.4), y=(-0.6, 1.2)),
    ShiftCase("a row of narrow pixels", (1, 40, 5, 90), x=(0.3, -1.4, 7.6), y=(-0.6, 1.2, 2.3)),
    ShiftCase("a stride that no step divides", (1, 3, 40, 25), 13, x=(0.3, -1.4), y=(-0.6, 1.2, 9.3)),
    ShiftCase("a row longer than a tile", (1, 2, 3, 5003), x=(0.3, -4100.6), y=(0.4, -0.7)),
    ShiftCase("a row longer than a tile, stride 2", (1, 3, 5, 5003), 2, x=(0.3, 2100.6), y=(0.4, -0.7)),
    ShiftCase("more rows longer than a tile than scratch holds", (1, 2, 20, 515), x=(0.3, -1.4), y=(0.4, -0.7)),
    ShiftCase("more channels than rows of them stay in cache", (1, 17, 4, 1100), x=(0.3, -1.4, 2.6), y=(-2.6, 1.2)),
    # On CPU a thread keeps what the channels of small planes say, where each comes to it twice: here to one of four.
    ShiftCase("small planes, two of a channel for each of four threads", (8, 3, 16, 16)),
    ShiftCase("small planes, one of a channel for each of four threads", (4, 3, 16, 16)),
    ShiftCase("one row more than small planes have", (8, 3, 17, 16)),
    ShiftCase("planes that begin anywhere", (3, 3, 7, 9), x=(0.6, -1.7), y=(0.9, -0.2, 2.3)),
)


def _both_layouts() -> list[ShiftCase]:
    return [each for case in _CASES for each in (case, replace(case, name=f"{case.name}, nhwc", channels_last=True))]


def _draw_case(random: Random) -> ShiftCase:
    batch, channels, height, width = (random.randint(0, 3), *(random.randint(1, most) for most in (5, 9, 9)))
    reach = random.choice((1.0, 3.0, 12.0))
    x, y = (tuple(random.uniform(-reach, reach) for _ in range(channels)) for _ in range(2))
    channels_last = random.random() < 0.5
    return ShiftCase("drawn", (batch, channels, height, width), random.randint(1, 4), x, y, channels_last)


# Columns of a thread, widths of tiles, rows of bands and rings.
_SIDES = (5, 7, 10, 15, 20, 25, 32, 50, 64, 80, 128, 163, 256, 320, 512)
_CHANNELS = (8, 16, 32, 33, 48, 64, 128)


def _stress_case(random: Random, budget: Budget) -> ShiftCase:
    # No kernel pays only for more, and PyTorch's gradients of what is gathered, the reference's, sort all of it.
    elements = budget.elements if random.random() < 0.05 else min(budget.elements, 1 << 20)
    most = elements if random.random() < 0.1 else 320
    width = any_size(random, min(most, elements), _SIDES)
    height = any_size(random, min(most, elements // width), _SIDES)
    channels = any_size(random, min(elements // (width * height), 1024), _CHANNELS)
    rest = elements // (width * height * channels)
    batch = max(rest, 1) if random.random() < 0.6 else any_size(random, rest)
    sizes = [batch, channels, height, width]
    if random.random() < 0.03:
        sizes[random.randrange(4)] = 0
    stride = random.choice((1, 1, 1, 2, 2, 3, 4, any_size(random, 16), any_size(random, height + 2)))
    x, y = (_stress_offsets(random, size, min(channels, 12)) for size in (width, height))
    return ShiftCase("drawn", (sizes[0], sizes[1], sizes[2], sizes[3]), stride, x, y, random.random() < 0.5)


def _stress_offsets(random: Random, size: int, count: int) -> tuple[float, ...]:
    """Offsets whole or next to it or not, near or far, and around the border of an image of a size."""
    reach = random.choice((0.0, 0.9, 3.0, 3.0, 12.0, float(size), 2.0 * size))

    def offset() -> float:
        kind = random.random()
        if kind < 0.6:
            return random.uniform(-reach, reach)
        if kind < 0.75:
            return float(round(random.uniform(-reach, reach)))
        if kind < 0.85:
            return round(random.uniform(-reach, reach)) + random.choice((-1e-9, 1e-9, -1e-3, 1e-3, 0.5))
        if kind < 0.95:
            return random.choice((-1, 1)) * (size + random.choice((-2, -1, 0, 1))) + random.choice((-0.4, 0.0, 0.4))
        # Not finite ones seldom: they hide whatever else becomes of a channel.
        return random.choice(_HUGE) if kind < 0.995 else random.choice(_NOT_FINITE)

    return tuple(offset() for _ in range(max(count, 1)))


def _has_clear_weights(sample: Sample) -> bool:
    """Whether no offset is so near a whole number that a weight is zero in one dtype and not in another."""
    offsets = [value for tensor in sample.tensors for value in tensor.values or ()]
    return all(value == round(value) or abs(value - round(value)) > 1e-4 for value in offsets if isfinite(value))


def _taps_summed(*arguments: Any) -> int:
    return 4


def _results_summed(output_grad: Any, *rest: Any) -> int:
    return 4 * int(output_grad.shape[0] * output_grad.shape[2] * output_grad.shape[3])


_MODULES = (
    ModuleSample("stride 1", lambda: Shift(3), (Drawn((2, 3, 6, 7)),)),
    ModuleSample(
        "stride 2, by the published rule",
        lambda: Shift(4, stride=2, init_scale=1.0, offset_gradient="shift_gcn"),
        (Drawn((2, 4, 7, 5), channels_last=True),),
    ),
)

# The last image lies beyond what 32 bits can index.
_LARGE = tuple(
    ShiftCase(
        f"more than 2**31 elements{name}", (130, 64, 512, 512), x=(0.3, -1.4), y=(-2.6, 1.2, 0.4), channels_last=last
    )
    for name, last in (("", False), (", nhwc", True))
)


def _samples(make: Any, summed: Any, means: Any, rival: Any, **more: Any) -> Samples:
    return Samples(
        tuple(make(case) for case in _both_layouts()),
        lambda random: make(_draw_case(random)),
        stress=lambda random, budget: make(_stress_case(random, budget)),
        summed=summed,
        non_finite=_has_clear_weights,
        benchmarks=tuple(benchmarks.of(make)),
        # The first sets the bound of errors; where grid_sample looks depends on how its positions are rounded.
        rivals={"reference": means, "grid_sample": rival},
        # Its error in a position is that of a number as large as the image.
        rival_roundings={"grid_sample": 1000},
        **more,
    )


samples = {
    "shift": _samples(
        ShiftCase.forward,
        _taps_summed,
        reference.shift,
        benchmarks.grid_sample,
        large=tuple(Large(case.forward()) for case in _LARGE),
        modules=_MODULES,
        # Its gradients are passes of the rows that are drawn of it.
        networks=benchmarks.NETWORKS,
    ),
    "shift_input_grad": _samples(
        ShiftCase.input_grad,
        _taps_summed,
        reference.shift_input_grad,
        benchmarks.grid_sample_input_grad,
        large=tuple(Large(case.input_grad()) for case in _LARGE),
    ),
    "shift_offset_grad": _samples(
        ShiftCase.with_input,
        _results_summed,
        reference.shift_offset_grad,
        benchmarks.grid_sample_offset_grad,
        large=tuple(Large(case.with_input(), batched=(0, 1), combine="sum") for case in _LARGE),
    ),
    # Of many elements its results would be put together in two ways; the kernels are those of the other two.
    "shift_grads": _samples(ShiftCase.with_input, _results_summed, reference.shift_grads, benchmarks.grid_sample_grads),
}
