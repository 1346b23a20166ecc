"""Makes launches of every operator on GPUs of many compute capabilities, and prints those that a GPU refuses.

Run it under `torchgraft.emulation.library.environment(..., launches=...)`, where nothing is computed. The emulator
refuses a launch that exceeds what it knows of the GPU and of the kernel: shared memory, dynamic and declared; threads
of a block, and the number that the kernel is compiled for; grids, clusters, and cooperative launches.

    python plans.py                     the samples of every operator, and convolutions at borders, on each GPU
    python plans.py 5000 report.json    so many drawn calls of every operator on each GPU, with every kernel forced on
                                        all that it supports; what was found goes to a file
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import torch

from torchgraft import Operator, native
from torchgraft.checking.kernels import listed_kernels
from torchgraft.checking.subject import Subject, subject_of
from torchgraft.operators.depthwise_conv2d.case import ConvolutionCase, same
from torchgraft.operators.depthwise_conv2d.window import Window
from torchgraft.sampling import Budget, Drawn, Sample

DEVICES = (75, 80, 86, 89, 90, 100, 120)
DTYPES = (torch.float16, torch.float32, torch.bfloat16, torch.float64)
# A drawn call has between 2**4 and 2**22 elements. One of sixteen calls has up to 2**32, unless PyTorch would copy
# tensors on the way: it does that here too.
_ELEMENTS, _MANY_ELEMENTS, _CALLS_FOR_ONE_OF_MANY = (4, 22), (22, 32), 16
_PASSES = {
    "depthwise_conv2d": ConvolutionCase.forward,
    "depthwise_conv2d_input_grad": ConvolutionCase.input_grad,
    "depthwise_conv2d_weight_grad": ConvolutionCase.weight_grad,
}

# Convolutions whose tiles take the most shared memory, in the kernels on tensor cores: bands, diagonals and slide.
_LARGE_TILES = (
    ConvolutionCase("batch: one channel of two sixteens", (128, 512, 16, 16), (27, 27), same(27)),
    ConvolutionCase("batch: planes of 24x24", (64, 512, 24, 24), (27, 27), same(27)),
    ConvolutionCase("batch: many taps", (64, 264, 24, 24), (31, 31), same(31)),
    ConvolutionCase("batch: planes of 14x14", (160, 264, 14, 14), (27, 27), same(27)),
    ConvolutionCase("large: an image that fits hardly", (4, 64, 200, 200), (51, 51), same(51)),
    ConvolutionCase("planes: narrow and high", (64, 64, 307, 21), (7, 5), Window(1, 1, 0, 4, 3, 6)),
    ConvolutionCase(
        "channels last: narrow and high", (16, 8, 445, 24), (4, 8), Window(1, 1, 0, 7, 0, 0), channels_last=True
    ),
    ConvolutionCase(
        "channels last: images side by side", (64, 8, 14, 8), (6, 8), Window(1, 1, 3, 3, 2, 4), channels_last=True
    ),
    ConvolutionCase("weight gradient: rows of 127", (256, 24, 2, 127), (3, 9), Window(1, 1, 2, 8, 36, 4)),
    ConvolutionCase(
        "weight gradient: planes of seven rows", (32, 16, 7, 7), (10, 3), Window(1, 1, 0, 0, 9, 6), channels_last=True
    ),
    ConvolutionCase("weight gradient: slides", (64, 64, 112, 112), (7, 7), same(7, 2), channels_last=True),
)


@dataclass
class Asked:
    """The calls that were drawn for a GPU, and what came of them.

    Attributes:
        device: its compute capability, as 75 or 90.
        problems: how many calls were made.
        kernels: how many kernels computed at least one call.
        unable: the kernels that could compute a call on another GPU, and none on this one.
        unreached: the kernels that no call suits, of this operator or of another one that has them.
        launches: how many launches were made.
        refused: the launches that the GPU refuses, in words.
    """

    device: int
    problems: int = 0
    kernels: int = 0
    unable: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    launches: int = 0
    refused: list[str] = field(default_factory=list)


def empty(argument: Any, dtype: torch.dtype) -> Any:
    """An uninitialized tensor in the place of an argument that would be drawn."""
    if not isinstance(argument, Drawn):
        return argument
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d} if argument.channels_last else {}
    layout = channels_last.get(len(argument.shape), torch.contiguous_format)
    return torch.empty(argument.shape, dtype=argument.dtype or dtype, memory_format=layout)


def subjects() -> list[Subject]:
    """All operators with kernels in the emulated library, with their samples."""
    operators = Operator.registered.values()
    return [subject_of(each) for each in operators if each.name in native.signatures(each.namespace, "cpu")]


def named_calls() -> Iterator[tuple[Operator, Sample]]:
    """The calls of the samples of all operators, and convolutions whose tiles are large."""
    for subject in subjects():
        yield from ((subject.operator, sample) for sample in subject.samples.named if not sample.tf32)
        yield from (
            (subject.operator, benchmark.sample) for benchmark in subject.samples.benchmarks if benchmark.large is None
        )
    for case in _LARGE_TILES:
        for name, make in _PASSES.items():
            yield Operator.registered[f"torchgraft::{name}"], make(case)


def call(operator: Operator, arguments: Sequence[Any], device: int, what: str) -> str:
    """Calls an operator on a GPU. Returns why the GPU refused it, or an empty string."""
    os.environ["TORCHGRAFT_EMULATED_ARCHITECTURE"] = str(device)
    try:
        operator.raw(*arguments)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        return f"{operator.name} on {device} in {arguments[0].dtype}: {what}: {reason}"
    return ""


def ask_named() -> list[str]:
    """Makes the named calls on each GPU. Returns what was refused."""
    dtypes = cycle(DTYPES)
    refused = []
    for operator, sample in named_calls():
        for device in DEVICES:
            dtype = next(dtypes)
            arguments = [empty(argument, dtype) for argument in sample.arguments]
            refused.append(call(operator, arguments, device, sample.name))
    return [each for each in refused if each]


def ask_drawn(subject: Subject, count: int, suiting_some: set[tuple[int, str]]) -> list[Asked]:
    """Makes drawn calls of an operator on each GPU: on the chosen kernel, and then with each kernel forced.

    Args:
        subject: the operator.
        count: how many calls are drawn.
        suiting_some: gets each kernel that a call suits, with the GPU.
    """
    operator, samples = subject.operator, subject.samples
    assert samples.stress is not None
    (library,) = (each for each in native.libraries() if each.device == "cpu" and each.loaded)
    launches = library.function("torchgraft_emulated_launches")
    launches.restype = ctypes.c_int64
    found = [Asked(device) for device in DEVICES]
    names = listed_kernels(operator, "cpu")
    served: Counter[tuple[int, str]] = Counter()
    elsewhere: Counter[tuple[int, str]] = Counter()
    random = Random(operator.name)
    for number, dtype in zip(range(count), cycle(DTYPES), strict=False):
        is_large = number % _CALLS_FOR_ONE_OF_MANY == 0 and not operator.name.startswith("lltm")
        elements = round(2 ** random.uniform(*(_MANY_ELEMENTS if is_large else _ELEMENTS)))
        sample = samples.stress(random, Budget(elements, 1 << 50))
        arguments = [empty(argument, dtype) for argument in sample.arguments]
        suitable = names
        for each in found:
            before = launches()
            refused = [call(operator, arguments, each.device, f"call {number}, {sample.name}")]
            each.problems += 1
            each.launches += launches() - before
            suiting = []
            for name in suitable:
                before = launches()
                with native.ForcedKernel(operator.namespace, "cpu", name) as forced:
                    what = f"call {number}, {sample.name}, kernel {name}"
                    refused.append(call(operator, arguments, each.device, what))
                served[each.device, name] += forced.served
                elsewhere[each.device, name] += forced.is_ruled_out
                if forced.served:
                    each.launches += launches() - before
                if forced.served or forced.is_ruled_out:
                    suiting.append(name)
            # A kernel that no device could run on this call is not tried on the next devices.
            suitable = suiting
            each.refused += filter(None, refused)
    suiting_some |= {key for key, calls in (served + elsewhere).items() if calls}
    for each in found:
        none = [name for name in names if not served[each.device, name]]
        each.kernels = len(names) - len(none)
        each.unable = [name for name in none if elsewhere[each.device, name]]
        each.unreached = [name for name in none if not elsewhere[each.device, name]]
    return found


def main() -> int:
    """Runs the command."""
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        refused = ask_named()
    else:
        count, report = int(sys.argv[1]), Path(sys.argv[2])
        suiting_some: set[tuple[int, str]] = set()
        found = {each.name: ask_drawn(each, count, suiting_some) for each in subjects()}
        for each in (each for asked in found.values() for each in asked):
            # Some kernels of images take no sequence, which is an image of one row.
            each.unreached = [name for name in each.unreached if (each.device, name) not in suiting_some]
        report.write_text(json.dumps({name: [asdict(each) for each in asked] for name, asked in found.items()}))
        refused = [line for asked in found.values() for each in asked for line in each.refused]
    print("\n".join(refused))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
