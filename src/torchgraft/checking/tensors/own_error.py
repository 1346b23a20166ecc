"""Compares results with float64, where the reference's own error in the same dtype says how exact a result can be.

For values of an ordinary size `compare` knows what a right kernel may err. For huge, tiny or nearly equal values nobody
knows: a definition may overflow itself, or lose all its digits. So a result is wrong only if it errs much more than the
reference does in the same dtype, and than float64 changes if its arguments change by one rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.tensors.arguments import each_tensor
from torchgraft.checking.tensors.compare import expect_same, rounding
from torchgraft.checking.tensors.dtypes import holds_numbers, is_number

# How many times the reference's own error a result may err, and how many times what one rounding of the arguments does.
_TIMES = 10
# So many arguments nearby are looked at where a result is suspicious: fewer may all round a tie to the same side.
_TURNS = 16
# The reference says nothing about elements in which it errs by a larger share itself.
_GARBAGE = 0.1
# How often a result may be rounded on the way, at its own size.
_ROUNDINGS = 2


@dataclass(frozen=True)
class Worse:
    """An element of a result that is worse than it can be.

    Attributes:
        what: is compared.
        kind: 'not finite', 'number' where the reference gives NaN, 'error' of a number, or 'integer'.
        index: of the element.
        expected: in float64.
        own: what the reference gives in the same dtype.
        found: what the kernel gives.
        allowed: the difference that is allowed there.
        times: how many times the reference's own error it errs.
        count: the number of such elements.
        total: the number of all elements.
        shape: of the result.
    """

    what: str
    kind: Literal["not finite", "number", "error", "integer"]
    index: tuple[int, ...]
    expected: Any
    own: Any
    found: Any
    allowed: float
    times: float
    count: int
    total: int
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OwnError:
    """Knowledge about the right results of one call.

    Attributes:
        exact: by the reference in float64.
        own: by the reference in the dtype of the call.
        nearby: makes results in float64 of arguments that differ by one rounding, one after the other.
        dtype: the coarsest dtype in which results are computed.
        summed: the number of products that one element is a sum of.
        roundings: how often a result may have been rounded to the dtype.
        coherent: whether the products are all alike, so that their errors have one sign.
        negligible: a difference that nobody asks about, as that of a gradient which is nearly zero here.
        nan_counts: whether NaN of the reference is expected too, as 0/0 is where nothing but whole numbers is unusual.
    """

    exact: Any
    own: Any
    nearby: Callable[[], Iterator[Any]]
    dtype: torch.dtype
    summed: int
    roundings: int = _ROUNDINGS
    coherent: bool = False
    negligible: float = 0.0
    nan_counts: bool = False

    @cached_property
    def _nearby(self) -> list[list[Any]] | None:
        """The results of nearby arguments; None if the reference refuses them."""
        try:
            return [tree_leaves(each) for each in self.nearby()]
        except Exception:
            return None

    def worst(self, found: Any, what: str = "the result") -> Worse | None:
        """Finds the first element that is worse than it can be; None if there is none.

        Args:
            found: a tensor, or a structure of tensors and None.
            what: is compared, for messages.

        Raises:
            Mismatch: it has another shape, or another number of parts.
        """
        ones, exacts, owns = (tree_leaves(each) for each in (found, self.exact, self.own))
        if len(exacts) != len(owns):
            return None
        expect_same(len(ones), len(exacts), f"{what} has the wrong number of parts")
        for place, (one, exact, own) in enumerate(zip(ones, exacts, owns, strict=True)):
            if exact is None or own is None or one is None or exact.shape != own.shape:
                # The sizes follow from values, which differ.
                continue
            expect_same(tuple(one.shape), tuple(exact.shape), f"{what} has the wrong shape")
            if not one.numel():
                continue
            is_real = one.is_floating_point() or one.is_complex()
            worse = self._worst_number(place, one, exact, own) if is_real else self._worst_code(place, one, exact, own)
            if worse is not None:
                return replace(worse, what=what)
        return None

    def _others(self, place: int, shape: torch.Size) -> list[Tensor] | None:
        """The results of nearby arguments; None if even their sizes differ."""
        if self._nearby is None:
            return None
        others = [each[place] for each in self._nearby if len(each) > place]
        return others if all(each.shape == shape for each in others) else None

    def _worst_code(self, place: int, found: Tensor, exact: Tensor, own: Tensor) -> Worse | None:
        """Compares integers and flags, which must be exact wherever one rounding of the arguments changes nothing."""
        wrong = (found != exact) & (found != own)
        if not wrong.any():
            return None
        others = self._others(place, exact.shape)
        if others is None:
            return None
        for other in (own, *others):
            wrong &= other == exact
        return (
            self._first("integer", wrong, found, exact, own, torch.zeros(()), torch.zeros(())) if wrong.any() else None
        )

    def _worst_number(self, place: int, found: Tensor, exact: Tensor, own: Tensor) -> Worse | None:
        computed = self.dtype if holds_numbers(self.dtype) else found.dtype
        relative, absolute = rounding(computed, self.summed, coherent=self.coherent)
        limits = [torch.finfo(computed), torch.finfo(found.dtype)]
        relative, tiny = max(relative, limits[1].eps), max(each.tiny for each in limits)
        shape = exact.shape
        found, exact, own = (_real(each) for each in (found, exact, own))
        magnitude = exact.abs()
        if self.nan_counts and (exact.isnan() & ~found.isnan()).any():
            lacking = self._where_nan_lacks(self._others(place, shape), found, exact, own)
            if lacking.any():
                return self._first("number", lacking, found, exact, own, torch.zeros(()), torch.zeros(()))
        # Near the largest number a result may be infinite.
        is_defined = exact.isfinite() & own.isfinite() & (magnitude < min(each.max for each in limits) / 4)
        error, own_error = (found - exact).abs(), (own - exact).abs()
        largest = magnitude.where(is_defined, 0).amax()
        is_defined &= own_error <= _GARBAGE * (magnitude + _GARBAGE * largest + tiny)
        if not is_defined.any():
            return None
        most_own = own_error.where(is_defined, 0).amax()
        allowed = (
            self.roundings * relative * magnitude + absolute * largest + _TIMES * most_own + tiny + self.negligible
        )
        wrong = is_defined & ~(error <= allowed)
        if not wrong.any():
            return None
        others = self._others(place, shape)
        if others is None:
            return None
        most_change = torch.zeros_like(exact)
        for other in others:
            # Nothing is known of an element that is not finite nearby.
            change = (_real(other) - exact).abs().nan_to_num(torch.inf, torch.inf)
            most_change = torch.maximum(most_change, change)
        lost = is_defined & ~found.isfinite() & most_change.isfinite()
        if lost.any():
            return self._first("not finite", lost, found, exact, own, allowed, most_own)
        # A number that one rounding of the arguments changes as much has no digits to compare.
        is_defined &= most_change <= _GARBAGE * (magnitude + _GARBAGE * largest + tiny)
        allowed = allowed + _TIMES * most_change
        wrong = is_defined & ~(error <= allowed)
        return self._first("error", wrong, found, exact, own, allowed, most_own) if wrong.any() else None

    def _where_nan_lacks(self, others: list[Tensor] | None, found: Tensor, exact: Tensor, own: Tensor) -> Tensor:
        """Where the reference gives NaN, in both dtypes and for all arguments nearby, and a result does not."""
        lacking = exact.isnan() & own.isnan() & ~found.isnan()
        for other in others or ():
            lacking &= _real(other).isnan()
        return lacking if others is not None else torch.zeros_like(lacking)

    def _first(
        self,
        kind: Literal["not finite", "number", "error", "integer"],
        wrong: Tensor,
        found: Tensor,
        exact: Tensor,
        own: Tensor,
        allowed: Tensor,
        most_own: Tensor,
    ) -> Worse:
        places = wrong.nonzero()
        index = tuple(int(each) for each in places[0])
        if kind == "error":
            # The worst one shows the cause.
            excess = (found - exact).abs().where(wrong, 0) / allowed
            index = tuple(int(each) for each in torch.unravel_index(excess.argmax(), excess.shape))
        error = abs(found[index].item() - exact[index].item()) if kind == "error" else 0.0
        own_error = max(most_own.item(), _eps(self.dtype) / 2 * abs(exact[index].item()))
        return Worse(
            "",
            kind,
            index,
            exact[index].item(),
            own[index].item(),
            found[index].item(),
            allowed[index].item() if allowed.dim() else 0.0,
            error / own_error if own_error else float("inf"),
            len(places),
            wrong.numel(),
            tuple(wrong.shape),
        )


def nearby_arguments(arguments: tuple[Any, ...], dtype: torch.dtype, *, keep_ties: bool) -> Iterator[tuple[Any, ...]]:
    """Yields arguments in float64 in which each number is changed by one rounding of a dtype.

    Args:
        arguments: in float64.
        dtype: of the call.
        keep_ties: whether numbers of a tensor that are equal must stay so.
    """
    eps = _eps(dtype)
    generator = torch.Generator().manual_seed(0)

    def moved(tensor: Tensor, turn: int) -> Tensor:
        if not is_number(tensor):
            return tensor
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if turn < 2:
            signs: Tensor | float = 1.0 - 2 * turn
        elif keep_ties:
            different, places = values.unique(return_inverse=True)
            # At first bits of its number among the different values, so that neighbours differ; then random ones.
            bits = (
                torch.arange(len(different)) >> (turn - 2)
                if turn < 5
                else torch.randint(0, 2, different.shape, generator=generator)
            )
            signs = (bits % 2).to(tensor.device, torch.float64)[places] * 2 - 1
        else:
            signs = torch.randint(0, 2, values.shape, generator=generator).to(tensor.device, torch.float64) * 2 - 1
        values = values * (1 + eps * signs)
        return torch.view_as_complex(values) if tensor.is_complex() else values

    for turn in range(_TURNS):
        yield each_tensor(partial(moved, turn=turn), arguments)


def _eps(dtype: torch.dtype) -> float:
    """The epsilon of a dtype; of integers, that of the dtype in which PyTorch computes with them."""
    return torch.finfo(dtype if holds_numbers(dtype) else torch.float32).eps


def _real(tensor: Tensor) -> Tensor:
    """A tensor in float64, complex numbers as pairs."""
    is_complex = tensor.is_complex()
    return torch.view_as_real(tensor.to(torch.complex128).resolve_conj()) if is_complex else tensor.double()
