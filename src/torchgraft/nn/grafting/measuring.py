"""Times a model's layers, PyTorch's way and on torchgraft's operators, with the calls that an example batch makes."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.benchmark import Timer
from torch.utils.hooks import RemovableHandle

from torchgraft.nn.grafting.calls import give
from torchgraft.nn.grafting.functional import served
from torchgraft.nn.grafting.methods import take_back

# Each way is timed this often, in turn, for about this long each time.
_ROUNDS = 9
_SECONDS = 0.01
# What gains less may as well be noise.
_GAIN = 1.02


@dataclass(frozen=True)
class Measured:
    """The time that the calls of one layer take, in microseconds, both ways.

    Attributes:
        pytorch: as the layer's class computes, the median.
        torchgraft: on torchgraft's operators, the median.
        calls: the calls that the example made, in words.
    """

    pytorch: float
    torchgraft: float
    calls: str

    @property
    def gains(self) -> bool:
        """Whether the layer is faster on torchgraft, by more than what may be noise."""
        return self.torchgraft * _GAIN < self.pytorch

    def __str__(self) -> str:
        return f"{self.torchgraft:.1f} us, PyTorch's {self.pytorch:.1f} us, for {self.calls}"


@dataclass(frozen=True)
class _Call:
    """A call of a layer: what its arguments were made of, and how PyTorch was set."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    device: str
    autocast: torch.dtype | None
    differentiated: bool

    @property
    def words(self) -> str:
        inputs = [
            each for each in tree_leaves((self.arguments, self.named)) if isinstance(each, (_Likeness, _PackedLikeness))
        ]
        passes = "forward and backward" if self.differentiated else "forward"
        cast = f", autocast to {str(self.autocast).removeprefix('torch.')}" if self.autocast else ""
        return f"{' and '.join(map(str, inputs))}, {passes}{cast}"


@dataclass(frozen=True)
class _Likeness:
    """All of a tensor but its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def __str__(self) -> str:
        is_contiguous = torch.empty(self.shape, device="meta").stride() == self.strides
        strides = "" if is_contiguous else f" of strides {self.strides}"
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{strides}"

    def make(self) -> Tensor:
        """Makes a tensor of random values."""
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        if made.is_floating_point():
            made.normal_()
        else:
            made.zero_()
        return made.requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class _PackedLikeness:
    """All of a packed sequence but its values."""

    data: _Likeness
    batch_sizes: tuple[int, ...]
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None

    def __str__(self) -> str:
        return f"{self.data} packed of {self.batch_sizes[0]} sequences of up to {len(self.batch_sizes)} steps"

    def make(self) -> PackedSequence:
        """Makes a packed sequence of random values."""
        sizes = torch.tensor(self.batch_sizes)
        return PackedSequence(self.data.make(), sizes, self.sorted_indices, self.unsorted_indices)


def _likeness(tensor: Tensor | PackedSequence) -> _Likeness | _PackedLikeness:
    if isinstance(tensor, PackedSequence):
        data, sizes, *indices = tensor
        return _PackedLikeness(_likeness(data), tuple(sizes.tolist()), *indices)  # type: ignore[arg-type]
    requires_grad = tensor.requires_grad and torch.is_grad_enabled()
    return _Likeness(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, requires_grad)


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in a tree of arguments or results; of a packed sequence its values."""
    leaves = [each.data if isinstance(each, PackedSequence) else each for each in tree_leaves(tree, _is_packed)]
    return [each for each in leaves if isinstance(each, Tensor)]


def _call_of(layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> _Call:
    tensors = _tensors_of((arguments, named))
    device = tensors[0].device.type if tensors else "cpu"
    leaves = [*tensors, *layer.parameters()]
    return _Call(
        tree_map_only((Tensor, PackedSequence), _likeness, arguments, _is_packed),
        tree_map_only((Tensor, PackedSequence), _likeness, named, _is_packed),
        device,
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
        torch.is_grad_enabled() and any(each.requires_grad for each in leaves),
    )


class _Watch(TorchFunctionMode):
    """A scope that notes how a model calls its layers, and which other modules call convolution functions themselves.

    Args:
        model: all of whose modules are watched.
        layers: by name.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.model, self.layers = model, layers
        self.calls: dict[str, list[_Call]] = {name: [] for name in layers}
        # Modules in whose forward pass the model is, with their calls.
        self._within: list[tuple[str, nn.Module, _Call]] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "_Watch":
        for name, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # It takes no hooks.
                continue
            self._hooks.append(module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        call = _call_of(module, arguments, named)
        self._within.append((name, module, call))
        if name in self.layers:
            self.calls[name].append(call)

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        # A hook of somebody else's may have raised before the module was noted.
        if self._within and self._within[-1][1] is module:
            self._within.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function, and notes the module that calls it if an operator serves it."""
        result = served(func, args, kwargs)
        if result is NotImplemented:
            return func(*args, **(kwargs or {}))
        if self._within:
            name, module, call = self._within[-1]
            noted = self.calls.setdefault(name, [])
            if not isinstance(module, (_ConvNd, nn.RNNBase)) and not any(call is each for each in noted):
                noted.append(call)
        return result


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """A scope after which a model's buffers and PyTorch's random numbers are what they were: it runs on copies."""
    devices = {each.device for each in [*model.parameters(), *model.buffers()] if each.device.type == "cuda"}
    copies: dict[int, Tensor] = {}
    held = []
    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            held.append((module._buffers, dict(module._buffers)))
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())
    try:
        with torch.random.fork_rng(devices=[device.index for device in devices]):
            yield
    finally:
        for buffers, before in held:
            buffers.clear()
            buffers.update(before)


def _calls(model: nn.Module, layers: Mapping[str, nn.Module], example: Any) -> dict[str, list[_Call]]:
    """Runs a model once, and notes how its layers are called."""
    with _Watch(model, layers) as watch:
        if isinstance(example, Mapping):
            model(**example)
        else:
            is_several = isinstance(example, (tuple, list)) and not isinstance(example, PackedSequence)
            model(*(example if is_several else (example,)))
    return {name: calls for name, calls in watch.calls.items() if calls}


def _step(layer: nn.Module, call: _Call) -> Callable[[], None]:
    """Makes the function that is timed: a forward pass, and a backward pass where gradients flow."""
    arguments, named = tree_map_only(
        (_Likeness, _PackedLikeness), lambda each: each.make(), (call.arguments, call.named)
    )
    tensors = _tensors_of((arguments, named))
    wanted = [each for each in [*tensors, *layer.parameters()] if each.requires_grad]
    gradients: list[Tensor] = []

    def step() -> None:
        with (
            torch.autocast(call.device, dtype=call.autocast, enabled=call.autocast is not None),
            torch.set_grad_enabled(call.differentiated),
        ):
            result = layer.forward(*arguments, **named)
        if call.differentiated:
            outputs = [each for each in _tensors_of(result) if each.requires_grad]
            if not gradients:
                gradients.extend(map(torch.randn_like, outputs))
            torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

    return step


@contextmanager
def _grafted(layer: nn.Module) -> Iterator[None]:
    give(layer, measured=True)
    try:
        yield
    finally:
        take_back(layer)


def _time(layer: nn.Module, call: _Call) -> tuple[float, float]:
    """Times a call as the layer's class computes and grafted, in turn; returns both medians, in seconds."""
    timer = Timer("step()", globals={"step": _step(layer, call)}, num_threads=torch.get_num_threads())
    with _grafted(layer):
        timer.timeit(2)
    times = max(1, round(_SECONDS / max(timer.timeit(2).mean, 1e-7)))
    pytorch, torchgraft = [], []
    for _ in range(_ROUNDS):
        pytorch.append(timer.timeit(times).mean)
        with _grafted(layer):
            torchgraft.append(timer.timeit(times).mean)
    return statistics.median(pytorch), statistics.median(torchgraft)


def _alike(layer: nn.Module, call: _Call) -> Any:
    """A key that is equal for calls which take the same time."""
    if type(layer).__module__ not in (nn.Conv2d.__module__, nn.GRU.__module__):
        return id(layer), repr(call)
    weights = [(tuple(each.shape), each.stride(), each.dtype, each.requires_grad) for each in layer.parameters()]
    return repr(layer), layer.training, repr(weights), repr(call)


def measure(model: nn.Module, layers: Mapping[str, nn.Module], example: Any) -> dict[str, Measured]:
    """Times the calls that a model makes of its layers, PyTorch's way and on torchgraft's operators.

    Where `torch.distributed` is initialised, all processes get what the first one measured.

    Args:
        model: whose forward pass is run once, in its mode, under the caller's autocast and gradient mode.
        layers: by name, not grafted.
        example: the arguments of the model: a tensor, several in a tuple or list, or a mapping of names.

    Returns:
        A result for each layer that was called, and for each other module whose own forward pass calls a convolution
        function that an operator serves.

    Raises:
        TypeError: example is none of these.
        ValueError: the model has parameters without values.
    """
    if not isinstance(example, (Tensor, tuple, list, Mapping)):
        kind = type(example).__name__
        raise TypeError(f"graft: example must be a Tensor, a tuple or list of arguments, or a dict of them, got {kind}")
    if any(each.is_meta for each in model.parameters()):
        raise ValueError("graft: example needs a model with values, and this one has parameters on the device meta")
    with _undisturbed(model):
        measured = _measure(model, _calls(model, layers, example))
    if distributed.is_available() and distributed.is_initialized():
        shared = [measured]
        distributed.broadcast_object_list(shared, src=0)
        [measured] = shared
    return measured


def _measure(model: nn.Module, called: Mapping[str, list[_Call]]) -> dict[str, Measured]:
    """Times calls of modules; equal ones once. What refuses random values is not timed."""
    found: dict[Any, tuple[float, float] | None] = {}
    measured: dict[str, Measured] = {}
    for name, calls in called.items():
        layer = model.get_submodule(name)
        keys = [_alike(layer, call) for call in calls]
        for key, call in zip(keys, calls, strict=True):
            if key not in found:
                try:
                    found[key] = _time(layer, call)
                except Exception:
                    found[key] = None
        times = [each for each in map(found.get, keys) if each is not None]
        if len(times) == len(calls):
            pytorch, torchgraft = 1e6 * sum(each[0] for each in times), 1e6 * sum(each[1] for each in times)
            words = calls[0].words + (f", and {len(calls) - 1} more" if len(calls) > 1 else "")
            measured[name] = Measured(pytorch, torchgraft, words)
    return measured
