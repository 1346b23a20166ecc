"""Operators of every kind that a schema can name: indices, lists, complex numbers, codes of one byte, seeds, and
arguments that are written to. Their kernels are written in Python.

A kind has an operator that is right, the control, and operators with its schema and reference that are wrong.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator, unknown_size
from torchgraft._private import pytorch
from torchgraft.layout import suggests_channels_last
from torchgraft.sampling import Drawn, Sample, Samples

BUGS: list[Bug] = []
CONTROLS: list[Operator] = []
samples: dict[str, Samples] = {}

_FLOATS = (torch.float64, torch.float32, torch.float16)


class _Kind:
    """The schema, samples and options that operators of one kind share."""

    def __init__(self, signature: str, asked: Samples, dtypes: Any, **declared: Any) -> None:
        self.signature, self.asked, self.dtypes, self.declared = signature, asked, dtypes, declared

    def _declare(self, name: str, kernel: Callable[..., Any], **changes: Any) -> Operator:
        own = self.dtypes if isinstance(self.dtypes, tuple) else next(iter(self.dtypes.values()))
        options = {"dtypes": self.dtypes, "kernels": {"cpu": own}, **self.declared, **changes}
        if "explain" in options:
            options["explain"] = _named(name, options["explain"])
        operator = Operator(f"{kernels.NAMESPACE}::{name}{self.signature}", **options)
        operator.kernel("cpu")(kernel)
        samples[name] = self.asked
        return operator

    def control(self, name: str, kernel: Callable[..., Any]) -> Operator:
        operator = self._declare(name, kernel)
        CONTROLS.append(operator)
        return operator

    def plant(
        self,
        name: str,
        wrong: str,
        caught_by: str,
        kernel: Callable[..., Any],
        *,
        harms: bool = False,
        by_chance: bool = False,
        **changes: Any,
    ) -> Operator:
        operator = self._declare(name, kernel, **changes)
        BUGS.append(Bug(operator, wrong, caught_by, harms=harms, by_chance=by_chance))
        return operator


def _named(name: str, explain: Callable[..., None]) -> Callable[..., None]:
    """A function that explains arguments, with the name of the operator in front."""

    def named(*arguments: Any) -> None:
        try:
            explain(*arguments)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    return named


# Indices: rows of a table.


def _expect_indices(table: Tensor, indices: Tensor) -> None:
    if table.dim() != 2 or indices.dim() != 1:
        raise ValueError(
            f"table must be (rows, columns) and indices (count,), got {tuple(table.shape)} and {tuple(indices.shape)}"
        )


def _expect_rows(table: Tensor, indices: Tensor) -> None:
    _expect_indices(table, indices)
    rows = table.shape[0]
    if indices.device.type == "cpu" and indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
        raise ValueError(f"indices must lie between 0 and {rows - 1}, as table has {rows} rows")


def _take_rows(table: Tensor, indices: Tensor) -> Tensor:
    _expect_indices(table, indices)
    return table.index_select(0, indices)


def _take_clamped(table: Tensor, indices: Tensor) -> Tensor:
    if not len(table):
        return table.new_zeros(len(indices), table.shape[1])
    return table.index_select(0, indices.clamp(0, len(table) - 1))


def _rows(name: str, rows: int, columns: int, count: int) -> Sample:
    indices = Drawn((count,), dtype=torch.int64, high=max(rows, 1))
    return Sample(name, (Drawn((rows, columns)), indices))


def _summed_by_row(grad: Tensor, table: Tensor, indices: Tensor) -> Tensor:
    # In float32 at least: on a GPU a sum in float16 is rounded as often as a row was taken.
    wide = torch.promote_types(table.dtype, torch.float32)
    sums = torch.zeros(table.shape, dtype=wide, device=table.device).index_add(0, indices, grad.to(wide))
    return sums.to(table.dtype)


_taking = _Kind(
    "(Tensor table, Tensor indices) -> Tensor",
    Samples(
        (
            _rows("one row", 1, 3, 1),
            _rows("five rows", 4, 3, 5),
            _rows("no indices", 4, 3, 0),
            _rows("no columns", 4, 0, 2),
        ),
        lambda random: _rows("drawn", random.randint(1, 5), random.randint(0, 4), random.randint(0, 6)),
    ),
    {"table": _FLOATS, "indices": (torch.int64,)},
    reference=_take_rows,
    output=lambda table, indices: table.new_empty(indices.shape[0], table.shape[1]),
    gradient=lambda needs_grad, grads, saved, table, indices: (_summed_by_row(grads[0], table, indices), None),
    explain=_expect_rows,
)
_taking.control("take_rows", lambda table, indices: table.index_select(0, indices))
_taking.plant(
    "clamps_indices",
    "reads the last row for an index that is out of range",
    "bad_input",
    _take_clamped,
    explain=_expect_indices,
)


# What is written to: a total, to which an input is added from its end on.


def _expect_same_sizes(total: Tensor, input: Tensor) -> None:
    if total.shape != input.shape or total.dim() != 1:
        raise ValueError(f"total and input must be (count,), got {tuple(total.shape)} and {tuple(input.shape)}")


def _add_reversed(total: Tensor, input: Tensor) -> Tensor:
    _expect_same_sizes(total, input)
    return total + input.flip(0)


def _add_in_turn(total: Tensor, input: Tensor) -> None:
    for i in range(len(total)):
        total[i] += input[len(input) - 1 - i]


def _total(name: str, count: int) -> Sample:
    return Sample(name, (Drawn((count,)), Drawn((count,))))


_adding = _Kind(
    "(Tensor(a!) total, Tensor input) -> ()",
    Samples(
        (_total("one element", 1), _total("empty", 0), _total("seven elements", 7), _total("eight elements", 8)),
        lambda random: _total("drawn", random.randint(0, 9)),
    ),
    _FLOATS,
    reference=_add_reversed,
    explain=_expect_same_sizes,
)
# `data` has versions of its own.
_adding.control("add_reversed", lambda total, input: _add_in_turn(total.data, input.detach().clone()))
_adding.plant(
    "reads_what_it_has_written",
    "writes to an argument while it still reads from it, where one tensor is given as both",
    "mutation",
    lambda total, input: _add_in_turn(total.data, input.detach()),
)
_uncounted = _adding.plant(
    "hides_what_it_writes",
    "writes past what counts the versions of a tensor, and lets the key that would count them fall through",
    "mutation",
    lambda total, input: _add_in_turn(total.data, input.detach().clone()),
)
_past_the_counter = torch.library.Library(kernels.NAMESPACE, "FRAGMENT")
for _name in (_uncounted.public, _uncounted.raw):
    pytorch.override(_past_the_counter, _name, torch.library.fallthrough_kernel, "ADInplaceOrView")


# What is written to, and is larger than what is read: a row is added to each of several.


def _expect_row(total: Tensor, row: Tensor) -> None:
    if total.dim() != 2 or total.shape[1:] != row.shape:
        raise ValueError(f"a row of {tuple(row.shape)} does not fit a total of {tuple(total.shape)}")


def _add_row(total: Tensor, row: Tensor) -> Tensor:
    _expect_row(total, row)
    return total + row


def _add_to_each(total: Tensor, row: Tensor) -> None:
    for each in total:
        each += row


def _totals(name: str, rows: int, columns: int) -> Sample:
    return Sample(name, (Drawn((rows, columns)), Drawn((columns,))))


_adding_rows = _Kind(
    "(Tensor(a!) total, Tensor row) -> ()",
    Samples(
        (_totals("one row", 1, 3), _totals("no rows", 0, 3), _totals("three rows", 3, 5)),
        lambda random: _totals("drawn", random.randint(0, 4), random.randint(0, 6)),
    ),
    _FLOATS,
    reference=_add_row,
    explain=_expect_row,
)
_adding_rows.control("add_row", lambda total, row: _add_to_each(total.data, row.detach().clone()))
_adding_rows.plant(
    "reads_a_row_that_it_has_changed",
    "reads a row again and again, where it may be the first one of those that are written to",
    "mutation",
    lambda total, row: _add_to_each(total.data, row.detach()),
)


# A seed: noise on top of an input.


def _noisy(input: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(input.shape, generator=generator, dtype=torch.float64)
    return (input.double() + noise.to(input.device)).to(input.dtype)


_adding_noise = _Kind(
    "(Tensor input, SymInt seed) -> Tensor",
    Samples(
        (
            Sample("one element", (Drawn((1,)), 3)),
            Sample("empty", (Drawn((0,)), 3)),
            Sample("three rows", (Drawn((3, 5)), 7)),
        ),
        lambda random: Sample("drawn", (Drawn((random.randint(0, 20),)), random.randrange(1000))),
    ),
    _FLOATS,
    reference=_noisy,
    output=lambda input, seed: torch.empty_like(input),
    gradient=lambda needs_grad, grads, saved, input, seed: (grads[0].clone(),),
    random=("seed",),
)
_adding_noise.control("add_noise", lambda input, seed: torch.empty_like(input).copy_(_noisy(input, seed)))
_adding_noise.plant(
    "ignores_its_seed",
    "draws the same numbers whatever the seed is",
    "randomness",
    lambda input, seed: torch.empty_like(input).copy_(_noisy(input, 0)),
)
_adding_noise.plant(
    "draws_nothing_for_seed_0",
    "has a generator that gives zeros alone where its seed is 0",
    "randomness",
    lambda input, seed: torch.empty_like(input).copy_(_noisy(input, seed) if seed else input),
)
_adding_noise.plant(
    "draws_other_numbers",
    "draws evenly distributed numbers where the definition says normally distributed ones",
    "randomness",
    lambda input, seed: torch.empty_like(input).copy_(
        input + torch.rand(input.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ),
)
_adding_noise.plant(
    "adds_noise_to_zero_for_nan",
    "takes NaN for zero where it adds random numbers",
    "non_finite",
    lambda input, seed: torch.empty_like(input).copy_(_noisy(torch.where(input.isnan(), 0, input), seed + 1)),
)


_adding_noise.plant(
    "adds_noise_to_a_block_of_float32",
    "adds random numbers to 1,024 elements and no more, in float32 alone",
    "limits",
    lambda input, seed: torch.empty_like(input).copy_(
        torch.where(
            (torch.arange(input.numel(), device=input.device).view(input.shape) < 1_024)
            | torch.tensor(input.dtype != torch.float32),
            _noisy(input, seed),
            input,
        )
    ),
)


# The same, of which each dtype has random numbers of its own.


def _noisy_by_dtype(input: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return input + torch.randn(input.shape, generator=generator, dtype=input.dtype).to(input.device)


_adding_own_noise = _Kind(
    "(Tensor input, SymInt seed) -> Tensor",
    # PyTorch draws fewer than 16 numbers alike in both dtypes.
    Samples((Sample("one element", (Drawn((1,)), 3)), Sample("four rows", (Drawn((4, 6)), 7)))),
    _FLOATS,
    reference=_noisy_by_dtype,
    output=lambda input, seed: torch.empty_like(input),
    gradient=lambda needs_grad, grads, saved, input, seed: (grads[0].clone(),),
    random=("seed",),
)


def _noisy_again(input: Tensor, seed: int) -> Tensor:
    return torch.empty_like(input).copy_(_noisy_by_dtype(input, seed ^ (seed >> 32) ^ 0x5DEECE66D))


_adding_own_noise.control("add_noise_of_the_dtype", _noisy_again)
_adding_own_noise.plant(
    "adds_half_the_noise_to_float64",
    "adds half as much noise in float64, in which it draws other numbers than in float32",
    "randomness",
    lambda input, seed: (
        (_noisy_again(input, seed) + input) / 2 if input.dtype == torch.float64 else _noisy_again(input, seed)
    ),
)


# Rows in another order.


def _in_any_order(input: Tensor, seed: int) -> Tensor:
    return input[torch.randperm(len(input), generator=torch.Generator().manual_seed(seed))]


def _none_in_its_place(input: Tensor, seed: int) -> Tensor:
    order, random = list(range(len(input))), Random(seed)
    for place in range(len(order) - 1, 0, -1):
        other = random.randrange(place)
        order[place], order[other] = order[other], order[place]
    return input[order]


_shuffling = _Kind(
    "(Tensor input, SymInt seed) -> Tensor",
    Samples((Sample("two rows", (Drawn((2, 3)), 1)), Sample("forty rows", (Drawn((40, 1)), 2)))),
    _FLOATS,
    reference=_in_any_order,
    output=lambda input, seed: torch.empty_like(input),
    gradient=None,
    random=("seed",),
)
_shuffling.plant(
    "leaves_no_row_in_its_place",
    "draws an order in which no row keeps its place, as one of forty seldom does",
    "randomness",
    lambda input, seed: torch.empty_like(input).copy_(_none_in_its_place(input, seed)),
)


# Rows that hold something: a step from zero makes another one.


def _somethings(input: Tensor) -> Tensor:
    return input[(input != 0).any(1)]


_Kind(
    "(Tensor input) -> Tensor",
    Samples((Sample("a row of zeros", (Drawn((3, 2), values=(1.0, 2.0, 0.0, 0.0)),)),)),
    _FLOATS,
    reference=_somethings,
    shapes="n d -> _ d",
    output=lambda input: input.new_empty(unknown_size(), input.shape[1]),
    gradient="reference",
    sizes_from_data=True,
).control("rows_of_something", _somethings)


# Complex numbers: a rotation.


def _turn(input: Tensor, angle: float) -> Tensor:
    return math.cos(angle) * input + math.sin(angle) * (1j * input)


_turning = _Kind(
    "(Tensor input, float angle) -> Tensor",
    Samples(
        (
            Sample("scalar", (Drawn(()), 0.7)),
            Sample("empty", (Drawn((0,)), 0.7)),
            Sample("three rows", (Drawn((3, 5)), -2.0)),
        ),
        lambda random: Sample("drawn", (Drawn((random.randint(0, 20),)), random.uniform(-3, 3))),
    ),
    (torch.complex128, torch.complex64),
    reference=_turn,
    output=lambda input, angle: torch.empty_like(input),
    gradient=lambda needs_grad, grads, saved, input, angle: (_turn(grads[0], -angle),),
)
_turning.control("turn", lambda input, angle: _turn(input, angle).clone(memory_format=torch.preserve_format))
_turning.plant(
    "drops_imaginary_parts",
    "reads the real parts of complex numbers alone",
    "value",
    lambda input, angle: torch.empty_like(input).copy_(_turn(input.real, angle)),
)


# Lists: tensors one after the other.


def _expect_vectors(tensors: Sequence[Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        if tensor.dim() != 1:
            raise ValueError(f"tensors[{number}] must be (count,), got {tuple(tensor.shape)}")


def _join(tensors: Sequence[Tensor]) -> Tensor:
    _expect_vectors(tensors)
    return torch.cat(tuple(tensors))


def _parts(name: str, *counts: int) -> Sample:
    return Sample(name, ([Drawn((count,)) for count in counts],))


_joining = _Kind(
    "(Tensor[] tensors) -> Tensor",
    Samples(
        (
            _parts("one tensor", 3),
            _parts("one empty tensor", 0),
            _parts("three tensors", 3, 1, 4),
            _parts("an empty tensor between others", 2, 0, 5),
        ),
        lambda random: _parts("drawn", *(random.randint(0, 5) for _ in range(random.randint(1, 4)))),
    ),
    _FLOATS,
    reference=_join,
    output=lambda tensors: tensors[0].new_empty(sum(tensor.shape[0] for tensor in tensors)),
    gradient=lambda needs_grad, grads, saved, tensors: (
        [piece.clone() for piece in grads[0].split([tensor.shape[0] for tensor in tensors])],
    ),
    explain=_expect_vectors,
)
_joining.control("join", lambda tensors: torch.cat(tensors))
_joining.plant(
    "reverses_a_list",
    "takes the tensors of a list from its end on",
    "value",
    lambda tensors: torch.cat(tensors[::-1]),
)


# Codes of one byte: numbers with a scale.

_FP8 = torch.float8_e4m3fn
_MOST = torch.finfo(_FP8).max


def _quantize(input: Tensor, scale: float) -> Tensor:
    return (input * scale).clamp(-_MOST, _MOST).to(_FP8)


def _wrap(input: Tensor, scale: float) -> Tensor:
    scaled = (input.double() * scale).nan_to_num(0.0, 0.0, 0.0)
    return torch.remainder(scaled + _MOST, 2 * _MOST).sub(_MOST).to(_FP8)


_quantizing = _Kind(
    "(Tensor input, float scale) -> Tensor",
    Samples(
        (
            Sample("one element", (Drawn((1,)), 2.0)),
            Sample("empty", (Drawn((0,)), 2.0)),
            Sample("numbers that fit", (Drawn((3, 5)), 10.0)),
            Sample("numbers that do not fit", (Drawn((3, 5)), 1000.0)),
        ),
        lambda random: Sample("drawn", (Drawn((random.randint(0, 20),)), random.uniform(-3, 600))),
    ),
    _FLOATS,
    reference=_quantize,
    output=lambda input, scale: torch.empty_like(input, dtype=_FP8),
)


def _laid_out(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda input, *others: torch.empty_like(input, dtype=_FP8).copy_(function(input, *others))


_quantizing.control("quantize", _laid_out(_quantize))
_quantizing.plant(
    "gives_nan_where_it_is_full",
    "gives NaN for what is larger than the largest code, where it should give that",
    "value",
    _laid_out(lambda input, scale: (input.double() * scale).where(input.double().abs() * scale <= _MOST, math.nan)),
)
_quantizing.plant(
    "wraps_around",
    "begins again at the smallest code for what is larger than the largest",
    "value",
    _laid_out(_wrap),
)


# Blocks: kernels that read and write as many addresses as a block has, as those in Triton do.

_BLOCK = 16


def _expect_vector(input: Tensor) -> None:
    if input.dim() != 1:
        raise ValueError(f"input must be (count,), got {tuple(input.shape)}")


def _normalize(input: Tensor) -> Tensor:
    _expect_vector(input)
    blocks = pad(input, (0, -len(input) % _BLOCK)).unflatten(0, (-1, _BLOCK))
    return (blocks / (1 + blocks.abs().sum(1, keepdim=True))).flatten()[: len(input)]


def _at(tensor: Tensor, begin: int, count: int) -> Tensor:
    """So many numbers from an address on, whatever lies there."""
    size = tensor.element_size()
    memory = (ctypes.c_char * (count * size)).from_address(tensor.data_ptr() + begin * size)
    return torch.frombuffer(memory, dtype=tensor.dtype)


def _by_blocks(*, masked_load: bool = True, masked_store: bool = True) -> Callable[[Tensor], Tensor]:
    def kernel(input: Tensor) -> Tensor:
        source = input.detach().contiguous()
        output = torch.empty(source.shape, dtype=source.dtype, device=source.device)
        for begin in range(0, len(source), _BLOCK):
            within = min(_BLOCK, len(source) - begin)
            loaded = _at(source, begin, within if masked_load else _BLOCK).double()
            block = pad(loaded, (0, _BLOCK - len(loaded)))
            result = block / (1 + block.abs().sum())
            stored = within if masked_store else _BLOCK
            _at(output, begin, stored).copy_(result[:stored])
        return output

    return kernel


def _vector(name: str, count: int) -> Sample:
    return Sample(name, (Drawn((count,)),))


_normalizing = _Kind(
    "(Tensor input) -> Tensor",
    Samples(
        (
            _vector("one element", 1),
            _vector("empty", 0),
            _vector("one less than a block", 15),
            _vector("a block", 16),
            _vector("one more than two blocks", 33),
        ),
        lambda random: _vector("drawn", random.randint(0, 40)),
        summed=lambda input: _BLOCK,
    ),
    _FLOATS,
    reference=_normalize,
    output=lambda input: input.new_empty(input.shape),
    not_differentiable=("input",),
    explain=_expect_vector,
)
_normalizing.control("normalize_blocks", _by_blocks())
_normalizing.plant(
    "loads_without_a_mask",
    "the last block is read whole, and what lies behind the input is summed with it",
    "memory_bounds",
    _by_blocks(masked_load=False),
    by_chance=True,
)
_normalizing.plant(
    "stores_without_a_mask",
    "the last block is written whole, past the end of the result",
    "memory_bounds",
    _by_blocks(masked_store=False),
    harms=True,
)


# What takes the place of a function of PyTorch's, strides and all: means of two by two pixels.


def _expect_images(input: Tensor) -> None:
    if input.dim() != 4 or min(input.shape[1:]) < 1 or min(input.shape[2:]) < 2:
        raise ValueError(f"input must be (N, C, H, W) with two pixels a side, got {tuple(input.shape)}")


def _pool(input: Tensor) -> Tensor:
    _expect_images(input)
    return avg_pool2d(input, 2)


def _pooled(input: Tensor, channels_last: bool) -> Tensor:
    batch, channels, height, width = input.shape
    layout = torch.channels_last if channels_last else torch.contiguous_format
    size = batch, channels, height // 2, width // 2
    return torch.empty(size, dtype=input.dtype, device=input.device, memory_format=layout)


def _images(name: str, *size: int, channels_last: bool = False) -> Sample:
    return Sample(name, (Drawn(size, channels_last=channels_last),))


_pooling = _Kind(
    "(Tensor input) -> Tensor",
    Samples(
        (
            _images("one pixel of output", 2, 3, 2, 2),
            _images("no images", 0, 3, 2, 2),
            _images("two images, channels_last", 2, 3, 4, 5, channels_last=True),
        ),
        lambda random: _images("drawn", *(random.randint(low, 4) for low in (0, 1, 2, 2))),
    ),
    (torch.float64, torch.float32),
    reference=_pool,
    output=lambda input: _pooled(input, suggests_channels_last(input.shape, input.stride())),
    gradient="reference",
    explain=_expect_images,
    strides="reference",
)
_pooling.control("pool", lambda input: avg_pool2d(input, 2))
_pooling.plant(
    "makes_all_contiguous",
    "gives contiguous results where those of the function that it replaces keep the layout of the input",
    "strides",
    lambda input: avg_pool2d(input, 2).contiguous(),
    output=lambda input: _pooled(input, False),
)


# Two results, of which a caller may use one.


def _sine_and_cosine(input: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(input), torch.cos(input)


def _wave_gradient(
    needs_grad: Sequence[bool], grads: Sequence[Tensor | None], saved: Sequence[Tensor], input: Tensor
) -> tuple[Tensor | None]:
    of_sine, of_cosine = grads
    total = torch.zeros_like(input)
    if of_sine is not None:
        total = total + of_sine * torch.cos(input)
    if of_cosine is not None:
        total = total - of_cosine * torch.sin(input)
    return (total,)


def _needs_both(needs_grad: Sequence[bool], grads: Sequence[Tensor | None], *others: Any) -> tuple[Tensor | None]:
    return (None,) if None in grads else _wave_gradient(needs_grad, grads, *others)


def _tests_for_none_alone(needs_grad: Sequence[bool], grads: Sequence[Any], *others: Any) -> tuple[Tensor | None]:
    def scaled(grad: Tensor) -> Tensor:
        # Kept within range and brought back. Zeros have no range.
        largest = grad.abs().amax()
        return (grad / largest) * largest

    return _wave_gradient(needs_grad, [grad if grad is None else scaled(grad) for grad in grads], *others)


_waving = _Kind(
    "(Tensor input) -> (Tensor sine, Tensor cosine)",
    Samples(
        (_vector("one element", 1), _vector("empty", 0), _vector("three elements", 3)),
        lambda random: _vector("drawn", random.randint(1, 20)),
    ),
    (torch.float64, torch.float32),
    reference=_sine_and_cosine,
    output=lambda input: (input.new_empty(input.shape), input.new_empty(input.shape)),
    gradient=_wave_gradient,
)


def _waves(input: Tensor) -> tuple[Tensor, Tensor]:
    contiguous = input.contiguous()
    return torch.sin(contiguous), torch.cos(contiguous)


_waving.control("wave", _waves)
_waving.plant(
    "takes_none_for_not_needed",
    "gives no gradient at all where one of two results is not used",
    "incoming_gradients",
    _waves,
    gradient=_needs_both,
)
_waving.plant(
    "fails_where_a_gradient_is_none",
    "adds up the gradients of two results, one of which is None where that result is not used",
    "incoming_gradients",
    _waves,
    gradient=lambda needs_grad, grads, saved, input: (grads[0] * torch.cos(input) - grads[1] * torch.sin(input),),
)
_waving.plant(
    "tests_for_none_alone",
    "divides by the largest incoming gradient, which is zero where a compiler gives zeros in place of None",
    "incoming_gradients",
    _waves,
    gradient=_tests_for_none_alone,
)
_waving.plant(
    "compiles_for_used_results",
    "is right for None, and compiled divides by the zeros that it then gets for a result that is not used",
    "compile",
    _waves,
    gradient=_tests_for_none_alone,
)
