"""Captured calls: which are seen, what is kept of them, that a replay makes them again, and what a shadow compares."""

import json
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import torchgraft
from torchgraft import Operator
from torchgraft.benchmarking import suite
from torchgraft.benchmarking.suite import Wanted, plan
from torchgraft.capturing import CapturedFileError
from torchgraft.capturing.folder import read_folder
from torchgraft.capturing.statistics import draw, statistics_of
from torchgraft.checking.subject import find_subjects
from torchgraft.checking.tensors.strides import overwrite
from torchgraft.cli import app
from torchgraft.shadowing import DifferenceError

F32, BF16 = torch.float32, torch.bfloat16


def declare(name, schema, reference, kernel=None, **declared):
    operator = Operator(f"captured::{name}{schema}", reference=reference, gradient="reference", **declared)
    operator.kernel("cpu")(kernel or (lambda *arguments: reference(*arguments).clone()))
    return operator


def times(input, other, factor):
    return input * other.to(input.dtype) * factor


product = declare("product", "(Tensor input, Tensor other, float factor=2.0) -> Tensor", times, dtypes=None)
every_kind = declare(
    "every_kind",
    "(Tensor input, Tensor?[] more, *, int[] sizes, bool flag, str word, Scalar number, ScalarType dtype, float? none)"
    " -> Tensor",
    lambda input, more, **named: 2 * input,
    lambda input, more, **named: 2 * input,
    dtypes=None,
)
seeded = declare(
    "seeded",
    "(Tensor input, int seed) -> Tensor",
    lambda input, seed: input + torch.rand(input.shape, generator=torch.Generator().manual_seed(seed)),
    random=("seed",),
)


def _add(input, other):
    input.add_(other)


def same(found, expected):
    """Whether tensors have equal bits, sizes and strides."""
    bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (found, expected)]
    return found.shape == expected.shape and found.stride() == expected.stride() and torch.equal(*bits)


def replayed(folder):
    return [call.sample.make("cpu", call.sample.captured) for call in read_folder(folder)]


def in_eager_code(x, y):
    product(x, y)


def without_gradients(x, y):
    with torch.no_grad():
        product(x, y)


def in_inference_mode(x, y):
    with torch.inference_mode():
        product(x, y)


def by_torch_ops(x, y):
    torch.ops.captured.product(x, y, factor=2.0)


def in_training(x, y):
    product(x.clone().requires_grad_(), y, factor=2.0).sum().backward()


def in_a_compiled_graph(x, y):
    compiled = torch.compile(lambda x, y: product(x, y) + 1, backend="aot_eager")
    compiled(x, y)
    torch._dynamo.reset()


def in_compiled_training(x, y):
    compiled = torch.compile(lambda x, y: product(x, y) + 1, backend="aot_eager")
    compiled(x.clone().requires_grad_(), y).sum().backward()
    torch._dynamo.reset()


def under_a_transform(x, y):
    torch.func.grad(lambda x: product(x, y).sum())(x)


def under_a_mode(x, y):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            return function(*arguments, **(named or {}))

    with Mode():
        product(x, y)


def in_another_thread(x, y):
    thread = threading.Thread(target=product, args=(x, y))
    thread.start()
    thread.join()


WAYS = (
    in_eager_code,
    without_gradients,
    in_inference_mode,
    by_torch_ops,
    in_training,
    in_a_compiled_graph,
    in_compiled_training,
    under_a_transform,
    under_a_mode,
    in_another_thread,
)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_seen_in_every_way_to_call_and_once(tmp_path, way):
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torchgraft.capture(product, tmp_path) as captured:
        way(x, y)
    [(input, other, factor)] = replayed(tmp_path)
    assert captured.seen == 1
    assert factor == 2.0
    assert same(input, x)
    assert same(other, y)


def test_kernels_that_pytorch_calls_from_cpp_and_those_of_a_backward_pass_are_seen(tmp_path):
    layer = torchgraft.nn.DepthwiseConv2d(4, 4, 3, padding=1)
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    names = ("depthwise_conv2d_input_grad", torchgraft.depthwise_conv2d_weight_grad)
    with torchgraft.capture([torchgraft.depthwise_conv2d, *names], tmp_path):
        layer(x).square().sum().backward()
    expected = ["depthwise_conv2d", "depthwise_conv2d_input_grad", "depthwise_conv2d_weight_grad"]
    assert sorted(call.operator for call in read_folder(tmp_path)) == [f"torchgraft::{name}" for name in expected]


def test_calls_that_the_reference_answers_are_seen(tmp_path):
    only_floats = Operator(
        "captured::only_floats(Tensor input) -> Tensor",
        reference=lambda input: input + 1,
        gradient="reference",
        kernels={"cpu": [F32]},
    )
    only_floats.kernel("cpu")(lambda input: input + 1)
    by_pytorch = declare("by_pytorch", "(Tensor input) -> Tensor", lambda input: 2 * input, kernels="reference")
    with torchgraft.capture([only_floats, by_pytorch], tmp_path):
        with pytest.warns(torchgraft.PerformanceWarning):
            only_floats(torch.ones(3, dtype=torch.float64))
        by_pytorch(torch.ones(4))
        # A transform's tensors hold no values of their own.
        torch.vmap(by_pytorch)(torch.ones(4, 5))
    assert {call.operator for call in read_folder(tmp_path)} == {"captured::only_floats", "captured::by_pytorch"}


def test_a_call_is_written_before_it_runs(tmp_path):
    found = []

    def kernel(input):
        found.extend(read_folder(tmp_path))
        raise OSError("the kernel fails")

    failing = declare("failing", "(Tensor input) -> Tensor", torch.sin, kernel)
    with torchgraft.capture(failing, tmp_path), pytest.raises(OSError, match="the kernel fails"):
        failing(torch.ones(3))
    assert [call.operator for call in found] == ["captured::failing"]


def test_nothing_is_left_when_the_scope_ends(tmp_path):
    before = [cell.cell_contents for cell in product.call.__closure__]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    with torchgraft.capture(product, tmp_path / "outer") as outer:
        with torchgraft.capture([product], tmp_path / "inner") as inner:
            product(torch.ones(2), torch.ones(2))
        product(torch.ones(3), torch.ones(3))
        assert has_kernel("captured::_product", "BackendSelect")
    product(torch.ones(4), torch.ones(4))
    assert (outer.seen, inner.seen) == (2, 1)
    assert not has_kernel("captured::_product", "BackendSelect")
    assert not has_kernel("captured::product", "BackendSelect")
    assert all(one is other.cell_contents for one, other in zip(before, product.call.__closure__, strict=True))


def test_results_are_the_same_while_calls_are_captured_and_compared(tmp_path):
    x = torch.randn(5, 6, requires_grad=True)

    def run():
        torch.manual_seed(7)
        result = product(x, torch.rand(5, 6))
        (gradient,) = torch.autograd.grad(result.sum(), x)
        return result, gradient, torch.rand(3)

    expected = run()
    with torchgraft.capture(product, tmp_path, last=True), torchgraft.shadow(product, every=1, gradients=True):
        found = run()
    assert all(map(torch.equal, found, expected))


BASE = torch.arange(64.0)
MEMORY = {
    "one tensor twice": lambda: (BASE[:8], BASE[:8]),
    "overlapping by all but one": lambda: (BASE[1:9], BASE[0:8]),
    "a part of the other": lambda: (BASE.view(8, 8), BASE.view(8, 8)[2]),
    "slices of one packed tensor": lambda: BASE.view(4, 16).split(8, dim=1),
    "the same memory in another dtype": lambda: (BASE[:8], BASE[:8].view(torch.int32)),
    "the same memory in a smaller dtype": lambda: (BASE[:8], BASE.view(torch.int8)[1:33].view(8, 4)[:, 2]),
    "from NumPy, as a storage of its own": lambda: (BASE[:8], torch.from_dlpack(BASE[4:12])),
    "far apart in one storage": lambda: (BASE[:4], BASE[60:]),
    "expanded": lambda: (BASE[:1].expand(8), BASE[3:4, None].expand(5, 8)),
    "windows over each other": lambda: (BASE.as_strided((4, 6), (2, 1), 3), BASE[:6]),
    "transposed": lambda: (BASE.view(8, 8).t(), BASE.view(8, 8)),
    "channels_last": lambda: (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(1)),
    "an odd place": lambda: (BASE.to(BF16)[3:8], BASE.to(BF16)[1:6]),
    "no dimensions": lambda: (torch.tensor(3.0), torch.tensor(2, dtype=torch.int64)),
    "no elements": lambda: (torch.empty(0, 3), torch.empty(4, 0, 3)),
    "not finite": lambda: (torch.tensor([math.nan, math.inf, -0.0, 1e-45]), torch.tensor([True, False, True, True])),
    "complex": lambda: (torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex128)),
    "codes": lambda: (torch.randn(4), torch.randn(4).to(torch.float8_e4m3fn).view(torch.uint8)),
}


# Arguments of which one writes what another reads.
SHARED = {
    "one tensor twice",
    "overlapping by all but one",
    "a part of the other",
    "slices of one packed tensor",
    "the same memory in another dtype",
    "the same memory in a smaller dtype",
    "from NumPy, as a storage of its own",
    "windows over each other",
    "transposed",
}


@pytest.mark.parametrize("name", MEMORY)
def test_values_strides_alignment_and_shared_memory_are_made_again(tmp_path, name):
    arguments = MEMORY[name]()
    with torchgraft.capture(product, tmp_path):
        product(*arguments)
    [(*found, _)] = replayed(tmp_path)
    assert all(map(same, found, arguments))
    for one, other in zip(found, arguments, strict=True):
        assert not one.numel() or one.data_ptr() % 64 == other.data_ptr() % 64
        assert one.dtype == other.dtype
    if name in SHARED:
        assert found[1].data_ptr() - found[0].data_ptr() == arguments[1].data_ptr() - arguments[0].data_ptr()


def test_a_kernel_that_writes_to_an_argument_is_captured_before_it_does(tmp_path):
    adding = Operator("captured::adding(Tensor(a!) input, Tensor other) -> ()", reference=torch.add)
    adding.kernel("cpu")(_add)
    memory = torch.ones(6)
    with torchgraft.capture(adding, tmp_path):
        adding(memory[:5], memory[1:].clone())
    [(input, other)] = replayed(tmp_path)
    assert input.tolist() == other.tolist() == [1.0] * 5


def test_every_kind_of_argument_is_made_again(tmp_path):
    def call(number, dtype, none):
        named = {"sizes": [3, -1], "flag": True, "word": 'with "quotes"', "number": number, "dtype": dtype}
        every_kind(torch.ones(2), [None, torch.zeros(1)], none=none, **named)

    numbers = [3, 2.5, True, math.inf, -math.inf, 1e-323]
    with torchgraft.capture(every_kind, tmp_path) as captured:
        for number in numbers:
            call(number, torch.float16, None)
        call(3, torch.int32, 0.1)
    made = replayed(tmp_path)
    assert captured.left_out == 0
    assert sorted(map(str, [each[5] for each in made])) == sorted(map(str, [*numbers, 3]))
    assert {(each[6], each[7]) for each in made} == {(torch.float16, None), (torch.int32, 0.1)}
    for input, more, sizes, flag, word, *_ in made:
        assert (input.tolist(), more[0], more[1].tolist()) == ([1.0, 1.0], None, [0.0])
        assert (sizes, flag, word) == ([3, -1], True, 'with "quotes"')


def test_calls_that_differ_in_values_alone_are_counted(tmp_path):
    with torchgraft.capture([product, seeded], tmp_path) as captured:
        for seed in range(4):
            product(torch.randn(3), torch.randn(3))
            seeded(torch.randn(3), seed)
        product(torch.randn(3), torch.randn(3), 5.0)
        product(torch.randn(3, dtype=torch.float64), torch.randn(3))
        product(torch.randn(6)[::2], torch.randn(3))
        product(torch.randn(4)[1:], torch.randn(3))
        product(torch.randn(3, requires_grad=True), torch.randn(3))
    counts = sorted(call.sample.count for call in read_folder(tmp_path))
    assert counts == [1, 1, 1, 1, 1, 4, 4]
    assert (captured.seen, captured.distinct) == (13, 7)


def test_calls_with_numbers_in_other_ranges_differ_if_asked(tmp_path):
    values = [torch.full((3,), value) for value in (1.0, 1.5, -1.0, 3e4, 1e-30, 0.0, math.inf)]
    values.append(torch.tensor([1.0, math.nan, 0.5]))
    with torchgraft.capture(product, tmp_path, ranges=True) as captured:
        for each in values:
            product(each, torch.ones(3))
            product(each.to(BF16), torch.ones(3, dtype=torch.int64))
    assert captured.distinct == 2 * 6
    assert sorted(call.sample.count for call in read_folder(tmp_path)) == [1] * 10 + [3] * 2


def test_a_person_can_read_the_index(tmp_path):
    with torchgraft.capture(product, tmp_path):
        for _ in range(3):
            product(torch.ones(2, 3), torch.ones(3, 2).t())
    [index] = tmp_path.glob("*.json")
    found = json.loads(index.read_text())
    [row] = found["calls"]
    assert row["call"] == "input=(2, 3) float32, other=(2, 3) float32 in strides (1, 2), factor=2.0"
    assert (row["operator"], row["count"], found["seen"]) == ("captured::product", 3, 3)
    assert (tmp_path / row["file"]).is_file()


def test_limits_bound_calls_bytes_and_the_memory_of_one_argument(tmp_path, caplog):
    with torchgraft.capture(product, tmp_path / "calls", calls=2) as captured:
        for size in range(1, 6):
            product(torch.ones(size), torch.ones(size))
    assert (captured.distinct, captured.left_out, len(read_folder(tmp_path / "calls"))) == (2, 3, 2)
    assert [each.message for each in caplog.records] == [
        "2 different calls are written, and further ones are left out: raise calls="
    ]
    with torchgraft.capture(product, tmp_path / "total", total=700):
        for size in range(50, 54):
            product(torch.ones(size), torch.ones(size))
    assert sum(map(all, _kept(tmp_path / "total"))) == 1
    with torchgraft.capture(product, tmp_path / "largest", largest=100):
        product(torch.ones(50), torch.ones(1))
    assert _kept(tmp_path / "largest") == [[False, True]]


def _kept(folder):
    return [[tensor.memory.values is not None for tensor in call.sample.tensors] for call in read_folder(folder)]


def test_without_values_they_are_drawn_again_like_those_that_were(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = 100 + 3 * torch.randn(40, 50, generator=generator)
    values[torch.rand(40, 50, generator=generator) < 0.25] = 0
    values[0, :5], values[0, 5] = math.nan, -math.inf
    offsets = torch.tensor([0, 3, 3, 9, 50])
    with torchgraft.capture(product, tmp_path, values=False):
        product(values.t(), torch.ones(40))
        product(torch.ones(5), offsets)
        product(torch.ones(8), torch.randperm(8))
    text = (torch.load(next(tmp_path.glob("*.pt")), weights_only=True))["values"]
    assert text == [None, None]
    for sample in (call.sample for call in read_folder(tmp_path)):
        input, other, _ = sample.make("cpu", F32)
        again, *_ = sample.make("cpu", F32)
        assert same(input, again)
        if input.dim() == 2:
            assert input.stride() == (1, 50)
            assert (input == 0).double().mean().item() == pytest.approx(0.25, abs=0.05)
            assert input.isnan().any()
            sure = input[input.isfinite() & (input != 0)]
            assert values[values.isfinite()].min() <= sure.min()
            assert sure.max() <= values[values.isfinite()].max()
        elif len(other) == 5:
            assert (other.diff() >= 0).all()
            assert (other[0], other[-1]) == (0, 50)
        else:
            assert other.sort().values.tolist() == list(range(8))


@pytest.mark.parametrize(
    "values",
    [
        torch.full((5,), 3.0),
        torch.tensor([math.nan] * 3),
        torch.tensor([1e38, 3e38]),
        torch.tensor([2**63 - 1, -(2**63)]),
        torch.tensor([7, 7, 7], dtype=torch.uint8),
        torch.tensor([False] * 9),
        torch.randn(6, dtype=torch.complex64),
        torch.randn(9).to(torch.float8_e5m2),
        torch.empty(0),
        torch.ones(1).expand(1 << 40),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tensor.numel()}",
)
def test_what_is_drawn_lies_in_the_range_of_any_values(values):
    found = statistics_of(values)
    json.dumps(found, allow_nan=False)
    drawn = draw(50, values.dtype, found, torch.Generator().manual_seed(1))
    assert drawn.dtype == values.dtype
    if values.is_complex() or not values.numel() or values.dtype == torch.bool:
        return
    some = values[:100].double()
    if some.isnan().all():
        assert drawn.isnan().all()
    else:
        assert some.min() <= drawn.double().min()
        assert drawn.double().max() <= some.max()


def test_another_seed_or_dtype_or_size_draws_new_values_that_fit(tmp_path):
    table, rows = torch.randn(9, 4), torch.tensor([8, 0, 3])
    lookup = declare(
        "lookup",
        "(Tensor table, Tensor rows) -> Tensor",
        lambda table, rows: table[rows],
        dtypes={"table": [F32, torch.float64, BF16], "rows": [torch.int64]},
    )
    with torchgraft.capture(lookup, tmp_path):
        lookup(table.to(BF16), rows)
    [sample] = [call.sample for call in read_folder(tmp_path)]
    assert sample.captured == BF16
    exact, kept = sample.make("cpu", torch.float64)
    assert torch.equal(exact, table.to(BF16).double())
    other, again = sample.make("cpu", F32, seed=1)
    assert not torch.equal(other, exact.float())
    assert torch.equal(kept, rows)
    assert torch.equal(again, rows)
    assert [each.device.type for each in sample.make("meta", F32)] == ["meta", "meta"]
    from dataclasses import replace

    tensor, indices = sample.tensors
    changed = replace(sample, arguments=(replace(tensor, shape=(20, 4), scale=1e-6), replace(indices, shape=(3000,))))
    larger, places = changed.make("cpu", F32)
    assert larger.shape == (20, 4)
    assert larger.abs().max() < 1e-4
    assert places.min() == 0
    assert places.max() == 8


OPERATORS = """
import os

import torch

from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples


def _kernel(input):
    if os.environ.get("ABORT") == "1" and torch.isnan(input).any():
        os.abort()
    result = 2 * input
    return result + 1 if input.shape == (37,) else result


doubled = Operator("captured_folder::doubled(Tensor input) -> Tensor", reference=lambda input: 2 * input)
doubled.kernel("cpu")(_kernel)
other = Operator("captured_folder::other(Tensor input) -> Tensor", reference=lambda input: 2 * input)
other.kernel("cpu")(lambda input: 2 * input)
samples = dict.fromkeys(("doubled", "other"), Samples([Sample("five", (Drawn((5,)),))]))
"""
PROCESS = """
import sys
import torch
import torchgraft
from captured_operators.operator import doubled

with torchgraft.capture(doubled, sys.argv[1], last=True):
    for value in (1.0, 2.0, float("nan")):
        doubled(torch.full((4,), value))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("place") / "captured_operators"
    path.mkdir()
    (path / "operator.py").write_text(OPERATORS)
    (path / "__init__.py").touch()
    return path


def run(command, *arguments):
    result = CliRunner().invoke(app, [command, *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.output


def test_processes_share_a_folder_and_one_that_crashes_leaves_its_last_call(tmp_path, package):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path)],
            cwd=package.parent,
            env={**os.environ, "ABORT": abort},
            stderr=subprocess.DEVNULL,
        )
        for abort in "01"
    ]
    assert [process.wait() for process in processes] == [0, -signal.SIGABRT]
    calls = read_folder(tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert not list(tmp_path.glob("*.part"))
    first, last = (call.sample for call in calls)
    # The process that crashed could not write its last count.
    assert 5 <= first.count <= 6
    assert first.make("cpu", F32)[0].tolist() == [1.0] * 4
    assert "last of" in last.name
    assert last.make("cpu", F32)[0].isnan().all()


def test_a_check_of_captured_calls_finds_what_samples_do_not_reach(tmp_path, package):
    assert run("check", package, "--property", "value", "--device", "cpu", "--workers", 0)[0] == 0
    [doubled] = [each.operator for each in find_subjects([str(package)]) if each.name.endswith("doubled")]
    with torchgraft.capture(doubled, tmp_path):
        doubled(torch.randn(36))
        doubled(torch.randn(37, dtype=BF16))
    status, output = run("check", package, "--replay", tmp_path, "--quick", "--device", "cpu", "--workers", 1)
    assert status == 1
    assert "captured_folder::other" not in output
    assert "(37,) bfloat16" in output
    assert f"--replay {tmp_path}" in output.replace("\n", "")
    status, output = run("check", "--replay", tmp_path, "--property", "value", "--workers", 0, "--device", "cpu")
    # The operators of the folder need not be named if they are declared.
    assert status == 1
    assert "0 passed, 2 failed" in output


def test_every_property_of_samples_is_asked_of_captured_calls_and_no_other(tmp_path):
    with torchgraft.capture(torchgraft.mul_constant, tmp_path):
        torchgraft.mul_constant(torch.randn(3, 4), 2.0)
    status, output = run("check", "--replay", tmp_path, "--quick", "--workers", 2, "--device", "cpu", "--json", "-")
    assert status == 0
    asked = {row["property"] for row in json.loads(output[output.index("{") :])["results"]}
    assert {"value", "gradient", "memory_bounds", "layouts", "determinism", "opcheck", "fake"} <= asked
    assert not asked & {"sizes", "stress", "bad_input", "dtypes", "pickle", "sharding", "randomness", "large", "empty"}


def test_options_that_draw_their_own_calls_are_refused_beside_captured_ones(tmp_path):
    for command, options in (
        ("check", ("--stress", 3)),
        ("check", ("--mutants", 3)),
        ("bench", ("--draw", 3)),
        ("bench", ("--models",)),
    ):
        status, output = run(command, "mul_constant", "--replay", tmp_path, *options)
        assert status == 2
        assert "--replay" in output or "--mutants" in output


def test_rows_of_captured_calls_are_timed_in_their_dtypes_beside_the_reference(tmp_path, monkeypatch):
    from test_bench import ROOFS

    monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)
    with torchgraft.capture(torchgraft.mul_constant, tmp_path):
        torchgraft.mul_constant(torch.randn(1, 4).expand(3, 4), 2.0)
        torchgraft.mul_constant(torch.randn(5, dtype=torch.float64), 3.0)
    planned = plan(find_subjects([], replay=tmp_path), Wanted(torch.device("cpu")))
    assert [each.dtype for each in planned] == [F32, torch.float64] or planned[0].dtype == torch.float64
    assert all(each.candidate.against == ("pytorch", "reference") for each in planned)
    only = [each for each in planned if each.dtype == F32]
    [row] = suite.run(only, Wanted(torch.device("cpu"), seconds=0.01, patience=0)).rows
    assert row.problem == ""
    assert row.time is not None
    assert row.rivals["reference"].time is not None


def test_values_are_written_over_elements_that_lie_at_one_place():
    for make in (lambda base: base[:1].expand(5), lambda base: base.as_strided((3, 4), (1, 1)), lambda base: base[::2]):
        target, values = make(torch.zeros(8)), make(torch.randn(8))
        overwrite(target, values)
        assert torch.equal(target, values)
    target = torch.zeros(2, 3)
    overwrite(target, torch.ones(3, 2).t())
    assert target.tolist() == [[1.0] * 3] * 2


class _Runs:
    """Runs where it is unpickled, which must not happen."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def _truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _emptied(path):
    path.write_bytes(b"")


def _of_another_kind(path):
    path.write_text("hello")


def _pickled(path):
    path.write_bytes(pickle.dumps(_Runs()))


def _saved_with_code(path):
    torch.save({"format": 1, "call": _Runs()}, path)


def _changed(change):
    def damage(path):
        content = torch.load(path, weights_only=True)
        call = json.loads(content["call"])
        change(content, call)
        torch.save({**content, "call": json.dumps(call)}, path)

    return damage


def _beyond_its_memory(content, call):
    call["arguments"]["input"]["tensor"]["size"] = [4000]


def _before_its_memory(content, call):
    call["arguments"]["input"]["tensor"]["offset"] = -3


def _of_a_later_format(content, call):
    content["format"] = 99


def _without_its_values(content, call):
    content["values"] = [None] * len(content["values"])


def _of_no_dtype(content, call):
    call["dtype"] = "Tensor"


def _with_a_byte_changed(path):
    with zipfile.ZipFile(path) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("data/0")]
        values = archive.read(name)
    content = path.read_bytes()
    place = content.index(values)
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


DAMAGES = (
    _truncated,
    _emptied,
    _of_another_kind,
    _pickled,
    _saved_with_code,
    _with_a_byte_changed,
    _changed(_beyond_its_memory),
    _changed(_before_its_memory),
    _changed(_of_a_later_format),
    _changed(_without_its_values),
    _changed(_of_no_dtype),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_runs_nothing(tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    with torchgraft.capture(product, tmp_path):
        product(torch.randn(30), torch.randn(30))
    [path] = tmp_path.glob("*.pt")
    damage(path)
    with pytest.raises(CapturedFileError, match=r"is damaged, or torchgraft\.capture did not write it") as error:
        read_folder(tmp_path)
    assert str(path) in str(error.value)
    assert not Path("unpickled").exists()
    status, output = run("check", "--replay", tmp_path, "--workers", 0)
    assert status == 2
    assert len(output.splitlines()) == 1


def test_a_damaged_index_is_named(tmp_path):
    with torchgraft.capture(product, tmp_path):
        product(torch.ones(3), torch.ones(3))
    [index] = tmp_path.glob("*.json")
    index.write_text('{"calls": [')
    with pytest.raises(CapturedFileError, match=index.name):
        read_folder(tmp_path)
    index.unlink()
    # Without it, only the counts are lost.
    assert [call.sample.count for call in read_folder(tmp_path)] == [1]


def test_a_folder_without_calls_says_how_to_capture_some(tmp_path):
    with pytest.raises(LookupError, match=r"holds no captured calls: run the model inside torchgraft\.capture"):
        read_folder(tmp_path)
    with pytest.raises(LookupError, match="is not a folder"):
        read_folder(tmp_path / "missing")
    with torchgraft.capture(product, tmp_path):
        product(torch.ones(3), torch.ones(3))
    with pytest.raises(LookupError, match="holds calls of captured::product, and of no operator that is named"):
        find_subjects(["mul_constant"], replay=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "named", "error", "problem"),
    [
        ((3,), {}, TypeError, r"operators must be torchgraft\.Operators, .* got 3"),
        ((len,), {}, TypeError, "got <built-in function len>"),
        (([],), {}, ValueError, "operators must name one operator at least"),
        (("nothing::here",), {}, ValueError, "nothing declares 'nothing::here'"),
        ((product,), {"largest": -1}, ValueError, "largest must be 0 or more, got -1"),
    ],
)
def test_wrong_arguments_of_a_capture_are_refused(tmp_path, arguments, named, error, problem):
    with pytest.raises(error, match=problem), torchgraft.capture(*arguments, tmp_path, **named):
        raise AssertionError("the scope begins")


def test_a_disk_that_is_full_does_not_stop_a_model(tmp_path, monkeypatch, caplog):
    def full(content, path):
        raise OSError(28, "No space left on device")

    with torchgraft.capture(product, tmp_path) as captured:
        monkeypatch.setattr(torch, "save", full)
        results = [product(torch.ones(3), torch.ones(3)) for _ in range(3)]
    assert [each.tolist() for each in results] == [[2.0] * 3] * 3
    assert captured.left_out == 3
    assert [each.message for each in caplog.records] == [
        "a call of captured::product could not be written: [Errno 28] No space left on device"
    ]


def test_a_tensor_that_no_file_holds_is_told_once(tmp_path, caplog):
    sparse = declare("sparse", "(Tensor input) -> Tensor", lambda input: 2 * input, kernels="reference", dtypes=None)
    with torchgraft.capture(sparse, tmp_path) as captured:
        for _ in range(2):
            sparse(torch.eye(3).to_sparse())
    assert captured.left_out == 2
    assert len(caplog.records) == 1
    assert "only strided ones can be kept" in caplog.text


# What a shadow finds.


def wrong_in_one_row(input, other, factor):
    result = times(input, other, factor).clone()
    if input.shape[0] == 5:
        result[3] *= 1.01
    return result


wrong = declare("wrong", "(Tensor input, Tensor other, float factor=2.0) -> Tensor", times, wrong_in_one_row)


def test_a_difference_is_logged_with_what_shows_it_again(tmp_path, caplog):
    with torchgraft.shadow(wrong, every=1, folder=tmp_path) as shadow:
        for size in (3, 5, 4):
            wrong(torch.randn(size, 2, requires_grad=True), torch.randn(size, 2))
    assert (shadow.seen, shadow.compared, shadow.different) == (3, 3, 1)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("torchgraft.shadow", logging.WARNING)
    assert record.message.startswith("captured::wrong: call 2 differs from its reference: the result is wrong")
    [call] = read_folder(tmp_path)
    assert str(call.path) in record.message
    assert f"--replay {tmp_path}" in record.message
    assert call.sample.tensors[0].shape == (5, 2)
    report = torchgraft.check(wrong, replay=tmp_path, properties=["value"], device="cpu")
    assert not report.passed


def test_one_call_in_so_many_is_compared():
    with torchgraft.shadow([product, wrong], every=3) as shadow:
        for _ in range(7):
            product(torch.ones(3), torch.ones(3))
        wrong(torch.ones(3), torch.ones(3))
    assert (shadow.seen, shadow.compared) == (8, 4)


def test_a_difference_is_raised_only_if_asked():
    arguments = torch.randn(5, 2), torch.randn(5, 2)
    with (
        torchgraft.shadow(wrong, every=1, on_difference="raise"),
        pytest.raises(DifferenceError, match="call 1 differs"),
    ):
        wrong(*arguments)
    wrong(*arguments)


def test_differences_beyond_the_most_are_counted_and_not_written(tmp_path, caplog):
    with torchgraft.shadow(wrong, every=1, folder=tmp_path, most=2) as shadow:
        for _ in range(5):
            wrong(torch.randn(5, 2), torch.randn(5, 2))
    assert shadow.different == 5
    assert len(caplog.records) == len(read_folder(tmp_path)) == 2


def test_gradients_are_compared_for_the_incoming_gradients_of_the_model(caplog):
    def formula(needs_grad, output_grads, saved, input):
        (grad,) = output_grads
        # Right for gradients of one sign, as those of a sum.
        return (2 * grad.clamp(min=0),)

    operator = Operator(
        "captured::wrong_gradient(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        output=torch.empty_like,
        gradient=formula,
    )
    operator.kernel("cpu")(lambda input: 2 * input)
    x = torch.randn(6, requires_grad=True)
    with torchgraft.shadow(operator, every=1) as shadow:
        (-operator(x)).sum().backward()
    assert (shadow.compared, shadow.different) == (1, 0)
    with torchgraft.shadow(operator, every=1, gradients=True) as shadow:
        operator(x).sum().backward()
        assert shadow.different == 0
        (-operator(x)).sum().backward()
        assert (shadow.compared, shadow.different) == (4, 1)
        # A forward pass without a backward pass has no gradients to compare.
        operator(x)
        with torch.no_grad():
            operator(x)
        assert shadow.compared == 6
    assert "the gradient of input is wrong" in caplog.text


def test_gradients_of_several_results_of_which_one_is_unused_are_compared():
    both = Operator(
        "captured::both(Tensor input, Tensor other) -> (Tensor, Tensor)",
        reference=lambda input, other: (input * other, input.sin()),
        gradient="reference",
    )
    both.kernel("cpu")(lambda input, other: (input * other, input.sin()))
    x = torch.randn(4, requires_grad=True)
    with torchgraft.shadow(both, every=1, gradients=True, on_difference="raise") as shadow:
        both(x, torch.randn(4))[1].sum().backward()
        one, other = both(x, torch.randn(4))
        (one * other).sum().backward()
    assert (shadow.compared, shadow.skipped) == (4, 0)


def test_an_operator_that_writes_to_an_argument_is_compared_with_what_was_there(caplog):
    operator = Operator("captured::grows(Tensor(a!) input, Tensor other) -> ()", reference=torch.add)
    operator.kernel("cpu")(lambda input, other: _add(input, other * (1.5 if len(other) == 4 else 1)))
    with torchgraft.shadow(operator, every=1) as shadow:
        for size in (3, 4):
            operator(torch.zeros(size), torch.ones(size))
    assert (shadow.compared, shadow.different) == (2, 1)


@pytest.mark.parametrize(
    ("dtype", "function"),
    [
        (torch.float16, lambda x: (x * 300).square()),
        (F32, lambda x: x + 1e6 - 1e6),
        (BF16, lambda x: x.exp() - 1),
        (torch.float16, lambda x: x.softmax(-1).log()),
        (F32, lambda x: (x * 1e30).square().sqrt()),
    ],
)
def test_what_the_reference_itself_loses_in_a_dtype_is_no_difference(dtype, function, request):
    name = f"lossy_{len(Operator.registered)}"
    operator = declare(name, "(Tensor input) -> Tensor", function)
    with torchgraft.shadow(operator, every=1, gradients=True, on_difference="raise") as shadow:
        for scale in (1e-4, 1.0, 10.0):
            x = (scale * torch.randn(50, 20)).to(dtype).requires_grad_()
            operator(x).float().sum().backward()
    assert (shadow.compared, shadow.skipped) == (6, 0)


def test_a_reference_that_fails_is_no_error_of_the_model(caplog):
    def reference(input):
        if input.dtype == torch.float64:
            raise RuntimeError("out of memory")
        return 2 * input

    operator = declare("fails", "(Tensor input) -> Tensor", reference, lambda input: 2 * input, output=torch.empty_like)
    with torchgraft.shadow(operator, every=1, on_difference="raise") as shadow:
        for _ in range(2):
            assert operator(torch.ones(2)).tolist() == [2.0, 2.0]
    assert (shadow.skipped, shadow.different) == (2, 0)
    assert [each.message for each in caplog.records] == [
        "calls of captured::fails are not compared: RuntimeError: out of memory"
    ]


def test_calls_in_compiled_graphs_and_large_ones():
    compiled = torch.compile(lambda x, y: wrong(x, y) + 1, backend="aot_eager")
    with torchgraft.shadow(wrong, every=1, largest=1000) as shadow:
        compiled(torch.randn(5, 2), torch.randn(5, 2))
        wrong(torch.randn(5, 200), torch.randn(5, 200))
    torch._dynamo.reset()
    assert (shadow.seen, shadow.compared, shadow.different, shadow.skipped) == (2, 1, 1, 1)


def test_modes_of_the_model_see_nothing_of_a_comparison():
    class Counts(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            seen.append(function)
            return function(*arguments, **(named or {}))

    def run():
        seen.clear()
        with Counts():
            product(x, x)
        return len(seen)

    seen, x = [], torch.ones(3)
    expected = run()
    with torchgraft.shadow(product, every=1, gradients=True):
        assert run() == expected


@pytest.mark.parametrize(
    ("operator", "named", "problem"),
    [
        (seeded, {"every": 1}, "operators must have results that a reference tells, and seeded's are random"),
        (product, {"every": 0}, "every must be 1 or more, got 0"),
        (product, {"every": 1, "on_difference": "ignore"}, "on_difference must be 'log' or 'raise', got 'ignore'"),
        (product, {"every": 1, "most": -1}, "most must be 0 or more, got -1"),
    ],
)
def test_wrong_arguments_of_a_shadow_are_refused(operator, named, problem):
    with pytest.raises(ValueError, match=problem), torchgraft.shadow(operator, **named):
        raise AssertionError("the scope begins")
