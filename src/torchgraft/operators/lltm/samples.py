"""Inputs for lltm: around the borders of a vector, of a tile of rows and of a thread's share, and awkward sizes.

Weights are drawn as small as a layer's, so that a sequence forgets its rounding errors.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.nn import LLTM, LLTMCell
from torchgraft.operators.lltm import benchmarks, reference
from torchgraft.sampling import Budget, Drawn, ModuleSample, ReplacedLayer, Sample, Samples, any_size


def _scale(size: int) -> float:
    """The standard deviation of weights as the layers draw them: uniformly, up to 1 / sqrt(size)."""
    return 1 / math.sqrt(3 * size)


def _recurrent_weight(size: int) -> Drawn:
    # Of few units as of sixteen: a single one would be larger than one at times, and what a step errs by would grow
    # from step to step, in the reference no less than in what is checked.
    return Drawn((3 * size, size), scale=_scale(max(size, 16)))


def _held_by_tf32(drawn: Drawn) -> Drawn:
    """Rounded to the digits of tf32 and of float16: products of such numbers are exact in either."""
    return replace(drawn, rounded=torch.float16)


def _input_weight(features: int, size: int) -> Drawn:
    # Of many features for few units smaller: sums far above one err by more than their results can show.
    return Drawn((3 * size, features), scale=_scale(max(size, features)))


def _weights(features: int, size: int, *, bias: bool) -> tuple[Drawn, Drawn, Drawn | None]:
    return (
        _input_weight(features, size),
        _recurrent_weight(size),
        Drawn((3 * size,), scale=_scale(size)) if bias else None,
    )


def _cell(name: str, batch: int, features: int, size: int, *, bias: bool = True) -> Sample:
    states = Drawn((batch, size)), Drawn((batch, size))
    return Sample(name, (Drawn((batch, features)), *states, *_weights(features, size, bias=bias)))


# Gradients of input, h, weight_ih, weight_hh and bias that are wanted.
_ALL = (True,) * 5
_TO_DATA = (True, True, False, False, False)
_TO_WEIGHTS = (False, False, True, True, True)
_OF_INPUT = (True, True, True, False, False)


def _cell_grads(
    name: str,
    batch: int,
    features: int,
    size: int,
    *,
    of_h: bool = True,
    of_c: bool = True,
    wanted: Sequence[bool] = _ALL,
) -> Sample:
    state, scale = Drawn((batch, size)), _scale(size)
    weights = _input_weight(features, size), Drawn((3 * size, size), scale=scale)
    kept = Drawn((batch, 3 * size)), state if of_h else None, state if of_c else None
    return Sample(name, (Drawn((batch, features)), state, state, *weights, *kept, *wanted))


def _sequence(
    name: str,
    steps: int,
    batch: int,
    features: int,
    size: int,
    *,
    bias: bool = True,
    reverse: bool = False,
    tf32: bool = False,
) -> Sample:
    states = Drawn((batch, size)), Drawn((batch, size))
    tensors = Drawn((steps, batch, features)), *states, *_weights(features, size, bias=bias)
    held = [each and _held_by_tf32(each) for each in tensors] if tf32 else tensors
    return Sample(name, (*held, reverse, tf32), tf32)


def _grads(
    name: str,
    steps: int,
    batch: int,
    features: int,
    size: int,
    *,
    of: tuple[bool, bool, bool] = (True, True, True),
    wanted: Sequence[bool] = _ALL,
    reverse: bool = False,
    tf32: bool = False,
    scale: float = 1.0,
) -> Sample:
    """A sample of gradients: `scale` is the standard deviation of incoming ones, its inverse that of inputs."""
    cells, state, weight_hh = Drawn((steps, batch, size)), Drawn((batch, size)), _recurrent_weight(size)
    incoming = Drawn((steps, batch, size), scale=scale), *(Drawn((batch, size), scale=scale),) * 2
    of_results = (each if given else None for each, given in zip(incoming, of, strict=True))
    return Sample(
        name,
        (
            Drawn((steps, batch, features), scale=min(1 / scale, 2.0**13)),
            state,
            _input_weight(features, size),
            _held_by_tf32(weight_hh) if tf32 else weight_hh,
            Drawn((steps, batch, 3 * size), scale=0.5),
            cells,
            *of_results,
            reverse,
            tf32,
            *wanted,
        ),
        tf32,
    )


_CELLS = (
    _cell("one of everything", 1, 1, 1),
    _cell("empty batch", 0, 3, 2),
    _cell("no bias", 2, 3, 4, bias=False),
    _cell("more inputs than units", 3, 9, 2),
    _cell("more units than inputs", 2, 3, 17),
    _cell("one more than a vector", 3, 5, 9),
    _cell("one row", 1, 33, 31),
    _cell("many rows", 129, 3, 5),
    _cell("one input more than a tile is deep", 3, 257, 5),
    _cell("the tutorial's", 16, 32, 128),
    _cell("more than a thread's share", 70, 20, 250),
    _cell("as deep as a part of a panel", 24, 512, 17),
    _cell("deeper than a part of a panel", 24, 513, 17),
    _cell("several groups of panels", 5, 3, 129),
    _cell("a row less than threads share out", 255, 3, 65),
    _cell("as many rows as threads share out", 256, 3, 65),
)

_CELL_GRADS = (
    _cell_grads("one of everything", 1, 1, 1),
    _cell_grads("empty batch", 0, 3, 2),
    _cell_grads("of h alone, to data", 3, 5, 4, of_c=False, wanted=_TO_DATA),
    _cell_grads("of c alone, to weights", 3, 5, 4, of_h=False, wanted=_TO_WEIGHTS),
    _cell_grads("to c alone", 5, 2, 3, wanted=(False,) * 5),
    _cell_grads("one more than a tile", 33, 65, 11),
    _cell_grads("the tutorial's", 16, 32, 128),
    _cell_grads("many rows", 129, 3, 5),
    _cell_grads("as deep as a part of a panel", 512, 5, 17),
    _cell_grads("deeper than a part of a panel", 513, 5, 17),
    _cell_grads("several groups of panels", 200, 3, 129),
)

_SEQUENCES = (
    _sequence("one of everything", 1, 1, 1, 1),
    _sequence("one step", 1, 3, 2, 4),
    _sequence("two steps back", 2, 3, 2, 4, reverse=True),
    _sequence("empty batch", 3, 0, 2, 4),
    _sequence("no bias", 3, 2, 3, 5, bias=False),
    _sequence("no bias, back", 3, 2, 3, 5, bias=False, reverse=True),
    _sequence("one more than a vector", 4, 3, 5, 17),
    _sequence("one sequence", 20, 1, 7, 33),
    _sequence("one row more than a tile", 5, 10, 3, 8),
    _sequence("one row more than a block", 3, 37, 3, 140),
    _sequence("many rows, back", 3, 67, 4, 6, reverse=True),
    # More rows than blocks of few units begin at once on an H200, where one of them has two.
    _sequence("more rows than begin at once", 2, 1585, 2, 5),
    _sequence("more rows than begin at once, 33 units, back", 2, 397, 3, 33, reverse=True),
    _sequence("many steps", 60, 3, 4, 24),
    _sequence("wide", 4, 17, 30, 200),
    _sequence("wide, few rows", 3, 2, 4, 140),
    # As many weights as one thread packs on CPU, and more.
    _sequence("units whose weights one thread packs", 2, 2, 3, 144),
    _sequence("units whose weights threads share out", 2, 2, 3, 145),
    _sequence("units shared out", 4, 8, 5, 110),
    _sequence("units shared out, back", 3, 9, 5, 110, reverse=True),
    _sequence("tf32", 3, 3, 4, 40, tf32=True),
    _sequence("tf32, back, odd units", 3, 5, 3, 33, bias=False, reverse=True, tf32=True),
)

_GRADS = (
    _grads("one of everything", 1, 1, 1, 1),
    _grads("one step back", 1, 3, 2, 4, reverse=True),
    _grads("empty batch", 3, 0, 2, 4),
    _grads("of the output alone, to data", 2, 2, 4, 5, of=(True, False, False), wanted=_TO_DATA),
    _grads("of the last h alone, to weights", 2, 2, 4, 5, of=(False, True, False), wanted=_TO_WEIGHTS, reverse=True),
    _grads("of the last c alone", 2, 2, 4, 5, of=(False, False, True)),
    _grads("to c0 alone", 2, 2, 4, 5, wanted=(False,) * 5),
    _grads("one more than a vector", 4, 3, 5, 17),
    _grads("one row more than a tile", 5, 10, 3, 8),
    _grads("one row more than a block", 3, 37, 3, 48),
    _grads("many rows, back", 3, 67, 4, 6, reverse=True),
    _grads("more rows than begin at once", 2, 1585, 2, 5),
    _grads("more rows than begin at once, 33 units, back", 2, 397, 3, 33, reverse=True),
    _grads("wide", 4, 17, 30, 200),
    _grads("units whose weights one thread packs", 2, 2, 3, 144),
    _grads("units whose weights threads share out", 2, 2, 3, 145),
    _grads("units shared out", 4, 8, 5, 110),
    _grads("units shared out, back", 3, 9, 5, 110, reverse=True),
    _grads("tf32", 3, 3, 4, 40, tf32=True),
    _grads("tf32, back, odd units", 3, 5, 3, 33, reverse=True, tf32=True),
    _grads("deeper than a part of a panel", 3, 171, 24, 17),
)

# More units than clusters hold, and than fit on chip; so many that products of gradients are made of halves.
_GPU_SEQUENCES = (
    _sequence("whole grid", 5, 19, 6, 530),
    _sequence("whole grid, back, one row", 4, 1, 6, 1001, reverse=True),
    _sequence("clusters of eight blocks", 6, 37, 5, 511),
    _sequence("clusters of two blocks, a row a warp", 3, 100, 4, 150),
    _sequence("clusters of two blocks, several rows a warp", 3, 290, 4, 201, reverse=True),
    _sequence("clusters of four blocks", 4, 12, 5, 200),
    _sequence("clusters of five blocks", 4, 10, 5, 300, reverse=True),
    _sequence("products worth halves", 6, 128, 300, 300),
    # More rows than there are multiprocessors, twice.
    _sequence("tf32, one block", 4, 290, 3, 100, tf32=True),
    _sequence("one block", 4, 290, 3, 100, reverse=True),
    _sequence("one block, odd units", 3, 290, 3, 33, bias=False),
    _sequence("one block, one unit", 3, 290, 1, 1),
    _sequence("tf32, clusters of four blocks", 5, 37, 4, 201, tf32=True, reverse=True),
    _sequence("tf32, clusters of eight blocks", 6, 37, 5, 511, tf32=True),
    _sequence("tf32, whole grid", 4, 19, 6, 530, tf32=True, bias=False),
    _sequence("step by step, 1040 units", 4, 5, 6, 1040),
    _sequence("step by step, rows not of whole vectors, back", 3, 2, 6, 1029, reverse=True),
    _sequence("tf32, step by step", 3, 3, 6, 1030, tf32=True),
)

_GPU_CELLS = (_cell("deeper products of two bytes than cuBLAS is given at once", 290, 2310, 70),)

# More than one kernel multiplies.
_GPU_CELL_GRADS = (
    _cell_grads("products of PyTorch's", 200, 300, 500),
    _cell_grads("products worth halves", 200, 303, 501),
    _cell_grads("products worth halves, deeper than cuBLAS is given at once", 4417, 72, 73),
)

_GPU_GRADS = (
    _grads("whole grid", 5, 19, 6, 530),
    _grads("whole grid, back, one row", 4, 1, 6, 1001, reverse=True),
    _grads("clusters of eight blocks", 6, 37, 5, 511),
    _grads("clusters of two blocks, a row a warp", 3, 100, 4, 150),
    _grads("clusters of two blocks, several rows a warp", 3, 290, 4, 201, reverse=True),
    _grads("clusters of seven blocks", 4, 12, 5, 200),
    _grads("clusters of five blocks", 4, 10, 5, 300, reverse=True),
    _grads("products worth halves", 6, 128, 300, 300),
    _grads("products worth halves, more rows than gates, odd, back", 20, 101, 131, 129, reverse=True),
    # That float16 would not hold, or with a few bits.
    _grads("products worth halves, of small gradients", 6, 128, 300, 300, wanted=_OF_INPUT, scale=2.0**-20),
    _grads("products worth halves, of large gradients", 6, 128, 300, 300, wanted=_OF_INPUT, scale=2.0**14),
    _grads("products worth halves, deeper than cuBLAS is given at once", 7, 631, 72, 73),
    _grads("products worth halves, to weights", 6, 128, 300, 300, wanted=(False, False, True, True, False)),
    _grads("tf32, one block", 5, 290, 3, 31, tf32=True),
    _grads("clusters of four blocks", 4, 290, 3, 100),
    _grads("one block, one unit", 3, 290, 1, 1),
    _grads("clusters of two blocks, odd units", 3, 290, 3, 33, reverse=True),
    _grads("tf32, clusters of seven blocks", 5, 37, 4, 201, tf32=True, reverse=True),
    _grads("tf32, clusters of eight blocks", 6, 37, 5, 511, tf32=True),
    _grads("tf32, whole grid", 4, 19, 6, 530, tf32=True),
    _grads("step by step, 1040 units, back", 4, 5, 6, 1040, reverse=True),
    _grads("step by step, rows not of whole vectors", 3, 2, 6, 1029),
    _grads("step by step, more rows than products in parts have", 2, 65, 3, 1040),
    _grads("step by step, more units than a block has threads for", 2, 2, 3, 2080),
    _grads("tf32, step by step", 3, 3, 6, 1030, tf32=True),
    _grads("tf32, step by step, products in parts", 3, 3, 6, 1035, tf32=True, reverse=True),
)


def _draw_cell(random: Random, sizes: Sequence[int]) -> Sample:
    return _cell(f"drawn {sizes}", *sizes, bias=random.random() < 0.7)


def _draw_cell_grads(random: Random, sizes: Sequence[int]) -> Sample:
    of_h = random.random() < 0.7
    wanted = [random.random() < 0.7 for _ in _ALL]
    return _cell_grads(f"drawn {sizes}", *sizes, of_h=of_h, of_c=not of_h or random.random() < 0.7, wanted=wanted)


def _few(random: Random) -> tuple[int, int, int]:
    """Rows, features and units of a small cell."""
    return random.randint(0, 5), random.randint(1, 5), random.randint(1, 7)


def _draw_sequence(random: Random) -> Sample:
    sizes = random.randint(1, 5), random.randint(0, 4), random.randint(1, 4), random.randint(1, 6)
    return _sequence(f"drawn {sizes}", *sizes, bias=random.random() < 0.7, reverse=random.random() < 0.5)


def _draw_grads(random: Random) -> Sample:
    sizes = random.randint(1, 5), random.randint(0, 4), random.randint(1, 4), random.randint(1, 6)
    of = (True, random.random() < 0.7, random.random() < 0.7)
    wanted = [random.random() < 0.7 for _ in _ALL]
    return _grads(f"drawn {sizes}", *sizes, of=of, wanted=wanted, reverse=random.random() < 0.5)


# Up to so many units a group of blocks holds weights on its chip, or another shape of it; and rows of tiles and groups.
_UNITS = (16, 32, 64, 96, 128, 256, 512, 768, 1024, 1536, 2048)
_ROWS = (4, 8, 9, 16, 17, 32, 36, 64, 128, 396)


def _any_sizes(random: Random, budget: Budget, most_steps: int) -> tuple[int, int, int, int]:
    """Steps, batch, features and units, around which kernels are chosen."""
    # Of the elements, weights and activations have three to a unit.
    most = math.isqrt(min(budget.products, budget.elements) // 3)
    size = any_size(random, min(most, 2100), _UNITS)
    features = any_size(random, min(budget.elements // (3 * size), 1100), _UNITS)
    rows = min(budget.products // (3 * size * (size + features)), budget.elements // (5 * size + features))
    steps = any_size(random, min(rows, most_steps))
    # Of a PyTorch loop each step takes as long as a call.
    rest = max(rows // steps, 1)
    batch = rest if random.random() < 0.3 else any_size(random, min(rest, 600), _ROWS)
    return steps, 0 if random.random() < 0.02 else batch, features, size


def _stress_sequence(random: Random, budget: Budget) -> Sample:
    sizes = _any_sizes(random, budget, 40)
    bias, reverse, tf32 = random.random() < 0.7, random.random() < 0.5, random.random() < 0.3
    return _sequence(f"drawn {sizes}", *sizes, bias=bias, reverse=reverse, tf32=tf32)


def _stress_grads(random: Random, budget: Budget) -> Sample:
    # Second derivatives go through steps one by one in PyTorch's operators; lltm's own calls come back through many.
    sizes = _any_sizes(random, budget, 12)
    of = (random.random() < 0.7, random.random() < 0.7, True)
    wanted = [random.random() < 0.7 for _ in _ALL]
    reverse, tf32 = random.random() < 0.5, random.random() < 0.3
    return _grads(f"drawn {sizes}", *sizes, of=of, wanted=wanted, reverse=reverse, tf32=tf32)


def _visible(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A rival of what a caller sees."""
    return lambda *arguments: function(*arguments)[:count]


def _summed_in_cell(input: Tensor, h: Tensor, *others: Tensor | None) -> int:
    return int(input.shape[1] + h.shape[1])


def _summed_in_cell_grads(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Tensor | bool | None
) -> int:
    return int(max(input.shape[0], weight_hh.shape[0]))


def _summed_in_sequence(input: Tensor, h0: Tensor, *others: Tensor | bool | None) -> int:
    # What a step's sums err by goes on to the next.
    return int(input.shape[0] * (input.shape[2] + h0.shape[1]))


def _summed_in_grads(input: Tensor, h0: Tensor, *others: Tensor | bool | None) -> int:
    # Those of gates are sums of all gates of all steps after, and those of weights of all rows.
    return int(input.shape[0] * (3 * h0.shape[1] + input.shape[1]))


# A loop of PyTorch's operators rounds its states each step, and they grow: in halves few of its digits are left.
_LOOP_ROUNDINGS = dict.fromkeys(("pytorch", "reference", "compile", "cuda_graph"), 1000)

samples = {
    "lltm_cell": Samples(
        _CELLS,
        lambda random: _draw_cell(random, _few(random)),
        gpu_table=_GPU_CELLS,
        stress=lambda random, budget: _draw_cell(random, [*_any_sizes(random, budget, 1)[1:]]),
        summed=_summed_in_cell,
        backward_work=2,
        modules=(
            ModuleSample("with a bias", lambda: LLTMCell(5, 3), (Drawn((4, 5)),)),
            ModuleSample("without", lambda: LLTMCell(5, 3, bias=False), (Drawn((5,)),)),
        ),
        replaced=(
            ReplacedLayer(
                "LLTMCell", "nn.LSTMCell", partial(LLTMCell, 32, 32), partial(torch.nn.LSTMCell, 32, 32), (2, 32)
            ),
        ),
        benchmarks=benchmarks.cell_rows(_cell),
        rivals={"pytorch": _visible(reference.lltm_cell, 2)},
        yardsticks={"nn.LSTMCell": benchmarks.lstm_cell},
        networks=benchmarks.cells_of_networks(_cell),
    ),
    "lltm_cell_grads": Samples(
        _CELL_GRADS,
        lambda random: _draw_cell_grads(random, _few(random)),
        gpu_table=_GPU_CELL_GRADS,
        stress=lambda random, budget: _draw_cell_grads(random, [*_any_sizes(random, budget, 1)[1:]]),
        summed=_summed_in_cell_grads,
        benchmarks=benchmarks.cell_rows(_cell_grads),
        rivals={"pytorch": reference.lltm_cell_grads},
    ),
    "lltm": Samples(
        _SEQUENCES,
        _draw_sequence,
        gpu_table=_GPU_SEQUENCES,
        stress=_stress_sequence,
        summed=_summed_in_sequence,
        backward_work=2,
        modules=(
            ModuleSample("one layer", lambda: LLTM(5, 3), (Drawn((4, 2, 5)),)),
            ModuleSample(
                "two layers, both ways",
                lambda: LLTM(5, 3, num_layers=2, bidirectional=True, batch_first=True),
                (Drawn((2, 4, 5)),),
            ),
            ModuleSample("without a bias", lambda: LLTM(5, 3, bias=False), (Drawn((4, 5)),)),
        ),
        replaced=(ReplacedLayer("LLTM", "nn.LSTM", partial(LLTM, 32, 32), partial(torch.nn.LSTM, 32, 32), (4, 2, 32)),),
        benchmarks=benchmarks.sequence_rows(_sequence, benchmarks.GPU_SEQUENCE_SIZES),
        rivals={"pytorch": _visible(reference.lltm, 3)},
        rival_roundings=_LOOP_ROUNDINGS,
        yardsticks={"nn.LSTM": benchmarks.lstm},
        networks=benchmarks.sequences_of_networks(_sequence),
    ),
    "lltm_grads": Samples(
        _GRADS,
        _draw_grads,
        gpu_table=_GPU_GRADS,
        stress=_stress_grads,
        summed=_summed_in_grads,
        benchmarks=benchmarks.sequence_rows(_grads, benchmarks.GPU_SEQUENCE_SIZES[:2]),
        rivals={"pytorch": reference.lltm_grads},
        rival_roundings=_LOOP_ROUNDINGS,
    ),
}
