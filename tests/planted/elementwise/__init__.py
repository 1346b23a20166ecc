"""Elementwise operators: an input times a factor.

All have one reference and one schema. Where the kernel is what is wrong, it is in the file of that name; the others
have the kernel of the control, and one argument of the declaration is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.operator import FLOATING
from torchgraft.sampling import Benchmark, Drawn, ModuleSample, Sample, Samples

BUGS: list[Bug] = []


def _scale(input: Tensor, factor: float) -> Tensor:
    return input * factor


def _gradient(needs_grad: Sequence[bool], grads: Sequence[Tensor], saved: Any, input: Tensor, factor: float) -> Any:
    return (scale(grads[0], factor),)


def _declare(name: str, **changes: Any) -> Operator:
    options = {
        "reference": _scale,
        "output": lambda input, factor: torch.empty_like(input),
        "gradient": _gradient,
        "vmap": lambda operator, batch_size, in_dims, input, factor: (operator(input, factor), in_dims[0]),
        "flops": lambda shape, factor: math.prod(shape),
        **changes,
    }
    return Operator(f"{kernels.NAMESPACE}::{name}(Tensor input, float factor) -> Tensor", **options)


def _plant(
    name: str,
    wrong: str,
    caught_by: str,
    *,
    devices: tuple[str, ...] = ("cpu",),
    harms: bool = False,
    by_chance: bool = False,
    **changes: Any,
) -> None:
    BUGS.append(Bug(_declare(name, **changes), wrong, caught_by, devices, harms, by_chance))


scale = _declare("scale")
# Right as it is, and wrong where one of its kernels is forced: no bug that a property finds.
chosen = _declare("chosen", kernels={"cpu": FLOATING})
measured = _declare("measured", kernels={"cpu": FLOATING})
added = Operator(
    f"{kernels.NAMESPACE}::added(Tensor(a!) total, Tensor input) -> Tensor",
    reference=lambda total, input: (total + input, 2 * input),
    gradient=lambda needs_grad, grads, saved, total, input: (None, 2 * grads[0]),
)

_plant("wrong_last_element", "the last element is not multiplied", "value")
_plant("wrong_above_one_tile", "beyond the first tile the wrong elements are read", "value")
_plant("float_constant", "a constant is a float in a double kernel", "value")
_plant("cuts_off", "cuts results off where it should round them", "accuracy")
_plant("wrong_between_samples", "wrong at a size that no sample in the table has", "sizes")
_plant("crashes_on_empty", "reads the first element of an empty tensor", "empty", harms=True)
_plant("result_in_float32", "gives float32 where float16 came in", "dtypes")
_plant("ignores_strides", "reads a strided input as if it were contiguous", "layouts")
_plant("ignores_storage_offset", "reads from the start of the storage", "layouts")
_plant("counts_in_32_bits", "counts addresses in 32 bits", "large", devices=("cpu", "cuda"))
_plant("skips_zero", "gives zero where the definition says NaN", "non_finite")
_plant("writes_to_its_input", "changes its input, undeclared", "inputs_and_outputs")
_plant("returns_its_input", "gives its input itself where the factor is one", "inputs_and_outputs")
_plant("writes_past_the_end", "writes one element past the end", "memory_bounds", devices=("cpu", "cuda"), harms=True)
_plant("reads_past_the_end", "reads one element past the end", "memory_bounds", by_chance=True)
_plant("leaves_one_unwritten", "leaves one element unwritten", "memory_bounds", by_chance=True)
_plant("reads_uninitialised", "reads memory that nobody wrote", "memory_bounds", by_chance=True)
_plant("reads_freed_memory", "does not ask whether its input's memory is still there", "bad_input", harms=True)
_plant("leaks_memory", "leaks memory at each call", "memory", devices=("cpu", "cuda"))
_plant("static_buffer", "all threads share a static buffer", "thread_safety")
_plant("uses_default_stream", "launches on the default stream, not on the current one", "streams", devices=("cuda",))
_plant(
    "waits_in_each_call", "waits for the device, which cannot be captured", "cuda_graph", devices=("cuda",), harms=True
)
_plant(
    "ignores_device",
    "launches on the current device, wherever its input is",
    "second_device",
    devices=("cuda",),
    harms=True,
)

_plant(
    "fake_with_wrong_strides",
    "the fake result is contiguous, the real one is laid out as the input",
    "fake",
    output=lambda input, factor: input.new_empty(input.shape),
)
_plant(
    "fake_that_fixes_a_size",
    "the fake result has a size for good where the real one follows the input",
    "fake",
    output=lambda input, factor: torch.empty_like(input).reshape(tuple(int(size) for size in input.shape)),
)
_plant(
    "fake_in_float32",
    "the fake result is float32 whatever the input is",
    "fake",
    output=lambda input, factor: torch.empty_like(input, dtype=torch.float32),
)
_plant(
    "gradient_laid_out_otherwise",
    "the gradient is contiguous where its input is channels_last",
    "gradient_layouts",
    gradient=lambda needs_grad, grads, saved, input, factor: (scale(grads[0].contiguous(), factor),),
)
_plant(
    "formula_looks_at_values",
    "the gradient formula asks what the numbers are, which nobody knows while a graph is made",
    "compile",
    gradient=lambda needs_grad, grads, saved, input, factor: (scale(grads[0], factor) if grads[0].any() else grads[0],),
)
_plant(
    "forgets_its_state",
    "a layer keeps a number that its state_dict does not hold",
    "pickle",
)
_plant("claims_a_kernel", "claims a kernel that nobody wrote", "fallbacks")
_plant(
    "no_gradient",
    "has no gradient formula, and its reference is cut off from autograd",
    "gradient",
    reference=lambda input, factor: input.detach() * factor,
    gradient=None,
)


class _WithoutTangent(torch.autograd.Function):
    """A product whose author had no use for forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, factor: float) -> Tensor:
        return input * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return torch.zeros_like(tangent)


_plant(
    "silent_zero_tangent",
    "in forward mode its reference gives tangents of zero",
    "forward_mode",
    reference=lambda input, factor: _WithoutTangent.apply(input, factor),
)
_plant(
    "wrong_vmap",
    "the vmap rule takes the batch for the first dimension, whichever it is",
    "vmap",
    vmap=lambda operator, batch_size, in_dims, input, factor: (operator(input, factor), 0),
)


def _draw(random: Random) -> Sample:
    shape = tuple(random.randint(0, 6) for _ in range(random.randint(0, 3)))
    return Sample(f"drawn {shape}", (Drawn(shape), random.uniform(-3, 3)))


class _Layer(torch.nn.Module):
    """The layer that forgets_its_state is named for, with a factor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.rand(()).item()

    def forward(self, input: Tensor) -> Tensor:
        return scale(input, self.factor)


_common = Samples(
    (
        Sample("scalar", (Drawn(()), 2.0)),
        Sample("one element", (Drawn((1,)), -0.5)),
        Sample("empty", (Drawn((0,)), 2.0)),
        Sample("seven elements", (Drawn((7,)), 0.3)),
        Sample("a tile", (Drawn((64,)), 0.3)),
        Sample("more than a tile", (Drawn((131,)), 1.7)),
        Sample("three rows", (Drawn((3, 7)), 1.7)),
        Sample("channels_last", (Drawn((2, 3, 3, 4), channels_last=True), 1.5)),
        Sample("more than a thread's share", (Drawn((33003,)), 1.7)),
        Sample("times zero", (Drawn((6,)), 0.0)),
        Sample("times one", (Drawn((6,)), 1.0)),
    ),
    _draw,
    rivals={"pytorch": _scale},
)
samples = {
    **{bug.name: _common for bug in BUGS},
    "scale": _common,
    "chosen": replace(_common, benchmarks=[Benchmark(_common.table[place], "sizes") for place in (3, 4)]),
    "forgets_its_state": replace(_common, modules=(ModuleSample("layer", _Layer, (Drawn((2, 3)),)),)),
}

kernels.load()
