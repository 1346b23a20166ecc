"""Layers while PyTorch records a model: their mode, the error of `torch.jit.script`, and graphs that are only read."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.jit._trace import ONNXTracedModule
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torchgraft._private import pytorch


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
    raise TypeError(
        f"torch.jit.script cannot compile the layer {kind.__module__}.{kind.__qualname__}: call torch.jit.trace or"
        " torch.export.export"
    )


def sizes_of(tensor: Tensor) -> Sequence[int]:
    """Reads the sizes of a tensor, also while `torch.jit.trace` records a model, when they are tensors themselves."""
    if not torch.jit.is_tracing():  # type: ignore[attr-defined]
        return tensor.shape
    with warnings.catch_warnings():
        # PyTorch warns that what is decided by a number is not recorded.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return [int(size) for size in tensor.shape]


def is_recorded_to_be_read() -> bool:
    """Whether others read what is called here, and know PyTorch's own operators alone.

    A file of ONNX is made of a graph that never runs as it is, and counters of operations such as fvcore's look for
    the convolutions that they know in one; others, such as ptflops's, do so while a model runs. What is recorded to
    run, by `torch.jit.trace` and `torch.export`, is another matter.
    """
    if torch.compiler.is_exporting():
        return torch.onnx.is_in_onnx_export()
    if torch.compiler.is_compiling():
        return False
    if not torch.jit.is_tracing():  # type: ignore[attr-defined]
        # PyTorch's own counter, which is told of the operators, keeps its counts elsewhere.
        return bool(pytorch.dispatch_modes()) and any(
            hasattr(mode, "flop_counts") for mode in _get_current_dispatch_mode_stack()
        )
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if isinstance(frame.f_locals.get("self"), ONNXTracedModule):
            return True
    return False
