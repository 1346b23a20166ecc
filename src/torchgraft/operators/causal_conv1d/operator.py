"""The declarations of causal_conv1d and of its gradients. Its step of decoding is in update.py.

Packed sequences come in two ways, and each has operators of its own: ids of elements, whose states have a row for each
item of the batch, and offsets, whose states have a row for each sequence.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from torchgraft.arguments import flag, record_call, stands_for_tensor
from torchgraft.operator import FLOATING, Operator
from torchgraft.operators.causal_conv1d import flops, reference
from torchgraft.operators.causal_conv1d.arguments import (
    Activation,
    check_dims,
    contents,
    dtypes_of,
    is_silu,
    like,
    require_width,
)
from torchgraft.operators.shared import batch_as_channels, require, require_shape


@overload
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = None,
    initial_state: Tensor | None = None,
    return_final_state: Literal[False] = False,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor: ...
@overload
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = None,
    initial_state: Tensor | None = None,
    return_final_state: Literal[True],
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = None,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]: ...
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = None,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolves each channel with its own weight along time, where an output sees no later input.

    output[t] = activation(bias + sum over k of weight[k] * input[t + k - (width - 1)]). Differentiable any number of
    times; the first gradient has kernels. float16 and bfloat16 are summed in float32.

    Several sequences may be packed one behind the other. No value and no gradient then goes from one to another: what
    lies before the beginning of a sequence counts as zeros, or as its row of the initial state.

    Args:
        input: (batch, channels, length), float64, float32, float16 or bfloat16. If neighbouring channels or
            neighbouring times are neighbours in memory it is read as it lies; otherwise it is copied first.
        weight: (channels, width), of a width of 1 to 256. Weight and bias may have another of these dtypes: they are
            then rounded to the dtype of input, and their gradients have their own.
        bias: (channels,); None: zero.
        activation: 'silu', or None for none.
        initial_state: (batch, channels, width - 1), the inputs before the first of each item; with cu_seqlens
            (sequences, channels, width - 1), those before each sequence. None: zeros.
        return_final_state: whether the last width - 1 inputs are returned too, which are the initial state of the call
            that goes on from here. They have the shape of the initial state.
        seq_idx: (batch, length), int32, the id of the packed sequence of each element. A sequence is a run of equal
            ids, so an id that comes back begins another sequence. The initial state belongs to the first sequence of an
            item, the final state to the last one, with zeros before its beginning. Elements of a negative id are
            padding: their output is zero, and they are not read.
        cu_seqlens: (sequences + 1,), int32 or int64, in the place of seq_idx for a batch of 1: the offsets at which the
            sequences begin, and the one at which the last ends. A sequence may have no elements; its final state is its
            initial state. On a CUDA device the offsets are not looked at: wrong ones give wrong values.

    Returns:
        The output (batch, channels, length), laid out in memory as the input is; with `return_final_state` a pair of
        it and the final state.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: shapes do not fit, there is no such activation, seq_idx and cu_seqlens are both given, or (on a CPU)
            cu_seqlens falls, does not begin with 0, or does not end with the length.

    Source: Albert Gu and Tri Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752,
        figure 3; meanings of the arguments are those of the package causal-conv1d.
    """
    name = "causal_conv1d"
    if stands_for_tensor(cu_seqlens) or stands_for_tensor(return_final_state):
        # Which operator is called, and what is returned, is known when the recorded graph runs.
        rest = activation, initial_state, return_final_state, seq_idx, cu_seqlens
        return record_call(_causal_conv1d, input, weight, bias, *rest)
    silu = is_silu(name, activation)
    if return_final_state is not False and return_final_state is not True:
        return_final_state = flag(name, "return_final_state", return_final_state)
    if cu_seqlens is None:
        results = convolution.call(input, weight, bias, initial_state, seq_idx, silu)
    else:
        if seq_idx is not None:
            raise ValueError(f"{name}: seq_idx and cu_seqlens say the same in two ways: give one of them, got both")
        results = packed.call(input, weight, bias, initial_state, cu_seqlens, silu)
    return (results[0], results[1]) if return_final_state else results[0]


def _causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation,
    initial_state: Tensor | None,
    return_final_state: bool,
    seq_idx: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls causal_conv1d; arguments by position, as a recorded graph passes them."""
    return causal_conv1d(
        input,
        weight,
        bias,
        activation=activation,
        initial_state=initial_state,
        return_final_state=return_final_state,
        seq_idx=seq_idx,
        cu_seqlens=cu_seqlens,
    )


def _output(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    check_dims("causal_conv1d", input, weight)
    return like(input), like(input, length=weight.shape[1] - 1)


def _packed_output(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    check_dims("causal_conv1d_packed", input, weight)
    return like(input), like(input, cu_seqlens.shape[0] - 1, weight.shape[1] - 1)


def _grads(
    input: Tensor, weight: Tensor, initial_state: Tensor | None, rows: int, dtype: torch.dtype | None
) -> tuple[Tensor, ...]:
    channels, width = weight.shape
    state = like(input, rows, width - 1) if initial_state is None else like(initial_state)
    weight_grad = input.new_empty(channels, width, dtype=dtype)
    return like(input), weight_grad, input.new_empty(channels, dtype=dtype), state


def _backward_output(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    silu: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    check_dims("causal_conv1d_backward", input, weight)
    return _grads(input, weight, initial_state, input.shape[0], dtype)


def _packed_backward_output(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    silu: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    check_dims("causal_conv1d_packed_backward", input, weight)
    return _grads(input, weight, initial_state, cu_seqlens.shape[0] - 1, dtype)


def _explain_states(
    name: str,
    weight: Tensor,
    initial_state: Tensor | None,
    sequences: int,
    output_grad: Tensor | None = None,
    final_state_grad: Tensor | None = None,
) -> None:
    """Raises ValueError if states do not fit the other tensors."""
    width = require_width(name, weight)
    state = sequences, weight.shape[0], width - 1
    for argument, tensor in (("initial_state", initial_state), ("final_state_grad", final_state_grad)):
        require_shape(name, argument, tensor, state, f" for a weight of width {width}")


def _explain_ids(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    *grads: Tensor | None,
) -> None:
    _explain_states(name, weight, initial_state, input.shape[0], *grads)


def _explain_offsets(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    *grads: Tensor | None,
) -> None:
    batch, _, length = input.shape
    require(batch == 1, name, f"input must have a batch of 1 with cu_seqlens, got {batch}")
    sequences = cu_seqlens.shape[0] - 1
    require(sequences >= 0, name, "cu_seqlens must have one element more than there are sequences, got 0")
    require(sequences > 0 or length == 0, name, f"cu_seqlens has no sequence for a length of {length}")
    _explain_states(name, weight, initial_state, sequences, *grads)
    offsets = contents(cu_seqlens)
    if offsets:
        is_right = offsets[0] == 0 and offsets[-1] == length and offsets == sorted(offsets)
        require(is_right, name, f"cu_seqlens must begin with 0, never fall, and end with {length}, got {offsets}")


def _explain(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    silu: bool,
) -> None:
    _explain_ids("causal_conv1d", input, weight, bias, initial_state, seq_idx)


def _explain_packed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    silu: bool,
) -> None:
    _explain_offsets("causal_conv1d_packed", input, weight, bias, initial_state, cu_seqlens)


def _explain_dtype(name: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in FLOATING:
        names = ", ".join(str(each) for each in FLOATING)
        raise TypeError(f"{name}: dtype must be one of {names}, got {dtype}")


def _explain_backward(output_grad: Tensor, final_state_grad: Tensor | None, *rest: Any) -> None:
    *tensors, _, dtype = rest
    _explain_dtype("causal_conv1d_backward", dtype)
    _explain_ids("causal_conv1d_backward", *tensors, output_grad, final_state_grad)


def _explain_packed_backward(output_grad: Tensor, final_state_grad: Tensor | None, *rest: Any) -> None:
    *tensors, _, dtype = rest
    _explain_dtype("causal_conv1d_packed_backward", dtype)
    _explain_offsets("causal_conv1d_packed_backward", *tensors, output_grad, final_state_grad)


def _make_gradient(by_offsets: bool) -> Callable[..., tuple[Tensor | None, ...]]:
    """The gradient formula of an operator, whose gradient is another operator."""

    def gradient(
        needs_grad: Sequence[bool],
        output_grads: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        initial_state: Tensor | None,
        sequences: Tensor | None,
        silu: bool,
    ) -> tuple[Tensor | None, ...]:
        output_grad, final_state_grad = output_grads
        if output_grad is None:
            output_grad = torch.zeros_like(input)
        # Both gradients come out in one dtype, which holds either; autograd rounds them to their own.
        dtype = weight.dtype if bias is None else torch.promote_types(weight.dtype, bias.dtype)
        arguments = output_grad, final_state_grad, input, weight, bias, initial_state, sequences, silu, dtype
        grads = (packed_backward if by_offsets else backward).call(*arguments)
        return *(grad if needed else None for grad, needed in zip(grads, needs_grad, strict=False)), None

    return gradient


def _make_vmap(into: Sequence[int], results: Sequence[int]) -> Callable[..., tuple[Any, Any]]:
    """A vmap rule: a batch is one call with more channels, unless each of its calls has sequences of its own."""
    as_channels = batch_as_channels(into, results)

    def vmap(operator: Any, batch_size: int, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        if in_dims[len(into)] is None:
            return as_channels(operator, batch_size, in_dims, *arguments)
        rows = [
            operator(
                *(each if dim is None else each.select(dim, i) for each, dim in zip(arguments, in_dims, strict=True))
            )
            for i in range(batch_size)
        ]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * len(results)

    return vmap


_CALL = "Tensor input, Tensor weight, Tensor? bias, Tensor? initial_state"
_SIZES = "batch channels length, channels width, channels"
_GRADS = "(Tensor input_grad, Tensor weight_grad, Tensor bias_grad, Tensor initial_state_grad)"
_NEIGHBOURS = "; neighbouring times are on another device then"


_FORWARD_NAMES = ("input", "weight", "bias", "initial_state")
_BACKWARD_NAMES = ("output_grad", "final_state_grad", *_FORWARD_NAMES)

convolution = Operator(
    f"torchgraft::causal_conv1d({_CALL}, Tensor? seq_idx, bool silu) -> (Tensor output, Tensor final_state)",
    reference=reference.causal_conv1d,
    shapes=f"{_SIZES}, batch channels _, batch length -> batch channels length, batch channels _",
    output=_output,
    gradient=_make_gradient(False),
    # As PyTorch's convolutions are.
    autocast="lower",
    dtypes=dtypes_of(*_FORWARD_NAMES, "seq_idx"),
    mixed=("weight", "bias"),
    vmap=_make_vmap((1, 0, 0, 1), (1, 1)),
    sharding=f"N C _, C _, C, N C _, N _ -> N C _, N C _{_NEIGHBOURS}",
    flops=flops.forward,
    explain=_explain,
)

backward: Operator = Operator(
    "torchgraft::causal_conv1d_backward(Tensor output_grad, Tensor? final_state_grad,"
    f" {_CALL}, Tensor? seq_idx, bool silu, ScalarType? dtype=None) -> {_GRADS}",
    reference=reference.causal_conv1d_backward,
    shapes=f"batch channels length, batch channels _, {_SIZES}, batch channels _, batch length"
    f" -> {_SIZES}, batch channels _",
    output=_backward_output,
    # Second derivatives are rare, and need no kernel.
    gradient="reference",
    dtypes=dtypes_of(*_BACKWARD_NAMES, "seq_idx"),
    mixed=("weight", "bias"),
    vmap=_make_vmap((1, 1, 1, 0, 0, 1), (1, 0, 0, 1)),
    sharding=f"N C _, N C _, N C _, C _, C, N C _, N _ -> N C _, C _, C, N C _{_NEIGHBOURS}",
    flops=flops.backward,
    explain=_explain_backward,
)

packed = Operator(
    f"torchgraft::causal_conv1d_packed({_CALL}, Tensor cu_seqlens, bool silu) -> (Tensor output, Tensor final_state)",
    reference=reference.causal_conv1d_packed,
    shapes=f"{_SIZES}, sequences channels _, _ -> batch channels length, _ channels _",
    output=_packed_output,
    gradient=_make_gradient(True),
    autocast="lower",
    dtypes=dtypes_of(*_FORWARD_NAMES, "cu_seqlens"),
    mixed=("weight", "bias"),
    vmap=_make_vmap((1, 0, 0, 1), (1, 1)),
    sharding=f"_ C _, C _, C, _ C _, _ -> _ C _, _ C _{_NEIGHBOURS}",
    flops=flops.forward,
    explain=_explain_packed,
)

packed_backward: Operator = Operator(
    "torchgraft::causal_conv1d_packed_backward(Tensor output_grad, Tensor? final_state_grad,"
    f" {_CALL}, Tensor cu_seqlens, bool silu, ScalarType? dtype=None) -> {_GRADS}",
    reference=reference.causal_conv1d_packed_backward,
    shapes=f"batch channels length, sequences channels _, {_SIZES}, sequences channels _, _ -> {_SIZES}, _ channels _",
    output=_packed_backward_output,
    gradient="reference",
    dtypes=dtypes_of(*_BACKWARD_NAMES, "cu_seqlens"),
    mixed=("weight", "bias"),
    vmap=_make_vmap((1, 1, 1, 0, 0, 1), (1, 0, 0, 1)),
    sharding=f"_ C _, _ C _, _ C _, C _, C, _ C _, _ -> _ C _, C _, C, _ C _{_NEIGHBOURS}",
    flops=flops.backward,
    explain=_explain_packed_backward,
)
