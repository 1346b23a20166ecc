"""graft(model): swaps, in place, the class of each layer that an operator serves exactly."""

from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch.nn.modules.conv import _ConvNd

from torchgraft.nn import DepthwiseConv2d
from torchgraft.operator import FLOATING

Model = TypeVar("Model", bound=torch.nn.Module)


def _why_not(module: torch.nn.Conv2d) -> str:
    """What keeps a layer from being grafted; empty where nothing does."""
    if module.groups == 1:
        return "not depthwise: every output channel reads every input channel (groups=1)"
    if module.groups != module.in_channels:
        return f"not depthwise: groups={module.groups} and in_channels={module.in_channels}"
    if module.weight.dtype not in FLOATING:
        return f"its weight has dtype {module.weight.dtype}"
    return ""


def graft(model: Model) -> Model:
    """Makes a model's layers run on torchgraft's operators, in place, wherever the result is the same.

    Today that is every `torch.nn.Conv2d` (the class itself, no subclass) with one group a channel and more than one
    channel. Only the layer's class changes: parameters, buffers, hooks, mode, names and `state_dict` stay what they
    are. Grafting twice is grafting once.

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

    Args:
        model: any module.

    Returns:
        The same model.
    """
    for module in model.modules():
        if type(module) is DepthwiseConv2d:
            module.__class__ = torch.nn.Conv2d  # type: ignore[assignment]
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
    """What of a model is grafted, what could be, and what is left and why.

    Args:
        model: any module, before or after `graft`.

    Returns:
        A report with `grafted` and `graftable` names and `left`, reasons by name; printed, a line a layer.
    """
    grafted, graftable, left = [], [], {}
    for name, module in model.named_modules():
        if type(module) is DepthwiseConv2d:
            grafted.append(name)
        elif type(module) is torch.nn.Conv2d:
            if reason := _why_not(module):
                left[name] = reason
            else:
                graftable.append(name)
        elif isinstance(module, _ConvNd):
            kind = type(module)
            left[name] = f"its class is {kind.__module__}.{kind.__qualname__}, and only torch.nn.Conv2d is replaced"
    return GraftReport(tuple(grafted), tuple(graftable), left)
