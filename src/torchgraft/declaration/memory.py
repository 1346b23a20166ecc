"""Ensures that each result has memory of its own, so that a write to one changes no other tensor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from torchgraft._private import pytorch
from torchgraft._private.pytorch import share_memory
from torchgraft.declaration.results import as_tuple
from torchgraft.declaration.schema import tensors_in


class NotOwnMemoryError(ValueError):
    """The finding that a result is no new tensor: no refusal of the arguments, though a ValueError too."""


def expect_own_memory(
    operator: str, source: str, results: Any, arguments: Sequence[Any], *, of_kernel: bool = False
) -> None:
    """Raises NotOwnMemoryError if a result shares memory, or if sizes, strides and dtype do not describe all of it.

    A compiler reuses memory as soon as nothing reads it, and does not see that a result shares it. It knows a result
    only by its sizes, strides and dtype. So a result must not have a conjugate or negative bit, require a gradient, be
    of a class other than Tensor, or have attributes of its own.

    Args:
        operator: its name, for the message.
        source: what returned the results, for the message: 'output', or a kernel.
        results: of the operator.
        arguments: of the call.
        of_kernel: whether a kernel returned the results. Then addresses are compared too, because NumPy and DLPack can
            give the same memory several storages; and tensors of a compiler's classes are refused.
    """
    others = list(tensors_in(arguments))
    for number, result in enumerate(tensors_in(as_tuple(results))):
        problem = _problem(result, others)
        if of_kernel and not problem:
            problem = _problem_of_memory(result, others)
        if of_kernel and problem and not result.numel():
            # It shares no element; `unkept` copies it.
            problem = _problem(result, ()) or _problem_of_memory(result, ())
        if problem:
            raise NotOwnMemoryError(
                f"{operator}: result {number} of {source} {problem}. It must be a new tensor, as torch.empty_like and"
                " clone() make one"
            )
        others.append(result)


# Results of kernels that a compiler traced, for as long as something holds them.
_traced: Any = WeakTensorKeyDictionary()


def traced_results(operator: str, source: str, results: Any, arguments: Sequence[Any]) -> Any:
    """Returns the results of a kernel that a compiler traces, with copies of those without elements.

    Raises:
        ValueError: as for `expect_own_memory`; or a result existed before the call, and would become a constant of the
            compiled code.
    """
    results = tree_map_only(Tensor, lambda result: result.clone() if _is_empty(result) else result, results)
    for number, result in enumerate(tensors_in(as_tuple(results))):
        if not pytorch.is_functional(result) or result in _traced:
            raise ValueError(
                f"{operator}: result {number} of {source} is a tensor from before the call, and compiled code would"
                " return the same at each call: make it at each call, or leave triton=True out"
            )
    # A compiler's tensors do not show that they are views; the tensors inside them do.
    memory = tree_map_only(Tensor, lambda tensor: pytorch.parts_of(tensor)[0], (results, list(arguments)))
    expect_own_memory(operator, source, *memory)
    _traced.update((result, None) for result in tensors_in(as_tuple(results)))
    return results


def _is_empty(tensor: Tensor) -> bool:
    """Whether a tensor is known to have no elements. Sizes that a compiler does not know are not compared."""
    return any(type(size) is int and size == 0 for size in tensor.shape)


def _problem(result: Tensor, others: Sequence[Tensor]) -> str:
    """Returns why sizes, strides and dtype do not describe all of a result; empty if they do."""
    # Each call of a kernel in Python runs this: loops without generators, and cheap checks first.
    if result.layout != torch.strided or result.is_nested:
        kind = "nested" if result.is_nested else str(result.layout)
        return f"is {kind}: return the tensors that it is made of, such as its values and indices, as separate results"
    for other in others:
        if result is other or share_memory(result, other):
            return "shares memory with another result or with an argument"
    if not result.is_contiguous() and _overlaps_itself(result):
        return "has elements that share memory, as after expand()"
    if result.is_conj() or result.is_neg():
        return "is a lazy conjugate or negative: call resolve_conj() and resolve_neg()"
    if result.requires_grad:
        return "requires a gradient: call detach()"
    # TorchDynamo traces this after a graph break, and cannot read attributes.
    if type(result) is Tensor and not torch.compiler.is_dynamo_compiling() and result.__dict__:
        # Compiled code adds attributes of its own.
        own = [name for name in result.__dict__ if not name.startswith("_dynamo")]
        return f"has attributes, which compiled code does not keep: {', '.join(own)}" if own else ""
    return ""


def _problem_of_memory(result: Tensor, others: Sequence[Tensor]) -> str:
    """Returns why a result does not own its memory, or why others must not write to it; empty if neither holds."""
    if type(result) is not Tensor:
        if pytorch.is_functional(result):
            return "is a compiler's tensor: the kernel kept it from an earlier call, and must make it at each call"
        return f"is a {type(result).__name__}, which compiled code treats as a Tensor: call as_subclass(torch.Tensor)"
    if result.is_inference() and not torch.is_inference_mode_enabled():
        return "is an inference tensor, which autograd cannot save: leave torch.inference_mode() out of the kernel"
    first, last = _addresses(result)
    for other in others:
        begin, end = _addresses(other)
        if first < end and begin < last:
            return "shares memory with another result or with an argument"
    return ""


def _addresses(tensor: Tensor) -> tuple[int, int]:
    """The addresses at which a tensor's storage begins and ends; an empty range for a tensor without a storage."""
    if tensor.layout != torch.strided:
        return 0, 0
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether elements of a tensor may share memory, for layouts that PyTorch makes."""
    # Sizes that a compiler does not know are not compared: it would compile for each value. None of them is 0 or 1.
    known = []
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        if type(size) is int and type(step) is int:
            known.append((size, step))
        elif type(step) is int and step == 0:
            return True
    if _is_empty(tensor):
        return False
    reached = 0
    for size, step in sorted(known, key=lambda pair: pair[1]):
        if size > 1:
            if step <= reached:
                return True
            reached += (size - 1) * step
    return False


def with_own_memory(results: Any, arguments: Sequence[Any]) -> Any:
    """Returns results, with copies of those that share memory with an argument, an earlier result or themselves.

    For references, which may return views. In a torch.func transform the memory of tensors is not known, so each result
    is copied. TorchDynamo can trace this function.
    """
    others = list(tensors_in(arguments))
    copied = _with_own_memory(results, others, pytorch.transform_active())
    return tuple(copied) if isinstance(results, tuple) else copied


# Not nested in `with_own_memory`: a nested function that calls itself is a reference cycle, which would keep the
# arguments and results of each call in memory until Python's garbage collector runs.
def _with_own_memory(result: Any, others: list[Tensor], always: bool) -> Any:
    """Does `with_own_memory` for a result or a list of results; adds those that are not copied to `others`."""
    if isinstance(result, (list, tuple)):
        return [_with_own_memory(each, others, always) for each in result]
    if not isinstance(result, Tensor):
        return result
    is_shared = _is_shared_where_traced if torch.compiler.is_dynamo_compiling() else _is_shared
    if always or is_shared(result, others):
        return result.clone()
    others.append(result)
    return result


def _is_shared(result: Tensor, others: Sequence[Tensor], before: Sequence[Tensor] = ()) -> bool:
    """Whether a result is one of the other tensors, shares memory with one, or overlaps itself."""
    parts = pytorch.parts_of(result)
    for other in (*others, *before):
        if result is other or any(share_memory(part, each) for part in parts for each in pytorch.parts_of(other)):
            return True
    return any(each.layout == torch.strided and _overlaps_itself(each) for each in parts)


_answer = pytorch.answer_at_compilation("answer", _is_shared, ("result", "others"))


def _is_shared_where_traced(result: Tensor, others: Sequence[Tensor]) -> bool:
    """Answers `_is_shared` while TorchDynamo traces, for the fake tensors behind these."""
    from torch._dynamo.comptime import comptime

    answer = False
    comptime(_answer)
    return answer


def unkept(results: Any, references: int) -> Any:
    """Returns results of a kernel in Python, with copies of those that something other than this call holds.

    A kernel that keeps a table and returns it at each call would give all its callers the same memory.

    Args:
        results: of the kernel.
        references: `sys.getrefcount` of the caller's variable that holds the results. Counted here, it would be one
            higher if TorchDynamo has replaced the function that runs Python's frames.
    """
    # The caller's variable holds one reference, and the argument of getrefcount one.
    is_kept = references > 2
    if isinstance(results, Tensor):
        return _copy(results) if is_kept or _memory_is_kept(results) else results
    return _unkept_inside(results, is_kept) if isinstance(results, (list, tuple)) else results


def _unkept_inside(results: Sequence[Any], is_kept: bool) -> Sequence[Any]:
    found: list[Any] = []
    for place in range(len(results)):
        # The list holds one reference, and the argument of getrefcount one.
        each_is_kept = is_kept or sys.getrefcount(results[place]) > 2
        each = results[place]
        if isinstance(each, (list, tuple)):
            found.append(_unkept_inside(each, each_is_kept))
        elif isinstance(each, Tensor) and (each_is_kept or _memory_is_kept(each)):
            found.append(_copy(each))
        else:
            found.append(each)
    return tuple(found) if isinstance(results, tuple) else found


def _memory_is_kept(result: Tensor) -> bool:
    """Whether something else holds the memory of a result; the result itself is held by this call alone."""
    if result.layout != torch.strided:
        return False
    own = _FRESH_STORAGE
    if result._base is not None:
        if sys.getrefcount(result._base) > _FRESH_BASE:
            return True
        own += 1
    return pytorch.references_to_storage(result.untyped_storage()) > own


def _copy(result: Tensor) -> Tensor:
    """A copy with the strides of a result."""
    return result.new_empty_strided(result.shape, result.stride()).copy_(result)


# The numbers of references if a kernel keeps nothing; they differ between versions of Python and PyTorch.
_new = torch.empty(1).view(-1)
_FRESH_BASE = sys.getrefcount(_new._base)
# Without the reference of the base: `_new` is a view.
_FRESH_STORAGE = pytorch.references_to_storage(_new.untyped_storage()) - 1
