"""Layers while PyTorch records a model: their mode for `torch.fx`, and the error that `torch.jit.script` gets."""

from __future__ import annotations

from typing import Any, NoReturn

import torch


def recorded_mode(layer: torch.nn.Module, *values: Any) -> Any:
    """Reads whether a layer is in training mode, each time that a recorded graph runs.

    A graph that held the mode of the moment of recording would go on dropping outputs after `eval()`. This holds until
    the graph is pickled: PyTorch then records it again, and finds a bool.

    Args:
        layer: whose mode it is.
        values: of its forward pass, among which `torch.fx` puts some of its own.

    Returns:
        A value that stands for the mode. If `torch.fx` records nothing here, the mode.
    """
    for value in values:
        if isinstance(value, torch.fx.Proxy) and isinstance(value.tracer, torch.fx.Tracer):
            path = value.tracer.path_of_module(layer)
            return value.tracer.create_proxy("get_attr", f"{path}.training".lstrip("."), (), {})
    return layer.training


def refuse_scripting(layer: torch.nn.Module) -> NoReturn:
    """Raises the error of `torch.jit.script`, which asks each layer of a model for this before it compiles any.

    Args:
        layer: the layer that cannot be compiled.

    Raises:
        TypeError: always; it names what to do instead.
    """
    kind = type(layer)
    ungraft = ", or torchgraft.ungraft(model) before" if isinstance(layer, torch.nn.Conv2d) else ""
    raise TypeError(
        f"torch.jit.script cannot compile the layer {kind.__module__}.{kind.__qualname__}: call torch.jit.trace or"
        f" torch.export.export{ungraft}"
    )
