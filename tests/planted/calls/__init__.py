"""Operators whose calls depend on each other, or leave something around them changed. Their kernels are in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples

BUGS: list[Bug] = []
CONTROLS: list[Operator] = []
samples: dict[str, Samples] = {}

_FLOATS = (torch.float64, torch.float32)


def _declare(
    name: str, kernel: Callable[..., Any], schema: str, asked: Samples, dtypes: Any = _FLOATS, **declared: Any
) -> Operator:
    own = dtypes if isinstance(dtypes, tuple) else next(iter(dtypes.values()))
    operator = Operator(f"{kernels.NAMESPACE}::{name}{schema}", dtypes=dtypes, kernels={"cpu": own}, **declared)
    operator.kernel("cpu")(kernel)
    samples[name] = asked
    return operator


def _plant(
    name: str,
    wrong: str,
    caught_by: str,
    kernel: Callable[..., Any],
    *,
    harms: bool = False,
    by_chance: bool = False,
    **declared: Any,
) -> None:
    BUGS.append(Bug(_declare(name, kernel, **declared), wrong, caught_by, harms=harms, by_chance=by_chance))


# The square of each element: a gradient needs its input.


def _square(input: Tensor) -> Tensor:
    return input * input


def _square_gradient(needs_grad: Sequence[bool], grads: Sequence[Tensor], saved: Any, input: Tensor) -> tuple[Tensor]:
    return (2 * input * grads[0],)


def _draw(random: Random) -> Sample:
    shape = tuple(random.randint(0, 5) for _ in range(random.randint(1, 3)))
    return Sample(f"drawn {shape}", (Drawn(shape),))


_SQUARE: dict[str, Any] = {
    "schema": "(Tensor input) -> Tensor",
    "reference": _square,
    "output": torch.empty_like,
    "gradient": _square_gradient,
    "asked": Samples(
        (
            Sample("one element", (Drawn((1,)),)),
            Sample("empty", (Drawn((0,)),)),
            Sample("three rows", (Drawn((3, 5)),)),
            Sample("three dimensions", (Drawn((2, 3, 4)),)),
        ),
        _draw,
    ),
}
CONTROLS.append(_declare("square", _square, **_SQUARE))


def _by(key_of: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """A kernel that remembers its results by a key."""
    known: dict[Any, Tensor] = {}

    def kernel(input: Tensor) -> Tensor:
        key = key_of(input), tuple(input.shape), input.stride(), input.dtype
        if key not in known:
            known[key] = _square(input)
        return known[key].clone()

    return kernel


_plant(
    "remembers_addresses",
    "remembers its results by the address of its input",
    "state",
    _by(Tensor.data_ptr),
    by_chance=True,
    **_SQUARE,
)
_plant(
    "remembers_versions",
    "remembers its results by the address and the version of its input, though memory is used again",
    "state",
    _by(lambda input: (input.data_ptr(), input._version)),
    by_chance=True,
    **_SQUARE,
)
_plant(
    "remembers_the_last",
    "remembers what it saw last, and no more than that, for backward",
    "state",
    lambda input: _square(_remembered(input)),
    **{**_SQUARE, "gradient": lambda needs_grad, grads, saved, input: (2 * _LAST[input.dtype][-1] * grads[0],)},
)
_LAST: dict[torch.dtype, list[Tensor]] = {}


def _remembered(input: Tensor) -> Tensor:
    _LAST[input.dtype] = [input.detach().clone()]
    return input


def _after(change: Callable[[Tensor], Any], **changes: Any) -> dict[str, Any]:
    """An operator that is right, and changes something first."""

    def kernel(input: Tensor) -> Tensor:
        change(input)
        return _square(input)

    return {"kernel": kernel, **_SQUARE, **changes}


_plant(
    "sets_threads",
    "sets the number of PyTorch's threads to one",
    "surroundings",
    **_after(lambda input: torch.set_num_threads(1)),
)
_plant(
    "sets_a_switch",
    "sets torch.backends.cudnn.benchmark in its backward",
    "surroundings",
    _square,
    **{
        **_SQUARE,
        "gradient": lambda needs_grad, grads, saved, input: (
            setattr(torch.backends.cudnn, "benchmark", True) or 2 * input * grads[0],
        ),
    },
)
_plant(
    "sets_the_default_dtype",
    "makes float64 the default dtype",
    "surroundings",
    **_after(lambda input: torch.set_default_dtype(torch.float64)),
)
_plant(
    "flushes_subnormals",
    "lets the processor take subnormal numbers for zero, which is faster, and does so for all that follows",
    "surroundings",
    **_after(lambda input: torch.set_flush_denormal(True)),
)
_plant(
    "sets_a_precision",
    "permits tf32 in matrix products, and does so for all that follows",
    "surroundings",
    **_after(lambda input: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")),
)
_plant(
    "seeds_for_all",
    "seeds the random generator of the whole process",
    "surroundings",
    **_after(lambda input: torch.manual_seed(0)),
)
_plant(
    "takes_the_default_dtype",
    "makes a constant in whatever dtype is the default",
    "surroundings",
    lambda input: (input * torch.full((1,), 1.1) * input).to(input.dtype),
    **{
        **_SQUARE,
        "dtypes": (torch.float32,),
        "reference": lambda input: input * 1.1 * input,
        "gradient": lambda needs_grad, grads, saved, input: (2.2 * input * grads[0],),
    },
)
_KEPT: list[Tensor] = []
_plant(
    "keeps_its_input",
    "keeps its last input",
    "surroundings",
    **_after(lambda input: _KEPT.__setitem__(slice(None), [input])),
)


def _write_and_undo(input: Tensor) -> None:
    byte = ctypes.c_uint8.from_address(input.data_ptr())
    before = byte.value
    byte.value = before ^ 1
    byte.value = before


_plant(
    "writes_and_undoes_it",
    "writes to its input, and puts back what was there",
    "read_only",
    harms=True,
    **_after(lambda input: _write_and_undo(input) if input.numel() else None),
)
_plant(
    "knows_two_strides_alone",
    "takes an incoming gradient that is expanded along one dimension for one of a single element",
    "incoming_gradients",
    _square,
    **{
        **_SQUARE,
        "gradient": lambda needs_grad, grads, saved, input: (
            2 * input * (grads[0].flatten()[0] if 0 in grads[0].stride() else grads[0]),
        ),
    },
)


# A mask: zero where it is false.

_MASK: dict[str, Any] = {
    "schema": "(Tensor input, Tensor mask) -> Tensor",
    "reference": lambda input, mask: input * mask,
    "output": lambda input, mask: torch.empty_like(input),
    "gradient": lambda needs_grad, grads, saved, input, mask: (grads[0] * mask, None),
    "dtypes": {"input": _FLOATS, "mask": (torch.bool,)},
    "asked": Samples(
        (
            Sample("five elements", (Drawn((5,)), Drawn((5,), dtype=torch.bool))),
            Sample("three rows", (Drawn((3, 4)), Drawn((3, 4), dtype=torch.bool))),
        )
    ),
}
_plant(
    "multiplies_by_bytes",
    "multiplies by the byte of a boolean",
    "layouts",
    lambda input, mask: input * mask.contiguous().view(torch.uint8),
    **_MASK,
)


# Noise from a seed of 64 bits: what a hash of the seed and of the position gives.


def _hashed(seed: int, position: Tensor) -> Tensor:
    # A multiplication carries upwards alone, a shift brings what is there down again.
    hashed = torch.tensor(seed) * 0x2545F4914F6CDD1D + position
    for _ in range(3):
        hashed = (hashed ^ (hashed >> 29)) * 0x1B03738712FAD5C9
    return (hashed >> 11).double() / 2.0**52


def _positions(input: Tensor) -> Tensor:
    return torch.arange(input.numel()).reshape(input.shape)


def _noises(input: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    first, second = (input.cpu() + _hashed(seed, 2 * _positions(input) + number) for number in range(2))
    return first.to(input), second.to(input)


_NOISE: dict[str, Any] = {
    "schema": "(Tensor input, SymInt seed) -> (Tensor first, Tensor second)",
    "reference": _noises,
    "output": lambda input, seed: (torch.empty_like(input), torch.empty_like(input)),
    "gradient": lambda needs_grad, grads, saved, input, seed: (sum(each for each in grads if each is not None),),
    "random": ("seed",),
    "asked": Samples(
        (Sample("one element", (Drawn((1,)), 3)), Sample("empty", (Drawn((0,)), 3)), Sample("rows", (Drawn((3, 9)), 5)))
    ),
}
CONTROLS.append(_declare("two_noises", _noises, **_NOISE))
_plant(
    "takes_32_bits_of_a_seed",
    "takes the low 32 bits of its seed alone",
    "randomness",
    lambda input, seed: _noises(input, seed % 2**32),
    **_NOISE,
)
_plant(
    "adds_seed_and_position",
    "adds its seed to a position, so that the next seed gives the same numbers one element before",
    "randomness",
    lambda input, seed: tuple(
        (input + _hashed(number, _positions(input) + seed % 2**40)).to(input) for number in (11, 12)
    ),
    **_NOISE,
)
_plant(
    "draws_a_result_once",
    "draws one of its two results from no seed",
    "randomness",
    lambda input, seed: (_noises(input, seed)[0], _noises(input, 1)[1]),
    **_NOISE,
)
_plant(
    "draws_both_alike",
    "makes two results, which should not depend on each other, of the same numbers",
    "randomness",
    # As many are above zero as below.
    lambda input, seed: (_noises(input, seed)[0], input - _noises(torch.zeros_like(input), seed)[0]),
    **_NOISE,
)
_plant(
    "takes_the_logarithm_of_zero",
    "takes the logarithm of a number that is zero once in 2**20",
    "randomness",
    lambda input, seed: tuple(
        noise.masked_fill((_hashed(seed, 2 * _positions(input) + number) + 1) * 2**19 < 1, -torch.inf)
        for number, noise in enumerate(_noises(input, seed))
    ),
    **_NOISE,
)
_BLOCK = 256
_plant(
    "counts_in_each_block",
    "numbers the elements of each block of 256 from zero, so that all blocks have the same noise",
    "randomness",
    lambda input, seed: tuple(
        (input + _hashed(seed, 2 * (_positions(input) % _BLOCK) + number)).to(input) for number in range(2)
    ),
    **_NOISE,
)
_plant(
    "adds_noise_to_one_tile",
    "adds random numbers to 4,096 elements and no more",
    "randomness",
    lambda input, seed: tuple(torch.where(_positions(input) < 4_096, noise, input) for noise in _noises(input, seed)),
    **_NOISE,
)


# A total that is written to.


def _add(total: Tensor, input: Tensor) -> Tensor:
    return total + input


def _expect_alike(total: Tensor, input: Tensor) -> None:
    if total.shape != input.shape:
        raise ValueError(f"input must have the sizes of total, {tuple(total.shape)}, got {tuple(input.shape)}")


def _add_rows(total: Tensor, input: Tensor) -> None:
    _expect_alike(total, input)
    total.data.add_(input)


def _add_whole_rows(total: Tensor, input: Tensor) -> None:
    _expect_alike(total, input)
    rows = total.data
    if rows.dim() == 2 and rows.stride(1) == 1 and rows.stride(0) > rows.shape[1]:
        left = rows.untyped_storage().nbytes() // rows.element_size() - rows.storage_offset()
        if left >= rows.shape[0] * rows.stride(0):
            rows.as_strided((rows.shape[0], rows.stride(0)), rows.stride())[:, rows.shape[1] :].zero_()
    rows.add_(input)


_TOTAL: dict[str, Any] = {
    "schema": "(Tensor(a!) total, Tensor input) -> ()",
    "reference": _add,
    "asked": Samples(
        (
            Sample("five elements", (Drawn((5,)), Drawn((5,)))),
            Sample("no dimension", (Drawn(()), Drawn(()))),
            Sample("three rows", (Drawn((3, 4)), Drawn((3, 4)))),
        )
    ),
}
CONTROLS.append(_declare("add_rows", _add_rows, **_TOTAL))
_plant(
    "clears_behind_rows",
    "clears what lies between the rows of an argument that it writes to",
    "mutation",
    _add_whole_rows,
    **_TOTAL,
)
