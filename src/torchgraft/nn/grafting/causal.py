"""The functions causal_conv1d of other packages, recognised by their names and parameters, and what stands in for them.

Three conventions are in use: that of the package causal-conv1d, which transformers and mamba_ssm call, the same one in
a version that transformers writes in PyTorch; and that of flash-linear-attention, whose channels come last and whose
states have one element more. A stand-in takes the arguments of the function that it stands for, and calls that function
wherever the operators of torchgraft would not give its result.
"""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft.declaration import FLOATING
from torchgraft.nn.grafting.functional import DEVICES
from torchgraft.nn.recording import sizes_of
from torchgraft.operators.causal_conv1d import causal_conv1d, causal_conv1d_update
from torchgraft.operators.causal_conv1d.arguments import MOST_TAPS, Activation

Function = Callable[..., Any]
# Computes a call from its arguments by name; returns NotImplemented for a call that is left to the other function.
_Compute = Callable[[Any, Mapping[str, Any]], Any]


def _serves(input: Any, weight: Any, bias: Any, activation: Any, rank: int) -> bool:
    """Whether an operator computes what the other function does, of an input with channels in dimension 1."""
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)) or input.dim() != rank or weight.dim() != 2:
        return False
    if not (activation is None or (isinstance(activation, str) and activation in ("silu", "swish"))):
        return False
    channels, width = sizes_of(weight)
    if sizes_of(input)[1] != channels or not 1 <= width <= MOST_TAPS:
        return False
    if input.dtype not in FLOATING or input.layout is not torch.strided or input.device.type not in DEVICES:
        return False
    if not (bias is None or (isinstance(bias, Tensor) and bias.dtype == weight.dtype)):
        return False
    # An operator rounds weights to the dtype of the input. The other functions do that under autocast alone.
    is_lowered = weight.dtype == torch.float32 and torch.is_autocast_enabled(input.device.type)
    return weight.dtype == input.dtype or is_lowered


def _silu(activation: str | None) -> Activation:
    """The name of an activation here: 'swish' is another name of SiLU."""
    return None if activation is None else "silu"


def _own_dtype(input: Tensor) -> AbstractContextManager[Any]:
    """A scope in which the output has the dtype of the input, as outputs of the other functions have."""
    kind = input.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _holds(state: Any, input: Tensor, length: int) -> bool:
    """Whether a state can be read and written beside an input: its dtype, its channels, and its least length."""
    if not isinstance(state, Tensor) or state.dim() != 3 or state.dtype != input.dtype:
        return False
    return sizes_of(state)[1] == sizes_of(input)[1] and sizes_of(state)[2] >= length


def _convolve(input: Any, given: Mapping[str, Any]) -> Any:
    """`causal_conv1d_fn` of the package causal-conv1d."""
    weight, bias, activation = given["weight"], given["bias"], given["activation"]
    # transformers hands on all arguments of a model. Offsets mean nothing to the package, and are refused without it.
    if not _serves(input, weight, bias, activation, 3) or given.get("cu_seqlens") is not None:
        return NotImplemented
    with _own_dtype(input):
        output, final_state = causal_conv1d(
            input,
            weight,
            bias,
            activation=_silu(activation),
            initial_state=given["initial_states"],
            return_final_state=True,
            seq_idx=given["seq_idx"],
        )
    if not given["return_final_states"]:
        return output
    place = given["final_states_out"]
    return output, final_state if place is None else place.copy_(final_state)


def _step(input: Any, given: Mapping[str, Any]) -> Any:
    """`causal_conv1d_update` of the package causal-conv1d."""
    weight, bias, activation = given["weight"], given["bias"], given["activation"]
    rank = input.dim() if isinstance(input, Tensor) else 0
    if rank not in (2, 3) or not _serves(input, weight, bias, activation, rank):
        return NotImplemented
    state, rows = given["conv_state"], given["conv_state_indices"]
    if not _holds(state, input, sizes_of(weight)[1] - 1) or (rows is None and len(state) != len(input)):
        return NotImplemented
    with _own_dtype(input):
        return causal_conv1d_update(
            input,
            state,
            weight,
            bias,
            activation=_silu(activation),
            cache_seqlens=given["cache_seqlens"],
            state_indices=rows,
        )


def _last_inputs(input: Tensor, before: Tensor | None, offsets: Tensor | None, width: int) -> Tensor:
    """The final state of flash-linear-attention: the last `width` inputs of each sequence (sequences, channels, width).

    Args:
        input: (batch, channels, length).
        before: the state before, of the same shape as the result; None: zeros.
        offsets: (sequences + 1,) for a batch of 1; None: each item of the batch is a sequence.
        width: of the weight.
    """
    batch, channels, length = input.shape
    sequences = batch if offsets is None else len(offsets) - 1
    if before is None:
        before = input.new_zeros(sequences, channels, width)
    if offsets is None or length == 0:
        return torch.cat([before, input[..., -width:]], 2)[..., -width:].contiguous()
    first, last = offsets[:-1, None], offsets[1:, None]
    places = last + torch.arange(-width, 0, device=input.device)
    taken = input[0, :, places.clamp(0, length - 1)].transpose(0, 1)
    # A sequence shorter than the state leaves the end of the state before at its front.
    left = (places - first + width).clamp(0, width - 1)[:, None].expand(-1, channels, -1)
    return torch.where((places >= first)[:, None], taken, before.gather(2, left))


def _convolve_rows(input: Any, given: Mapping[str, Any]) -> Any:
    """`causal_conv1d` of flash-linear-attention: input (batch, length, channels), states of `width` elements."""
    weight, bias, activation = given["weight"], given["bias"], given["activation"]
    if not isinstance(input, Tensor) or input.dim() != 3 or given["cp_context"] is not None:
        return NotImplemented
    across, offsets, state = input.transpose(1, 2), given["cu_seqlens"], given["initial_state"]
    if not _serves(across, weight, bias, activation, 3):
        return NotImplemented
    width = sizes_of(weight)[1]
    if not (state is None or (_holds(state, across, width) and sizes_of(state)[2] == width)):
        return NotImplemented
    with _own_dtype(input):
        output = causal_conv1d(
            across,
            weight,
            bias,
            activation=_silu(activation),
            initial_state=None if state is None else state[..., 1:],
            cu_seqlens=offsets,
        )
    output, residual = output.transpose(1, 2).contiguous(), given["residual"]
    if residual is not None:
        output = output + residual
    return output, _last_inputs(across, state, offsets, width) if given["output_final_state"] else None


def _step_rows(input: Any, given: Mapping[str, Any]) -> Any:
    """`causal_conv1d_update` of flash-linear-attention: one element of each sequence, in any of three shapes."""
    weight, bias, activation = given["weight"], given["bias"], given["activation"]
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)) or input.dim() not in (2, 3):
        return NotImplemented
    rows, state = input.flatten(0, -2), given["cache"]
    if not _serves(rows, weight, bias, activation, 2) or not _holds(state, rows, sizes_of(weight)[1]):
        return NotImplemented
    if len(state) != len(rows):
        return NotImplemented
    with _own_dtype(input):
        output = causal_conv1d_update(rows, state, weight, bias, activation=_silu(activation)).view(input.shape)
    residual = given["residual"]
    return output if residual is None else output + residual, state


class _Convention(NamedTuple):
    """A function that is known by its name and by the parameters that it has after its input.

    Attributes:
        name: the function's own.
        needed: parameters that it must have.
        optional: parameters that it may have. With any other it is another function, and is not served.
        compute: what computes its calls.
    """

    name: str
    needed: frozenset[str]
    optional: frozenset[str]
    compute: _Compute


_COMMON = ("weight", "bias", "activation")
_CONVENTIONS = tuple(
    _Convention(name, frozenset((*_COMMON, *needed.split())), frozenset(optional.split()), compute)
    for name, needed, optional, compute in (
        ("causal_conv1d_fn", "", "seq_idx initial_states return_final_states final_states_out", _convolve),
        ("causal_conv1d_update", "conv_state", "cache_seqlens conv_state_indices", _step),
        (
            "causal_conv1d",
            "residual initial_state output_final_state",
            "backend cu_seqlens cu_seqlens_cpu chunk_indices cp_context",
            _convolve_rows,
        ),
        ("causal_conv1d_update", "cache residual", "", _step_rows),
    )
)
NAMES = frozenset(each.name for each in _CONVENTIONS)


def name_of(value: Any) -> str:
    """The name under which a function is known, '' for what is none: not that of the variable which holds it."""
    if isinstance(value, types.FunctionType):
        name = "" if (value.__module__ or "").startswith("torchgraft.") else value.__name__
    elif isinstance(value, torch.nn.Module):
        # The package kernels turns a function into a module, which it can give another forward pass.
        name = getattr(type(value), "kernel_layer_name", None) or ""
    else:
        return ""
    # transformers' own versions in PyTorch may have this prefix.
    name = name.removeprefix("torch_")
    return name if name in NAMES else ""


@functools.lru_cache(maxsize=256)
def _stand_in(name: str, theirs: Function) -> Function | None:
    try:
        called = theirs.forward if isinstance(theirs, torch.nn.Module) else theirs
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # Python cannot tell the parameters of every function that is not Python's.
        return None
    names = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
    known = frozenset(names)
    takes_more = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for convention in _CONVENTIONS:
        rest = known.difference(names[:1])
        if convention.name == name and convention.needed <= rest <= convention.needed | convention.optional:
            break
    else:
        return None
    compute, nothing = convention.compute, dict.fromkeys(convention.needed | convention.optional)

    @functools.wraps(theirs, updated=())
    def stand_in(*arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **named}
        if len(arguments) > len(names) or not (takes_more or known >= given.keys()):
            return theirs(*arguments, **named)
        result = compute(given.get(names[0]), {**nothing, **given})
        return theirs(*arguments, **named) if result is NotImplemented else result

    return stand_in


def stand_in_for(value: Any) -> Function | None:
    """Returns what stands in for a function; None for what is none of the known ones.

    Args:
        value: anything that a variable may hold.
    """
    name = name_of(value)
    return _stand_in(name, value) if name else None
