"""The operations that a cell may be made of: how each is written in C++, and what it is in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The other kinds of nodes in a graph.
INPUT, NUMBER = "input", "number"


class Operation(NamedTuple):
    """A pointwise operation.

    Attributes:
        text: in C++, of its arguments. `T` is the type of a number, and `M` a struct of functions, as `M::tanh(x)`.
        in_torch: the same on tensors.
        takes_bool: whether each argument is a truth value.
        gives_bool: whether the result is one.
        commutes: whether its two arguments may change places.
    """

    text: str
    in_torch: Callable[..., Tensor]
    takes_bool: tuple[bool, ...] = (False,)
    gives_bool: bool = False
    commutes: bool = False


_TWO, _TWO_BOOLS = (False, False), (True, True)


def _compares(sign: str, in_torch: Callable[..., Tensor], *, commutes: bool = False) -> Operation:
    return Operation(f"{{0}} {sign} {{1}}", in_torch, _TWO, gives_bool=True, commutes=commutes)


def _function(name: str, in_torch: Callable[..., Tensor]) -> Operation:
    return Operation(f"M::{name}({{0}})", in_torch)


OPERATIONS: dict[str, Operation] = {
    "add": Operation("{0} + {1}", torch.add, _TWO, commutes=True),
    "sub": Operation("{0} - {1}", torch.sub, _TWO),
    "mul": Operation("{0} * {1}", torch.mul, _TWO, commutes=True),
    "div": Operation("{0} / {1}", torch.div, _TWO),
    "neg": Operation("-{0}", torch.neg),
    "reciprocal": Operation("T(1) / {0}", torch.reciprocal),
    "abs": _function("abs", torch.abs),
    "sign": Operation("{0} > T(0) ? T(1) : {0} < T(0) ? T(-1) : T(0)", torch.sign),
    "exp": _function("exp", torch.exp),
    "expm1": _function("expm1", torch.expm1),
    "log": _function("log", torch.log),
    "log1p": _function("log1p", torch.log1p),
    "tanh": _function("tanh", torch.tanh),
    "sigmoid": _function("sigmoid", torch.sigmoid),
    "erf": _function("erf", torch.erf),
    # The derivatives of tanh and sigmoid. In C++ they keep their digits; PyTorch's `1 - tanh(x)**2` loses all of them
    # where it is small.
    "tanh_slope": Operation(
        "torchgraft::recurrence::tanh_slope<M>({0})", lambda value: 1 - torch.tanh(value) * torch.tanh(value)
    ),
    "sigmoid_slope": Operation(
        "torchgraft::recurrence::sigmoid_slope<M>({0})", lambda value: torch.sigmoid(value) * torch.sigmoid(-value)
    ),
    "sqrt": _function("sqrt", torch.sqrt),
    "rsqrt": Operation("T(1) / M::sqrt({0})", torch.rsqrt),
    "sin": _function("sin", torch.sin),
    "cos": _function("cos", torch.cos),
    "atan": _function("atan", torch.atan),
    "pow": Operation("M::pow({0}, {1})", torch.pow, _TWO),
    # NaN goes through, as every comparison with it is false.
    "relu": Operation("{0} <= T(0) ? T(0) : {0}", torch.relu),
    "maximum": Operation("{0} > {1} || {0} != {0} ? {0} : {1}", torch.maximum, _TWO),
    "minimum": Operation("{0} < {1} || {0} != {0} ? {0} : {1}", torch.minimum, _TWO),
    # PyTorch clamps without giving half of a gradient to each of two equal numbers.
    "clamp_min": Operation("{0} < {1} ? {1} : {0}", lambda value, least: torch.clamp(value, min=least), _TWO),
    "clamp_max": Operation("{0} > {1} ? {1} : {0}", lambda value, most: torch.clamp(value, max=most), _TWO),
    "gt": _compares(">", torch.gt),
    "ge": _compares(">=", torch.ge),
    "lt": _compares("<", torch.lt),
    "le": _compares("<=", torch.le),
    "eq": _compares("==", torch.eq, commutes=True),
    "ne": _compares("!=", torch.ne, commutes=True),
    "where": Operation("{0} ? {1} : {2}", torch.where, (True, False, False)),
    "and": Operation("{0} && {1}", torch.logical_and, _TWO_BOOLS, gives_bool=True, commutes=True),
    "or": Operation("{0} || {1}", torch.logical_or, _TWO_BOOLS, gives_bool=True, commutes=True),
    "xor": Operation("{0} != {1}", torch.logical_xor, _TWO_BOOLS, gives_bool=True, commutes=True),
    "not": Operation("!{0}", torch.logical_not, (True,), gives_bool=True),
    "to_number": Operation("{0} ? T(1) : T(0)", lambda truth, like: truth.to(like.dtype), (True,)),
}

# Operations that SAME does not take over by their name: ATen has none of that name, or one with other arguments, as
# `add` and `sub` with `alpha`.
_OWN = ("and", "or", "xor", "not", "to_number", "add", "sub", "tanh_slope", "sigmoid_slope")

# What PyTorch calls operations that have the same arguments here.
SAME = {
    **{name: name for name in OPERATIONS if name not in _OWN},
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "logical_not": "not",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "not",
}
# What gives its first argument back.
SAME_VALUE = ("alias", "clone", "detach", "lift_fresh_copy", "lift_fresh", "view_as", "contiguous")
