"""docs/mistakes.md: each mistake is made here, and what one sees of it is what the page shows."""

import json
import re
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

import torchgraft
import torchgraft.kernels.fallback
from torchgraft import Operator, native
from torchgraft.building import BuildError, build
from torchgraft.sampling import Drawn, Sample, Samples

PAGE = Path(__file__).parent.parent / "docs/mistakes.md"
SECTION = re.compile(r"^### (?P<title>.+?)\n(?P<body>.*?)^```\n(?P<message>.*?)\n```$", re.DOTALL | re.MULTILINE)
SHOWN = {each["title"]: each["message"] for each in SECTION.finditer(PAGE.read_text())} if PAGE.exists() else {}
DECLARED = {"output": torch.empty_like, "dtypes": (torch.float32,), "kernels": {"cpu": (torch.float32,)}}
NOT_BUILT = "A `.cu` file that was not built"
RACES = "Threads that race"
SAMPLES = Samples([Sample("a matrix", (Drawn((2, 3)),))])

# One library with all of the mistakes, as compiling takes seconds.
KERNELS = """
#include <torchgraft/data.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
using namespace torchgraft;

Tensor scale_cpu(Tensor input, int64_t factor) { return input; }
TORCHGRAFT_KERNEL(mistakes, CPU, scale, scale_cpu)

Tensor add_bias_cpu(Tensor input, Tensor bias) { return input; }
TORCHGRAFT_KERNEL(mistakes, CPU, add_bias, add_bias_cpu)

Tensor repeat_cpu(int64_t times, Tensor input) { return input; }
TORCHGRAFT_KERNEL(mistakes, CPU, repeat, repeat_cpu)

Tensor copy_cpu(Tensor input) { return to_contiguous(input); }
TORCHGRAFT_KERNEL(mistakes, CPU, rms_nrom, copy_cpu)
TORCHGRAFT_KERNEL(mistaken, CPU, moved, copy_cpu)

Tensor doubled_cpu(Tensor input) {
  check_memory(input, "input");
  const int64_t sizes[] = {input.size(0), input.size(1)}, strides[] = {input.size(1), 1};
  Tensor output = empty_strided(sizes, strides, 2, input);
  const float* from = static_cast<const float*>(input.const_data_ptr());
  float* to = static_cast<float*>(output.mutable_data_ptr());
  for (int64_t i = 0; i < input.numel(); ++i) to[i] = 2 * from[i];
  return output;
}
TORCHGRAFT_KERNEL(mistakes, CPU, doubled, doubled_cpu)

Tensor grown_cpu(Tensor input, int64_t size) { return empty_contiguous({size, size}, input); }
TORCHGRAFT_KERNEL(mistakes, CPU, grown, grown_cpu)

Tensor taken_cpu(Tensor input) {
  Tensor output = empty_as(to_contiguous(input, "input"));
  mutable_data_of<double>(output)[0] = data_of<double>(input, "input")[0];
  return output;
}
TORCHGRAFT_KERNEL(mistakes, CPU, taken, taken_cpu)
"""


RACING = """from pathlib import Path
import torch, torchgraft
from torchgraft import building
from torchgraft.sampling import Drawn, Sample, Samples
total = torchgraft.Operator(
    "racing::total(Tensor input) -> Tensor",
    reference=lambda input: input.sum().reshape(1),
    output=lambda input: input.new_empty(1),
    dtypes=(torch.float32,),
    kernels={"cpu": (torch.float32,)},
)
samples = Samples([Sample("several threads' share", (Drawn((4096,)),))])
building.load("racing", [Path(__file__).with_name("cpu.cpp")])
"""

RACE = """#include <torchgraft/cpu.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
using namespace torchgraft;

Tensor total_cpu(Tensor input) {
  const Tensor source = to_contiguous(input);
  Tensor output = empty_contiguous({1}, input);
  const float* from = static_cast<const float*>(source.const_data_ptr());
  float* to = static_cast<float*>(output.mutable_data_ptr());
  to[0] = 0;
  parallel_for(0, source.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[0] += from[i];
  });
  return output;
}
TORCHGRAFT_KERNEL(racing, CPU, total, total_cpu)
"""


def declare(name, arguments, reference, **declared):
    return Operator(f"mistakes::{name}({arguments}) -> Tensor", reference=reference, **declared)


def error_of(kind, make):
    with pytest.raises(kind) as raised:
        make()
    return f"{kind.__name__}: {raised.value}"


def warning_of(call):
    with pytest.warns(torchgraft.PerformanceWarning) as warned:
        call()
    return f"PerformanceWarning: {warned[0].message}"


def failure_of(operator, asked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchgraft.PerformanceWarning)
        report = torchgraft.check(operator, SAMPLES, properties=[asked], device="cpu")
    failed, *_ = report.failures
    # What follows is how much of difference is allowed.
    return f"{asked}: {failed.failure.message.partition(';')[0]}"


def first_error_of(text):
    message = error_of(
        BuildError,
        lambda: torchgraft.load_inline(
            "mistakes::copied(Tensor input) -> Tensor", reference=lambda input: input.clone(), cpu=text
        ),
    )
    # Compilers go on in words of their own.
    return re.match(r".*?error: expected ';'", message, re.DOTALL)[0]


def in_python(name, kernel, **declared):
    operator = declare(name, "Tensor input", lambda input: 2 * input, **DECLARED | declared)
    operator.kernel("cpu")(kernel)
    return operator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "cpu.cpp").write_text(KERNELS)
    build("mistakes", [folder / "cpu.cpp"], folder)
    return folder


@pytest.fixture
def loaded(folder, monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(folder / "cache"))
    monkeypatch.setattr(torchgraft.kernels.fallback, "_counts", Counter())
    before = set(Operator.registered)
    native.load("mistakes", folder)
    yield folder
    for name in set(Operator.registered) - before:
        Operator.registered[name].undeclare()


MISTAKES = {
    "Another type of C++ than the schema's": lambda: error_of(
        TypeError, lambda: declare("scale", "Tensor input, float factor", lambda input, factor: factor * input)
    ),
    "`Tensor` where the schema says `Tensor?`": lambda: error_of(
        TypeError,
        lambda: declare("add_bias", "Tensor input, Tensor? bias", lambda input, bias: input),
    ),
    "Arguments in another order": lambda: error_of(
        TypeError, lambda: declare("repeat", "Tensor input, int times", lambda input, times: input.repeat(times))
    ),
    "No registration": lambda: warning_of(
        lambda: declare("softmax", "Tensor input", lambda input: input.softmax(0))(torch.ones(1))
    ),
    "A typo of the name": lambda: warning_of(
        lambda: declare("rms_norm", "Tensor input", lambda input: input.clone())(torch.ones(1))
    ),
    "A typo of the namespace": lambda: warning_of(
        lambda: declare("moved", "Tensor input", lambda input: input.clone())(torch.ones(1))
    ),
    "A library that was never loaded": lambda: warning_of(
        lambda: Operator("unloaded::copy(Tensor input) -> Tensor", reference=lambda input: input.clone())(torch.ones(1))
    ),
    "An input read as if it were contiguous": lambda: failure_of(
        declare(
            "doubled",
            "Tensor input",
            lambda input: 2 * input,
            output=lambda input: input.new_empty(input.shape),
            dtypes=(torch.float32,),
        ),
        "layouts",
    ),
    "Another layout or size than `output` says": lambda: failure_of(
        in_python("short", lambda input: 2 * input, output=lambda input: input.new_empty(input.shape[:1])), "fake"
    ),
    "A gradient that is wrong": lambda: failure_of(
        in_python("squared", lambda input: 2 * input, gradient=lambda needs, grads, saved, input: 3 * grads[0]),
        "gradient",
    ),
    "A gradient too few": lambda: error_of(
        ValueError,
        lambda: (
            declare(
                "product",
                "Tensor left, Tensor right",
                lambda left, right: left * right,
                gradient=lambda needs, grads, saved, left, right: grads[0] * right,
            )(torch.ones(1, requires_grad=True), torch.ones(1))
            .sum()
            .backward()
        ),
    ),
    "A kernel that writes to its argument": lambda: failure_of(
        in_python("in_place", lambda input: input.mul_(2).clone()), "inputs_and_outputs"
    ),
    "Sizes that do not fit": lambda: error_of(
        ValueError,
        lambda: declare(
            "weighted", "Tensor input, Tensor weight", lambda input, weight: input * weight, shapes="n d, d -> n d"
        )(torch.ones(2, 3), torch.ones(4)),
    ),
    "Sizes whose product overflows": lambda: error_of(
        ValueError,
        lambda: declare("grown", "Tensor input, int size", lambda input, size: input.new_empty((size, size)))(
            torch.ones(1), 2**40
        ),
    ),
    "A pointer of another type than the tensor's": lambda: error_of(
        RuntimeError, lambda: declare("taken", "Tensor input", lambda input: input.clone())(torch.ones(1))
    ),
    "A syntax error in the text of a kernel": lambda: first_error_of(
        "Tensor copied_cpu(Tensor input) {\n  return to_contiguous(input)\n}\n"
    ),
}


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_looks_as_the_page_shows(loaded, title):
    assert MISTAKES[title]().replace(str(loaded), "/home/you/mistakes") == SHOWN[title]


def test_a_library_for_cuda_that_was_not_built_says_how(loaded, monkeypatch):
    if torch.version.cuda is None:
        monkeypatch.setattr(torch.version, "cuda", "13.0")
    native.load("mistakes", loaded)
    why = native.why_no_kernel("mistakes", "cuda").replace(str(loaded), "/home/you/mistakes")
    assert why == SHOWN[NOT_BUILT]


@pytest.mark.slow
def test_threads_that_race_are_told_with_their_line(tmp_path):
    folder = tmp_path / "racing"
    folder.mkdir()
    (folder / "__init__.py").write_text(RACING)
    (folder / "cpu.cpp").write_text(RACE)
    command = [sys.executable, "-m", "torchgraft", "check", "racing", "--sanitize", "--device", "cpu"]
    command += ["--property", "value", "--json", "report.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    failures = {each["property"]: each["failure"] for each in results if each["status"] == "fail"}
    # Without the sanitizer the sum may be wrong too, or not: that is what a race does.
    assert failures.keys() <= {"value", "address sanitizer: value", "thread sanitizer: value"}
    failure = failures["thread sanitizer: value"]
    message, line = SHOWN[RACES].splitlines()
    assert failure["message"].startswith(message)
    assert line in done.stdout


def test_every_message_of_the_page_is_made():
    assert sorted(SHOWN) == sorted([*MISTAKES, NOT_BUILT, RACES])
