"""Operators whose gradient PyTorch records in C++, so that calling them in training costs no Python.

PyTorch has a convolution for Apple's GPUs. It has a gradient in C++, which calls a second operator of that kind, and on
CPU and CUDA neither has a kernel. A library of ours that has kernels for both gives an operator a way to be called
there.

The second kernel computes plain gradients in C++. Gradients that are recorded themselves, and those that a mode sees,
it leaves to the operator's formula in Python. There a hook of saved tensors or a mode may raise, and PyTorch's C
interface would turn any exception into a RuntimeError. So the formula's exception does not cross that interface: the
kernel returns tensors in place of gradients, and autograd raises the exception when it looks at one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.declaration.autocast import no_autocast
from torchgraft.kernels.names import Names

_Gradients = tuple[Tensor | None, ...]
# By how many directions the convolution has.
_backwards: dict[int, Callable[..., _Gradients]] = {}
_library = torch.library.Library("torchgraft", "FRAGMENT")


def record_as_convolution(names: Names, bind: Callable[[Callable[..., Any]], Callable[..., Any]], rank: int) -> None:
    """Has an operator called so from now on where a gradient is to be recorded, on each device that has the kernels.

    A device counts only if the operator declares kernels for it: the name of PyTorch's convolution is shared.

    Args:
        names: of an operator; the libraries of its package are not loaded yet. Its arguments are input, weight, bias
            and the numbers of stride, padding and dilation.
        bind: makes of PyTorch's convolution, `call(input, weight, bias, padding, stride, dilation, groups)`, a function
            of all arguments of the operator.
        rank: how many directions it has; no other operator that is called so has as many.
    """

    def bind_on(namespace: str, device: str) -> None:
        said = names.declaration
        if said.namespace != namespace or said.kernels == "reference" or device not in said.kernels:
            return
        if (call := pytorch.recorded_convolution(device)) is not None:
            names.recorders[device] = bind(call)

    _backwards[rank] = _make_backward(names)
    native.tell_of_libraries(bind_on)


def _make_backward(names: Names) -> Callable[..., _Gradients]:
    gradient: Any = names.declaration.gradient

    def backward(
        output_grad: Tensor,
        input: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        *wanted: bool,
    ) -> _Gradients:
        # PyTorch's convolutions pad both sides alike, and tell one of the numbers.
        behind = padding if len(padding) == len(stride) else ()
        window = *stride, *padding, *behind, *dilation
        with no_autocast((output_grad,)):
            found: _Gradients = gradient(wanted, (output_grad,), (), input, weight, None, *window)
            return found

    return backward


def _backward(output_grad: Tensor, input: Tensor, weight: Tensor, stride: Sequence[int], *rest: Any) -> _Gradients:
    try:
        return _backwards[len(stride)](output_grad, input, weight, stride, *rest)
    except BaseException as error:
        shapes = input.shape, weight.shape, weight.shape[:1]
        return tuple(pytorch.raised_by_autograd(error, shape, input.device) for shape in shapes)


_library.define(
    "_recorded_convolution_backward(Tensor output_grad, Tensor input, Tensor weight, int[] stride, int[] padding, "
    "int[] dilation, bool of_input, bool of_weight, bool of_bias) -> (Tensor, Tensor, Tensor)"
)
_library.impl("_recorded_convolution_backward", _backward, "CompositeImplicitAutograd")
# The libraries have kernels for these, recorded.h says which.
for _key in pytorch.DEVICE_KEYS.values():
    _library.define(f"_a_mode_sees_{_key}() -> bool")
