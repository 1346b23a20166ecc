"""The kernels that the CUDA library would choose for calls, on a GPU that need not be here.

The choice is host code (`cuda/policy.h` of an operator), and the CPU library has a copy of it. A call is made on
tensors of the device `meta`, which have sizes but no values; the operators that it reaches, forward or backward, are
asked one by one.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchgraft import native
from torchgraft.benchmarking.measuring import precision_of
from torchgraft.benchmarking.passes import FORWARD_BACKWARD, Candidate
from torchgraft.benchmarking.results import BenchReport
from torchgraft.benchmarking.suite import DIRECTIONS, Wanted, plan
from torchgraft.benchmarking.summary import NAME_IS_PATH, short_dtype
from torchgraft.benchmarking.table import Table
from torchgraft.checking.subject import find_subjects
from torchgraft.checking.tensors.gradients import with_gradients
from torchgraft.layout import suggests_channels_last

_KIB = 1024
# The shared memory of a block and of a multiprocessor in KiB, by compute capability: of the CUDA programming guide.
_SHARED_KIB = {75: (64, 64), 80: (163, 164), 86: (99, 100), 87: (163, 164), 89: (99, 100), 90: (227, 228)}
_SHARED_KIB |= {100: (227, 228), 103: (227, 228), 120: (99, 100), 121: (99, 100)}
_LIKE = re.compile(r"(\d+)\.(\d)x(\d+)")
_NOTHING, _NUMBER, _TENSOR = range(3)
_NAMESPACE = "torchgraft"


@dataclass(frozen=True)
class Gpu:
    """A GPU, as far as a choice of kernels depends on it.

    Attributes:
        capability: its compute capability, 90 for 9.0.
        multiprocessors: how many it has.
    """

    capability: int
    multiprocessors: int

    def __str__(self) -> str:
        return f"{self.capability // 10}.{self.capability % 10}x{self.multiprocessors}"


# The names that PyTorch gives GPUs on which rows were measured before rows recorded their kernel.
_GPUS = {"NVIDIA H200": Gpu(90, 132), "NVIDIA H100 80GB HBM3": Gpu(90, 132)}


def gpu_like(text: str) -> Gpu:
    """The GPU that a text such as `9.0x132` names: its compute capability and its multiprocessors.

    Raises:
        ValueError: the text is of another form, or the compute capability is not known.
    """
    found = _LIKE.fullmatch(text)
    if found is None or int(found[3]) < 1:
        raise ValueError(f"a device is its compute capability and its multiprocessors, as 9.0x132; got {text!r}")
    gpu = Gpu(10 * int(found[1]) + int(found[2]), int(found[3]))
    if gpu.capability not in _SHARED_KIB:
        known = ", ".join(f"{each // 10}.{each % 10}" for each in _SHARED_KIB)
        raise ValueError(f"compute capability {found[1]}.{found[2]} is not known; choose from {known}")
    return gpu


def predict(candidate: Candidate, gpu: Gpu) -> tuple[str, ...]:
    """The kernels that the CUDA library would choose in one pass of a benchmark, in order.

    Args:
        candidate: the operator, its input and the pass.
        gpu: on which it would run.

    Returns:
        The names, each once; empty if the operator has one kernel, and nothing to choose.

    Raises:
        LookupError: the CPU library is not loaded, or is older than this function.
    """
    with precision_of(candidate):
        return _predict(candidate, gpu)


def _predict(candidate: Candidate, gpu: Gpu) -> tuple[str, ...]:
    forward, backward = _Recorder(gpu), _Recorder(gpu)
    arguments = candidate.call.make("meta")
    leaves = [
        tensor.requires_grad_()
        for name, tensor, has_gradient in candidate.call.named_tensors(arguments)
        if has_gradient and candidate.differentiates(name)
    ]
    with forward:
        results = with_gradients(tree_leaves(candidate.operator.call(*arguments)))
    if candidate.direction == "forward":
        return tuple(dict.fromkeys(forward.names))
    with backward:
        torch.autograd.grad(results, leaves, [torch.empty_like(result) for result in results])
    both = forward.names if candidate.direction == FORWARD_BACKWARD else []
    return tuple(dict.fromkeys([*both, *backward.names]))


@dataclass(frozen=True)
class Predictions:
    """The kernels that would be chosen for some rows.

    Attributes:
        gpu: where.
        rows: what names each row (`Row.key`), with its kernels.
    """

    gpu: Gpu
    rows: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]

    def as_dict(self) -> dict[str, Any]:
        """The predictions for JSON."""
        names = ("operator", "suite", "sample", "dtype", "layout", "direction")
        rows = [{**dict(zip(names, key, strict=True)), "kernels": list(kernels)} for key, kernels in self.rows]
        return {"device_like": str(self.gpu), "rows": rows}

    def tables(self) -> list[Table]:
        """A table for each operator."""
        tables = []
        for operator in dict.fromkeys(key[0] for key, _ in self.rows):
            lines = [
                [sample, direction, short_dtype(dtype), layout, ", ".join(kernels) or "its only kernel"]
                for (name, _, sample, dtype, layout, direction), kernels in self.rows
                if name == operator
            ]
            tables.append(Table(operator, ["sample", "pass", "dtype", "layout", "kernel"], lines, [NAME_IS_PATH]))
        return tables


def predict_rows(candidates: Sequence[Candidate], gpu: Gpu) -> Predictions:
    """The kernels that would be chosen for the rows of a benchmark.

    Raises:
        LookupError: as `predict`.
    """
    return Predictions(gpu, [(key_of(each), predict(each, gpu)) for each in candidates])


def key_of(candidate: Candidate) -> tuple[str, ...]:
    """The key of the row that times a candidate."""
    benchmark = candidate.benchmark
    names = candidate.operator.short_name, benchmark.suite, benchmark.sample.name
    return (*names, candidate.dtype_name, candidate.layout, candidate.direction)


def kernels_today(report: BenchReport) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The kernels that would be chosen today for the rows of a report that do not say which kernels ran.

    Args:
        report: was measured on a GPU; for one that is not known, and for rows that no benchmark has today, nothing is
            said.

    Raises:
        LookupError: as `predict`.
    """
    gpu = _GPUS.get(report.environment.chip)
    unknown = {row.key for row in report.rows if not row.chosen}
    if gpu is None or not unknown:
        return {}
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    planned = plan(find_subjects([]), Wanted(torch.device("cuda"), dtypes, directions=DIRECTIONS))
    candidates = [each.candidate for each in planned if each.key in unknown and each.candidate is not None]
    return dict(predict_rows(candidates, gpu).rows)


class _Recorder(TorchDispatchMode):
    """Asks for the kernels of every operator of torchgraft that is called in its scope."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._ask = _asking(gpu)
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace == _NAMESPACE:
            given = [*args, *[None] * (len(func._schema.arguments) - len(args))]
            for place, argument in enumerate(func._schema.arguments):
                if argument.name in (kwargs or {}):
                    given[place] = (kwargs or {})[argument.name]
            self.names += self._ask(name, given)
        return func(*args, **(kwargs or {}))


def _asking(gpu: Gpu) -> Callable[[str, Sequence[Any]], list[str]]:
    """A function that gives the kernels of an operator for its arguments."""
    [library] = native.libraries_of(_NAMESPACE, "cpu")[:1]
    function = library.function("torchgraft_predict")
    if function is None:
        raise LookupError(
            f"{library.path} does not know the choice of CUDA kernels: {library.problem or 'build it anew'}"
        )
    function.restype = ctypes.c_char_p
    function.argtypes = (
        *(ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
        *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int64),
    )
    block, whole = _SHARED_KIB[gpu.capability]

    def ask(name: str, arguments: Sequence[Any]) -> list[str]:
        numbers = [number for argument in arguments for number in _numbers(argument)]
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        names = function(
            name.encode(), 10 * gpu.capability, gpu.multiprocessors, block * _KIB, whole * _KIB, array, len(numbers)
        )
        return [] if names is None else names.decode().splitlines()

    return ask


def _numbers(argument: Any) -> list[int]:
    """An argument as torchgraft_predict takes it."""
    if isinstance(argument, Tensor):
        channels_last = argument.dim() in (3, 4) and suggests_channels_last(argument.shape, argument.stride())
        kind = [_TENSOR, argument.element_size(), argument.dtype == torch.bfloat16]
        is_last = channels_last and not argument.is_contiguous()
        return [int(number) for number in (*kind, is_last, argument.dim(), *argument.shape)]
    if isinstance(argument, (bool, int)):
        return [_NUMBER, int(argument)]
    return [_NOTHING]
