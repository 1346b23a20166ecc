"""multi_tensor_sgd: one step of stochastic gradient descent for all parameters of a model. It writes to lists."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import torchgraft
from torchgraft import building

NAMESPACE = "gallery_multi_tensor_sgd"
_SOURCE = Path(__file__).with_name("cpu.cpp")

Tensors = Sequence[Tensor]


def _explain(parameters: Tensors, grads: Tensors, momentum: Tensors, *numbers: float, **named: float) -> None:
    for argument, tensors in (("grads", grads), ("momentum", momentum)):
        if len(tensors) != len(parameters):
            raise ValueError(
                f"multi_tensor_sgd: {argument} must have an element for each of {len(parameters)} parameters,"
                f" got {len(tensors)}"
            )
        for number, (tensor, parameter) in enumerate(zip(tensors, parameters, strict=True)):
            if tensor.shape != parameter.shape:
                raise ValueError(
                    f"multi_tensor_sgd: {argument}[{number}] must be {tuple(parameter.shape)} as parameters[{number}]"
                    f" is, got {tuple(tensor.shape)}"
                )


def _reference(
    parameters: Tensors,
    grads: Tensors,
    momentum: Tensors,
    learning_rate: float,
    *,
    momentum_decay: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    is_first: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    _explain(parameters, grads, momentum)
    stepped, averaged = [], []
    for tensors in zip(parameters, grads, momentum, strict=True):
        # What is in half precision is rounded once, at the end.
        wide = torch.promote_types(tensors[0].dtype, torch.float32)
        parameter, grad, average = (each.to(wide) for each in tensors)
        decayed = grad + weight_decay * parameter
        # In the first step nothing was averaged yet.
        moved = decayed if is_first else momentum_decay * average + (1 - dampening) * decayed
        step = decayed + momentum_decay * moved if nesterov else moved
        averaged.append(moved.to(tensors[2].dtype))
        stepped.append((parameter - learning_rate * step).to(tensors[0].dtype))
    return stepped, averaged


# multi_tensor_sgd(parameters, grads, momentum, learning_rate, momentum_decay=0.9, ...): writes to parameters and to
# momentum, both lists of tensors of the same sizes as grads, and returns nothing.
multi_tensor_sgd = torchgraft.Operator(
    f"{NAMESPACE}::multi_tensor_sgd(Tensor(a!)[] parameters, Tensor[] grads, Tensor(b!)[] momentum,"
    " float learning_rate, *, float momentum_decay=0.9, float dampening=0.0, float weight_decay=0.0,"
    " bool nesterov=False, bool is_first=False) -> ()",
    reference=_reference,
    explain=_explain,
    kernels={"cpu": torchgraft.operator.FLOATING},
)

building.load(NAMESPACE, [_SOURCE])
