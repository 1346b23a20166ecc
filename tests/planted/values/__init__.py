"""Operators that are right for ordinary values and numbers, and wrong for others. Their kernels are written in Python.

Their samples are ordinary too, normally distributed: what is huge, tiny, equal or masked comes from the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples

BUGS: list[Bug] = []
CONTROLS: list[Operator] = []
samples: dict[str, Samples] = {}

_FLOATS = (torch.float64, torch.float32)
_UNARY = "(Tensor input) -> Tensor"
_ROWS = Samples(
    (Sample("two rows", (Drawn((2, 3)),)), Sample("seven rows", (Drawn((7, 20)),))),
    lambda random: Sample("drawn", (Drawn((random.randint(1, 5), random.randint(1, 9))),)),
    summed=lambda input: int(input.shape[-1]),
)


def _declare(
    name: str, signature: str, reference: Callable[..., Any], kernel: Callable[..., Any], asked: Samples, **more: Any
) -> Operator:
    options = {"dtypes": _FLOATS, "kernels": {"cpu": _FLOATS}, **more}
    operator = Operator(f"{kernels.NAMESPACE}::{name}{signature}", reference=reference, **options)
    operator.kernel("cpu")(kernel)
    samples[name] = asked
    return operator


def _plant(name: str, wrong: str, caught_by: str, *declared: Any, **more: Any) -> None:
    BUGS.append(Bug(_declare(name, *declared, **more), wrong, caught_by))


def _plant_values(name: str, wrong: str, reference: Callable[..., Any], kernel: Callable[..., Any]) -> None:
    _plant(name, wrong, "value_regimes", _UNARY, reference, kernel, _ROWS)


def _plant_gradient(name: str, wrong: str, reference: Callable[..., Any], gradient: Callable[..., Any]) -> None:
    def formula(needs_grad: Sequence[bool], grads: Sequence[Tensor], saved: Any, input: Tensor) -> tuple[Tensor]:
        return (gradient(grads[0], input),)

    _plant(name, wrong, "gradient_regimes", _UNARY, reference, reference, _ROWS, gradient=formula)


# Values.


def _soft(input: Tensor) -> Tensor:
    return F.softplus(input)


def _variance(input: Tensor) -> Tensor:
    return input.var(-1, correction=0)


def _of_one_length(input: Tensor) -> Tensor:
    return F.normalize(input, dim=-1)


def _length(input: Tensor) -> Tensor:
    return (input * input).sum(-1, keepdim=True).sqrt()


def _first_largest(input: Tensor) -> Tensor:
    return input.argmax(-1)


def _last_largest(input: Tensor) -> Tensor:
    return input.shape[-1] - 1 - input.flip(-1).argmax(-1)


_plant_values(
    "overflows_in_exp",
    "computes softplus as log(1 + exp(x)), which is infinite from 89 on",
    _soft,
    lambda input: torch.log(1 + torch.exp(input)),
)
_plant_values(
    "cancels_near_zero",
    "computes expm1 as exp(x) - 1, which has no digits near zero",
    torch.expm1,
    lambda input: torch.exp(input) - 1,
)
_plant_values(
    "cancels_around_a_mean",
    "computes the variance in one pass, as the mean of squares less the square of the mean",
    _variance,
    lambda input: (input * input).mean(-1) - input.mean(-1) ** 2,
)
_plant_values(
    "divides_by_a_length_of_zero",
    "divides a row by its length, also if that is zero",
    _of_one_length,
    lambda input: input / _length(input),
)
_plant_values("takes_the_last_of_equal", "gives the last of equal maxima", _first_largest, _last_largest)
_plant(
    "squares_huge_numbers",
    "computes hypot as the root of a sum of squares, which overflows from 1e19 on",
    "value_regimes",
    "(Tensor input, Tensor other) -> Tensor",
    torch.hypot,
    lambda input, other: torch.sqrt(input * input + other * other),
    Samples((Sample("two rows", (Drawn((2, 3)), Drawn((2, 3)))),)),
)
_plant(
    "multiplies_masks",
    "multiplies with a mask that holds -inf",
    "value_regimes",
    "(Tensor input, Tensor mask) -> Tensor",
    lambda input, mask: torch.softmax(input + mask, -1),
    lambda input, mask: torch.softmax(input + mask, -1) + 0 * mask,
    Samples((Sample("two rows", (Drawn((2, 6)), Drawn((2, 6)))),)),
)


def _hypot_of_large(input: Tensor, other: Tensor) -> Tensor:
    most = torch.maximum(input.abs(), other.abs()).clamp(min=1)
    return most * ((input / most) ** 2 + (other / most) ** 2).sqrt()


def _in_range(input: Tensor, size: Tensor) -> Tensor:
    return (input - input.amin()).float() / size.float()


_BLOCK = 16


def _softmax_of_some(input: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(input.masked_fill(~mask, -torch.inf), -1).masked_fill(~mask, 0)


def _softmax_in_blocks(input: Tensor, mask: Tensor) -> Tensor:
    values = input.masked_fill(~mask, -torch.inf)
    most, total = values.new_full(values.shape[:-1], -torch.inf), values.new_zeros(values.shape[:-1])
    for block in values.split(_BLOCK, -1):
        higher = torch.maximum(most, block.amax(-1))
        total = total * torch.exp(most - higher) + torch.exp(block - higher[..., None]).sum(-1)
        most = higher
    return (torch.exp(values - most[..., None]) / total[..., None]).masked_fill(~mask, 0)


_plant(
    "loses_a_masked_block",
    "subtracts -inf from -inf where a mask takes all of the first block of a row",
    "value_regimes",
    "(Tensor input, Tensor mask) -> Tensor",
    _softmax_of_some,
    _softmax_in_blocks,
    Samples((Sample("two rows", (Drawn((2, 6)), Drawn((2, 6), dtype=torch.bool, values=(1.0, 1.0, 0.0)))),)),
    dtypes={"input": _FLOATS, "mask": (torch.bool,)},
)


def _logsumexp_below(most: Tensor, input: Tensor) -> Tensor:
    return torch.log(torch.exp(input - most).sum(-1)) + most[..., 0]


_plant_values(
    "begins_a_maximum_at_zero",
    "begins the maximum that it subtracts at 0, far above rows of large negative values",
    lambda input: torch.logsumexp(input, -1),
    lambda input: _logsumexp_below(input.amax(-1, keepdim=True).clamp(min=0), input),
)
_plant(
    "halves_towards_zero",
    "rounds halves of negative integers towards zero, where the definition rounds down",
    "value_regimes",
    _UNARY,
    lambda input: input // 2,
    lambda input: torch.div(input, 2, rounding_mode="trunc"),
    Samples((Sample("two rows", (Drawn((2, 6), dtype=torch.int64),)),)),
    dtypes=(torch.int64,),
    kernels={"cpu": (torch.int64,)},
)
_plant(
    "squares_tiny_numbers",
    "divides by the larger number before it squares, though not if both are below 1, whose squares may be zero",
    "value_regimes",
    "(Tensor input, Tensor other) -> Tensor",
    torch.hypot,
    _hypot_of_large,
    Samples((Sample("two rows", (Drawn((2, 3)), Drawn((2, 3)))),)),
)
_plant_values(
    "takes_no_sign_of_zero",
    "takes -0.0 for a positive number, where the definition reads the sign",
    lambda input: torch.copysign(torch.ones_like(input), input),
    lambda input: 1 - 2 * (input < 0).to(input.dtype),
)
_plant_values(
    "takes_subnormals_for_zero",
    "takes numbers below the smallest normal one for zero",
    torch.sign,
    lambda input: torch.sign(input) * (input.abs() >= torch.finfo(input.dtype).tiny),
)
_plant(
    "adds_bytes_in_a_byte",
    "adds two numbers of one byte in one byte, where the definition adds them in two",
    "value_regimes",
    "(Tensor input, Tensor other) -> Tensor",
    lambda input, other: input.to(torch.int16) + other.to(torch.int16),
    lambda input, other: (input + other).to(torch.int16),
    Samples((Sample("two rows", (Drawn((2, 3), dtype=torch.int8), Drawn((2, 3), dtype=torch.int8))),)),
    dtypes=(torch.int8,),
    kernels={"cpu": (torch.int8,)},
)
_plant(
    "divides_by_a_range_of_zero",
    "divides by the range of whole numbers, which is zero if all are equal",
    "value_regimes",
    _UNARY,
    lambda input: _in_range(input, (input.amax() - input.amin()).clamp(min=1)),
    lambda input: _in_range(input, input.amax() - input.amin()),
    Samples((Sample("two rows", (Drawn((2, 6), dtype=torch.int64, high=9),)),)),
    dtypes=(torch.int64,),
    kernels={"cpu": (torch.int64,)},
)
CONTROLS.append(
    _declare(
        "soft",
        _UNARY,
        _soft,
        lambda input: input.clamp(min=0) + torch.log1p(torch.exp(-input.abs())),
        _ROWS,
        gradient=lambda needs_grad, grads, saved, input: (grads[0] * torch.sigmoid(input),),
    )
)

# Gradients.


def _largest(input: Tensor) -> Tensor:
    return input.amax(-1)


def _is_largest(input: Tensor) -> Tensor:
    return (input == input.amax(-1, keepdim=True)).to(input.dtype)


_plant_gradient(
    "has_another_kink",
    "the gradient at a kink is that of the other side",
    torch.relu,
    lambda grad, input: grad * (input >= 0),
)
_plant_gradient(
    "divides_zero_by_zero",
    "the gradient formula divides zero by zero",
    torch.abs,
    lambda grad, input: grad * (input / input.abs()),
)
_plant_gradient(
    "gives_each_maximum_all",
    "each of several equal maxima gets the whole gradient",
    _largest,
    lambda grad, input: grad[..., None] * _is_largest(input),
)
_plant_gradient(
    "overflows_in_its_gradient",
    "the gradient formula divides two infinities from 89 on",
    _soft,
    lambda grad, input: grad * torch.exp(input) / (1 + torch.exp(input)),
)

_plant_gradient(
    "has_no_gradient_at_a_limit",
    "the gradient of what is clamped is zero at the limits too, 1 and -1, where the definition lets it through",
    lambda input: input.clamp(-1, 1),
    lambda grad, input: grad * (input.abs() < 1),
)

# Numbers.


def _line(input: Tensor, slope: float, shift: float) -> Tensor:
    return input * slope + shift


_NUMBERS = "(Tensor input, float slope, float shift) -> Tensor"
_LINES = Samples(
    (Sample("two rows", (Drawn((2, 3)), 2.0, 0.5)), Sample("seven elements", (Drawn((7,)), 2.0, 0.5))),
    lambda random: Sample("drawn", (Drawn((random.randint(1, 9),)), random.uniform(1, 2), random.uniform(0, 1))),
)
_slopes: dict[torch.Size, float] = {}
_biases: list[Tensor] = []


def _with_kept_slope(input: Tensor, slope: float, shift: float) -> Tensor:
    return input * _slopes.setdefault(input.shape, slope) + shift


def _add(input: Tensor, bias: Tensor | None) -> Tensor:
    return input.clone() if bias is None else input + bias


def _with_kept_bias(input: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        _biases[:] = [bias.clone()]
    return input + _biases[0]


def _plant_number(name: str, wrong: str, kernel: Callable[..., Any]) -> None:
    _plant(name, wrong, "numbers", _NUMBERS, _line, kernel, _LINES)


_plant_number(
    "rounds_a_number",
    "passes a number on as float32",
    lambda input, slope, shift: input * float(torch.tensor(slope, dtype=torch.float32)) + shift,
)
_plant_number(
    "swaps_numbers",
    "takes the larger of two numbers for the first",
    lambda input, slope, shift: input * max(slope, shift) + min(slope, shift),
)
_plant(
    "rounds_a_number_to_halves",
    "rounds a number to the dtype of its tensor",
    "numbers",
    _NUMBERS,
    lambda input, slope, shift: (input.double() * slope + shift).to(input.dtype),
    lambda input, slope, shift: (input.double() * torch.tensor(slope, dtype=input.dtype) + shift).to(input.dtype),
    _LINES,
    dtypes=(*_FLOATS, torch.float16),
    kernels={"cpu": (*_FLOATS, torch.float16)},
)
_plant(
    "rounds_halves_away_from_zero",
    "rounds halves away from zero, and not to even numbers",
    "value_regimes",
    "(Tensor input, Tensor scale) -> Tensor",
    lambda input, scale: torch.round(input / scale).to(torch.int32),
    lambda input, scale: (torch.sign(input) * torch.floor((input / scale).abs() + 0.5)).to(torch.int32),
    Samples((Sample("columns", (Drawn((3, 5)), Drawn((5,), low=0.01, high=0.1))),)),
)
_plant(
    "batches_dimensions_that_are_counted_from_the_front",
    "its vmap rule moves a dimension that is counted from the end",
    "vmap",
    "(Tensor input, int dim) -> Tensor",
    lambda input, dim: input.cumsum(dim),
    lambda input, dim: input.cumsum(dim),
    Samples((Sample("rows", (Drawn((4, 5)), 1)), Sample("columns", (Drawn((4, 5)), 0)))),
    gradient=lambda needs_grad, grads, saved, input, dim: (grads[0].flip(dim).cumsum(dim).flip(dim),),
    vmap=lambda operator, batch_size, in_dims, input, dim: (operator(input.movedim(in_dims[0], 0), dim + 1), 0),
)
_plant(
    "counts_positions_in_float32",
    "counts positions in float32, which holds no odd number above 2**24",
    "bad_input",
    "(Tensor input, int first=0) -> Tensor",
    lambda input, first: input + (first + torch.arange(input.shape[-1], dtype=torch.float64)).sin().to(input.dtype),
    lambda input, first: input + (first + torch.arange(input.shape[-1])).float().double().sin().to(input.dtype),
    Samples((Sample("from the first on", (Drawn((2, 6)),)), Sample("later", (Drawn((2, 6)), 512)))),
)
_plant_number(
    "divides_by_what_is_left_of_a_number",
    "divides by 1 less a number, and multiplies by it later, also where that is zero",
    lambda input, slope, shift: (
        input * (1 / torch.tensor(1 - slope, dtype=torch.float64)).item() * (slope - slope * slope) + shift
    ),
)
_plant(
    "takes_the_larger_for_a_slope",
    "takes the larger of an element and its multiple, which is another one for factors above 1",
    "numbers",
    "(Tensor input, float slope=0.01) -> Tensor",
    lambda input, slope: F.leaky_relu(input, slope),
    lambda input, slope: torch.maximum(input, input * slope),
    Samples((Sample("two rows", (Drawn((2, 5)), 0.25)),)),
)
_plant_number("ignores_a_number", "has a number for good", lambda input, slope, shift: input * 2.0 + shift)
_plant_number("keeps_a_number", "keeps a number from the first call with the same sizes", _with_kept_slope)
_plant(
    "ignores_a_flag",
    "takes no notice of a flag",
    "numbers",
    "(Tensor input, bool negative) -> Tensor",
    lambda input, negative: -input if negative else input.clone(),
    lambda input, negative: input.clone(),
    Samples((Sample("two rows", (Drawn((2, 3)), False)),)),
)
_plant(
    "mistakes_the_sign_of_an_integer",
    "moves in one direction whatever the sign of a number is",
    "numbers",
    "(Tensor input, int by) -> Tensor",
    lambda input, by: input.roll(by, -1),
    lambda input, by: input.roll(abs(by), -1),
    Samples((Sample("two rows", (Drawn((2, 5)), 2)),)),
)
_plant(
    "takes_even_numbers_alone",
    "takes an odd number for the even one below",
    "numbers",
    "(Tensor input, int by) -> Tensor",
    lambda input, by: input.roll(by, -1),
    lambda input, by: input.roll(by - by % 2, -1),
    Samples((Sample("two rows", (Drawn((2, 5)), 2)),)),
)
_plant(
    "keeps_what_is_left_out",
    "adds the bias of the call before where none is given",
    "numbers",
    "(Tensor input, Tensor? bias) -> Tensor",
    _add,
    _with_kept_bias,
    Samples((Sample("two rows", (Drawn((2, 3)), Drawn((3,)))),)),
)
CONTROLS.append(
    _declare(
        "line",
        _NUMBERS,
        _line,
        lambda input, slope, shift: input * slope + shift,
        _LINES,
        gradient=lambda needs_grad, grads, saved, input, slope, shift: (grads[0] * slope,),
    )
)


def _gradient_for_one(needs_grad: Any, grads: Any, saved: Any, input: Tensor, slope: float, shift: float) -> Any:
    # The slope of the samples.
    return (grads[0] * 2.0,)


_plant(
    "has_a_gradient_for_one_number",
    "has the gradient for the number of its samples alone",
    "numbers",
    _NUMBERS,
    _line,
    lambda input, slope, shift: input * slope + shift,
    Samples(_LINES.table),
    gradient=_gradient_for_one,
)
_plant(
    "returns_its_argument_unmoved",
    "returns its argument itself where a number moves nothing",
    "numbers",
    "(Tensor input, int by) -> Tensor",
    lambda input, by: input.roll(by, -1),
    lambda input, by: input.roll(by, -1) if by % max(input.shape[-1], 1) else input,
    Samples((Sample("two rows", (Drawn((2, 5)), 2)),)),
)


# Sums of rows up to each element or of whole rows, of all elements or weighted ones, as they are or divided by how many
# they are. No sample has weights and a flag.


def _counts(input: Tensor, running: bool) -> Tensor:
    size = input.shape[-1]
    return torch.arange(1, size + 1) if running else torch.full((size,), size)


def _sums(input: Tensor, weight: Tensor | None, running: bool, mean: bool) -> Tensor:
    terms = input.clone() if weight is None else input * weight
    sums = terms.cumsum(-1) if running else terms.sum(-1, keepdim=True).expand(terms.shape)
    return sums / input.shape[-1] if mean else sums.clone()


def _sums_of_as_many(input: Tensor, weight: Tensor | None, running: bool, mean: bool) -> Tensor:
    sums = _sums(input, weight, running, False)
    return sums / _counts(input, running) if mean else sums


def _gradient_of_sums(
    always_weighted: bool, needs_grad: Any, grads: Any, saved: Any, input: Tensor, weight: Any, *flags: bool
) -> tuple[Tensor, Tensor | None]:
    running, mean = flags
    grad = grads[0] / input.shape[-1] if mean else grads[0]
    back = grad.flip(-1).cumsum(-1).flip(-1) if running else grad.sum(-1, keepdim=True).expand(grad.shape)
    weighted = weight is not None and (always_weighted or not running)
    return (back * weight if weighted else back.clone()), None if weight is None else (back * input).sum(0)


_SUMS: dict[str, Any] = {
    "signature": "(Tensor input, Tensor? weight, bool running, bool mean) -> Tensor",
    "reference": _sums,
    "shapes": "r n, n -> r n",
}


def _asked_of_sums(*more: Sample) -> Samples:
    table = (
        Sample("whole rows", (Drawn((2, 5)), None, False, False)),
        Sample("weighted", (Drawn((2, 3)), Drawn((3,)), False, False)),
        *more,
    )
    return Samples(table, summed=lambda input, *others: max(input.shape))


_FLAGS = (
    Sample("running", (Drawn((3, 4)), None, True, False)),
    Sample("means", (Drawn((3, 5)), None, False, True)),
)
CONTROLS.append(
    _declare(
        "sums",
        kernel=_sums,
        asked=_asked_of_sums(*_FLAGS),
        gradient=lambda *given: _gradient_of_sums(True, *given),
        **_SUMS,
    )
)
_plant(
    "divides_running_sums_by_other_counts",
    "divides running sums by how many there are, where the definition divides by the length of a row",
    "numbers",
    kernel=_sums_of_as_many,
    asked=_asked_of_sums(),
    gradient="reference",
    **_SUMS,
)
_plant(
    "forgets_weights_of_running_sums",
    "has a gradient of running sums without their weights",
    "numbers",
    kernel=_sums,
    asked=_asked_of_sums(*_FLAGS),
    gradient=lambda *given: _gradient_of_sums(False, *given),
    **_SUMS,
)


# The mean of the elements whose number is not the one that is left out.


def _mean_of_others(input: Tensor, group: Tensor, left_out: int) -> Tensor:
    counts = group != left_out
    return (input * counts).sum() / counts.sum()


def _mean_of_one_at_least(input: Tensor, group: Tensor, left_out: int) -> Tensor:
    counts = group != left_out
    return (input * counts).sum() / counts.sum().clamp(min=1)


_MEAN_OF_OTHERS: dict[str, Any] = {
    "signature": "(Tensor input, Tensor group, int left_out=0) -> Tensor",
    "reference": _mean_of_others,
    "asked": Samples(
        (Sample("nine elements", (Drawn((9,)), Drawn((9,), dtype=torch.int64, values=(1.0, 0.0, 2.0)))),),
        summed=lambda input, group, left_out: input.numel(),
    ),
    "dtypes": {"input": (torch.float64, torch.float32), "group": (torch.int64,)},
    "kernels": {"cpu": (torch.float64, torch.float32)},
    "shapes": "n, n -> ()",
    "gradient": "reference",
}
CONTROLS.append(_declare("mean_of_others", kernel=_mean_of_others, **_MEAN_OF_OTHERS))
_plant(
    "mean_of_none",
    "gives zero for the mean of no element, which is NaN",
    "value_regimes",
    kernel=_mean_of_one_at_least,
    **_MEAN_OF_OTHERS,
)


def _weighted(input: Tensor, label: Tensor, weight: Tensor | None) -> Tensor:
    kept = label >= 0
    each = torch.ones_like(input[:, 0]) if weight is None else weight[label.clamp_min(0)]
    return (each * kept * input.gather(1, label.clamp_min(0)[:, None])[:, 0]).sum() / (each * kept).sum()


def _weighted_gradient(all_count: bool, needs_grad: Any, grads: Any, saved: Any, *given: Any) -> Any:
    input, label, weight = given
    with torch.enable_grad():
        inputs = [each.detach().requires_grad_() for each in (input, weight) if each is not None]
        result = _weighted(inputs[0], label, None if weight is None else inputs[1])
    found = list(torch.autograd.grad(result, inputs, grads[0]))
    if all_count and weight is not None:
        # What the weights of ignored rows make the sum too large.
        every = weight[label.clamp_min(0)]
        found[0] = found[0] * (every * (label >= 0)).sum() / every.sum()
    return found[0], None, found[1] if weight is not None else None


def _explain_labels(input: Tensor, label: Tensor, weight: Tensor | None) -> None:
    # A GPU would have to be waited for, which a CUDA graph cannot.
    if label.is_cpu and label.numel() and label.max() >= input.shape[-1]:
        raise ValueError("weighted_rows: a label must name a column of input")


# No sample has both weights and a label that is ignored.
_LABELS = Samples(
    (
        Sample("rows", (Drawn((5, 3)), Drawn((5,), dtype=torch.int64, high=3), None)),
        Sample("some are ignored", (Drawn((4, 3)), Drawn((4,), dtype=torch.int64, values=(0, -1, 2, -1)), None)),
        Sample("weights", (Drawn((6, 3)), Drawn((6,), dtype=torch.int64, high=3), Drawn((3,), low=0.5, high=2.0))),
    )
)
_WEIGHTED = "(Tensor input, Tensor label, Tensor? weight) -> Tensor"
_WEIGHTED_OPTIONS: dict[str, Any] = {
    "shapes": "n k, n, k -> ()",
    "explain": _explain_labels,
    "dtypes": {"input": _FLOATS, "weight": _FLOATS, "label": (torch.int64,)},
}
_plant(
    "counts_ignored_rows_if_weighted",
    "has a gradient that is divided by the weights of ignored rows too",
    "numbers",
    _WEIGHTED,
    _weighted,
    _weighted,
    _LABELS,
    **_WEIGHTED_OPTIONS,
    gradient=lambda *given: _weighted_gradient(True, *given),
)
CONTROLS.append(
    _declare(
        "weighted_rows",
        _WEIGHTED,
        _weighted,
        _weighted,
        _LABELS,
        **_WEIGHTED_OPTIONS,
        gradient="reference",
    )
)
_plant(
    "ranks_in_float32",
    "compares numbers of float64 in float32",
    "value_regimes",
    "(Tensor input) -> Tensor",
    lambda input: input.argsort(stable=True, dim=-1),
    lambda input: input.float().argsort(stable=True, dim=-1),
    Samples((Sample("two rows", (Drawn((2, 7)),)),)),
    output=lambda input: torch.empty(input.shape, dtype=torch.int64, device=input.device),
)


def _of_picked(needs_grad: Any, grads: Any, saved: Any, table: Tensor, index: Tensor) -> Any:
    picked = index == torch.arange(table.shape[0], device=index.device)[:, None]
    return picked.to(table.dtype) @ grads[0], None


_plant(
    "loses_the_gradient_of_the_last",
    "has no gradient for rows that are counted from the end",
    "gradient_regimes",
    "(Tensor table, Tensor index) -> Tensor",
    lambda table, index: table[index],
    lambda table, index: table[index],
    Samples((Sample("some rows", (Drawn((6, 3)), Drawn((4,), dtype=torch.int64, high=6))),)),
    dtypes={"table": _FLOATS, "index": (torch.int64,)},
    gradient=_of_picked,
)


def _left_out(input: Tensor, row: int) -> Tensor:
    return torch.arange(input.shape[0], device=input.device)[:, None] == row


_plant(
    "leaves_out_no_row_from_the_end",
    "has a gradient for a row that a number leaves out, if it counts from the end",
    "numbers",
    "(Tensor input, int row) -> Tensor",
    lambda input, row: torch.where(_left_out(input, row % max(input.shape[0], 1)), input.detach(), input),
    lambda input, row: input.clone(),
    Samples((Sample("six rows", (Drawn((6, 2)), 2)),)),
    shapes="n d -> n d",
    gradient=lambda needs_grad, grads, saved, input, row: (grads[0].masked_fill(_left_out(input, row), 0),),
)


def _beyond(input: Tensor, limit: float) -> Tensor:
    return torch.where(input.abs() <= limit, 0, input)


_plant(
    "keeps_what_equals_a_limit",
    "keeps elements as large as a limit, where the definition keeps larger ones",
    "value_regimes",
    "(Tensor input, float limit=0.3) -> Tensor",
    _beyond,
    lambda input, limit: torch.where(input.abs() < limit, 0, input),
    Samples((Sample("two rows", (Drawn((2, 7)), 0.6)),)),
)
_plant(
    "adds_up_sizes_to_see_infinity",
    "judges by the sum of all sizes whether every element is finite",
    "value_regimes",
    _UNARY,
    lambda input: torch.where(input.isfinite().all(), input / 2, 0),
    lambda input: torch.where(input.abs().sum().isfinite(), input / 2, 0),
    _ROWS,
)
_plant(
    "skips_zeros",
    "leaves out products with zero, as if no factor were infinite",
    "non_finite",
    "(Tensor input, Tensor weight) -> Tensor",
    lambda input, weight: input * weight,
    lambda input, weight: torch.where(weight == 0, 0, input * weight),
    Samples((Sample("two rows", (Drawn((2, 3)), Drawn((2, 3)))),)),
)
_plant(
    "sorts_some_nan_first",
    "sorts a NaN whose sign bit is set before all numbers",
    "non_finite",
    _UNARY,
    lambda input: input.sort(-1).values,
    lambda input: input.gather(-1, torch.where(input.isnan() & input.signbit(), -torch.inf, input).argsort(-1)),
    _ROWS,
)
_plant(
    "has_the_slope_of_its_result",
    "has a gradient by the sign of its result, which is that of its argument for positive slopes alone",
    "numbers",
    "(Tensor input, float slope=0.01) -> Tensor",
    lambda input, slope: F.leaky_relu(input, slope),
    lambda input, slope: F.leaky_relu(input, slope),
    Samples((Sample("two rows", (Drawn((2, 5)), 0.25)),)),
    gradient=lambda needs_grad, grads, saved, input, slope: (
        torch.where(torch.where(input < 0, input * slope, input) < 0, grads[0] * slope, grads[0]),
    ),
)
