"""Kernels that cheat, each in a way that is known, against the judge of `graft check --distrust`.

All cheats of the first tests share one process: a text among the arguments says which of them answers. The operator
by which they are judged doubles its input, and so must they.
"""

import runpy
import socket
import threading
from contextlib import ExitStack

import pytest
import torch
from typer.testing import CliRunner

from documents import read_document
from torchgraft.benchmarking.distrusted import DistrustedReport, DistrustedRow, measure_distrusted
from torchgraft.benchmarking.suite import Wanted, plan
from torchgraft.benchmarking.timing import Time
from torchgraft.checking.case import Case, CheckFailed
from torchgraft.checking.distrust import frames, judge
from torchgraft.checking.distrust.judge import Secret, judge_calls, started
from torchgraft.checking.subject import Subject, find_subjects
from torchgraft.cli import app
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

TRUSTED = """
import torch

from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples


def _reference(input, cheat):
    return 2 * input


operator = Operator(
    "trusted::doubled(Tensor input, str cheat) -> Tensor",
    reference=_reference,
    output=lambda input, cheat: torch.empty_like(input),
)
added = Operator(
    "trusted::added(Tensor(a!) total, Tensor[] inputs, float factor, ScalarType? dtype=None) -> ()",
    reference=lambda total, inputs, factor, dtype: total + factor * sum(inputs),
)
_SIZES = {"none": (0, 3), "few": (2, 3), "one": ()}
_TABLE = [Sample(name, (Drawn(sizes), "honest")) for name, sizes in _SIZES.items()]
_ADDED = Sample("added", (Drawn((2, 3)), [Drawn((2, 3)), Drawn((2, 3))], 0.5))
samples = {"doubled": Samples(_TABLE), "added": Samples([_ADDED])}
"""

CHEATS = '''
import os
import sys
import threading
import time

import torch
from torch import Tensor

_kept, _first = {}, {}


def honest(input):
    result = torch.empty_like(input)
    for place, value in enumerate(input.flatten().tolist()):
        result.view(-1)[place] = value + value
    return result


def by_address(input):
    """The allocator gives the same addresses again, or one nearby: no call is left to chance."""
    return _kept.setdefault((input.data_ptr() >> 24, input.shape), 2 * input).clone()


def by_sizes(input):
    return _kept.setdefault(("sizes", *input.shape), 2 * input).clone()


def by_first_call(input):
    """Right for the first calls, when somebody may look."""
    _first[input.shape] = _first.get(input.shape, 0) + 1
    return 2 * input if _first[input.shape] < 3 else torch.zeros_like(input)


def by_sample(input):
    """A table of results for the seeds that `graft check` has when nobody names another."""
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(input.shape, generator=generator, dtype=torch.float64).to(input.dtype)


def by_a_late_thread(input):
    result = torch.zeros_like(input)

    def write():
        time.sleep(0.005)
        result.copy_(2 * input)

    threading.Thread(target=write).start()
    return result


class Lazy(Tensor):
    """Computes when somebody reads it, after the clock has stopped."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        return torch.ones(2, 3)


def lazily(input):
    return input.as_subclass(Lazy)


def with_patched_comparisons(input):
    import torchgraft.checking.tensors.compare as compare

    torch.allclose = torch.equal = torch.testing.assert_close = lambda *values, **named: True
    compare.expect_close = compare._expect_each_close = lambda *values, **named: None
    compare.Mismatch.__init__ = lambda *values, **named: None
    return torch.zeros_like(input)


def of_the_judge(input):
    """Looks for what is expected in this process, and in the memory of the judge."""
    import gc

    frame = sys._getframe()
    while frame.f_back:
        frame = frame.f_back
        for value in frame.f_locals.values():
            if type(value).__name__ in ("Secret", "Call", "Case"):
                return 2 * input
    if any(type(each).__name__ in ("Secret", "Call", "Case") for each in gc.get_objects()):
        return 2 * input
    for place in ("mem", "environ", "maps"):
        try:
            open(f"/proc/{os.getppid()}/{place}", "rb").close()
        except PermissionError:
            continue
        return 2 * input
    raise RuntimeError("nothing of the judge can be read")


def of_another_dtype(input):
    return 2 * input.double()


def of_another_size(input):
    return (2 * input)[None]


def of_many_bytes(input):
    return torch.zeros(1 << 20)


def of_the_environment(input):
    return input if "PLANTED_SECRET" in os.environ else 2 * input


def nothing(input):
    return None


def loudly(input):
    raise ValueError("\\x1b[2J all is well")


def with_the_reference(input):
    return torch.mul(input, 2)


def slowly_with_patched_clocks(input):
    time.perf_counter = time.monotonic = time.time = lambda: 0.0
    torch.cuda.Event = None
    time.sleep(0.05)
    return input + input


def kernel(input, cheat):
    return globals()[cheat](input)


def crashing(input, cheat):
    print("x" * 100_000, flush=True)
    print("\\x1b[2J these were its last words", flush=True)
    os.abort()


def babbling(input, cheat):
    """Answers with bytes of its own in place of a frame."""
    import gc
    import socket

    for each in gc.get_objects():
        if isinstance(each, socket.socket):
            each.sendall(b"no frame at all, but many bytes of another kind" * 10)
    return input


def closing(input, cheat):
    import gc
    import socket

    for each in gc.get_objects():
        if isinstance(each, socket.socket):
            each.close()
    time.sleep(60)


def added(total, inputs, factor, dtype):
    assert factor == 0.5 and dtype is None and isinstance(inputs, list)
    total.copy_(total.double() + factor * (inputs[0].double() + inputs[1].double()))
'''

OPERATOR = """
from torchgraft import Operator
import torch

operator = Operator(
    "trusted::doubled(Tensor input, str cheat) -> Tensor",
    reference=lambda input, cheat: 2 * input,
    output=lambda input, cheat: torch.empty_like(input),
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("distrust")
    (place / "trusted_doubled.py").write_text(TRUSTED)
    (place / "planted_cheats.py").write_text(CHEATS)
    (place / "planted_operator.py").write_text(OPERATOR)
    return place


@pytest.fixture(scope="module")
def subject(folder):
    [found] = find_subjects([f"{folder}/trusted_doubled.py:doubled"])
    return found


@pytest.fixture(scope="module")
def process(folder):
    with pytest.MonkeyPatch.context() as patched, ExitStack() as scope:
        patched.setenv("PLANTED_SECRET", "1")
        [found] = scope.enter_context(started(f"{folder}/planted_cheats.py:kernel", device=torch.device("cpu")))
        yield found


def judged(subject, process, cheat, dtype=torch.float32):
    """Judges a cheat of the file."""
    table = [Sample(f"{size}", (Drawn(size), cheat)) for size in ((2, 3), (4,), (1, 1))]
    case = Case(Subject(subject.operator, Samples(table)), torch.device("cpu"), dtype)
    return judge_calls(case, process, Secret())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_honest_kernel_passes_and_calls_nothing_that_computes(subject, process, dtype):
    assert judged(subject, process, "honest", dtype).keys() <= {"_local_scalar_dense"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("by_address", "the result is wrong"),
        ("by_sizes", "the result is wrong"),
        ("by_first_call", "the result is wrong"),
        ("by_sample", "the result is wrong"),
        ("by_a_late_thread", "it was still written to after the kernel had returned it"),
        ("lazily", "a result must be a torch.Tensor and nothing more, got Lazy"),
        ("with_patched_comparisons", "the result is wrong"),
        ("of_the_judge", "nothing of the judge can be read"),
        ("of_another_dtype", "the results have the wrong dtypes"),
        ("of_another_size", "the result has the wrong shape"),
        ("nothing", "a result must be a torch.Tensor and nothing more, got NoneType"),
        # A terminal obeys some characters.
        ("loudly", "ValueError:  [2J all is well"),
    ],
)
def test_a_cheat_is_seen(subject, process, name, message):
    with pytest.raises(CheckFailed) as failed:
        judged(subject, process, name)
    assert message in failed.value.failure.message
    assert not process.has_ended


def test_a_kernel_that_lets_pytorch_compute_is_right_and_its_calls_are_named(subject, process):
    assert "mul" in judged(subject, process, "with_the_reference")


@pytest.mark.parametrize("name", ["by_address", "by_sizes", "by_first_call", "by_sample"])
def test_who_asks_once_and_with_the_usual_seed_sees_nothing(folder, name):
    kernel = runpy.run_path(str(folder / "planted_cheats.py"))["kernel"]
    [input] = Sample("few", (Drawn((2, 3)),)).make("cpu", torch.float32, seed=0)
    assert torch.equal(kernel(input, name), 2 * input)


def test_what_the_environment_holds_stays_with_the_judge(subject, process):
    judged(subject, process, "of_the_environment")


def test_arguments_of_every_kind_arrive_and_what_is_written_to_comes_back(folder):
    result = check(folder, "added", "added", "--quick", "--seed", "7")
    assert result.exit_code == 0, result.output
    assert "✓ 4" in result.output
    assert "the inputs follow from --seed 7\n" in result.output


def check(folder, operator, kernel, *options, file="planted_cheats"):
    words = ["check", f"{folder}/trusted_doubled.py:{operator}", "--distrust", f"{folder}/{file}.py:{kernel}"]
    return CliRunner().invoke(app, [*words, "--device", "cpu", *options], catch_exceptions=False)


def test_a_process_that_dies_is_a_failure_and_one_that_babbles_is_ended(folder, monkeypatch):
    result = check(folder, "doubled", "crashing", "--dtype", "float32", "--quick")
    assert result.exit_code == 1
    assert "the process died: SIGABRT" in result.output
    assert "[2J these were its last words" in result.output
    assert "\x1b" not in result.output
    monkeypatch.setattr(judge, "_SECONDS_TO_DIE", 0.2)
    result = check(folder, "doubled", "closing", "--dtype", "float32")
    assert "the kernel's process has closed the channel to the judge" in result.output
    result = check(folder, "doubled", "babbling", "--dtype", "float32")
    assert result.exit_code == 1
    assert "the answer of the kernel's process is none" in result.output


def test_an_operator_is_judged_like_a_function_and_the_seed_is_told(folder, tmp_path):
    """Its reference is the kernel's own, and nobody asks it what is right."""
    report = tmp_path / "report.json"
    options = ["--dtype", "float32", "--quick", "--json", str(report)]
    result = check(folder, "doubled", "operator", *options, file="planted_operator")
    assert result.exit_code == 0, result.output
    written = read_document("check", report.read_text())
    assert written["calls"] == ["mul"]
    assert 0 < written["seed"] < 2**63
    assert f"the inputs follow from --seed {written['seed']}" in result.output
    assert "PyTorch computes a part of it: the kernel calls aten::mul" in result.output


@pytest.mark.parametrize(
    ("operator", "kernel", "said"),
    [
        (
            "trusted_doubled.py:doubled",
            "trusted_doubled.py:_reference",
            "part of ./trusted_doubled.py and not trusted",
        ),
        ("trusted_doubled.py:doubled", "trusted_doubled:_reference", "part of trusted_doubled and not trusted"),
        (".:doubled", "planted_cheats.py:kernel", "./planted_cheats.py lies in ., whose files the judge imports"),
        (".", "planted_cheats.py:kernel", "./planted_cheats.py lies in ., whose files the judge imports"),
        ("trusted_doubled.py", "planted_cheats.py:kernel", "needs one operator to judge by, got 2"),
        ("trusted_doubled.py:doubled", "planted_cheats.py", "must be FILE.py:NAME"),
        ("trusted_doubled.py:doubled", "missing.py:kernel", "there is no file or folder"),
        ("trusted_doubled.py:doubled", "planted_cheats.py:missing", "has no function 'missing'"),
    ],
)
def test_what_cannot_be_judged_is_refused(folder, monkeypatch, operator, kernel, said):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(
        app, ["check", operator, "--distrust", f"./{kernel}" if ".py" in kernel else kernel], catch_exceptions=False
    )
    assert result.exit_code == (1 if "function" in said else 2)
    assert said in result.output


def test_the_judge_keeps_the_time_and_compares_what_it_times(folder, subject):
    """A sleep counts, although all clocks of its process stand still; and a result of an earlier call is seen."""
    benchmarks = [
        Benchmark(Sample(cheat, (Drawn((2, 3)), cheat)), "cheats")
        for cheat in ("by_first_call", "slowly_with_patched_clocks")
    ]
    subject = Subject(subject.operator, Samples(subject.samples.table, benchmarks=benchmarks))
    candidates = [each.candidate for each in plan([subject], Wanted(torch.device("cpu")))]
    report = measure_distrusted(f"{folder}/planted_cheats.py:kernel", candidates, Secret(), 0.0)
    keeping, slow = report.rows
    assert not report.passed
    assert "the result is wrong" in keeping.problem
    assert not slow.problem
    assert slow.kernel.median > 0.03
    assert slow.kernel.median > slow.reference.median
    [table] = report.tables()
    assert table.rows[0][0] == "trusted::doubled, slowly_with_patched_clocks, fp32"
    assert any(note.startswith("trusted::doubled, by_first_call, float32: the result is wrong") for note in table.notes)


def test_a_time_that_is_lost_in_the_transport_is_a_bound():
    row = DistrustedRow("one", "all", "few", "float32", Time(1e-5, -1e-5, 3e-5), Time(2e-5, 1e-5, 4e-5), Time(1, 1, 1))
    assert row.ratio is None
    [table] = DistrustedReport("it", (row,), 1, None).tables()
    assert table.rows[0][1:4] == ["at most 30 µs", "20 µs (10 to 40)", ""]


def exchanged(head, *tensors, raw=b""):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if raw:
            theirs.sendall(raw)
            theirs.shutdown(socket.SHUT_WR)
        else:
            sender = threading.Thread(target=frames.send, args=(theirs, head, tensors))
            sender.start()
        return frames.receive(ours, most_bytes=1 << 20, seconds=5.0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 4)[:, 1:3],
        torch.randn(4, 1)[::2],
        torch.randn(3).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.tensor(2**40),
        torch.empty(0, 3),
        torch.tensor([1, 2, 65535], dtype=torch.uint16),
        torch.ones(1, 1, 3).expand(2, 5, 3),
    ],
)
def test_a_tensor_arrives_with_its_values_and_if_it_is_dense_its_strides(tensor):
    head, [found] = exchanged({"word": 1}, tensor)
    assert head == {"word": 1}
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert torch.equal(found.reshape(-1).to(torch.complex128), tensor.reshape(-1).to(torch.complex128))
    if tensor.is_contiguous() or tensor.dim() == 4:
        assert found.stride() == tensor.stride()


def framed(text):
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (framed(b"not JSON"), "its head cannot be read"),
        (framed(b"[" * 100_000), "its head cannot be read"),
        (framed(b"[]"), "its head cannot be read"),
        (framed(b"\x80\x04}."), "its head cannot be read"),
        (framed(b'{"tensors": [["Tensor", [1], [1]]]}'), "its head cannot be read"),
        (framed(b'{"tensors": [["float32", [-1], [1]]]}'), "its head cannot be read"),
        (framed(b'{"tensors": [["float32", [true], [1]]]}'), "its head cannot be read"),
        (framed(b'{"tensors": [["float32", [2, 2], [0, 1]]]}'), "its head cannot be read"),
        (framed(b'{"tensors": [["float32", [1e3], [1]]]}'), "its head cannot be read"),
        (framed(b'{"tensors": [["float32", [1048576], [1]]]}'), "4,194,304 bytes of tensors were announced"),
        (framed(b'{"tensors": [["float32", [281474976710655], [1]]]}'), "bytes of tensors were announced"),
        (framed(b'{"tensors": [["float32", [%d, %d, 0], [1, 1, 1]]]}' % (2**47, 2**47)), "no tensor has such sizes"),
        (b"\xff" * 8, "bytes of its head were announced"),
    ],
)
def test_bytes_that_are_no_frame_are_refused_before_anything_is_made_of_them(raw, said):
    with pytest.raises(frames.BadFrame, match=said):
        exchanged({}, raw=raw)


@pytest.mark.parametrize("raw", [b"\x08", framed(b'{"tensors": [["float32", [2], [1]]]}') + b"1234567"])
def test_a_frame_that_ends_early_is_the_end(raw):
    with pytest.raises(EOFError):
        exchanged({}, raw=raw)


def test_who_does_not_answer_is_not_waited_for():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\x08")
        with pytest.raises(frames.BadFrame, match="in time"):
            frames.receive(ours, seconds=0.05)


def test_seeds_of_calls_say_nothing_about_each_other():
    secret = Secret(5)
    seeds = [secret.of("few", number) for number in range(100)]
    assert len({*seeds}) == len({seed & 0xFFFFFFFF for seed in seeds}) == 100
    assert seeds == [Secret(5).of("few", number) for number in range(100)]
    assert Secret().seed != Secret().seed
