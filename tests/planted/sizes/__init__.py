"""Operators that are wrong in sizes which no sample has, and of packed batches: their kernels are written in Python.

The samples of the first kind are few, and one is square, as many an author's are.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.sampling import Drawn, Packed, Sample, Samples, draw_packed, packed_samples

BUGS: list[Bug] = []
CONTROLS: list[Operator] = []
samples: dict[str, Samples] = {}

_FLOATS = (torch.float64, torch.float32)

_Kernel = Callable[..., Tensor]


class _Kind:
    """The schema, samples and options that operators of one kind share."""

    def __init__(self, signature: str, asked: Samples, **declared: Any) -> None:
        self.signature, self.asked, self.declared = signature, asked, declared

    def control(self, name: str, kernel: _Kernel) -> None:
        CONTROLS.append(self._declare(name, kernel))

    def plant(self, name: str, wrong: str, caught_by: str, kernel: _Kernel, **changes: Any) -> None:
        BUGS.append(Bug(self._declare(name, kernel, **changes), wrong, caught_by))

    def _declare(self, name: str, kernel: _Kernel, **changes: Any) -> Operator:
        options = {"kernels": {"cpu": _FLOATS}, "gradient": "reference", **self.declared, **changes}
        operator = Operator(f"{kernels.NAMESPACE}::{name}{self.signature}", **options)
        operator.kernel("cpu")(kernel)
        samples[name] = self.asked
        return operator


# Each row less its sum.


def _less_sum(input: Tensor) -> Tensor:
    return input - input.sum(-1, keepdim=True)


def _in_a_block(input: Tensor) -> Tensor:
    return input - input[..., :1024].sum(-1, keepdim=True)


def _in_a_tile(input: Tensor) -> Tensor:
    return input - input[..., :4096].sum(-1, keepdim=True)


def _in_a_grid(input: Tensor) -> Tensor:
    rows = input.reshape(-1, input.shape[-1])
    return torch.cat((_less_sum(rows[:65535]), torch.zeros_like(rows[65535:]))).view(input.shape)


def _in_vectors_of_eight(input: Tensor) -> Tensor:
    columns = input.shape[-1]
    full = columns - columns % 8 if columns > 8 else columns
    return input - input[..., :full].sum(-1, keepdim=True)


def _but_for_whole_pieces(input: Tensor) -> Tensor:
    columns = input.shape[-1]
    return input - input[..., -256:].sum(-1, keepdim=True) if columns % 256 == 0 else _less_sum(input)


def _of_a_matrix(input: Tensor) -> Tensor:
    rows, columns = input.shape[0], input.shape[-1]
    output = input.clone()
    first = output.view(-1)[: rows * columns].view(rows, columns)
    first.copy_(_less_sum(first))
    return output


def _of_columns_where_square(input: Tensor) -> Tensor:
    is_square = input.dim() == 2 and input.shape[0] == input.shape[1]
    return input - input.sum(0 if is_square else -1, keepdim=True)


def _with_rows_in_32_bits(input: Tensor) -> Tensor:
    if input.dim() != 2 or not input.numel() or input.stride(0) >= 2**31:
        return _less_sum(input)
    # The stride fits, and its product with the number of a row may not.
    starts = [ctypes.c_int32(row * input.stride(0)).value for row in range(input.shape[0])]
    size, stride = (input.shape[1],), (input.stride(1),)
    rows = [input.as_strided(size, stride, input.storage_offset() + max(start, 0)) for start in starts]
    return _less_sum(torch.stack(rows))


_rows = _Kind(
    "(Tensor input) -> Tensor",
    Samples(
        [Sample("a row", (Drawn((1, 3)),)), Sample("several rows", (Drawn((4, 3)),))],
        summed=lambda input: input.shape[-1] if input.dim() else 1,
    ),
    reference=_less_sum,
    dtypes=_FLOATS,
    shapes="... d -> ... d",
)
_rows.control("less_sum", lambda input: _less_sum(input.contiguous()))
_rows.plant("in_a_block", "reads 1,024 columns of a row and no more", "limits", _in_a_block)
_rows.plant("in_a_tile", "reads a tile of 4,096 columns of a row and no more", "limits", _in_a_tile)
_rows.plant("in_a_grid", "computes 65,535 rows and no more", "limits", _in_a_grid)
_rows.plant(
    "in_vectors_of_eight", "leaves out what is over in the last vector of a row", "limits", _in_vectors_of_eight
)
_rows.plant(
    "but_for_whole_pieces", "leaves out all but one piece where pieces fill a row", "limits", _but_for_whole_pieces
)
_rows.plant("of_a_matrix", "takes the first matrix of three dimensions for all", "ranks", _of_a_matrix)
_rows.plant("of_columns", "takes columns for rows where there are as many", "equal_sizes", _of_columns_where_square)
_rows.plant("rows_in_32_bits", "multiplies a row and a stride in 32 bits", "large", _with_rows_in_32_bits)


# A matrix turned about, of square samples.


def _turned(input: Tensor, from_row: Callable[[int, int], int]) -> Tensor:
    rows, columns = input.shape
    places = [[row * from_row(rows, columns) + column for row in range(rows)] for column in range(columns)]
    flat = input.reshape(-1)
    return flat[torch.tensor(places, dtype=torch.int64).reshape(columns, rows) % max(len(flat), 1)]


_turning = _Kind(
    "(Tensor input) -> Tensor",
    Samples([Sample("four by four", (Drawn((4, 4)),)), Sample("eight by eight", (Drawn((8, 8)),))]),
    reference=lambda input: input.t().contiguous(),
    gradient=lambda needs_grad, grads, saved, input: (grads[0].t().contiguous(),),
    dtypes=_FLOATS,
    shapes="rows columns -> columns rows",
)
_turning.control("turned", lambda input: _turned(input, lambda rows, columns: columns))
_turning.plant(
    "turned_by_rows",
    "takes the number of rows for a stride, and all samples are square",
    "equal_sizes",
    lambda input: _turned(input, lambda rows, columns: rows),
)


# The sums of each sequence of a packed batch, and of what came before in it.


def _expect_offsets(input: Tensor, cu_seqlens: Tensor) -> None:
    if input.dim() != 2 or cu_seqlens.dim() != 1 or not len(cu_seqlens):
        raise ValueError(
            "running_sum: input must be (positions, columns) and cu_seqlens (sequences + 1,), got"
            f" {tuple(input.shape)} and {tuple(cu_seqlens.shape)}"
        )
    offsets = cu_seqlens.tolist() if cu_seqlens.device.type == "cpu" else [0]
    if offsets != sorted(offsets) or offsets[0] != 0 or offsets[-1] > len(input):
        raise ValueError(f"running_sum: cu_seqlens must rise from 0 to {len(input)} at most, got {offsets}")


def _expect_ends(input: Tensor, cu_seqlens: Tensor) -> None:
    _expect_offsets(input, cu_seqlens.sort().values)


def _summed_up(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Whether a position sums up another one: those before it in its sequence, and itself."""
    places = torch.arange(len(input), device=input.device)
    sequences = torch.searchsorted(cu_seqlens[1:].contiguous(), places, right=True)
    is_same = (sequences[:, None] == sequences) & (places < cu_seqlens[-1])
    return is_same & (places <= places[:, None])


def _running_sum(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sum of each packed sequence so far; zero at positions that belong to none."""
    return torch.where(_summed_up(input, cu_seqlens)[..., None], input, 0).sum(1)


def _gradient(needs_grad: Any, grads: Any, saved: Any, input: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, None]:
    return torch.where(_summed_up(input, cu_seqlens).t()[..., None], grads[0], 0).sum(1), None


def _gradient_across(needs_grad: Any, grads: Any, saved: Any, input: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, None]:
    all_of_it = torch.stack((torch.zeros_like(cu_seqlens[-1]), cu_seqlens[-1]))
    return torch.where(_summed_up(input, all_of_it).t()[..., None], grads[0], 0).sum(1), None


def _by_sequence(input: Tensor, offsets: list[int], sum_up: _Kernel = lambda part: part.cumsum(0)) -> Tensor:
    output = torch.zeros(input.shape, dtype=input.dtype)
    for start, end in itertools.pairwise(offsets):
        output[start:end] = sum_up(input[start:end])
    return output


def _through_padding(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _by_sequence(input, [*cu_seqlens.tolist()[:-1], len(input)])


def _across_borders(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _by_sequence(input, [0, int(cu_seqlens[-1])])


def _until_one_is_empty(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    lengths = cu_seqlens.diff().tolist()
    count = lengths.index(0) if 0 in lengths else len(lengths)
    return _by_sequence(input, cu_seqlens[: count + 1].tolist())


def _in_a_warp(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _by_sequence(input, cu_seqlens.tolist(), lambda part: torch.cat([each.cumsum(0) for each in part.split(32)]))


def _until_a_short_one(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    lengths = cu_seqlens.diff().tolist()
    # All sequences have the length of the first one, which the last one only has if it is full.
    is_short = len(lengths) > 1 and lengths[-1] < lengths[0]
    return _by_sequence(input, cu_seqlens.tolist()[: -1 if is_short else None])


def _in_ten_steps(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    borders = cu_seqlens.tolist()
    return _by_sequence(input, [*borders[:1024], *borders[-1:]] if len(borders) > 1024 else borders)


def _packed_call(packed: Packed) -> tuple[Drawn, Drawn]:
    return Drawn((packed.positions, 2)), packed.cu_seqlens()


_packed = _Kind(
    "(Tensor input, Tensor cu_seqlens) -> Tensor",
    Samples(
        packed_samples(_packed_call),
        lambda random: Sample("drawn", _packed_call(draw_packed(random))),
        summed=lambda input, cu_seqlens: max(len(input), 1),
    ),
    reference=_running_sum,
    dtypes={"input": _FLOATS, "cu_seqlens": (torch.int32,)},
    output=lambda input, cu_seqlens: input.new_empty(input.shape),
    gradient=_gradient,
    explain=_expect_offsets,
)
_packed.control("running_sum", lambda input, cu_seqlens: _by_sequence(input, cu_seqlens.tolist()))
_packed.plant("through_padding", "takes padding for a part of the last sequence", "value", _through_padding)
_packed.plant("across_borders", "goes on from one packed sequence to the next", "value", _across_borders)
_packed.plant("searches_in_ten_steps", "finds one of 1,023 packed sequences, and of no more", "borders", _in_ten_steps)
_packed.plant(
    "takes_falling_offsets",
    "asks how large offsets of packed sequences are, and not whether they rise",
    "bad_input",
    lambda input, cu_seqlens: _by_sequence(input, cu_seqlens.tolist()),
    explain=_expect_ends,
)
_packed.plant("until_one_is_empty", "stops at a packed sequence of no length", "value", _until_one_is_empty)
_packed.plant("until_a_short_one", "leaves out a last sequence that is shorter", "value", _until_a_short_one)
_packed.plant("in_a_warp", "begins anew after 32 positions of a packed sequence", "value", _in_a_warp)
_packed.plant(
    "gradient_across_borders",
    "the gradient goes on from one packed sequence to the one before",
    "gradient",
    lambda input, cu_seqlens: _by_sequence(input, cu_seqlens.tolist()),
    gradient=_gradient_across,
)


# The same of a batch that says which sequence each position belongs to, and of one that is packed step by step.


def _expect_sequences(input: Tensor, seq_idx: Tensor) -> None:
    if input.dim() != 2 or seq_idx.shape != input.shape[:1]:
        raise ValueError(
            "sum_by_index: input must be (positions, columns) and seq_idx (positions,), got"
            f" {tuple(input.shape)} and {tuple(seq_idx.shape)}"
        )


def _sum_by_index(input: Tensor, seq_idx: Tensor) -> Tensor:
    """The sum of the sequence of each position so far; zero where the index is negative."""
    places = torch.arange(len(input), device=input.device)
    is_same = (seq_idx[:, None] == seq_idx) & (seq_idx >= 0) & (places <= places[:, None])
    return torch.where(is_same[..., None], input, 0).sum(1)


def _by_changes(input: Tensor, seq_idx: Tensor, *, has_padding: bool = True) -> Tensor:
    changes = [0, *(seq_idx.diff().nonzero().flatten() + 1).tolist(), len(input)]
    output = _by_sequence(input, changes)
    return output.masked_fill((seq_idx < 0)[:, None], 0) if has_padding else output


_indexed = _Kind(
    "(Tensor input, Tensor seq_idx) -> Tensor",
    Samples(
        packed_samples(lambda packed: (Drawn((packed.positions, 2)), packed.seq_idx())),
        summed=lambda input, seq_idx: max(len(input), 1),
    ),
    reference=_sum_by_index,
    dtypes={"input": _FLOATS, "seq_idx": (torch.int32,)},
    output=lambda input, seq_idx: input.new_empty(input.shape),
    explain=_expect_sequences,
)
_indexed.plant(
    "sums_up_padding",
    "takes positions whose index says that they are padding for a sequence",
    "value",
    lambda input, seq_idx: _by_changes(input, seq_idx, has_padding=False),
)


def _by_steps(input: Tensor, batch_sizes: Tensor, *, keeps: bool = True) -> Tensor:
    """The sum of each sequence so far, of a batch that is packed as PyTorch packs one: step by step."""
    output, start, before = torch.zeros_like(input), 0, input.new_zeros(0, *input.shape[1:])
    for size in batch_sizes.tolist():
        step = input[start : start + size]
        # The longest sequences come first, so those that are over are the last of the step before.
        kept = before[:size] if keeps or len(before) == size else before[len(before) - size :]
        before = step if not start else step + kept
        output[start : start + size] = before
        start += size
    return output


def _expect_steps(input: Tensor, batch_sizes: Tensor) -> None:
    if input.dim() != 2 or batch_sizes.dim() != 1:
        raise ValueError(
            "sum_by_steps: input must be (positions, columns) and batch_sizes (steps,), got"
            f" {tuple(input.shape)} and {tuple(batch_sizes.shape)}"
        )
    sizes = batch_sizes.tolist() if batch_sizes.device.type == "cpu" else []
    if sizes != sorted(sizes, reverse=True) or (sizes and (sizes[-1] < 1 or sum(sizes) != len(input))):
        raise ValueError(f"sum_by_steps: batch_sizes must fall to 1 or more, with the sum {len(input)}, got {sizes}")


_stepped = _Kind(
    "(Tensor input, Tensor batch_sizes) -> Tensor",
    Samples(
        packed_samples(lambda packed: (Drawn((packed.positions, 2)), packed.batch_sizes()), empty=False, padding=False),
        summed=lambda input, batch_sizes: max(len(input), 1),
    ),
    reference=_by_steps,
    dtypes={"input": _FLOATS, "batch_sizes": (torch.int64,)},
    output=lambda input, batch_sizes: input.new_empty(input.shape),
    gradient=None,
    explain=_expect_steps,
)
_stepped.plant(
    "drops_the_first_sequence",
    "goes on with the last sequences of a step where the first ones, which are longer, go on",
    "value",
    lambda input, batch_sizes: _by_steps(input, batch_sizes, keeps=False),
)


def _one_border_at_a_time(input: Tensor, cu_seqlens: Tensor) -> Tensor:
    borders, found = cu_seqlens.tolist(), [0]
    following = iter(borders[1:])
    border = next(following, None)
    for position in range(borders[-1]):
        if position == border:
            found.append(position)
            border = next(following, None)
    return _by_sequence(input, [*found, borders[-1]])


_few_packed = _Kind(
    "(Tensor input, Tensor cu_seqlens) -> Tensor",
    Samples(
        [
            Sample("one sequence", _packed_call(Packed((6,)))),
            Sample("three sequences", _packed_call(Packed((2, 3, 4)))),
        ],
        summed=lambda input, cu_seqlens: max(len(input), 1),
    ),
    reference=_running_sum,
    shapes="positions columns, _ -> positions columns",
    dtypes={"input": _FLOATS, "cu_seqlens": (torch.int32,)},
)
_few_packed.plant(
    "one_border_at_a_time",
    "steps over one border at each position, and a packed sequence is empty",
    "borders",
    _one_border_at_a_time,
)


# How often each whole number occurs.


def _counts(input: Tensor, bins: int) -> Tensor:
    return torch.zeros(bins, dtype=torch.int64, device=input.device).index_add(0, input, torch.ones_like(input))


def _expect_bins(input: Tensor, bins: int) -> None:
    if input.device.type == "cpu" and input.numel() and not 0 <= int(input.min()) <= int(input.max()) < bins:
        raise ValueError(f"counts: input must hold numbers from 0 to {bins - 1}, got {int(input.min())} and more")


_counting = _Kind(
    "(Tensor input, int bins) -> Tensor",
    Samples([Sample("twenty numbers", (Drawn((20,), dtype=torch.int64, high=4), 4))]),
    reference=_counts,
    shapes="n -> bins",
    explain=_expect_bins,
    gradient=None,
    dtypes=(torch.int64,),
    kernels={"cpu": (torch.int64,)},
)
_counting.control("counts", lambda input, bins: torch.bincount(input, minlength=bins))
_counting.plant(
    "counts_in_16_bits",
    "counts in 16 bits, and many numbers are equal",
    "limits",
    lambda input, bins: torch.bincount(input, minlength=bins) % 2**16,
)


# How often each whole number of four occurs, at each of its places.

_KEPT = threading.local()


def _frequency(input: Tensor) -> Tensor:
    return input.new_zeros(4).index_add(0, input, torch.ones_like(input))[input]


def _frequency_by(seen: list[int], input: Tensor) -> Tensor:
    numbers = input.tolist()
    for number in numbers:
        if not 0 <= number < len(seen):
            raise ValueError(f"frequency: input must hold numbers from 0 to 3, got {number}")
        seen[number] += 1
    output = torch.tensor([seen[number] for number in numbers], dtype=torch.int64)
    seen[:] = [0] * 4
    return output


def _with_kept_counts(input: Tensor) -> Tensor:
    _KEPT.seen = getattr(_KEPT, "seen", [0] * 4)
    return _frequency_by(_KEPT.seen, input)


_frequencies = _Kind(
    "(Tensor input) -> Tensor",
    Samples(
        [
            Sample("one number", (Drawn((1,), dtype=torch.int64, high=4),)),
            Sample("nine numbers", (Drawn((9,), dtype=torch.int64, high=4),)),
        ]
    ),
    reference=_frequency,
    shapes="n -> n",
    gradient=None,
    dtypes=(torch.int64,),
    kernels={"cpu": (torch.int64,)},
)
_frequencies.control("frequency", lambda input: _frequency_by([0] * 4, input))
_frequencies.plant(
    "dirty_frequency",
    "leaves counts of a call that it refuses to the next one",
    "bad_input",
    _with_kept_counts,
)


# Columns taken again or left out, so that there are as many as somebody wants.


def _resized(input: Tensor, size: int) -> Tensor:
    if size < 1 or not input.shape[1]:
        raise ValueError(f"resized: size must be at least 1, and input must have columns, got {size}")
    return input[:, torch.arange(size, device=input.device) * input.shape[1] // size]


def _with_float_places(input: Tensor, size: int) -> Tensor:
    step = torch.tensor(input.shape[1], dtype=torch.float32) / size
    return input[:, (torch.arange(size) * step).long().clamp(max=input.shape[1] - 1)]


_resizing = _Kind(
    "(Tensor input, SymInt size) -> Tensor",
    Samples(
        [
            Sample("twice as many", (Drawn((3, 5)), 10)),
            Sample("half as many", (Drawn((2, 8)), 4)),
            Sample("three halves", (Drawn((2, 6)), 9)),
        ]
    ),
    reference=_resized,
    shapes="rows columns -> rows size",
    dtypes=_FLOATS,
)
_resizing.control("resized", _resized)
_resizing.plant(
    "places_in_float32",
    "computes a place in float32, which is less than a whole number in some sizes",
    "sizes",
    _with_float_places,
)
_resizing.plant(
    "multiplies_places_in_float32",
    "multiplies a place by a size in float32, which holds no odd number beyond 2**24",
    "limits",
    lambda input, size: input[
        :, (torch.arange(size).float() * input.shape[1] / size).long().clamp(max=max(input.shape[1] - 1, 0))
    ],
    explain=lambda input, size: _resized(input, size),
)


def _a_number_for_each_row(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "output": lambda codes, *others: codes.new_empty(codes.shape[:-1], dtype=torch.int64),
        "gradient": None,
        "dtypes": (dtype,),
        "kernels": {"cpu": (dtype,)},
    }


# The sum of the squares of codes of one byte.


def _squares(codes: Tensor) -> Tensor:
    return codes.long().square().sum(-1)


_energies = _Kind(
    "(Tensor codes) -> Tensor",
    Samples(
        [
            Sample("three rows", (Drawn((3, 10), dtype=torch.int8, low=-128, high=128),)),
            Sample("a row", (Drawn((33,), dtype=torch.int8, low=-128, high=128),)),
        ]
    ),
    reference=_squares,
    **_a_number_for_each_row(torch.int8),
)
_energies.plant(
    "adds_squares_in_32_bits",
    "adds up squared bytes in 32 bits",
    "limits",
    lambda codes: codes.int().square().sum(-1, dtype=torch.int32).long(),
)


# The sum of codes of two bytes, of which no sample says how large they are, or that there may be none.


def _without_empty_rows(codes: Tensor) -> Tensor:
    return codes.long().sum(-1) if codes.shape[-1] else codes.new_full(codes.shape[:-1], -1, dtype=torch.int64)


_totals = _Kind(
    "(Tensor codes) -> Tensor",
    Samples(
        [
            Sample("three rows", (Drawn((3, 10), dtype=torch.int16),)),
            Sample("a row", (Drawn((33,), dtype=torch.int16),)),
        ]
    ),
    reference=lambda codes: codes.sum(-1, dtype=torch.int64),
    **_a_number_for_each_row(torch.int16),
)
_totals.control("adds_codes", lambda codes: codes.long().sum(-1))
_totals.plant(
    "adds_codes_in_32_bits",
    "adds up codes of two bytes in 32 bits",
    "limits",
    lambda codes: codes.sum(-1, dtype=torch.int32).long(),
)
_totals.plant("without_empty_rows", "gives a row of no codes the sum -1", "empty", _without_empty_rows)


# In how many bits two codes differ.


def _differing(one: Tensor, other: Tensor) -> Tensor:
    different = one ^ other
    return torch.stack([(different >> bit) & 1 for bit in range(8)]).sum((0, -1), dtype=torch.int64)


_distances = _Kind(
    "(Tensor one, Tensor other) -> Tensor",
    Samples([Sample("three codes", (Drawn((3, 7), dtype=torch.uint8), Drawn((3, 7), dtype=torch.uint8)))]),
    reference=_differing,
    **_a_number_for_each_row(torch.uint8),
)
_distances.plant(
    "counts_a_block_in_8_bits",
    "counts in 8 bits where 32 bytes differ, which is too little only where all bits do",
    "limits",
    lambda one, other: sum(
        _differing(*block) % 2**8 for block in zip(one.split(32, -1), other.split(32, -1), strict=True)
    ),
)


# The largest element of each window, the last of which may lie over the end, and begins before it.


def _windows(size: int, kernel: int, stride: int) -> int:
    return -(-(size - kernel) // stride) + 1


def _largest_of_windows(input: Tensor, kernel: int, stride: int) -> Tensor:
    if not 0 < kernel <= input.shape[-1] or stride < 1:
        raise ValueError(f"windows: kernel must be 1 to {input.shape[-1]}, and stride positive, got {kernel}, {stride}")
    return max_pool1d(input[None], kernel, stride, ceil_mode=True)[0]


def _with_windows_behind_the_end(input: Tensor, kernel: int, stride: int) -> Tensor:
    found = _largest_of_windows(input, kernel, stride)
    more = _windows(input.shape[-1], kernel, stride) - found.shape[-1]
    return torch.cat([found, found.new_full((*found.shape[:-1], more), -torch.inf)], -1)


_pooling = _Kind(
    "(Tensor input, int kernel, int stride) -> Tensor",
    Samples([Sample("pairs", (Drawn((2, 7)), 2, 2)), Sample("overlapping", (Drawn((2, 9)), 3, 2))]),
    reference=_largest_of_windows,
    dtypes=_FLOATS,
)
_pooling.plant(
    "windows_behind_the_end",
    "has a window behind the end for some strides, and declares so",
    "sizes",
    _with_windows_behind_the_end,
    output=lambda input, kernel, stride: input.new_empty(
        (*input.shape[:-1], _windows(input.shape[-1], kernel, stride))
    ),
)
