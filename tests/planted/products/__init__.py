"""Products of two tensors: what goes wrong in checks of sizes and in gradient formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from torch import Tensor

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples

BUGS: list[Bug] = []

_Formula = Callable[[Sequence[bool], Tensor, Tensor, Tensor], Sequence[Tensor | None]]


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    if left.shape != right.shape:
        raise ValueError(f"left and right must have the same sizes, got {tuple(left.shape)} and {tuple(right.shape)}")
    return left * right


def _formula(needs: Sequence[bool], grad: Tensor, left: Tensor, right: Tensor) -> Sequence[Tensor | None]:
    return multiply(grad, right) if needs[0] else None, multiply(grad, left) if needs[1] else None


def _declare(name: str, formula: _Formula = _formula) -> Operator:
    def explain(left: Tensor, right: Tensor) -> None:
        try:
            _multiply(left, right)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    return Operator(
        f"{kernels.NAMESPACE}::{name}(Tensor left, Tensor right) -> Tensor",
        reference=_multiply,
        output=lambda left, right: left.new_empty(left.shape),
        gradient=lambda needs_grad, grads, saved, left, right: formula(needs_grad, grads[0], left, right),
        flops=lambda left, right: math.prod(left),
        explain=explain,
    )


def _plant(
    name: str,
    wrong: str,
    caught_by: str,
    formula: _Formula = _formula,
    *,
    harms: bool = False,
    by_chance: bool = False,
) -> Operator:
    operator = _declare(name, formula)
    BUGS.append(Bug(operator, wrong, caught_by, harms=harms, by_chance=by_chance))
    return operator


multiply = _declare("multiply")
reads_left_straight = _declare("reads_left_straight")

_plant("accepts_other_sizes", "does not ask whether its arguments have the same sizes", "bad_input", harms=True)
wrong_gradient = _plant(
    "wrong_gradient",
    "the gradient formula is wrong",
    "gradient",
    lambda needs, grad, left, right: (
        multiply(grad, right) if needs[0] else None,
        multiply(grad, right) if needs[1] else None,
    ),
)
_plant(
    "forgets_a_gradient",
    "the formula says of one argument that it has no gradient",
    "gradient",
    lambda needs, grad, left, right: (multiply(grad, right) if needs[0] else None, None),
)
_plant(
    "wrong_second_gradient",
    "the gradient is right, and made of an operator whose gradient is wrong",
    "second_gradient",
    lambda needs, grad, left, right: (
        wrong_gradient(grad, right) if needs[0] else None,
        wrong_gradient(grad, left) if needs[1] else None,
    ),
)
_plant(
    "contiguous_gradients_only",
    "reads an incoming gradient as if it were contiguous",
    "incoming_gradients",
    lambda needs, grad, left, right: (
        reads_left_straight(grad, right) if needs[0] else None,
        reads_left_straight(grad, left) if needs[1] else None,
    ),
    by_chance=True,
)


def _pair(name: str, shape: tuple[int, ...]) -> Sample:
    return Sample(name, (Drawn(shape), Drawn(shape)))


def _draw(random: Random) -> Sample:
    shape = tuple(random.randint(0, 5) for _ in range(random.randint(0, 3)))
    return _pair(f"drawn {shape}", shape)


samples = Samples(
    (
        _pair("scalars", ()),
        _pair("one element", (1,)),
        _pair("empty", (0,)),
        _pair("seven elements", (7,)),
        _pair("three rows", (3, 5)),
        _pair("a batch of images", (2, 3, 3, 4)),
    ),
    _draw,
)

kernels.load()
