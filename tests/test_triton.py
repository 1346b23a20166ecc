"""Triton without a GPU: its interpreter gives what a GPU gives, and its compiler takes what the interpreter ran."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

import torchgraft
from torchgraft.checking import triton_targets
from torchgraft.checking.jobs import Job
from torchgraft.checking.report.left_out import find_left_out
from torchgraft.checking.result import TRITON
from torchgraft.checking.subject import find_subjects
from torchgraft.checking.without_gpu import COMPILES
from torchgraft.kernels import triton_launches

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels itself"),
]

# In a process of its own, as Triton is imported once, with its interpreter or without. Each line of CASES is a kernel's
# body: `p` and `q` are blocks of 8 elements, and `r` is stored.
SCRIPT = """
import json
import torch
import triton
import triton.language as tl
from concurrent.futures import ThreadPoolExecutor
import torchgraft
from torchgraft.checking.kernels import listed_kernels
from torchgraft.kernels import python_kernels

{kernels}

@triton.jit
def _largest(left, right):
    return tl.maximum(left, right)


@triton.autotune(configs=[triton.Config({{"B": 4}}), triton.Config({{"B": 8}}, num_warps=8)], key=["n"])
@triton.heuristics({{"FACTOR": lambda arguments: 2 * (arguments["B"] == 4) + 1}})
@triton.jit
def _tuned(x, o, n, B: tl.constexpr, FACTOR: tl.constexpr):
    place = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + place, FACTOR * tl.load(x + place, mask=place < n), mask=place < n)


@triton.autotune(configs=[triton.Config({{"B": 4}}), triton.Config({{"B": 8}})], key=["n"])
@triton.jit
def _counts(x, n, B: tl.constexpr):
    place = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + place, tl.load(x + place, mask=place < n) + 1, mask=place < n)


@triton.jit
def _races(x, y):
    place = tl.arange(0, 8)
    tl.store(y + place, tl.load(y + place) + tl.load(x + 8 * tl.program_id(0) + place))


@triton.jit
def _in_place(x, y):
    place = 8 * tl.program_id(0) + tl.arange(0, 8)
    tl.store(x + place, tl.load(x + place) + 1)
    tl.store(y + tl.arange(0, 8), 1.0)


@triton.jit
def _atomic(x, y):
    place = tl.arange(0, 8)
    tl.atomic_add(y + place, tl.load(x + 8 * tl.program_id(0) + place))


operator = torchgraft.Operator("triton_tests::tuned(Tensor input) -> Tensor", reference=lambda input: 3 * input)


@operator.kernel("cuda", name="fast", triton=True)
def _(input):
    output = torch.empty_like(input)
    grid = lambda constants: (triton.cdiv(input.numel(), constants["B"]),)
    torchgraft.wrap_triton(_tuned)[grid](input, output, input.numel())
    return output


found = {{}}
nan, inf = float("nan"), float("inf")
x = torch.tensor([nan, inf, 1.0, -2.0, 3.0, 0.5, -inf, 7.0])
y = torch.tensor([1.0, 2.0, nan, 5.0, 3.0, 0.25, 1.0, 1 / 3])
for name, kernel in kernels.items():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        o = torch.zeros(8, dtype=torch.float64)
        kernel[(1,)](x.to(dtype), y.to(dtype), o, 2.5, True)
        found[f"{{name}} {{dtype}}"] = [str(each) for each in o.tolist()]
found["kernels"] = listed_kernels(operator, "cpu")
found["one"] = operator(torch.ones(10)).tolist()
found["each"] = {{}}
for name in found["kernels"]:
    with python_kernels.forced(operator.declaration, "cpu", name) as scope:
        result = operator(torch.ones(10)).tolist()
    found["each"][name] = [result, scope.served]
try:
    _counts[(2,)](torch.zeros(8), 8)
except RuntimeError as error:
    found["again"] = str(error)
# Contiguous, as it has no elements, and no view of bytes.
_counts[(2,)](torch.zeros(0, 6).mT, 0)
for kernel in (_races, _in_place, _atomic):
    try:
        kernel[(3,)](torch.ones(3, 8), torch.zeros(8))
        found[kernel.__name__] = ""
    except RuntimeError as error:
        found[kernel.__name__] = str(error)
_tuned[(2,)](torch.ones(8), torch.zeros(8), 8)
with ThreadPoolExecutor(8) as pool:
    inputs = [torch.full((40,), float(number)) for number in range(40)]
    found["threads"] = all(torch.equal(3 * a, b) for a, b in zip(inputs, pool.map(operator, inputs)))
print(json.dumps(found))
"""

CASES = {
    "sum of two": "p + q",
    "difference": "p - q",
    "product": "p * q",
    "quotient": "p / q",
    "less": "tl.where(p < q, p, q)",
    "equal": "(p == q).to(p.dtype)",
    "is less": "(p < q).to(tl.float32)",
    "maximum": "tl.maximum(p, q)",
    "maximum with nan": "tl.maximum(p, q, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum(p, q)",
    "clamp": "tl.clamp(p, -1.0, 1.0)",
    "constant": "tl.full((8,), 1.3, p.dtype) * p",
    "negative": "-p",
    "exp": "tl.exp(tl.where(p == p, p, 0.0).to(tl.float32))",
    "sum": "tl.sum(tl.abs(q)) + tl.zeros((8,), p.dtype)",
    "finite sum": "tl.sum(tl.where(q == q, q, 0.0).to(p.dtype)) + tl.zeros((8,), p.dtype)",
    "max": "tl.max(p) + tl.zeros((8,), tl.float32)",
    "argmax": "tl.argmax(tl.where(q == q, q, 0.0), 0) + tl.zeros((8,), tl.float32)",
    "reduced by a function": "tl.reduce(q, 0, _largest) + tl.zeros((8,), p.dtype)",
    "and": "tl.where(p > 0 and q > 1, 1.0, 0.0)",
    "or": "tl.where(p > 5 or q > 2, 1.0, 0.0)",
    "not": "tl.where(not (p > 0), 1.0, 0.0)",
    "number": "p.to(tl.float32) * factor",
    "truth": "tl.where(yes, p, q)",
    "float8": "(p * 40000).to(tl.float8e5)",
    "float8 of more bits": "(p * 400).to(tl.float8e4nv)",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    kernels = ["kernels = {}"]
    for number, (name, body) in enumerate(CASES.items()):
        kernels.append(
            f"@triton.jit\ndef case_{number}(x, y, o, factor, yes):\n    place = tl.arange(0, 8)\n"
            f"    p = tl.load(x + place)\n    q = tl.load(y + place)\n    tl.store(o + place, {body})\n"
            f"kernels[{name!r}] = case_{number}\n"
        )
    file = tmp_path_factory.mktemp("triton") / "triton_script.py"
    file.write_text(SCRIPT.format(kernels="\n".join(kernels)))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", file], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def values(name, p, q):
    """Results of a GPU of compute capability 9.0, computed by PyTorch."""
    dtype = p.dtype
    finite = torch.where(q.isnan(), 0, q)
    ones = torch.ones(8)
    return {
        "sum of two": lambda: p + q,
        "difference": lambda: p - q,
        "product": lambda: p * q,
        # Triton divides in float32.
        "quotient": lambda: p.float() / q.float(),
        "less": lambda: torch.where(p < q, p, q),
        "equal": lambda: p == q,
        "is less": lambda: p < q,
        # max.f32 of PTX drops NaN; max.NaN.f32 does not.
        "maximum": lambda: torch.fmax(p, q),
        "maximum with nan": lambda: torch.maximum(p, q),
        "minimum": lambda: torch.fmin(p, q),
        "clamp": lambda: torch.where(p.isnan(), -1, p.clamp(-1, 1)),
        "constant": lambda: torch.full((8,), 1.3, dtype=dtype) * p,
        "negative": lambda: -p,
        "exp": lambda: torch.where(p.isnan(), 0, p).float().exp(),
        "sum": lambda: ones * torch.nan,
        # Halves are added to each other, and each sum is rounded.
        "finite sum": lambda: ones * finite.view(2, 2, 2).sum(0, dtype=dtype).sum(0, dtype=dtype).sum(dtype=dtype),
        "max": lambda: ones * torch.inf,
        "argmax": lambda: ones * finite.argmax(),
        "reduced by a function": lambda: ones * 5,
        "and": lambda: (p > 0) & (q > 1),
        "or": lambda: (p > 5) | (q > 2),
        "not": lambda: ~(p > 0),
        "number": lambda: p.float() * 2.5,
        "truth": lambda: p,
        # PTX saturates from 8.9 on, where PyTorch gives infinity or NaN.
        "float8": lambda: (p * 40000).float().clamp(-57344, 57344).to(torch.float8_e5m2),
        "float8 of more bits": lambda: (p * 400).float().clamp(-448, 448).to(torch.float8_e4m3fn),
    }[name]().double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_gives_what_a_gpu_gives(found, name, dtype):
    nan, inf = torch.nan, torch.inf
    p = torch.tensor([nan, inf, 1.0, -2.0, 3.0, 0.5, -inf, 7.0]).to(dtype)
    q = torch.tensor([1.0, 2.0, nan, 5.0, 3.0, 0.25, 1.0, 1 / 3]).to(dtype)
    got = torch.tensor([float(each) for each in found[f"{name} {dtype}"]], dtype=torch.float64)
    # NumPy's exponential differs from PyTorch's in the last place.
    allowed = 2 * torch.finfo(torch.float32).eps if name == "exp" else 0
    torch.testing.assert_close(got, values(name, p, q), rtol=allowed, atol=0, equal_nan=True)


def test_each_configuration_of_a_tuned_kernel_is_a_kernel_of_its_own(found):
    assert found["kernels"] == ["fast", "fast (B=8, num_warps=8, num_stages=3)"]
    assert found["one"] == [3.0] * 10
    assert found["each"] == {
        "fast": [[3.0] * 10, 1],
        "fast (B=8, num_warps=8, num_stages=3)": [[1.0] * 10, 1],
    }


def test_a_tuned_kernel_that_changes_what_it_was_given_says_so(found):
    assert "triton.autotune launches _counts several times in a first call, and x is not the same" in found["again"]
    assert "restore_value=['x']" in found["again"]


def test_a_program_that_reads_what_another_one_writes_is_a_race(found):
    assert "data race: program 1 of _races reads what program 0 writes to y" in found["_races"]
    assert found["_in_place"] == ""
    assert found["_atomic"] == ""


def test_threads_may_launch_tuned_kernels(found):
    assert found["threads"] is True


COMPILED = """
import torch
import torchgraft
import triton
import triton.language as tl

for name in ("halved", "small", "eighth", "slow"):
    torchgraft.Operator(f"compiled_triton::{name}(Tensor input) -> Tensor", reference=lambda input: input / 2)
samples = {
    name: torchgraft.sampling.Samples([torchgraft.sampling.Sample("a", (torchgraft.sampling.Drawn((2,)),))])
    for name in ("halved", "small", "eighth", "slow")
}


@triton.jit
def _halved(x, y, BLOCK: tl.constexpr):
    block = tl.load(x + tl.arange(0, BLOCK))
    if block > 0:
        block = block / 2
    tl.store(y + tl.arange(0, BLOCK), block)


@triton.autotune(configs=[triton.Config({})], key=[])
@triton.jit
def _small(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(y + place, tl.dot(tl.load(x + place), tl.load(x + place)))


@triton.jit
def _eighth(x, y, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < n).to(y.dtype.element_ty), mask=place < n)
"""


def launch(name, dtypes, **arguments):
    tensors = {key: ("tensor", dtype) for key, dtype in zip("xy", dtypes, strict=True)}
    numbers = {key: ("value", value) for key, value in arguments.items()}
    return triton_launches.Launch(
        f"compiled_triton::{name}", "compiled_triton", f"_{name}", {**tensors, **numbers}, {"num_warps": 2}
    )


def test_what_the_interpreter_ran_is_compiled_for_gpus(tmp_path):
    file = tmp_path / "compiled_triton.py"
    file.write_text(COMPILED)
    subjects = {each.operator.name: each for each in find_subjects([str(file)])}
    launches = [
        launch("halved", ("float32", "float32"), BLOCK=16),
        launch("small", ("bfloat16", "float32"), BLOCK=8),
        launch("eighth", ("float32", "float8_e5m2"), n=17, BLOCK=64),
        launch("eighth", ("float32", "float8_e4m3fn"), n=1, BLOCK=64),
    ]
    (tmp_path / "1.jsonl").write_text("\n".join(json.dumps(vars(each)) for each in launches))
    jobs = [Job(COMPILES, each.operator, None, "cuda", torch.float32, place=TRITON) for each in subjects.values()]
    nothing = {"on_start": lambda job: None, "on_result": lambda job, result: None, "on_step": lambda step: None}
    results = triton_targets.run_triton_compiler(jobs, tmp_path, **nothing)
    halved, small, eighth, slow = results

    assert (halved.status, halved.property, halved.device) == ("fail", "compiles", "triton")
    line = 1 + COMPILED.splitlines().index("    if block > 0:")
    assert "Boolean value of Tensor with more than one value is ambiguous" in halved.failure.message
    assert f"{file}:{line}: if block > 0:" in halved.failure.message
    assert small.status == "fail"
    assert "K >= 16" in small.failure.message

    # It is right on one GPU, which the other one says nothing about.
    assert eighth.status == "pass"
    assert "what is larger than 57344 becomes 57344 on 8.9 and later" in eighth.reason
    assert "_eighth does not compile for 8.0" in eighth.reason
    assert "type fp8e4nv not supported in this architecture" in eighth.reason
    assert (slow.status, slow.reason) == ("not applicable", "no property of this run launched a Triton kernel")


def test_the_report_says_what_the_compiler_found(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    operator = torchgraft.Operator("triton_left_out::copied(Tensor input) -> Tensor", reference=torch.clone)
    operator.kernel("cuda", name="copied", triton=True)(torch.clone)
    asked = Job("value", operator, None, "cpu", torch.float32)
    compiled = Job(COMPILES, operator, None, "cuda", torch.float32, place=TRITON)
    results = [asked.result("pass", 0.0), compiled.result("pass", 0.0, reason="a remark")]
    [left] = [each for each in find_left_out([asked, compiled], results) if each.kernels == "Triton"]
    assert left.state == "run in Triton's interpreter, and compiled for GPUs, only"
    assert left.advice == "a remark"


def test_launches_are_recorded_as_the_compiler_sees_them(tmp_path, monkeypatch):
    monkeypatch.setenv(triton_launches.FOLDER, str(tmp_path))

    class Kernel:
        @staticmethod
        def fn(x, n, block: "tl.constexpr", factor):  # noqa: F821
            """Stands for a kernel."""

    record = triton_launches.recorder("some::operator")
    for size in (32, 48, 33, 1, 2**35):
        record(Kernel, {"x": torch.ones(2), "n": size, "block": 32, "factor": 0.5}, {"num_warps": 4})
    read = triton_launches.read(tmp_path)
    assert [each.arguments["n"] for each in read] == [("value", size) for size in (16, 17, 1, 2**40)]
    assert {each.arguments["block"] for each in read} == {("value", 32)}
    assert {each.arguments["x"] for each in read} == {("tensor", "float32")}
    assert read[0].options == {"num_warps": 4}


def test_compilers_see_inside_kernels_with_heuristics():
    import triton
    import triton.language as tl
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    operator = torchgraft.Operator("triton_rules::doubled(Tensor input) -> Tensor", reference=lambda input: 2 * input)

    @triton.heuristics({"block": lambda arguments: triton.next_power_of_2(arguments["size"])})
    @triton.jit
    def double(input, output, size, block: tl.constexpr):
        at = tl.arange(0, block)
        tl.store(output + at, 2 * tl.load(input + at, mask=at < size), mask=at < size)

    @operator.kernel("cuda", triton=True)
    def doubled(input):
        output = torch.empty_like(input)
        torchgraft.wrap_triton(double)[(1,)](input, output, input.numel())
        return output

    with FakeTensorMode(), torch.no_grad():
        traced = make_fx(dispatch_functionalize(operator.raw))(torch.empty(100, device="cuda"))
    assert "triton_kernel_wrapper_functional" in traced.code
