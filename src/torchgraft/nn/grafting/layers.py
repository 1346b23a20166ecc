"""graft and ungraft: a layer's methods, set and taken back; and which layers an operator serves, and why not others."""

import types
from typing import TypeVar

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import type_before_parametrizations

from torchgraft.nn.grafting.functional import computes_itself
from torchgraft.nn.grafting.methods import ConvForward, Forward, PrepareScriptable, Replicate, methods_of, take_back

Model = TypeVar("Model", bound=nn.Module)

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def class_name(module: nn.Module) -> str:
    """The name of a layer's class, as one imports it."""
    kind = type_before_parametrizations(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def runs_on_operators(module: nn.Module) -> bool:
    """Whether the class of a layer computes with torchgraft's operators, grafted or not."""
    return any(kind.__module__.startswith("torchgraft.nn.") for kind in type(module).__mro__)


def computes_as_its_base(module: _ConvNd) -> bool:
    """Whether the class of a layer, a subclass maybe, has the forward pass of PyTorch's convolutions."""
    return any(
        type(module).forward is base.forward and type(module)._conv_forward is base._conv_forward
        for base in _PLAIN
        if isinstance(module, base)
    )


def names_of_forward(module: _ConvNd) -> list[str]:
    """The names under which a layer holds its class's forward pass: another one if a tool has put its own in front."""
    if Forward.name not in vars(module):
        return [Forward.name]
    own = types.MethodType(type(module).forward, module)
    return [name for name, value in vars(module).items() if isinstance(value, types.MethodType) and value == own]


def why_not(module: _ConvNd) -> str:
    """The reason why a layer is not grafted; empty if there is none."""
    if isinstance(module, LazyModuleMixin):
        return "it has no sizes before its first call: graft after that call"
    if module.groups == 1:
        return "not depthwise: every output channel reads every input channel (groups=1)"
    if module.groups != module.in_channels:
        return "not depthwise: an output channel reads several input channels"
    if not isinstance(module, (*_PLAIN, *_TRANSPOSED)):
        return f"its class is {class_name(module)}, which is no convolution of one, two or three dimensions"
    # Its weight is not asked for: that computes a parametrised one, which may count how often. What is stored in float8
    # is cast before it is used.
    stored = next(module.parameters(), None)
    if stored is not None and not stored.dtype.is_floating_point:
        return f"its weight has dtype {stored.dtype}"
    if stored is not None and computes_itself(stored):
        return f"its weight is of the class {type(stored).__name__}, which computes convolutions itself"
    if not (names_of_forward(module) or computes_as_its_base(module) or methods_of(module)):
        return "its forward was replaced: graft the model first, then replace it"
    if "_conv_forward" in vars(module) and not methods_of(module):
        return "its _conv_forward was replaced"
    return ""


def is_grafted(module: nn.Module) -> bool:
    """Whether `graft` has given a layer a method."""
    return isinstance(module, _ConvNd) and bool(methods_of(module))


def graft(model: Model) -> Model:
    """Makes a model's layers run on torchgraft's operators, in place, wherever the result is the same.

    Served is every convolution of one, two or three dimensions, transposed or not, with one group a channel and more
    than one channel: PyTorch's own classes, and subclasses, whether they keep PyTorch's forward pass, extend it or
    call `torch.nn.functional` themselves. A layer keeps its class, parameters, buffers, hooks, mode and `state_dict`;
    it gets a method, in its own `__dict__`, by which it computes. Grafting twice is grafting once.

    `torch.jit.script` compiles the layers' classes; transposed layers, and those of subclasses with a forward pass of
    their own, are ungrafted by it. What is made for ONNX holds PyTorch's convolutions. What `torch.export` makes holds
    torchgraft's operators: call `ungraft` before what looks for convolutions in it, such as a quantiser.

    Args:
        model: any module; it may itself be such a layer.

    Returns:
        The same model.
    """
    for module in model.modules():
        if not isinstance(module, _ConvNd) or runs_on_operators(module) or is_grafted(module) or why_not(module):
            continue
        if computes_as_its_base(module):
            vars(module)[ConvForward.name] = ConvForward(module)
        else:
            vars(module).update({name: Forward(module) for name in names_of_forward(module)})
            vars(module).update({each.name: each(module) for each in (Replicate, PrepareScriptable)})
    return model


def ungraft(model: Model) -> Model:
    """Lets a model's layers compute as their classes do: the opposite of `graft`.

    Args:
        model: any module.

    Returns:
        The same model.
    """
    for module in model.modules():
        take_back(module)
    return model
