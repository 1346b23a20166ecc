"""Methods that a grafted layer has in place of its class's: the layer's class, and all that hangs on it, stay."""

import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from torchgraft._private import pytorch
from torchgraft.declaration import FLOATING
from torchgraft.kernels import measured_choice
from torchgraft.nn.convolving import convolve
from torchgraft.nn.grafting.functional import (
    DEPTHWISE,
    computes_itself,
    functional_calls,
    is_replaced,
    noted_calls,
)
from torchgraft.nn.grafting.plans import Plan, make_plan
from torchgraft.nn.recording import is_recorded_to_be_read

# Where a layer keeps what was measured of it, so that it is copied, saved and loaded with the layer.
NAME = "_torchgraft_measured"

# As PyTorch has them: another tool may put its own in their place later.
_PLAIN = [(base, base.forward, base._conv_forward) for base in (nn.Conv1d, nn.Conv2d, nn.Conv3d)]

# Variables of this module, because a call that follows a plan asks each of them.
any_autocast, jit_tracing, dispatch_modes = pytorch.any_autocast, pytorch.jit_tracing, pytorch.dispatch_modes
functorch_active, dual_levels, may_be_timed = pytorch.functorch_active, pytorch.dual_levels, measured_choice.is_wanted
is_autocast_enabled, get_autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
is_dynamo_compiling, is_grad_enabled, float32 = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled, torch.float32
_FUNCTIONAL, _TORCH = vars(F), vars(torch)
# Classes that do nothing of their own.
_PLAIN_TENSORS = Tensor, Parameter

# By the number of spatial dimensions: the operator, and the method that it stands for.
_OPERATORS = {rank: (DEPTHWISE[rank], conv_forward) for rank, (_, _, conv_forward) in enumerate(_PLAIN, 1)}


class Method:
    """A method of one layer, kept in the layer's own `__dict__` under the name of the method that it stands for.

    The layer is not kept alive: a circle would hold a model's memory until Python next looks for circles. Copies and
    pickles of a layer hold a method of their own. A shallow copy, which Python makes without asking, shares it: until
    the first layer is gone, the copy has that one's stride, padding and dilation.

    Args:
        layer: a convolution, or another module that calls convolution functions.
    """

    __slots__ = ("__weakref__", "_layer")
    name: str
    # Whether the layer's class has it. If not, the layer held something else under its name before.
    is_of_the_class: ClassVar[bool] = True

    def __init__(self, layer: nn.Module) -> None:
        self._layer = weakref.ref(layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Method":
        layer = self._found()
        return self.of(memo.get(id(layer), layer))

    def __reduce__(self) -> tuple[type["Method"], tuple[Any, ...]]:
        return type(self), (self._found(),)

    def of(self, layer: nn.Module) -> "Method":
        """The same method of another layer."""
        return type(self)(layer)

    def of_the_class(self) -> Callable[..., Any]:
        """The method that a layer has which is not grafted."""
        layer = self._found()
        return types.MethodType(getattr(type(layer), self.name), layer)

    def _found(self) -> nn.Module:
        layer = self._layer()
        return self._of_a_shallow_copy() if layer is None else layer

    def _of_a_shallow_copy(self) -> nn.Module:
        """Finds the layer whose call this is, when the one of which it is a shallow copy is gone, and stays with it."""
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            layer = frame.f_locals.get("self")
            if isinstance(layer, nn.Module) and any(each is self for each in vars(layer).values()):
                self._layer = weakref.ref(layer)
                return layer
        raise ReferenceError("the grafted layer is gone: a method of a layer cannot be kept without it")


class ConvForward(Method):
    """`_conv_forward` of a layer whose class computes as `torch.nn.Conv1d`, `Conv2d` or `Conv3d` does.

    A step of training runs much other code between two layers, so that each frame of Python is in no cache and costs
    a microsecond or more. A call leaves a plan (`plans.py`). The next call compares what the plan depends on, and calls
    the kernel from this frame. Every call that the plan does not fit is looked at in full.
    """

    __slots__ = ("_plan",)
    name = "_conv_forward"

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self._plan: Plan | None = None

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolves as the layer says."""
        # TorchDynamo must not look at the plan: it would compile anew as soon as there is one.
        if is_dynamo_compiling() or (plan := self._plan) is None:
            return self._look_in_full(input, weight, bias)
        is_called = False
        try:
            # No other class of tensors, tracer, mode or transform takes part.
            if (
                type(input) is Tensor
                and type(weight) in _PLAIN_TENSORS
                and not jit_tracing()
                and not dispatch_modes()
                and not functorch_active()
                and dual_levels._current_level < 0
            ):
                layer: Any = self._layer()
                facts, (record, sides, kernel, window, recover, dims, function, theirs) = plan
                stride, padding, dilation, mode, groups, channels, dtype, device, on_cuda, recorder_of, recorder = facts
                if not (
                    layer.stride is stride
                    and layer.padding is padding
                    and layer.dilation is dilation
                    and layer.padding_mode is mode
                    and layer.groups is groups
                    and layer.in_channels is channels
                    and weight.dtype is dtype
                    and input.is_cuda is on_cuda
                    and recorder_of.cell_contents(device) is recorder
                ):
                    self._plan = None
                elif (
                    (on_cuda or input.is_cpu)
                    and len(shape := input.shape) == dims
                    and shape[1] == groups
                    and (bias is None or (type(bias) in _PLAIN_TENSORS and bias.dtype is dtype))
                    # Another tool may have replaced the method, or PyTorch's function.
                    and type(layer)._conv_forward is theirs
                    and _FUNCTIONAL[function] is _TORCH[function]
                ):
                    image, fits = input, True
                    if any_autocast() and is_autocast_enabled(device):
                        # The input gets autocast's dtype, and the weight stays in float32.
                        lower, own = get_autocast_dtype(device), input.dtype
                        fits = dtype is float32 and (own is lower or own is float32)
                        if fits and own is not lower:
                            image = input.to(lower)
                    if fits:
                        if is_grad_enabled() and (
                            weight.requires_grad or input.requires_grad or (bias is not None and bias.requires_grad)
                        ):
                            is_called = True
                            return record(image, weight, bias, sides, stride, dilation, groups)
                        if not may_be_timed():
                            is_called = True
                            return kernel(image, weight, bias, *window)
        except Exception as error:
            if is_called:
                return recover(error, (image, weight, bias, *window))
            # A comparison failed, of a tensor without a shape, say. The look in full raises what is to be raised.
        return self._look_in_full(input, weight, bias)

    def _look_in_full(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer: Any = self._layer() or self._found()
        # A layer may change after it was grafted: its groups, or the dtype or class of its weights.
        changed = layer.groups != layer.in_channels or (
            isinstance(weight, Tensor) and (weight.dtype not in FLOATING or computes_itself(weight))
        )
        if changed or is_recorded_to_be_read() or (isinstance(input, Tensor) and computes_itself(input)):
            result: Tensor = type(layer)._conv_forward(layer, input, weight, bias)
            return result
        rank = len(layer.kernel_size)
        compute, theirs = _OPERATORS[rank]
        if type(layer)._conv_forward is not theirs or is_replaced(rank):
            with functional_calls():
                result = type(layer)._conv_forward(layer, input, weight, bias)
                return result
        if not torch.compiler.is_compiling() and self._plan is None:
            self._plan = make_plan(layer, rank, input, weight, theirs)
        return convolve(layer, compute, input, weight, bias)


class Forward(Method):
    """`forward` of a layer whose class calls functions of PyTorch itself: it pads first, say, or is transposed."""

    __slots__ = ()
    name = "forward"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the class's own forward pass, and its convolutions on operators."""
        layer = self._layer() or self._found()
        # Another tool may call this method after `ungraft`, out of sight: it kept it before it set a method of its own.
        if Replicate.name not in vars(layer) or is_recorded_to_be_read():
            return type(layer).forward(layer, *arguments, **named)
        with functional_calls():
            return type(layer).forward(layer, *arguments, **named)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The class's own method, whose signature Python takes for this one's."""
        return self.of_the_class()

    @property
    def __code__(self) -> types.CodeType:
        """The code of the class's own method: `torch.export` names its file and line."""
        code: types.CodeType = self.of_the_class().__code__
        return code


class FunctionsForward(Forward):
    """`forward` of a module that is no convolution, and whose code calls convolution functions.

    Whether any of its calls is depthwise shows when it runs. Where none was in the first few passes, it runs outside a
    scope from then on. A pass that is computed again for gradients is computed as before: where one call was served, a
    scope stays.
    """

    __slots__ = ("_passes",)
    _PATIENCE: ClassVar[int] = 8
    _SERVES: ClassVar[int] = -1

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self._passes = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the class's own forward pass, and its depthwise convolutions on operators."""
        # What is compiled or traced pays for a scope once. What is counted here would compile it anew, and traces in
        # two kinds of scopes differ.
        is_recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if is_recorded or self._passes == self._SERVES:
            return super().__call__(*arguments, **named)
        layer = self._layer() or self._found()
        if self._passes >= self._PATIENCE or Replicate.name not in vars(layer) or is_recorded_to_be_read():
            return type(layer).forward(layer, *arguments, **named)
        with noted_calls() as scope:
            result = type(layer).forward(layer, *arguments, **named)
        self._passes = self._SERVES if scope.any_served else self._passes + 1
        return result

    @property
    def why_not(self) -> str:
        """The reason why it serves nothing; empty if it does, or may."""
        return "" if self._passes < self._PATIENCE else f"no call in its first {self._PATIENCE} passes was depthwise"


class Replicate(Method):
    """`_replicate_for_data_parallel` of a layer with a method of its own that reads the layer's weights."""

    __slots__ = ()
    name = "_replicate_for_data_parallel"

    def __call__(self) -> nn.Module:
        """Makes a replica whose methods are its own: `torch.nn.DataParallel` gives it weights on another device."""
        layer = self._found()
        replica: nn.Module = type(layer)._replicate_for_data_parallel(layer)
        for name, method in methods_of(replica).items():
            vars(replica)[name] = method.of(replica)
        return replica


class PrepareScriptable(Method):
    """`__prepare_scriptable__` of a layer with a forward pass that `torch.jit.script` cannot read."""

    __slots__ = ()
    name = "__prepare_scriptable__"

    def __call__(self) -> nn.Module:
        """Ungrafts the layer, so that PyTorch compiles its class."""
        layer = self._found()
        take_back(layer)
        return layer


def computes_as_its_base(module: nn.Module) -> bool:
    """Whether the class of a layer, a subclass maybe, has the forward pass of PyTorch's convolutions."""
    return any(
        type(module).forward is forward and type(module)._conv_forward is conv_forward
        for base, forward, conv_forward in _PLAIN
        if isinstance(module, base)
    )


def names_of_forward(module: nn.Module) -> list[str]:
    """The names under which a layer holds its class's forward pass: another one if a tool has put its own in front."""
    if Forward.name not in vars(module):
        # What is no plain function may not take the layer as its first argument.
        is_plain = isinstance(inspect.getattr_static(type(module), Forward.name, None), types.FunctionType)
        return [Forward.name] if is_plain else []
    own = types.MethodType(type(module).forward, module)
    return [name for name, value in vars(module).items() if isinstance(value, types.MethodType) and value == own]


def methods_of(module: nn.Module) -> dict[str, Method]:
    """Returns the methods that a layer got when it was grafted, by name: none if it was not."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Method)}


def take_back(module: nn.Module) -> None:
    """Takes from a layer what it got when it was grafted, or timed: its methods, and what was measured."""
    vars(module).pop(NAME, None)
    for name, method in methods_of(module).items():
        if name == method.name and method.is_of_the_class:
            del vars(module)[name]
        else:  # Another tool has put a method of its own in front of ours, and calls this one; or it is an attribute.
            vars(module)[name] = method.of_the_class()
