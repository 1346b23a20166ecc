"""Operators whose gradient PyTorch records in C++, so that calling them in training costs no Python.

PyTorch has a convolution for devices that it does not know. It has a gradient in C++, which calls a second operator of
that kind, and on CPU and CUDA neither has a kernel. A library of ours that has kernels for both gives an operator a way
to be called there.
"""

from collections.abc import Callable
from typing import Any

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.kernels.names import Names


def record_as_convolution(names: Names, bind: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Has an operator called so from now on where a gradient is to be recorded, on each device that has the kernels.

    A device counts only if the operator declares kernels for it: the name of PyTorch's convolution is shared.

    Args:
        names: of an operator; the libraries of its package are not loaded yet.
        bind: makes of PyTorch's convolution, `call(input, weight, bias, stride, padding, dilation, transposed,
            output_padding, groups)`, a function of all arguments of the operator.
    """

    def bind_on(namespace: str, device: str) -> None:
        said = names.declaration
        if said.namespace != namespace or said.kernels == "reference" or device not in said.kernels:
            return
        if (call := pytorch.recorded_convolution(device)) is not None:
            names.recorders[device] = bind(call)

    native.tell_of_libraries(bind_on)
