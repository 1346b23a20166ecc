"""The most memory that forward and backward of a call hold at once, beyond the arguments; beside rivals and yardsticks.

On a GPU that is what PyTorch's allocator has given out. On a CPU it is what the kernel of the operating system counts
as resident, in a process of its own for each contender: buffers of the libraries beneath PyTorch are in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.benchmarking import load
from torchgraft.benchmarking.load import Load, LoadWatch
from torchgraft.benchmarking.provenance import Provenance, provenance_of_operator
from torchgraft.benchmarking.summary import UNVERIFIED, marked, short_dtype
from torchgraft.benchmarking.table import Table
from torchgraft.checking.subject import Subject, subject_of
from torchgraft.finding import places
from torchgraft.machine.environment import Environment, describe_environment
from torchgraft.machine.processes import clean_processes
from torchgraft.operator import Operator
from torchgraft.sampling import Sample

OURS = "torchgraft"
_STATUS, _RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Peak:
    """The bytes that a contender holds at most on a sample; None where that cannot be told, and why."""

    operator: str
    sample: str
    contender: str
    bytes: int | None
    problem: str = ""


@dataclass(frozen=True)
class MemoryReport:
    """The figures, the machine, and the sources of each operator that was measured.

    `load` is what was known of other programs, and `others` how many processors they kept busy before the first call.
    """

    environment: Environment
    dtype: str
    yardsticks: tuple[str, ...]
    peaks: tuple[Peak, ...]
    provenance: Mapping[str, Provenance]
    load: Load
    others: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def tables(self) -> tuple[Table, ...]:
        """One table: a line a sample, a column a contender: mebibytes, and how many times ours that is."""
        names = list(dict.fromkeys(peak.contender for peak in self.peaks))
        found = {(peak.operator, peak.sample, peak.contender): peak for peak in self.peaks}
        lines = []
        for operator, sample in dict.fromkeys((peak.operator, peak.sample) for peak in self.peaks):
            ours = found[operator, sample, OURS].bytes
            cells = [_cell(found.get((operator, sample, name)), ours) for name in names]
            lines.append([f"{operator}, {sample}", *cells])
        shown = [marked(name) if name in self.yardsticks else name for name in names]
        notes = ["The most that forward and backward hold at once beside the arguments: results, gradients, the rest."]
        notes += [f"{peak.contender} on {peak.sample}: {peak.problem}" for peak in self.peaks if peak.problem]
        notes += [UNVERIFIED] if self.yardsticks else []
        # They hold memory too: where there is none left, the system takes some of it from this process.
        notes += filter(None, [self.load.doubt("The measurement began", [self.others])])
        title = f"Peak memory, {short_dtype(self.dtype)}"
        return (Table(title, ["operator, sample", *shown], lines, [*notes, str(self.environment)]),)


def _cell(peak: Peak | None, ours: int | None) -> str:
    if peak is None or peak.bytes is None:
        return ""
    mebibytes = f"{peak.bytes / 2**20:.1f} MiB"
    return mebibytes if peak.contender == OURS or not ours else f"{mebibytes}, {peak.bytes / ours:.2f}x"


def measure_memory(
    subjects: Sequence[Subject], device: torch.device, dtype: torch.dtype, on_start: Callable[[str], None]
) -> MemoryReport:
    """Measures every benchmark of operators, and of each all that stands beside it.

    Args:
        subjects: the operators.
        device: where.
        dtype: of the arguments.
        on_start: told what is measured next, or why it waits for other programs to end.
    """
    # What runs in other processes is ours; so others are only looked at before these begin.
    watch = LoadWatch(device, load.PATIENCE)
    watch.wait(on_start)
    peaks = []
    for subject in subjects:
        for number, benchmark in enumerate(subject.samples.benchmarks):
            # Those that permit tf32 differ from others in that alone.
            if device.type not in benchmark.devices or benchmark.sample.tf32:
                continue
            for contender in (OURS, *subject.samples.rivals, *subject.samples.yardsticks):
                on_start(f"{subject.name}, {benchmark.sample.name}: {contender}")
                asked = subject.operator.qualified_name, subject.operator.module, number, contender, device, dtype
                try:
                    found, problem = _on_cpu(*asked) if device.type == "cpu" else _on_gpu(*asked), ""
                except Exception as error:
                    found, problem = None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                peaks.append(Peak(subject.name, benchmark.sample.name, contender, found, problem))
    yardsticks = dict.fromkeys(name for subject in subjects for name in subject.samples.yardsticks)
    name = str(dtype).removeprefix("torch.")
    provenance = {each.name: provenance_of_operator(each.operator, device.type, gradients=True) for each in subjects}
    return MemoryReport(
        describe_environment(device), name, tuple(yardsticks), tuple(peaks), provenance, watch.load, watch.last
    )


def _on_cpu(*asked: Any) -> int:
    if not _RESET_PEAK.exists():
        raise NotImplementedError("this operating system does not report how much memory a process uses")
    # Of its own, as memory that was once resident may stay so.
    with ProcessPoolExecutor(1, clean_processes(), initializer=places.remember, initargs=(places.places(),)) as pool:
        return pool.submit(_resident_peak, *asked).result()


def _resident_peak(*asked: Any) -> int:
    step = _prepare(*asked)
    _give_back()
    before = _resident("VmRSS")
    _RESET_PEAK.write_text("5")
    step()
    return _resident("VmHWM") - before


def _give_back() -> None:
    """Gives what lies free in the heap back to the system: it is resident, and a step would take it uncounted."""
    gc.collect()
    # Not every C library has it.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident(field: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def _on_gpu(*asked: Any) -> int:
    step = _prepare(*asked)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _prepare(
    qualified_name: str, module: str, number: int, contender: str, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    """Forward and backward of a contender on a benchmark, once run on a small sample, so that libraries are loaded."""
    warnings.simplefilter("ignore")
    importlib.import_module(module)
    subject = subject_of(Operator.registered[qualified_name])
    _bind(subject, subject.samples.smallest, contender, device, dtype)()
    return _bind(subject, subject.samples.benchmarks[number].sample, contender, device, dtype)


def _bind(
    subject: Subject, sample: Sample, contender: str, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    arguments = sample.make(device, dtype, on_device=True)
    if contender in subject.samples.yardsticks:
        call, leaves = subject.samples.yardsticks[contender](*arguments)
    else:
        function = subject.samples.rivals.get(contender, subject.operator)
        call, leaves = lambda: function(*arguments), [each for each in arguments if isinstance(each, Tensor)]
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> None:
        results = tree_leaves(call())
        torch.autograd.grad(results, leaves, [torch.ones_like(each) for each in results], allow_unused=True)

    return step
