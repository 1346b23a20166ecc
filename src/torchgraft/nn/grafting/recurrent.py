"""PyTorch's recurrent layers on torchgraft's recurrences: their forward pass, and in which calls it pays."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.overrides import TorchFunctionMode

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.declaration import FLOATING
from torchgraft.nn.grafting.functional import computes_itself
from torchgraft.nn.grafting.methods import Forward, Replicate, methods_of, names_of_forward
from torchgraft.nn.grafting.reading import attributes_read, computes_again
from torchgraft.nn.recording import is_recorded_to_be_read, sizes_of
from torchgraft.nn.sequences import kinds, run_layers

# PyTorch's functions over whole sequences, with the kind of network of each.
_MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}
_FUNCTIONS: dict[Any, str] = {getattr(torch, name): name for name in _MODES}
# As PyTorch has them: another tool may put its own in their place later.
_PLAIN = [(kind, kind.forward) for kind in (nn.LSTM, nn.GRU, nn.RNN)]
# Their number, of a batch and of a packed sequence.
_ARGUMENTS = 9
# A call of fewer steps costs more than it gains.
_FEWEST_STEPS = 8
# A cluster of multiprocessors has room for the weights of this many units, in every dtype but float64.
_UNITS_ON_CHIP = 512
_CAPABILITY_OF_CLUSTERS = (9, 0)
# Up to this many numbers of an output, PyTorch's LSTM on a CPU spends much of its time around its kernel.
_SMALL_OUTPUT = 1 << 16

any_autocast, functorch_active, dual_levels = pytorch.any_autocast, pytorch.functorch_active, pytorch.dual_levels


class _Call(NamedTuple):
    """The arguments of `torch.gru` and the like, of a batch or of a packed sequence."""

    input: Tensor
    batch_sizes: Tensor | None
    hx: Any
    weights: Sequence[Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool

    @property
    def states(self) -> Sequence[Tensor]:
        return (self.hx,) if isinstance(self.hx, Tensor) else self.hx


def _call_of(arguments: Sequence[Any]) -> _Call | None:
    """Sorts the arguments of a function; None if they have another form than PyTorch's layers give them."""
    if len(arguments) != _ARGUMENTS:
        return None
    is_packed = not isinstance(arguments[3], bool)
    call = _Call(*((*arguments, False) if is_packed else (arguments[0], None, *arguments[1:])))
    # Others are those of a projection.
    fits = len(call.weights) == (4 if call.has_biases else 2) * call.num_layers * (1 + call.bidirectional)
    return call if fits and isinstance(call.input, Tensor) and isinstance(call.weights[0], Tensor) else None


def _is_served(call: _Call) -> bool:
    """Whether a recurrence computes a call, and exactly as PyTorch does."""
    input = call.input
    if computes_itself(input) or computes_itself(call.weights[0]):
        return False
    # A transform would run the recurrence's definition, a loop in Python.
    if not torch.compiler.is_compiling() and (functorch_active() or dual_levels._current_level >= 0):
        return False
    # A trace would hold the lengths of its example as numbers.
    if call.batch_sizes is not None and torch.jit.is_tracing():  # type: ignore[attr-defined]
        return False
    device, dtype = input.device, input.dtype
    is_cast = any_autocast() and torch.is_autocast_enabled(device.type)
    # PyTorch's dtypes follow the kind of layer then, and whether its sequences are equally long. On a GPU they are
    # float16 for every dtype of autocast, since its layers are cast to that for cuDNN.
    is_own = device.type == "cpu" and dtype is torch.get_autocast_dtype("cpu")
    if is_cast and dtype is not torch.float64 and not is_own:
        return False
    for tensor in (*call.states, *call.weights):
        # What does not fit together is left to PyTorch's function, and so is what it says of that.
        if not isinstance(tensor, Tensor) or tensor.device != device:
            return False
        if tensor.dtype is not dtype and not (is_cast and tensor.dtype in FLOATING):
            return False
    return 0 not in sizes_of(input)


def _pays(name: str, call: _Call) -> bool:
    """Whether a recurrence is faster than PyTorch's function, by what docs/recurrence.md has measured."""
    input, packed = call.input, call.batch_sizes is not None
    steps = call.batch_sizes.shape[0] if call.batch_sizes is not None else sizes_of(input)[1 if call.batch_first else 0]
    # That of an export stands for any number.
    if isinstance(steps, int) and steps < _FEWEST_STEPS:
        return False
    device, dtype = input.device.type, input.dtype
    if any_autocast() and torch.is_autocast_enabled(device) and dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if device == "cuda":
        # cuDNN is as fast in float16 and float32, and faster where a step is a product of its own. It runs layers and
        # directions side by side, which was not measured.
        return (
            dtype is torch.bfloat16
            and name in ("lstm", "gru")
            and call.num_layers == 1
            and not (call.bidirectional or packed)
            and sizes_of(call.weights[1])[1] <= _UNITS_ON_CHIP
            and torch.cuda.get_device_capability(input.device) == _CAPABILITY_OF_CLUSTERS
        )
    if packed:
        # Each piece of equally many sequences is a call, and most have few steps.
        given = (input, *call.states, *call.weights)
        return name in ("lstm", "gru") and torch.is_grad_enabled() and any(each.requires_grad for each in given)
    if name != "lstm" or dtype not in (torch.float32, torch.bfloat16):
        return True
    # That of PyTorch is oneDNN's.
    numbers = sizes_of(call.weights[1])[1]
    for size in sizes_of(input)[:-1]:
        if not isinstance(size, int):
            # The program of an export runs for all sizes; PyTorch's LSTM would be unrolled for one number of steps.
            return True
        numbers *= size
    return numbers <= _SMALL_OUTPUT


def _served(name: str, arguments: Sequence[Any], named: Mapping[str, Any] | None, measured: bool) -> Any:
    """Runs a call of `torch.gru` or the like on a recurrence; NotImplemented where PyTorch's function should run.

    Args:
        name: of the function.
        arguments: of the call.
        named: of the call, or None.
        measured: whether an example has shown that the recurrence is faster.
    """
    call = None if named else _call_of(arguments)
    if call is None or call.input.dtype not in FLOATING or call.input.device.type not in _devices:
        return NotImplemented
    if not (measured or _pays(name, call)) or not _is_served(call):
        return NotImplemented
    each, none = 4 if call.has_biases else 2, () if call.has_biases else (None, None)
    weights = [(*call.weights[first : first + each], *none) for first in range(0, len(call.weights), each)]
    values = call.input.transpose(0, 1) if call.batch_first else call.input
    directions, dropout = 1 + call.bidirectional, call.dropout
    output, last = run_layers(
        kinds[_MODES[name]], values, call.states, call.batch_sizes, weights, directions, dropout, call.training
    )
    return output.transpose(0, 1) if call.batch_first else output, *last


pytorch.leave_to_python(_served, callees=True)


class _StandIns:
    """The functions of `torch._VF` for recurrent layers, which run on recurrences where these serve."""

    def __init__(self, measured: bool) -> None:
        for name in _MODES:
            setattr(self, name, self._stand_in(name, measured))

    @staticmethod
    def _stand_in(name: str, measured: bool) -> Callable[..., Any]:
        theirs = getattr(torch, name)

        def stand_in(*arguments: Any) -> Any:
            result = _served(name, arguments, None, measured)
            return theirs(*arguments) if result is NotImplemented else result

        return stand_in


class recurrent_calls(TorchFunctionMode):  # noqa: N801  It is called as a function.
    """A scope in which `torch.lstm` and the like, which PyTorch's layers call, run on recurrences where these serve.

    Args:
        measured: whether an example has shown that the recurrence is faster.
    """

    def __init__(self, measured: bool) -> None:
        super().__init__()
        self._measured = measured

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of PyTorch's, or what stands in for it."""
        if name := _FUNCTIONS.get(func):
            result = _served(name, args, kwargs, self._measured)
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def _copied(forward: Callable[..., Any], measured: bool) -> Callable[..., Any] | None:
    """PyTorch's own forward pass, checks and all, with other functions in it; None if it calls them by another name."""
    if not isinstance(forward, types.FunctionType) or "_VF" not in forward.__code__.co_names:
        return None
    scope = {**forward.__globals__, "_VF": _StandIns(measured)}
    # By this name torch.compile would look variables up in PyTorch's file.
    del scope["__name__"]
    own = types.FunctionType(forward.__code__.replace(), scope, forward.__name__, forward.__defaults__)
    # TorchDynamo, which looks into no layer of PyTorch's, would compile what this calls anew for each packed sequence.
    pytorch.leave_to_python(own, callees=True)
    return own


# By the forward pass of PyTorch's that a class has, and whether an example was measured.
_OWN = {(forward, measured): _copied(forward, measured) for _, forward in _PLAIN for measured in (False, True)}
# For which torchgraft's libraries have kernels of recurrences.
_devices: list[str] = []


def _load() -> None:
    """Declares the recurrences, which takes a second or two, as PyTorch traces their cells."""
    if not _devices:
        import_module("torchgraft.nn.recurrent")
        namespace = import_module("torchgraft.recurrence.cells").NAMESPACE
        _devices.extend(each for each in ("cpu", "cuda") if native.has_kernels(namespace, each))


class RecurrentForward(Forward):
    """`forward` of one of PyTorch's recurrent layers, or of a subclass that calls theirs.

    Whether a call is served is decided in each: by the device, the dtype, the sizes and the modes of PyTorch.

    Args:
        layer: an LSTM, GRU or RNN.
        measured: whether an example has shown that the recurrence is faster, so that all calls run on it.
    """

    __slots__ = ("_measured",)

    def __init__(self, layer: nn.Module, measured: bool = False) -> None:
        super().__init__(layer)
        self._measured = measured
        _load()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the class's own forward pass, and the sequences in it on recurrences."""
        layer = self._layer() or self._found()
        theirs = type(layer).forward
        # Another tool may call this method after `ungraft`, out of sight: it kept it before it set a method of its own.
        if Replicate.name not in vars(layer) or is_recorded_to_be_read():
            return theirs(layer, *arguments, **named)
        own = _OWN.get((theirs, self._measured))
        if own is not None:
            return own(layer, *arguments, **named)
        with recurrent_calls(self._measured):
            return theirs(layer, *arguments, **named)

    def of(self, layer: nn.Module) -> RecurrentForward:
        """The same method of another layer."""
        return type(self)(layer, self._measured)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._found(), self._measured)


pytorch.leave_to_python(RecurrentForward.__call__)


def why_not_recurrent(layer: nn.RNNBase) -> str:
    """The reason why a recurrent layer is not grafted; empty if there is none.

    Args:
        layer: whose class is not torchgraft's.
    """
    plain = next((forward for kind, forward in _PLAIN if isinstance(layer, kind)), None)
    if plain is None:
        kind = type_before_parametrizations(layer)
        return f"its class is {kind.__module__}.{kind.__qualname__}, which is no LSTM, GRU or RNN of PyTorch"
    if layer.proj_size:
        return "it has a projection (proj_size), which mixes the units of a step"
    stored = next(layer.parameters(), None)
    if stored is not None and stored.dtype not in FLOATING:
        return f"its weights have dtype {stored.dtype}"
    if stored is not None and computes_itself(stored):
        return f"its weights are of the class {type(stored).__name__}, which computes by itself"
    if not (names_of_forward(layer) or methods_of(layer)):
        return "its forward was replaced: graft the model first, then replace it"
    if type(layer).forward is not plain:
        if not attributes_read(type(layer)) & {"forward", *_MODES}:
            return "its class has a forward pass of its own, which does not call PyTorch's"
        if computes_again(type(layer)):
            return "its forward pass may be computed again, from a checkpoint, where no scope is"
    return ""
