"""Statistics of the values of a tensor, and values drawn again from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Floating-point values are added up in pieces of so many, in float64.
_PIECE = 1 << 22
# Integers are asked whether they are distinct up to so many.
_MOST_DISTINCT = 1 << 20

Statistics = Mapping[str, Any]


def statistics_of(tensor: Tensor) -> dict[str, Any]:
    """Returns what is known of the values of a tensor, as numbers that JSON holds.

    Of integers: the smallest, the largest, whether they rise, and whether no two are equal. Of booleans: the mean. Of
    floating-point numbers: the share of zeros, NaN and both infinities; and of those that are finite the smallest, the
    largest, the mean and the standard deviation, both parts of complex numbers together.
    """
    flat = _each_once(tensor.detach()).reshape(-1)
    if flat.numel() == 0:
        return {}
    if flat.dtype == torch.bool:
        return {"mean": flat.count_nonzero().item() / flat.numel()}
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    return _of_floats(flat) if flat.is_floating_point() else _of_integers(flat)


def _each_once(tensor: Tensor) -> Tensor:
    """Leaves out the repetitions of an expanded tensor."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _of_integers(flat: Tensor) -> dict[str, Any]:
    # PyTorch compares few of the unsigned dtypes.
    flat = flat.to(torch.int64)
    least, most = (each.item() for each in flat.aminmax())
    distinct = flat.numel() <= _MOST_DISTINCT and flat.unique().numel() == flat.numel()
    return {"min": least, "max": most, "ordered": bool((flat.diff() >= 0).all()), "distinct": distinct}


def _of_floats(flat: Tensor) -> dict[str, Any]:
    counts = torch.zeros(4, dtype=torch.int64, device=flat.device)
    sums = torch.zeros(2, dtype=torch.float64, device=flat.device)
    least, most = math.inf, -math.inf
    for piece in flat.split(_PIECE):
        exact = piece.double()
        finite = exact[exact.isfinite()]
        counts += torch.stack([(exact == value).sum() for value in (0, math.inf, -math.inf)] + [exact.isnan().sum()])
        if finite.numel():
            sums += torch.stack([finite.sum(), finite.square().sum()])
            least, most = min(least, finite.min().item()), max(most, finite.max().item())
    zeros, infinite, negative, missing = counts.tolist()
    total, squares = sums.tolist()
    finite_count = flat.numel() - infinite - negative - missing
    found = {
        name: count / flat.numel()
        for name, count in (("zeros", zeros), ("inf", infinite), ("-inf", negative), ("nan", missing))
        if count
    }
    if finite_count:
        mean = total / finite_count
        # Squares overflow only beyond what float32 holds.
        variance = max(squares / finite_count - mean**2, 0.0) if math.isfinite(squares) else 0.0
        found |= {"min": least, "max": most, "mean": mean, "std": math.sqrt(variance)}
    return found


def draw(elements: int, dtype: torch.dtype, statistics: Statistics, generator: torch.Generator) -> Tensor:
    """Draws values of about these statistics, where the generator is.

    Args:
        elements: how many.
        dtype: of the values.
        statistics: of `statistics_of`; empty: numbers of a normal distribution, False and zeros.
        generator: of randomness.
    """
    device = generator.device
    if dtype == torch.bool:
        return torch.rand(elements, generator=generator, device=device) < statistics.get("mean", 0.0)
    if dtype.is_complex:
        parts = draw(2 * elements, torch.float64, statistics, generator).reshape(-1, 2)
        return torch.view_as_complex(parts).to(dtype)
    if not dtype.is_floating_point:
        return _draw_integers(elements, statistics, generator).to(dtype)
    exact = torch.randn(elements, generator=generator, device=device, dtype=torch.float64)
    exact = exact * statistics.get("std", 1.0) + statistics.get("mean", 0.0)
    exact.clamp_(statistics.get("min", -math.inf), statistics.get("max", math.inf))
    # The shares lie side by side in the range of an even distribution.
    chosen = torch.rand(elements, generator=generator, device=device, dtype=torch.float64)
    begin = 0.0
    for name, value in (("zeros", 0.0), ("inf", math.inf), ("-inf", -math.inf), ("nan", math.nan)):
        end = begin + statistics.get(name, 0.0)
        exact[(chosen >= begin) & (chosen < end)] = value
        begin = end
    return exact.to(dtype)


def _draw_integers(elements: int, statistics: Statistics, generator: torch.Generator) -> Tensor:
    least, most, device = statistics.get("min", 0), statistics.get("max", 0), generator.device
    span = most - least + 1
    if statistics.get("distinct") and elements <= span <= _MOST_DISTINCT:
        drawn = torch.randperm(span, generator=generator, device=device)[:elements] + least
    else:
        # The largest int64 plus one is none.
        drawn = torch.randint(least, min(most, 2**63 - 2) + 1, (elements,), generator=generator, device=device)
    if statistics.get("ordered") and elements:
        drawn = drawn.sort().values
        # The ends of offsets are what sizes are made of.
        drawn[0], drawn[-1] = least, most
    return drawn
