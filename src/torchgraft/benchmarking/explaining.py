"""The kernels that a call launches on a GPU, or the operators that it ends in on a CPU."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# What takes less of a call than this is not told: on a CPU every view is an operator too.
_LEAST_SHARE = 0.05
_CPU_CALLS = 3


@dataclass(frozen=True)
class Served:
    """A kernel, or on a CPU an operator, and the seconds that it took of one call."""

    name: str
    seconds: float


def explain(call: Callable[[], Any], device: torch.device) -> tuple[Served, ...]:
    """The kernels or operators of one call, in the order in which they began; the call was made before.

    Args:
        call: is called under PyTorch's profiler: once on a GPU, whose clock sees kernels alone. On a CPU an operator
            that was interrupted would hide the others, so each is told with the least seconds of several calls.
        device: on which it works.
    """
    seconds, *others = (_seconds(call, device) for _ in range(1 if device.type == "cuda" else _CPU_CALLS))
    seconds = Counter({name: min([spent, *(each[name] for each in others)]) for name, spent in seconds.items()})
    least = _LEAST_SHARE * seconds.total()
    return tuple(Served(name, spent) for name, spent in seconds.items() if spent >= least)


def kernels_of(call: Callable[[], Any], device: torch.device) -> tuple[str, ...]:
    """The names of all kernels that a call launches on a GPU; none on a CPU. The call was made before."""
    return tuple(_seconds(call, device)) if device.type == "cuda" else ()


def _seconds(call: Callable[[], Any], device: torch.device) -> Counter[str]:
    """The time that one call spends in each kernel or operator."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    if on_gpu:
        torch.cuda.synchronize(device)
    with _quiet(), profile(activities=activities) as profiled:
        call()
        if on_gpu:
            torch.cuda.synchronize(device)
    seconds: Counter[str] = Counter()
    for event in profiled.events() or ():
        if event.device_type.name == device.type.upper():
            own = event.device_time_total if on_gpu else event.self_cpu_time_total
            seconds[short_name(event.name)] += own * 1e-6
    return seconds


@contextmanager
def _quiet() -> Iterator[None]:
    """A scope in which nobody writes to standard error: the profiler's library tells there of its start and end."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces and parameters: `planes<float, 3>`."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for place, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:place]
            break
    # An operator's namespace is its name; a kernel's says nothing that its name does not.
    if "<" not in name and name.count("::") == 1:
        return name
    name = re.sub(r"\b(?:\w+::)+", "", name)
    return re.sub(r"\((?:int|bool|unsigned int)\)", "", name)


def describe(served: Iterable[Served]) -> list[str]:
    """A line for each."""
    return [f"{each.seconds * 1e6:,.1f} us  {each.name}" for each in served]
