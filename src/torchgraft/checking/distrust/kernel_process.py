"""The program of the process in which a kernel runs that is not trusted.

The kernel can change everything here once it is imported, so nothing that this process says is believed: the judge
compares the bytes that it sends. What it reports beside them, such as the operators that a kernel called, is a remark.
"""

import ctypes
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.adopting.names import find_reference
from torchgraft.checking.distrust.frames import leaves, receive, send, unpack
from torchgraft.checking.distrust.rights import give_up
from torchgraft.checking.subject import find_operators
from torchgraft.kernels.precision import true_precision
from torchgraft.operator import Operator

# In place of a kernel: results of the right sizes that nothing computes, which shows what the transport takes.
NOTHING = "nothing"
# Begins the name of an operator that the judge trusts: its reference is called, in the dtype of the arguments.
REFERENCE_OF = "reference of "
# Operators of PyTorch's that make, move or look at tensors, and compute nothing.
_MOVES = {
    *(
        "_conj",
        "_has_compatible_shallow_copy_type",
        "_local_scalar_dense",
        "_pin_memory",
        "_reshape_alias",
        "_to_copy",
        "_unsafe_view",
        "adjoint",
    ),
    *("alias", "as_strided", "can_cast", "cat", "chunk", "clone", "conj", "contiguous"),
    *("copy_", "detach", "detach_", "dim", "empty", "empty_like", "empty_strided", "expand"),
    *("expand_as", "fill_", "flatten", "full", "full_like", "hsplit", "is_complex", "is_floating_point"),
    *("is_nonzero", "is_pinned", "is_same_size", "item", "lift_fresh", "mT", "movedim", "narrow"),
    *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "numel", "ones", "ones_like"),
    *("permute", "pin_memory", "promote_types", "ravel", "real", "repeat", "reshape", "resize_"),
    *("resolve_conj", "resolve_neg", "result_type", "select", "set_", "size", "slice", "split"),
    *("squeeze", "stack", "stride", "swapaxes", "t", "tensor_split", "to", "to_dense"),
    *("transpose", "unbind", "unfold", "unsafe_split", "unsqueeze", "view", "view_as", "view_as_complex"),
    *("view_as_real", "zero_", "zeros", "zeros_like"),
}
# How long work that goes on after a kernel has returned gets to change a result, in a call that is not timed.
_SECONDS_FOR_LATE_WORK = 0.02


def main() -> None:
    """Imports a kernel and answers calls until the channel is closed: `descriptor target`, the last two arguments."""
    descriptor, target = sys.argv[-2:]
    channel = socket.socket(fileno=int(descriptor))
    trusted = target == NOTHING or target.startswith(REFERENCE_OF)
    give_up(readable=not trusted)
    try:
        function = _find(target)
    except BaseException as error:
        send(channel, {"error": f"it cannot be imported: {_text(error)}"})
        return
    send(channel, {"error": ""})
    while True:
        try:
            head, tensors = receive(channel)
        except EOFError:
            return
        try:
            answer, results = _answer(function, head, tensors)
        except BaseException as error:
            answer, results = {"error": _text(error)}, []
        send(channel, answer, results)
        # Nothing of one call takes memory from the next.
        del tensors, results


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _find(target: str) -> Callable[..., Any] | None:
    """Finds what is called; None: nothing."""
    if target == NOTHING:
        return None
    if target.startswith(REFERENCE_OF):
        [operator] = find_operators([target.removeprefix(REFERENCE_OF)])
        return operator.reference
    place = target.rpartition(":")[0]
    if Path(place).is_dir():
        [operator] = find_operators([target])
        return operator.call
    found = find_reference(target)[1]
    return found.call if isinstance(found, Operator) else found


def _answer(
    function: Callable[..., Any] | None, head: dict[str, Any], tensors: Sequence[Tensor]
) -> tuple[dict[str, Any], list[Tensor]]:
    device = torch.device(head["device"])
    arguments = unpack(head["arguments"], [each.to(device) for each in tensors])
    if device.type == "cuda":
        _empty_cache_of(device)
    watched = head["watched"]
    called: list[str] = []
    with torch.no_grad(), true_precision(), _noting(called if watched else None):
        found = function(*arguments) if function else [_made(each, device) for each in head["results"]]
    written = [arguments[place] for place in head["written"] if arguments[place] is not None]
    results = [_expect_plain(each) for each in leaves([written, found if head["returns"] else []])]
    # They are copied on the current stream, as a caller would read them; work left on other streams counts as well.
    copies = [_copied(each) for each in results]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    late = False
    if watched:
        time.sleep(_SECONDS_FOR_LATE_WORK)
        late = any(not _have_same_bytes(each, _copied(other)) for each, other in zip(copies, results, strict=True))
    return {"error": "", "late": late, "called": called}, copies


def _made(described: Sequence[Any], device: torch.device) -> Tensor:
    name, sizes = described
    return torch.empty(sizes, dtype=getattr(torch, name), device=device)


def _expect_plain(value: Any) -> Tensor:
    if type(value) is not Tensor:
        raise TypeError(f"a result must be a torch.Tensor and nothing more, got {type(value).__name__}")
    return value


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _have_same_bytes(one: Tensor, other: Tensor) -> bool:
    flat = (each.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8) for each in (one, other))
    return one.shape == other.shape and torch.equal(*flat)


@contextmanager
def _noting(names: list[str] | None) -> Iterator[None]:
    """A scope in which the names of PyTorch's operators that compute are put into a list, if there is one."""
    if names is None:
        yield
        return
    # It sees calls inside compiled kernels too, which modes of TorchDispatch do not.
    with torch.autograd.profiler.profile() as profile:
        yield
    called = {each.name.removeprefix("aten::") for each in profile.function_events if each.name.startswith("aten::")}
    names += sorted(called - _MOVES)


_flushed: dict[torch.device, Tensor] = {}


def _empty_cache_of(device: torch.device) -> None:
    """Empties a GPU's second-level cache: also of lines that were said to persist."""
    torch.cuda.synchronize(device)
    # The context of the device is the current one: tensors were just made on it.
    status = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
    if status:
        raise RuntimeError(f"cuCtxResetPersistingL2Cache failed with status {status}")
    if device not in _flushed:
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        _flushed[device] = torch.empty(max(4 * cache, 2**26), dtype=torch.uint8, device=device)
    _flushed[device].zero_()
    torch.cuda.synchronize(device)
