"""Measures the functions of torchgraft/vector_math.h: `python benchmarks/vector_math.py`.

Finds the largest error of each on each instruction set that this machine has: of every float, beside the function in
double, and of drawn doubles, beside the standard library in long double. Then it measures
the time of an element beside PyTorch and beside the standard library in a plain loop. Writes the tables of
docs/kernels.md to docs/fragments; `--only errors` or `--only times` writes one of them. `--step 64` looks at every 64th
float.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from torchgraft import Operator, load_inline
from torchgraft.machine.environment import describe_environment

ROOT = Path(__file__).parent.parent
FRAGMENTS = ROOT / "docs/fragments"
FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf")
# Plain loops compiled for an instruction set; one without vectors.
LEVELS = ("v4", "v3", "baseline", "scalar")
DTYPES = (torch.float32, torch.float64)
CHUNK = 1 << 18
# Where a function changes from one formula to another, or reaches a limit.
BORDERS = (0.17328679, 0.34657359, 1.03972077, 0.5, 1, 1.41421356, 0.70710678, 0.41421356, 0.29289322, 2)
BORDERS += (5.95, 18.7, 19.06, 20, 36.7, 40, 708.4, 709.78, 745.1)


@functools.cache
def operator() -> Operator:
    """Returns the operator whose kernel is vector_math.cpp."""
    return load_inline(
        "vector_math::vector_math(Tensor input, Tensor[] found, str what, str name, str level) -> Tensor",
        reference=lambda input, found, what, name, level: input.clone(),
        output=lambda input, found, what, name, level: (
            input.new_empty(len(found), 2, dtype=torch.float64) if what == "errors" else torch.empty_like(input)
        ),
        cpu=Path(__file__).with_suffix(".cpp"),
    )


def levels() -> list[str]:
    """The instruction sets that this machine has."""
    return [each for each in LEVELS if operator().raw(torch.ones(1), [], "has level", "", each).numel()]


def values(name: str, level: str, input: Tensor) -> Tensor:
    """A function of numbers: on an instruction set, by for_each_element, or the standard library's."""
    return operator().raw(input, [], "values", name, level)


def errors(name: str, input: Tensor, found: list[Tensor]) -> list[tuple[float, float]]:
    """The largest error of each of several results in ulp, and the number that it belongs to."""
    return [(error, at) for error, at in operator().raw(input, found, "errors", name, "").tolist()]


def all_floats(step: int) -> Iterator[Tensor]:
    """Every float, or every `step`th, in pieces: NaN and infinities too."""
    for first in range(-(1 << 31), 1 << 31, CHUNK * step):
        last = min(first + CHUNK * step, 1 << 31)
        yield torch.arange(first, last, step).to(torch.int32).view(torch.float32)


def drawn_doubles(count: int, seed: int = 0) -> Iterator[Tensor]:
    """Doubles of any bits, of any size near 1 and near 0, and close to where formulas change, in pieces."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(size: int) -> Tensor:
        return torch.rand(size, dtype=torch.float64, generator=generator)

    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first) // 6 + 1
        bits = torch.randint(-(1 << 63), (1 << 63) - 1, (size,), generator=generator).view(torch.float64)
        borders = torch.tensor(BORDERS, dtype=torch.float64)[torch.randint(len(BORDERS), (size,), generator=generator)]
        near = borders * (1 + (uniform(size) - 0.5) * torch.exp2(-50 * uniform(size)))
        sizes = [torch.exp2(70 * uniform(size) - 60), 2 * uniform(size), 8 * uniform(size), 760 * uniform(size), near]
        signs = torch.where(torch.rand(5 * size, generator=generator) < 0.5, 1.0, -1.0)
        yield torch.cat([bits, torch.cat(sizes) * signs])


def largest_error(name: str, inputs: Iterator[Tensor], levels: list[str]) -> dict[str, tuple[float, float]]:
    """For each instruction set the largest error of a function in ulp, and the number that it belongs to."""
    worst = dict.fromkeys(levels, (0.0, 0.0))
    for input in inputs:
        found = errors(name, input, [values(name, level, input) for level in levels])
        worst = {level: max(worst[level], each) for level, each in zip(levels, found, strict=True)}
    return worst


def best_ns(call: Callable[[], Tensor], count: int, seconds: float) -> float:
    """The least time of a call, in nanoseconds for each of its elements."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return min(times) / count * 1e9


def error_table(step: int, doubles: int) -> str:
    """The largest errors, over all instruction sets."""
    lines = ["| function | float, ulp | double, ulp |", "| --- | --- | --- |"]
    vector_levels = [each for each in levels() if each != "scalar"]
    for name in FUNCTIONS:
        shown = []
        for inputs in (all_floats(step), drawn_doubles(doubles)):
            worst = largest_error(name, inputs, vector_levels)
            print(name, worst, flush=True)
            shown.append(f"{max(worst.values())[0]:.2f}")
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    floats = "every float" if step == 1 else f"every {step}th float"
    lines += ["", f"The largest errors of {floats} and of {doubles:,} drawn doubles of each function, over the levels"]
    return "\n".join([*lines[:-1], f"{lines[-1]} {', '.join(vector_levels)}."])


def time_table(count: int, all_threads: list[int], seconds: float) -> str:
    """Nanoseconds an element, on some numbers of threads."""
    columns = [f"{name}, {threads}" for threads in all_threads for name in ("`std::`", "`vector_math::`", "PyTorch")]
    lines = ["| function | dtype | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 2) + "|"]
    for name in FUNCTIONS:
        for dtype in (*DTYPES, torch.bfloat16):
            input = torch.linspace(0.01, 8, count, dtype=torch.float64).to(dtype)
            kinds: list[Callable[[], Tensor]] = [
                functools.partial(values, name, "standard", input),
                functools.partial(values, name, "elements", input),
                functools.partial(getattr(torch, name), input),
            ]
            shown = []
            for threads in all_threads:
                torch.set_num_threads(threads)
                for kind in kinds:
                    is_there = kind is not kinds[0] or dtype in DTYPES
                    shown.append(f"{best_ns(kind, count, seconds):.2f}" if is_there else "")
            lines.append(f"| `{name}` | {str(dtype).removeprefix('torch.')} | {' | '.join(shown)} |")
            print(lines[-1], flush=True)
    environment = describe_environment()
    lines += [
        "",
        f"Nanoseconds an element, by numbers of threads, of {count:,} elements: a plain loop with the standard",
    ]
    lines += ["library's function, `for_each_element` with `vector_math`, and PyTorch"]
    lines[-1] += f" {environment.torch}, on {environment.chip}: the least time of many."
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measures, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--doubles", type=int, default=40_000_000)
    parser.add_argument("--count", type=int, default=1 << 18)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", choices=("errors", "times"))
    options = parser.parse_args(arguments)
    if options.only != "times":
        (FRAGMENTS / "vector-math-errors.md").write_text(error_table(options.step, options.doubles) + "\n")
    if options.only != "errors":
        (FRAGMENTS / "vector-math-times.md").write_text(
            time_table(options.count, options.threads, options.seconds) + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
