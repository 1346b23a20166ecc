"""A module that calls causal_conv1d as those of transformers 5 do: wrapped functions of its own file.

The functions there take the place of those of the package causal-conv1d, which need not be installed.
"""

import functools

import torch
from torch import nn
from torch.nn import functional


def use_package_or(function):
    """Decorates as `use_kernel_func_from_hub_with_fallback` does where there is no package."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if kwargs.get("cu_seqlens") is not None or kwargs.get("seq_idx") is not None:
            raise ValueError("packed sequences cannot be kept apart without causal-conv1d")
        return function(*args, **kwargs)

    return wrapped


def with_hooks(names):
    """Decorates a method as `force_accelerate_hooks` does."""

    def decorator(forward):
        @functools.wraps(forward)
        def wrapped(self, *args, **kwargs):
            for name in names:
                assert isinstance(getattr(self, name), nn.Module)
            return forward(self, *args, **kwargs)

        return wrapped

    return decorator


@use_package_or
def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
    _, channels, length = hidden_states.shape
    together = torch.cat([conv_state, hidden_states], dim=-1).to(weight.dtype)
    conv_state.copy_(together[:, :, -conv_state.shape[-1] :])
    output = functional.conv1d(together, weight.unsqueeze(1), bias, groups=channels)[:, :, -length:]
    return (output if activation is None else getattr(functional, activation)(output)).to(hidden_states.dtype)


@use_package_or
def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
    _, channels, length = hidden_states.shape
    padding = weight.shape[-1] - 1
    output = functional.conv1d(
        hidden_states.to(weight.dtype), weight.unsqueeze(1), bias, padding=padding, groups=channels
    )[:, :, :length]
    return (output if activation is None else getattr(functional, activation)(output)).to(hidden_states.dtype)


class Mixer(nn.Module):
    """A layer of Mamba without its scan: its convolution's weights go to the functions."""

    def __init__(self, channels=6, width=4, activation="silu", bias=True):
        super().__init__()
        self.conv1d = nn.Conv1d(channels, channels, width, groups=channels, padding=width - 1, bias=bias)
        self.scale = nn.Linear(channels, channels)
        self.activation = activation

    @with_hooks(["conv1d"])
    def forward(self, hidden_states, conv_state=None, **kwargs):
        inputs = self.scale(hidden_states).transpose(1, 2)
        if conv_state is not None:
            output = causal_conv1d_update(
                inputs, conv_state, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation=self.activation
            )
        else:
            output = causal_conv1d_fn(
                inputs, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation=self.activation, **kwargs
            )
        return output.transpose(1, 2)
