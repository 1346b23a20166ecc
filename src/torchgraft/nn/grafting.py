"""graft(model): swaps, in place, the class of each layer that an operator serves exactly."""

from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from torchgraft.nn import DepthwiseConv2d
from torchgraft.operator import FLOATING

Model = TypeVar("Model", bound=torch.nn.Module)


def _why_not(module: torch.nn.Conv2d) -> str:
    """The reason why a layer is not grafted; empty if there is none."""
    if module.groups == 1:
        return "not depthwise: every output channel reads every input channel (groups=1)"
    if module.groups != module.in_channels:
        return f"not depthwise: groups={module.groups} and in_channels={module.in_channels}"
    if module.weight.dtype not in FLOATING:
        return f"its weight has dtype {module.weight.dtype}"
    return ""


def _why_not_this_class(module: _ConvNd) -> str:
    """Explains why the class of a layer keeps `graft` from replacing it."""
    kind = type_before_parametrizations(module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind is torch.nn.Conv2d:
        names = " and ".join(module.parametrizations)  # type: ignore[arg-type]
        return f"its {names} is parametrised: graft the model first, then parametrise the layer"
    if isinstance(module, LazyModuleMixin):
        return f"its class is {name}, which has no sizes before its first call: graft after that call"
    if isinstance(module, DepthwiseConv2d):
        return f"its class is {name}, a subclass of torchgraft's layer, which graft and ungraft do not touch"
    return f"its class is {name}, and only torch.nn.Conv2d is replaced"


def _set_class(module: torch.nn.Module, kind: type[torch.nn.Module]) -> None:
    """Makes a layer one of another class. A parametrised layer keeps its parametrisations."""
    if not is_parametrized(module):
        module.__class__ = kind
        return
    # PyTorch gave the layer a subclass that holds its parametrisations. A copy of the layer shares that subclass, so
    # the layer gets a subclass of its own.
    held = {name: value for name, value in vars(type(module)).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), held)


def graft(model: Model) -> Model:
    """Makes a model's layers run on torchgraft's operators, in place, wherever the result is the same.

    Today that is every `torch.nn.Conv2d` (the class itself, no subclass) with one group a channel and more than one
    channel. Only the layer's class changes: parameters, buffers, hooks, mode, names and `state_dict` stay what they
    are. Grafting twice is grafting once. A layer that is parametrised with `torch.nn.utils.parametrize` is left: graft
    the model first, then parametrise its layers. What finds layers by their class, as `torch.ao.quantization` does,
    expects `torch.nn.Conv2d`: call `ungraft` before.

    Args:
        model: any module; it may itself be such a layer.

    Returns:
        The same model.
    """
    for module in model.modules():
        if type(module) is torch.nn.Conv2d and not _why_not(module):
            module.__class__ = DepthwiseConv2d
    return model


def ungraft(model: Model) -> Model:
    """Puts PyTorch's layers back in place of torchgraft's: the opposite of `graft`.

    Layers that were parametrised after they were grafted keep their parametrisations.

    Args:
        model: any module.

    Returns:
        The same model.
    """
    for module in model.modules():
        if type_before_parametrizations(module) is DepthwiseConv2d:
            _set_class(module, torch.nn.Conv2d)
    return model


@dataclass(frozen=True)
class GraftReport:
    """Which convolutions of a model run on torchgraft, by the names of their layers, and why others do not."""

    grafted: tuple[str, ...] = ()
    graftable: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"convolutions grafted: {len(self.grafted)}, left: {len(self.left) + len(self.graftable)}"]
        lines += [f"  grafted    {name or '(the model itself)'}" for name in self.grafted]
        lines += [f"  graftable  {name or '(the model itself)'}: graft(model) replaces it" for name in self.graftable]
        lines += [f"  left       {name or '(the model itself)'}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def graft_report(model: torch.nn.Module) -> GraftReport:
    """Lists the layers of a model that are grafted, those that could be, and those that are left, with the reason.

    Args:
        model: any module, before or after `graft`.

    Returns:
        A report with `grafted` and `graftable` names and `left`, reasons by name; printed, a line a layer.
    """
    grafted, graftable, left = [], [], {}
    for name, module in model.named_modules():
        if type_before_parametrizations(module) is DepthwiseConv2d:
            grafted.append(name)
        elif type(module) is torch.nn.Conv2d:
            if reason := _why_not(module):
                left[name] = reason
            else:
                graftable.append(name)
        elif isinstance(module, _ConvNd):
            left[name] = _why_not_this_class(module)
    return GraftReport(tuple(grafted), tuple(graftable), left)
