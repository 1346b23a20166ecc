"""functional_calls(): PyTorch's convolution functions, computed by torchgraft's operators where these serve them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchgraft.declaration import FLOATING
from torchgraft.nn.recording import sizes_of
from torchgraft.operators.depthwise_conv1d import depthwise_conv1d, depthwise_conv_transpose1d
from torchgraft.operators.depthwise_conv2d import depthwise_conv2d, depthwise_conv_transpose2d
from torchgraft.operators.depthwise_conv3d import depthwise_conv3d, depthwise_conv_transpose3d

# By the number of spatial dimensions.
DEPTHWISE: dict[int, Callable[..., Tensor]] = {1: depthwise_conv1d, 2: depthwise_conv2d, 3: depthwise_conv3d}

DEVICES = ("cpu", "cuda", "meta")

_NAMES = {1: "conv1d", 2: "conv2d", 3: "conv3d"}


def computes_itself(tensor: Tensor) -> bool:
    """Whether a tensor's class is another library's, and computes PyTorch's operators itself: it is quantised, say."""
    kind = type(tensor)
    if kind is torch.nn.Parameter or kind is Tensor or kind.__module__.startswith("torch."):
        return False
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def _serves(rank: int, input: Any, weight: Any, groups: Any) -> bool:
    """Whether a convolution is depthwise, and of tensors that an operator takes exactly as PyTorch does."""
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor) and isinstance(groups, int)) or groups < 2:
        return False
    if input.is_nested or input.layout is not torch.strided:
        return False
    # Sizes that do not fit are left to PyTorch's function, and so is what it says of them.
    if input.dim() not in (rank + 1, rank + 2) or weight.dim() != rank + 2 or sizes_of(input)[-rank - 1] != groups:
        return False
    if input.dtype not in FLOATING or weight.dtype not in FLOATING:
        return False
    if computes_itself(input) or computes_itself(weight):
        return False
    kind = input.device.type
    return kind in DEVICES and (input.dtype == weight.dtype or torch.is_autocast_enabled(kind))


def _convolution(rank: int) -> Callable[..., Tensor]:
    """A stand-in for torch.conv1d, conv2d or conv3d, which gives NotImplemented where no operator serves."""
    compute = DEPTHWISE[rank]

    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if _serves(rank, input, weight, groups):
            kernels, each = sizes_of(weight)[:2]
            if each == 1 and kernels % groups == 0:
                return compute(input, weight, bias, stride, padding, dilation, groups)
        return NotImplemented

    return convolve


def _transposed(rank: int, compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A stand-in for torch.conv_transpose1d, conv_transpose2d or conv_transpose3d, likewise."""

    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        if _serves(rank, input, weight, groups) and sizes_of(weight)[0] == groups:
            return compute(input, weight, bias, stride, padding, output_padding, dilation)
        return NotImplemented

    return convolve


_STAND_INS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    torch.conv3d: _convolution(3),
    torch.conv_transpose1d: _transposed(1, depthwise_conv_transpose1d),
    torch.conv_transpose2d: _transposed(2, depthwise_conv_transpose2d),
    torch.conv_transpose3d: _transposed(3, depthwise_conv_transpose3d),
}


# The functions that are served, with their names in torch.nn.functional.
NAMES: dict[Callable[..., Any], str] = {function: function.__name__ for function in _STAND_INS}


def served(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """Calls the operator that serves a call of a function of PyTorch's.

    Args:
        func: any function.
        args: of the call.
        kwargs: of the call, or None.

    Returns:
        What the operator returns; NotImplemented where none serves.
    """
    stand_in = _STAND_INS.get(func)
    return NotImplemented if stand_in is None else stand_in(*args, **(kwargs or {}))


def is_replaced(rank: int) -> bool:
    """Whether a tool has put a function of its own in the place of PyTorch's, as some counters of operations do."""
    name = _NAMES[rank]
    return getattr(F, name) is not getattr(torch, name)


class functional_calls(TorchFunctionMode):  # noqa: N801  It is called as a function.
    """A scope in which depthwise calls of `torch.nn.functional.conv1d` and the like run on torchgraft's operators.

    For calls that `graft` does not find: by no layer, and outside the forward passes of modules, say. Of `conv1d`,
    `conv2d`, `conv3d` and the three `conv_transpose`, those calls are served that have a group a channel, more than one
    channel and a floating dtype; every other call is PyTorch's. Backward passes need no scope. It holds for one thread.

    Example:
        with torchgraft.functional_calls():
            output = model(input)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of PyTorch's, or what stands in for it."""
        result = served(func, args, kwargs)
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


class noted_calls(functional_calls):  # noqa: N801  As its base.
    """A scope of `functional_calls` that notes whether any call was served."""

    any_served = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of PyTorch's, or what stands in for it."""
        result = served(func, args, kwargs)
        if result is NotImplemented:
            return func(*args, **(kwargs or {}))
        self.any_served = True
        return result
