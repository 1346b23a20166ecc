"""Microseconds of a call of an operator from C++, beside the same call from Python.

A program of C++ is built and run for it, as a reader of docs/cpp.md builds one: it calls the functions of
`torchgraft/operators.h`, on tensors of a few elements, so that what is left is the call. All operators are timed in
turn, in rounds; of each the median of a round is kept, and of these the smallest, in both languages.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from torchgraft.authoring.cpp import in_cpp, is_callable
from torchgraft.benchmarking import load
from torchgraft.benchmarking.overhead import CalledOperator, time_in_turn
from torchgraft.benchmarking.provenance import Provenance, provenance_of_calls
from torchgraft.benchmarking.table import Table
from torchgraft.building import find_tool
from torchgraft.machine.environment import Environment, describe_environment

_PACKAGE = Path(__file__).parents[1]

_CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.24)
project(calls LANGUAGES CXX)
find_package(torchgraft REQUIRED COMPONENTS schemas cpu)
add_executable(calls calls.cpp)
target_link_libraries(calls PRIVATE torchgraft::schemas torchgraft::cpu)
"""

_PROGRAM = """\
#include <torch/csrc/stable/ops.h>
#include <torchgraft/operators.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

using torch::headeronly::ScalarType;

static torchgraft::Tensor tensor(const std::vector<int64_t>& sizes, ScalarType dtype,
                                 const std::vector<int64_t>& values = {}) {
  torchgraft::Tensor made = torch::stable::full(sizes, 1.0, dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == ScalarType::Int) {
      static_cast<int32_t*>(made.mutable_data_ptr())[i] = static_cast<int32_t>(values[i]);
    } else {
      static_cast<int64_t*>(made.mutable_data_ptr())[i] = values[i];
    }
  }
  return made;
}

// Microseconds that a block of calls takes, each.
template <typename Call>
static double time_block(int count, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / count;
}

struct Timed {
  const char* name;
  std::function<void()> call;
  int count;
  double least;
};
static std::vector<Timed> all;

static void measure(const char* name, double seconds, const std::function<void()>& call) {
  time_block(100, call);
  const double block = seconds * 1e6 / (ROUNDS * BLOCKS);
  all.push_back({name, call, std::max(1, static_cast<int>(block / time_block(100, call))), 1e30});
}

int main() {
CALLS
  for (int round = 0; round < ROUNDS; ++round) {
    for (Timed& each : all) {
      std::vector<double> times;
      for (int i = 0; i < BLOCKS; ++i) times.push_back(time_block(each.count, each.call));
      std::sort(times.begin(), times.end());
      each.least = std::min(each.least, times[BLOCKS / 2]);
    }
  }
  std::printf("{\\n");
  for (const Timed& each : all) std::printf("\\"%s\\": %.6f,\\n", each.name, each.least);
  std::printf("\\"\\": 0}\\n");
}
"""
# Shorter blocks than in Python, of which on a busy machine more fall between two interruptions.
_ROUNDS, _BLOCKS = 200, 5


@dataclass(frozen=True)
class CallCost:
    """The cost of a call of an operator, in microseconds.

    Attributes:
        name: the operator.
        cpp: its function in C++.
        kernel: its raw name in Python, as cheap as a call there can be.
        python: the Operator, without a gradient.
    """

    name: str
    cpp: float
    kernel: float
    python: float


@dataclass(frozen=True)
class CppCalls:
    """The cost of calls from C++ and from Python.

    `load` is what was known of other programs, and `others` how many processors they kept busy meanwhile.
    """

    environment: Environment
    operators: tuple[CallCost, ...]
    provenance: Provenance
    load: load.Load
    others: float | None

    def as_dict(self) -> dict[str, Any]:
        """All figures, for a machine to read."""
        return {
            "environment": asdict(self.environment),
            "provenance": asdict(self.provenance),
            "unit": "microseconds a call",
            "operators": [asdict(each) for each in self.operators],
            "load": asdict(self.load) | {"others": self.others},
        }

    def tables(self) -> tuple[Table, ...]:
        """The figures, for a person to read."""
        rows = [[each.name, f"{each.cpp:.1f}", f"{each.kernel:.1f}", f"{each.python:.1f}"] for each in self.operators]
        notes = [
            f"Microseconds a call on tensors of a few elements, one thread, on {self.environment.chip} with PyTorch "
            f"{self.environment.torch}. C++: the function of torchgraft/operators.h. Kernel: torch.ops in Python, below"
            " autograd. Python: the Operator, which chooses a path and explains errors.",
            *filter(None, [self.load.doubt("These calls were timed", [self.others])]),
        ]
        return (Table("", ["", "C++", "kernel", "Python"], rows, notes),)


def measure_cpp_calls(
    subjects: Sequence[CalledOperator],
    seconds: float,
    on_wait: Callable[[str], None] = lambda why: None,
    watch: load.LoadWatch | None = None,
) -> CppCalls:
    """Times calls of operators from C++ and from Python.

    Args:
        subjects: the operators, on the CPU; those that C++ cannot call are left out.
        seconds: roughly how long to measure, in each language.
        on_wait: called with the reason, again and again, while it waits for other programs to end.
        watch: looks at other programs; None: at those of this machine.

    Raises:
        MissingToolError: there is no CMake or Ninja.
        RuntimeError: the program cannot be built; with what the tool said.
    """
    subjects = [each for each in subjects if is_callable(each.operator)]
    watch = watch or load.LoadWatch(torch.device("cpu"), load.PATIENCE)
    watch.wait(on_wait)
    cpp = _in_cpp(subjects, seconds / len(subjects))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timers = {
            (each.name, path): Timer("f(*arguments)", globals={"f": function, "arguments": each.arguments})
            for each in subjects
            for path, function in (("kernel", each.operator.raw), ("python", each.operator))
        }
        watch.wait(on_wait)
        python, others = time_in_turn(timers, seconds, watch, on_wait)
    finally:
        torch.set_num_threads(threads)
    costs = (
        CallCost(each.name, cpp[each.name], python[each.name, "kernel"], python[each.name, "python"])
        for each in subjects
    )
    environment = replace(describe_environment("cpu"), threads=1)
    return CppCalls(environment, tuple(costs), provenance_of_calls(), watch.load, others)


def program(subjects: Sequence[CalledOperator], seconds: float) -> str:
    """The source of the program, which gives each operator so long. Tensors are made before a call is timed."""
    lines = []
    for subject in subjects:
        words = [in_cpp(value) for value in subject.arguments]
        made = {f"made_{place}": word for place, word in enumerate(words) if word.startswith("tensor(")}
        lines.append("  {")
        lines += [f"    const auto {name} = {word};" for name, word in made.items()]
        given = ", ".join(f"made_{place}" if f"made_{place}" in made else word for place, word in enumerate(words))
        call = f"{subject.operator.qualified_name}({given});"
        lines += [f'    measure("{subject.name}", {seconds}, [=] {{ {call} }});', "  }"]
    text = _PROGRAM.replace("CALLS", "\n".join(lines))
    return text.replace("ROUNDS", str(_ROUNDS)).replace("BLOCKS", str(_BLOCKS))


def _in_cpp(subjects: Sequence[CalledOperator], seconds: float) -> dict[str, float]:
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "CMakeLists.txt").write_text(_CMAKE_LISTS)
        (folder / "calls.cpp").write_text(program(subjects, seconds))
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": ninja,
            "CMAKE_PREFIX_PATH": str(_PACKAGE.parent),
            "TORCHGRAFT_TORCH": str(Path(torch.__file__).parent),
        }
        defined = [f"-D{key}={value}" for key, value in options.items()]
        _run([cmake, "-S", name, "-B", f"{name}/build", "-G", "Ninja", *defined])
        _run([cmake, "--build", f"{name}/build"])
        found: dict[str, float] = json.loads(_run([f"{name}/build/calls"]))
    return found


def _run(command: Sequence[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
