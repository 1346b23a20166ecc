"""A thousand calls leak no memory.

Proves: during a thousand calls, forward and backward, on samples from all over the table, the memory in use does not
grow from round to round. This holds for the heap and for Python's objects, and on CUDA also for PyTorch's allocator and
for the device. The report says how many bytes one call requests from PyTorch beside arguments, results and gradients,
on the sample with the most. `graft check --quick` makes 200 calls. Memory that keeps growing is watched longer.

Cannot prove: anything about a leak on the device below two megabytes, the unit in which the driver gives out memory. If
the C library does not say how much memory is in use (glibc does), a leak of less than a page is not found either.

Mend: give memory an owner: a Tensor, `empty_workspace`, a std::vector. Remove caches that grow, and references from
Python that form a cycle.

Example: leaks memory at each call.
"""

import ctypes
import gc
import statistics
import sys
from collections.abc import Callable, Sequence

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.guarded_call import make_tables, served_call
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.gradients import leaves_of
from torchgraft.checking.tensors.guarded_memory import NAN_BYTE, Arena
from torchgraft.sampling import Sample

_SAMPLES = 10
_ROUNDS = 5
# The most rounds that are made while memory has grown in every round so far. Other things grow for a while too:
# processes on the same device, and what threads of autograd keep of the memory that others asked for. A leak goes on.
_MOST_ROUNDS = 40
_CALLS_A_ROUND, _QUICK_CALLS_A_ROUND = 200, 40
# The most times that the rounds are made anew while memory grows in most of them, but not in all.
_LOOKS = 3

_HEAP, _BLOCKS = "bytes of the heap", "Python's memory blocks"
_ALLOCATOR, _DEVICE = "bytes of PyTorch's CUDA allocator", "bytes of the device"
# The growth per call that is tolerated, by kind of memory. The interpreter itself keeps a block now and then.
_TOLERATED = {_HEAP: 1.0, _BLOCKS: 0.25, _ALLOCATOR: 0.0, _DEVICE: 0.0}


def check(case: Case) -> None:
    """See the module."""
    samples = case.table(empty=False, count=_SAMPLES)
    _note_extra_memory(case, samples)
    case.progress("calls in rounds")
    _check_growth([case.call(sample) for sample in samples], _QUICK_CALLS_A_ROUND if case.quick else _CALLS_A_ROUND)


def _note_extra_memory(case: Case, samples: Sequence[Sample]) -> None:
    arena = Arena(case.device)
    extra = [0]

    def note(call: Call) -> None:
        def extra_bytes() -> int:
            results, gradients = served_call(call, arena)
            kept = sum(each.numel() * each.element_size() for each in (*results, *gradients) if each is not None)
            return arena.asked_bytes() - kept

        make_tables(call)
        extra.append(arena.run(extra_bytes, NAN_BYTE))

    case.each(note, samples)
    case.facts["most extra bytes of a call"] = max(extra)


def _check_growth(calls: Sequence[Call], a_round: int) -> None:
    prepared = [_prepare(call) for call in calls]
    repeats = max(1, a_round // len(prepared))

    def do_round() -> dict[str, int]:
        """The bytes that a round adds to those in use, by kind of memory."""
        # To ask the driver takes some of the heap itself.
        of_device, of_host = _on_device(calls[0].device), _on_host()
        for _ in range(repeats):
            for work in prepared:
                work()
        grown = {kind: used - of_host[kind] for kind, used in _on_host().items()}
        return grown | {kind: used - of_device[kind] for kind, used in _on_device(calls[0].device).items()}

    do_round()
    # Frozen objects are not collected in each round: in a large program that takes longer than the calls.
    gc.collect()
    gc.freeze()
    try:
        _expect_no_growth(do_round, repeats * len(prepared))
    finally:
        gc.unfreeze()


def _expect_no_growth(do_round: Callable[[], dict[str, int]], calls: int) -> None:
    """Raises a Mismatch where what is in use grows with each round of so many calls."""
    for _ in range(_LOOKS):
        growths: list[dict[str, int]] = []
        # Memory that grows once is a cache; memory that grows in each round is a leak.
        while len(growths) < _ROUNDS or (_leaks(growths, calls) and len(growths) < _MOST_ROUNDS):
            growths.append(do_round())
        for kind, least in _leaks(growths, calls).items():
            raise Mismatch(f"each call leaves {least:.3g} more {kind} in use, in each of {len(growths)} rounds")
        looks_like_a_leak = any(
            statistics.median(growth.get(kind, 0) / calls for growth in growths) > tolerated
            for kind, tolerated in _TOLERATED.items()
        )
        # Something else that was freed in one round may have hidden it: look again.
        if not looks_like_a_leak:
            return


def _leaks(growths: Sequence[dict[str, int]], calls: int) -> dict[str, float]:
    """The kinds of memory that grew in every round, with the least growth a call."""
    least = {kind: min(growth.get(kind, 0) for growth in growths) / calls for kind in _TOLERATED}
    return {kind: growth for kind, growth in least.items() if growth > _TOLERATED[kind]}


def _prepare(call: Call) -> Callable[[], None]:
    """A call, forward and backward, that makes nothing but what the operator makes."""
    arguments = call.leaves(required=False)
    results = tree_leaves(call.function(*arguments))
    places = [place for place, result in enumerate(results) if result.requires_grad]
    output_grads = call.output_grads(results[place] for place in places)

    def work() -> None:
        results = tree_leaves(call.function(*arguments))
        if places:
            differentiated = [results[place] for place in places]
            torch.autograd.grad(differentiated, leaves_of(arguments), output_grads, allow_unused=True)

    return work


def _on_host() -> dict[str, int]:
    """Measures the host's memory that is in use, by kind."""
    gc.collect()
    return {_HEAP: _heap_bytes(), _BLOCKS: sys.getallocatedblocks()}


def _on_device(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return {_ALLOCATOR: torch.cuda.memory_allocated(device), _DEVICE: total - free}


class _Mallinfo2(ctypes.Structure):
    """The struct that glibc's mallinfo2 returns: ten sizes; the fifth is `hblkhd` and the eighth `uordblks`."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def _heap_bytes() -> int:
    """The bytes that malloc has given out and not got back; if it does not tell, the most that was ever resident."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        # Windows has no such module, and `graft check --list` imports this one.
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    mallinfo2.restype = _Mallinfo2
    *_, hblkhd, _, _, uordblks, _, _ = mallinfo2().sizes
    return uordblks + hblkhd


PROPERTY = Property(check)
