"""graft and ungraft: give layers methods that compute on torchgraft, and take them back; and why a layer gets none."""

from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import type_before_parametrizations

from torchgraft.nn.grafting.calls import calls_of, give
from torchgraft.nn.grafting.functional import computes_itself
from torchgraft.nn.grafting.measuring import measure
from torchgraft.nn.grafting.methods import NAME, computes_as_its_base, methods_of, names_of_forward, take_back
from torchgraft.nn.grafting.reading import functions_called, why_not_served
from torchgraft.nn.grafting.recurrent import why_not_recurrent

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


def convolves(module: nn.Module) -> bool:
    """Whether a module is a convolution, or calls one as a function that is known here."""
    return isinstance(module, _ConvNd) or bool(named_functions(module))


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module is a recurrent layer of PyTorch's, or an instance of a subclass of one."""
    return isinstance(module, nn.RNNBase)


def is_of_interest(module: nn.Module) -> bool:
    """Whether `graft` looks at a module, and a report names it."""
    return is_recurrent(module) or convolves(module)


def is_known_to_be_served(module: nn.Module) -> bool:
    """Whether `graft` is sure to serve a module; one that calls `conv2d` itself may call it for other convolutions."""
    return isinstance(module, (_ConvNd, nn.RNNBase)) or bool(calls_of(module).functions)


def named_functions(module: nn.Module) -> tuple[str, ...]:
    """The names of the functions that a module's own code calls, and that compute depthwise convolutions."""
    return calls_of(module).functions or functions_called(module)


def why_not(module: nn.Module) -> str:
    """The reason why a module that convolves is not grafted; empty if there is none."""
    if isinstance(module, nn.RNNBase):
        return why_not_recurrent(module)
    if not isinstance(module, _ConvNd):
        calls = calls_of(module)
        return calls.reason if calls.functions else why_not_served(module)
    if isinstance(module, LazyModuleMixin):
        return "it has no sizes before its first call: graft after that call"
    if module.groups == 1:
        return "not depthwise: every output channel reads every input channel (groups=1)"
    if module.groups != module.in_channels:
        return "not depthwise: an output channel reads several input channels"
    if not isinstance(module, (*_PLAIN, *_TRANSPOSED)):
        return f"its class is {class_name(module)}, which is no convolution of one, two or three dimensions"
    # `module.weight` is not read: a parametrised weight is computed then, and its code may count the reads. A weight
    # that is stored in float8 is cast before it is used.
    stored = next(module.parameters(), None)
    if stored is not None and not stored.dtype.is_floating_point:
        return f"its weight has dtype {stored.dtype}"
    if stored is not None and computes_itself(stored):
        return f"its weight is of the class {type(stored).__name__}, which computes convolutions itself"
    if not (names_of_forward(module) or computes_as_its_base(module) or methods_of(module)):
        return "its forward was replaced: graft the model first, then replace it"
    if "_conv_forward" in vars(module) and not methods_of(module):
        return "its _conv_forward was replaced"
    return calls_of(module).reason


def is_grafted(module: nn.Module) -> bool:
    """Whether `graft` has given a layer a method."""
    return bool(methods_of(module))


def graft(model: Model, example: Any = None) -> Model:
    """Makes a model's layers run on torchgraft's operators, in place, wherever the result is the same.

    Served is every convolution of one, two or three dimensions, transposed or not, with one group a channel and more
    than one channel: PyTorch's own classes, and subclasses, whether they keep PyTorch's forward pass, extend it or
    call `torch.nn.functional` themselves. A layer keeps its class, parameters, buffers, hooks, mode and `state_dict`;
    it gets a method, in its own `__dict__`, by which it computes. Grafting twice is grafting once.

    Served too is every module whose class calls a function `causal_conv1d_fn` or `causal_conv1d_update` with the
    arguments of the package causal-conv1d, or `causal_conv1d` with those of flash-linear-attention, as layers of
    transformers, mamba_ssm and fla do. Such a module gets methods that run the class's own code, in which these names
    mean torchgraft's operators; other modules that call the same functions are left alone.

    Served are also other modules whose forward pass, by its code, calls a function such as `torch.nn.functional.conv2d`
    with `groups`: blur pools, and convolutions whose weights are computed. Such a module runs in the scope
    `functional_calls()`, until its first passes have shown that none of its calls is depthwise.

    Served are also `torch.nn.LSTM`, `GRU` and `RNN` without a projection, and subclasses that call their forward pass,
    on torchgraft's recurrences. Without an example, each call decides whether that pays, by its device, dtype and sizes
    and by whether gradients are recorded; all other calls run as before.

    `torch.jit.script` compiles the layers' classes; transposed layers, recurrent ones, and those of subclasses with a
    forward pass of their own, are ungrafted by it. What is made for ONNX holds PyTorch's operators. What `torch.export`
    makes holds torchgraft's: call `ungraft` before what looks for PyTorch's in it, such as a quantiser.

    With an example, the model runs once, and each layer is timed with the calls that it got, PyTorch's way and on
    torchgraft's operators, in turn: forward, and backward where gradients flow, under the autocast and the gradient
    mode of the caller. Only layers that gain are grafted, and a recurrent one then uses recurrences in all its calls. A
    layer that the example does not reach is grafted as without an example. Other modules that call such a function in
    their forward pass are grafted only if the example shows that they gain, whether or not their code shows the call.

    What was measured stays with each layer, through copies, files and `graft_report`. The model's buffers and PyTorch's
    random numbers are afterwards what they were. Where `torch.distributed` is initialised, all processes must call
    this, and all graft the layers that gained in process 0.

    Args:
        model: any module; it may itself be such a layer.
        example: the arguments of the model, of the sizes that it will mostly get: a tensor, several arguments in a
            tuple or list, or a dict of names and arguments. None: nothing is timed.

    Returns:
        The same model.

    Raises:
        TypeError: example is none of these.
        ValueError: there is an example, and parameters are on the device meta.
    """
    if example is not None:
        ungraft(model)
    layers = {
        name: module
        for name, module in model.named_modules()
        if is_of_interest(module) and not (runs_on_operators(module) or is_grafted(module) or why_not(module))
    }
    timed = {name: module for name, module in layers.items() if isinstance(module, (_ConvNd, nn.RNNBase))}
    measured = {} if example is None else measure(model, timed, example)
    for name in {**layers, **measured}:
        layer = model.get_submodule(name)
        vars(layer).pop(NAME, None)
        if name in measured:
            vars(layer)[NAME] = measured[name]
        # If no call of a function was measured, the module made no depthwise one, or the example did not reach it.
        is_guess = example is not None and not is_known_to_be_served(layer)
        if measured[name].gains if name in measured else not is_guess:
            give(layer, measured=name in measured)
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
