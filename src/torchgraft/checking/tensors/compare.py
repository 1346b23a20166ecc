"""Compares results with float64, in units of the epsilon of a dtype."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Mismatch(Exception):  # noqa: N818  a finding, not an error of the program
    """A result that is not what was expected.

    Attributes:
        index: where the first wrong element is, or None where it is not about elements.
        expected: what should be there.
        found: what is there.
        tolerance: how the difference that is allowed came about; empty where none is.
        kind: the name of the cause, one of `result.KINDS`, where a property knows it.
    """

    def __init__(
        self,
        message: str,
        *,
        index: tuple[int, ...] | None = None,
        expected: Any = None,
        found: Any = None,
        tolerance: str = "",
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.index, self.expected, self.found, self.tolerance = index, expected, found, tolerance
        self.kind = kind

    def explained(self, message: str) -> "Mismatch":
        """Returns the same figures with a message that says why they differ."""
        return Mismatch(message, index=self.index, expected=self.expected, found=self.found, tolerance=self.tolerance)


def expect(condition: bool, message: str, *, expected: Any = None, found: Any = None) -> None:
    """Raises a Mismatch if a condition does not hold."""
    if not condition:
        raise Mismatch(message, expected=expected, found=found)


def expect_same(found: Any, expected: Any, message: str) -> None:
    """Raises a Mismatch that shows two values, if they are not equal."""
    expect(found == expected, message, expected=expected, found=found)


def rounding(dtype: torch.dtype, summed: int, *, coherent: bool = False) -> tuple[float, float]:
    """Returns the relative error that a correct kernel may have, and the absolute one if products are of size 1.

    Allowed are one rounding to `dtype`, and what summing `summed` products costs in the dtype that sums are kept in
    (float32 for dtypes of two bytes): sqrt(summed) units of its epsilon, as errors of both signs make a random walk;
    `summed` units where the products are all alike and their errors of one sign. Eight times either is never reached.
    """
    terms = max(summed, 1)
    growth = terms if coherent else math.sqrt(terms)
    return torch.finfo(dtype).eps, _FACTOR * growth * torch.finfo(_kept(dtype)).eps


_FACTOR = 8
# The error that a result may have where it is PyTorch's own, in errors of what PyTorch gives for the same.
_TIMES_OWN_ERROR = 4


def _kept(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def expect_close(
    found: Any,
    expected: Any,
    *,
    dtype: torch.dtype,
    summed: int = 1,
    coherent: bool = False,
    scale: float = 1.0,
    roundings: int = 1,
    of_pytorch: Any = None,
    what: str = "the result",
) -> None:
    """Compares results, one or several, with those in float64.

    Args:
        found: a tensor, or a structure of tensors and None.
        expected: the same in float64.
        dtype: in which `found` was computed; integers have no rounding errors, so results that are floats are then
            taken to be computed in their own.
        summed: how many products an element of it is a sum of.
        coherent: whether those products are all alike.
        scale: a factor on the absolute error, for results that more than one sum went into.
        roundings: how often a result may have been rounded to the dtype: once, and then in between, when it may have
            been as large as the largest of the results.
        of_pytorch: what PyTorch gives for the same in the dtype of `found`, where no kernel of an author computes it:
            a few times its own error is allowed too. None: an author is responsible for all errors.
        what: is compared, for the message.

    Raises:
        Mismatch: with the first wrong element.
    """
    beside = list(_tensors_beside(found, expected, what))
    own = [None] * len(beside) if of_pytorch is None else [each for each in tree_leaves(of_pytorch) if each is not None]
    for (one, other, name), by_pytorch in zip(beside, own, strict=True):
        if one.numel() and not (one.is_floating_point() or one.is_complex()):
            expect_equal(one, other, what=name)
        elif one.numel():
            computed = dtype if dtype.is_floating_point or dtype.is_complex else one.dtype
            relative, absolute = rounding(computed, summed, coherent=coherent)
            # A result may be of a coarser dtype than the arguments are.
            relative = max(relative, torch.finfo(one.dtype).eps)
            between = (roundings - 1) * relative
            allowance = _Allowance(computed, one.dtype, max(summed, 1), coherent, scale, roundings, by_pytorch)
            _expect_each_close(one, other, relative * roundings, absolute * scale + between, name, allowance)


def expect_equal(found: Any, expected: Any, *, what: str = "the result", why: str = "") -> None:
    """Compares bit for bit, except that one NaN is as good as another.

    Raises:
        Mismatch: with the first wrong element.
    """
    for one, other, name in _tensors_beside(found, expected, what):
        # Codes of one byte cannot be compared with each other.
        if one.is_floating_point() and one.element_size() == 1:
            one, other = one.double(), other.double()
        wrong = (one != other) & ~(one.isnan() & other.isnan())
        if wrong.any():
            _raise_first(wrong, one, other, f"{name} differs{why}")


def _tensors_beside(found: Any, expected: Any, what: str) -> Iterator[tuple[Tensor, Tensor, str]]:
    """Yields each tensor found, the one expected of the same shape, and its name; skips None in the place of both."""
    ones, others = tree_leaves(found), tree_leaves(expected)
    expect(len(ones) == len(others), f"{what} has {len(ones)} parts, not {len(others)}")
    for number, (one, other) in enumerate(zip(ones, others, strict=True), 1):
        name = what if len(ones) == 1 else f"{what.removesuffix(',')}, part {number}"
        if one is None or other is None:
            expect(one is other, f"{name} is {'missing' if one is None else 'present, and should not be'}")
            continue
        expect_same(tuple(one.shape), tuple(other.shape), f"{name} has the wrong shape")
        yield one, other, name


class _Allowance(NamedTuple):
    """The terms of the allowed difference; in words only if a failure shows them."""

    dtype: torch.dtype
    of_result: torch.dtype
    summed: int
    coherent: bool
    scale: float
    roundings: int
    of_pytorch: Tensor | None

    def is_own(self, found: Tensor, expected: Tensor) -> Tensor:
        """Where a result is as good as PyTorch's own: equal, or a few times its error away from what is expected."""
        if self.of_pytorch is None:
            return torch.zeros_like(found, dtype=torch.bool)
        own = _as_real(self.of_pytorch) if self.of_pytorch.is_complex() else self.of_pytorch.double()
        error = (own - expected).abs()
        is_near = error.isfinite() & ((found - expected).abs() <= _TIMES_OWN_ERROR * error)
        return is_near | (found == own) | (found.isnan() & own.isnan())

    def explained(self, magnitude: float, largest: float) -> str:
        coarsest = max(self.dtype, self.of_result, key=lambda dtype: torch.finfo(dtype).eps)
        kept = _kept(self.dtype)
        growth = f"{self.summed:,}" if self.coherent else f"sqrt({self.summed:,})"
        scale = "" if self.scale == 1 else f"{self.scale:g} x "
        times = "" if self.roundings == 1 else f"{self.roundings} x "
        text = (
            f"{times}{_epsilon(coarsest)} x {magnitude:.3g} expected there, for rounding, "
            f"+ {scale}{_FACTOR} x {growth} terms summed x {_epsilon(kept)} x {largest:.3g}, the largest expected or 1"
        )
        between = f" + {self.roundings - 1} x {_epsilon(coarsest)} x the same, for roundings in between"
        text = text if self.roundings == 1 else text + between
        return text if self.of_pytorch is None else f"{text}; or {_TIMES_OWN_ERROR} x the error of PyTorch's own result"


def _epsilon(dtype: torch.dtype) -> str:
    return f"{torch.finfo(dtype).eps:.3g} (epsilon of {str(dtype).removeprefix('torch.')})"


def _expect_each_close(
    found: Tensor, expected: Tensor, relative: float, absolute: float, name: str, allowance: _Allowance
) -> None:
    if found.is_complex() or expected.is_complex():
        found, expected = _as_real(found), _as_real(expected)
    # Nearly always the comparison ends here.
    if _are_close(found, expected, relative, absolute):
        return
    one, other = found.double(), expected.double()
    magnitude = other.abs()
    bounded = magnitude.where(other.isfinite(), 0).amax().clamp(min=1)
    allowed = absolute * bounded + relative * magnitude
    close = other.isfinite() & ((one - other).abs() <= allowed)
    # A number beyond those of a dtype is rounded to infinity.
    if found.is_floating_point():
        beyond = magnitude + allowed > torch.finfo(found.dtype).max
        close |= one.isinf() & (one.sign() == other.sign()) & beyond
    # Infinities of one sign are equal and have no difference; NaN is equal to NaN.
    wrong = ~(close | (one == other) | (one.isnan() & other.isnan()) | allowance.is_own(one, other))
    if wrong.any():
        zeros = " (all of it is zero)" if not one.any() and other.any() else ""
        _raise_first(wrong, one, other, f"{name} is wrong{zeros}", allowed, allowance, bounded.item())


# The most elements that are compared at a time on a CPU: temporary tensors of 2 MiB stay in its caches, where those of
# large results would be new memory from the system, which takes longer than all arithmetic.
_AT_A_TIME = 1 << 18


def _are_close(found: Tensor, expected: Tensor, relative: float, absolute: float) -> Tensor:
    """Whether all that is expected is finite, and all differences are small; waits for no GPU."""
    pairs = list(zip(_pieces(found), _pieces(expected), strict=True))
    largest = torch.stack([other.double().abs().amax() for _, other in pairs]).amax()
    allowed = absolute * largest.clamp(min=1)
    close = [
        ((one.double() - (exact := other.double())).abs() <= relative * exact.abs() + allowed).all()
        for one, other in pairs
    ]
    return torch.stack(close).all() & largest.isfinite()


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Cuts a large tensor on a CPU along its longest dimension."""
    if tensor.device.type != "cpu" or tensor.numel() <= _AT_A_TIME:
        return (tensor,)
    longest = max(range(tensor.dim()), key=tensor.shape.__getitem__)
    return tensor.split(max(1, tensor.shape[longest] * _AT_A_TIME // tensor.numel()), longest)


def _as_real(tensor: Tensor) -> Tensor:
    """The two parts of complex numbers, in float64."""
    return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())


def _raise_first(
    wrong: Tensor,
    found: Tensor,
    expected: Tensor,
    message: str,
    allowed: Tensor | None = None,
    allowance: _Allowance | None = None,
    largest: float = 0.0,
) -> None:
    index = tuple(int(place) for place in wrong.nonzero()[0])
    count, total = int(wrong.sum()), wrong.numel()
    error = "" if allowed is None else f"; {allowed[index].item():.3g} of difference is allowed there"
    raise Mismatch(
        f"{message}: {count} of {total} elements, the first at {list(index)}{error}",
        index=index,
        expected=expected[index].item(),
        found=found[index].item(),
        tolerance="" if allowance is None else allowance.explained(abs(expected[index].item()), largest),
    )
