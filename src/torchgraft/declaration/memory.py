"""Results have memory of their own: what is written to one is read nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torchgraft._private import pytorch
from torchgraft._private.pytorch import share_memory
from torchgraft.declaration.results import as_tuple
from torchgraft.declaration.schema import tensors_in


def expect_own_memory(
    operator: str, source: str, results: Any, arguments: Sequence[Any], *, by_address: bool = False
) -> None:
    """Raises ValueError if compiled code could not tell results from other tensors, or from other values.

    Compilers use memory again as soon as nothing reads it, and do not see that a result lies there. A tensor with a
    conjugate or negative bit, or one that needs a gradient, is more than its sizes, strides and dtype say.

    Args:
        operator: its name, for the message.
        source: what returned the results, for the message: 'output', or a kernel.
        results: of the operator.
        arguments: of the call.
        by_address: whether the tensors have memory that can be asked for its address. NumPy and DLPack give one memory
            several storages.
    """
    others = list(tensors_in(arguments))
    for number, result in enumerate(tensors_in(as_tuple(results))):
        problem = _problem(result, others)
        if by_address and not problem:
            problem = _problem_of_memory(result, others)
        if problem:
            raise ValueError(
                f"{operator}: result {number} of {source} {problem}. It must be a new tensor, as torch.empty_like makes"
                " one"
            )
        others.append(result)


def _problem(result: Tensor, others: Sequence[Tensor]) -> str:
    """The reason why a result is more than its sizes, strides and dtype; empty if it is not."""
    # Each call of a kernel in Python comes here: loops without generators, and the cheap question first.
    for other in others:
        if result is other or share_memory(result, other):
            return "shares memory with another result or with an argument"
    if not result.is_contiguous() and _overlaps_itself(result):
        return "has elements that share memory, as those of expand()"
    if result.is_conj() or result.is_neg():
        return "is a lazy conjugate or negative: call resolve_conj() and resolve_neg()"
    return "requires a gradient: call detach()" if result.requires_grad else ""


def _problem_of_memory(result: Tensor, others: Sequence[Tensor]) -> str:
    """The reason why the memory of a result is not its own, or is not to be written to; empty if there is none."""
    if result.is_inference() and not torch.is_inference_mode_enabled():
        return "is an inference tensor, which autograd cannot save: leave torch.inference_mode() out of the kernel"
    first, last = _addresses(result)
    for other in others:
        begin, end = _addresses(other)
        if first < end and begin < last:
            return "shares memory with another result or with an argument"
    return ""


def _addresses(tensor: Tensor) -> tuple[int, int]:
    """Where the storage of a tensor begins and ends; an empty range for one without a storage."""
    if tensor.layout != torch.strided:
        return 0, 0
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether elements of a tensor may lie at one place; for layouts that PyTorch makes."""
    # Sizes that a compiler does not know are not asked: it would compile for each of them.
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    known = [pair for pair in pairs if all(type(number) is int for number in pair)]
    if not all(size for size, _ in known):
        return False
    reached = 0
    for size, step in sorted(known, key=lambda pair: pair[1]):
        if size > 1:
            if step <= reached:
                return True
            reached += (size - 1) * step
    return False


def with_own_memory(results: Any, arguments: Sequence[Any]) -> Any:
    """Results, each a copy if it shares memory with an argument or with a result before it.

    Nobody can tell what memory the tensors of a torch.func transform have: there each result is a copy.
    """
    if pytorch.transform_active():
        return tree_map_only(Tensor, Tensor.clone, results)
    others = list(tensors_in(arguments))

    def copied(result: Any) -> Any:
        if isinstance(result, (list, tuple)):
            return type(result)(map(copied, result))
        if not isinstance(result, Tensor):
            return result
        is_shared = any(result is other or share_memory(result, other) for other in others)
        if is_shared or (not result.is_contiguous() and _overlaps_itself(result)):
            result = result.clone()
        others.append(result)
        return result

    return copied(results)


def without_views(results: Any, arguments: Sequence[Any]) -> Any:
    """Results, each a copy if it is an argument, a result before it, a view of these, or expanded.

    For TorchDynamo, which knows no memory.
    """
    bases = [each if each._base is None else each._base for each in tensors_in(arguments)]

    def copied(result: Any) -> Any:
        if isinstance(result, (list, tuple)):
            return [copied(each) for each in result]
        if not isinstance(result, Tensor):
            return result
        base = result if result._base is None else result._base
        is_shared = 0 in result.stride()
        for each in bases:
            is_shared = is_shared or base is each
        if is_shared:
            return result.clone()
        bases.append(base)
        return result

    return copied(results)
