"""The CUDA kernels of all operators, run on the CPU by torchgraft.emulation, and the emulator itself.

Tests of our kernels are slow, as the emulator compiles them all first: `make test-slow`. Those of the emulator are not.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import devices
import torchgraft
from torchgraft import Operator, native
from torchgraft.emulation import library, own, translate

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the emulator of CUDA is written for Linux"),
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++").split()[0]) is None,
        reason="there is no C++ compiler to build kernels with: install g++",
    ),
]
NUMBERS = torch.arange(128.0)
HERE = Path(__file__).parent
MISTAKES = "emulated_mistakes"


def build(namespace, **options):
    """The library of the kernels of a test, which lie in a folder of the name behind `emulated_`."""
    name = namespace.removeprefix("emulated_")
    folder = library.build_once(namespace, [HERE / "emulation" / name / f"{name}.cu"], **options)
    return folder / f"{namespace}_cpu.so"


@pytest.fixture(scope="module")
def mistakes():
    """Kernels with a mistake each, as functions of a tensor."""
    torch.ops.load_library(build(MISTAKES, workers=2))
    return torch.ops.emulated_mistakes


@pytest.fixture(scope="module")
def watched_mistakes():
    """The same where races are seen."""
    torch.ops.load_library(build(MISTAKES, sanitizer="races", workers=2))
    return torch.ops.watched_mistakes


@pytest.fixture(scope="module")
def kernels():
    """The directory of the library of all operators."""
    return own.build(own.find_folders(), workers=2)


MEASURED = "emulated_measured"
# Recorded in C++, so that gradients are timed in threads of autograd.
CONVOLUTIONS = """
import torch
import torchgraft
from torchgraft.kernels import measured_choice

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
images, weight = torch.randn(2, 8, 14, 14, requires_grad=True), torch.randn(8, 1, 3, 3, requires_grad=True)
with measured_choice.measuring(True):
    found = torchgraft.depthwise_conv2d(images, weight, None, 1, 1)
    found = found.detach(), *torch.autograd.grad(found.sum(), (images, weight))
exact = torch.nn.functional.conv2d(images.double(), weight.double(), None, 1, 1, 1, 8)
exact = exact.detach(), *torch.autograd.grad(exact.sum(), (images, weight))
for one, other in zip(found, exact, strict=True):
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-4)
choices = {each.operator: each for each in torchgraft.choices()}
print(choices)
assert len(choices) == 3
for each in choices.values():
    # The policy's, PyTorch's, and kernels by their names.
    assert len(each.microseconds) > 3 and {"", "pytorch"} <= set(each.microseconds)
"""


@pytest.fixture(scope="module")
def two_sums():
    """The sums over the parts of a workspace, as a function of it."""
    operator = Operator(
        "emulated_sums::two(Tensor partials, bool[2] wanted) -> (Tensor, Tensor)",
        reference=lambda partials, wanted: tuple(
            each if needed else each[:0] for each, needed in zip(partials.sum(0), wanted, strict=True)
        ),
        kernels={"cpu": (torch.float32,)},
    )
    torch.ops.load_library(build("emulated_sums", workers=2))
    return operator.raw


@pytest.mark.parametrize("parts", [0, 1, 33, 100])
@pytest.mark.parametrize("columns", [0, 1, 31, 32, 33, 70])
@pytest.mark.parametrize("wanted", [[True, True], [False, True], [True, False]])
def test_partial_sums_of_two_results_are_added_up_by_one_launch(two_sums, parts, columns, wanted):
    # Whole numbers, whose sums are exact in any order.
    partials = torch.arange(parts * 2 * columns, dtype=torch.float32).reshape(parts, 2, columns) % 97
    found = two_sums(partials, wanted)
    for each, expected, needed in zip(found, partials.sum(0), wanted, strict=True):
        assert each.tolist() == (expected.tolist() if needed else [])


def check_holds(kernels, command, **device):
    variables = {**os.environ, **library.environment(kernels, own.NAMESPACE, **device)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "order"), [("value", 0), ("sizes", 1)])
def test_kernels_of_every_operator_hold(kernels, name, order):
    options = ["--property", name, "--quick", "--workers", "2"]
    check_holds(kernels, own.check_command(own.find_folders(), options), order=order)


@pytest.mark.slow
def test_gradients_of_few_units_keep_the_digits_of_float32(kernels):
    name = "test_gradients_of_few_units_keep_the_digits_of_float32"
    test = HERE / f"test_lltm.py::{name}"
    check_holds(kernels, [sys.executable, "-m", "pytest", "-p", "no:xdist", str(test)], multiprocessors=16)


# `python tools/devices/devices.py` asks all devices and dtypes: 8.6 and 8.9 have the shared memory of
# 12.0 and the code of 8.0, and 10.0 is as 9.0.
@pytest.mark.slow
@pytest.mark.parametrize("device", [75, 80, 120])
def test_kernels_of_every_operator_hold_on_other_devices(device):
    # Where other devices run the same code, only limits differ, and with them what is cut for elements of each size.
    is_compiled_for = devices.COMPILED_FOR[device] == device
    done = devices.check(device, "--dtype", "bfloat16", *(["--dtype", "float32"] if is_compiled_for else []))
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_ask_for_no_architecture_but_those_that_they_are_compiled_for():
    """So what is compiled for 8.6 does what is compiled for 8.0 does."""
    rooms = [library.PACKAGE / name for name in ("include", "operators", "benchmarking")]
    sources = [path for room in rooms for path in room.rglob("*") if path.suffix in (".cu", ".cuh", ".h")]
    asked = re.findall(r"__CUDA_ARCH__\s*[<>=!]+\s*(\d+)", "".join(path.read_text() for path in sources))
    assert len(asked) > 20
    assert {int(each) // 10 for each in asked} <= {70, *devices.COMPILED_FOR.values()}


def test_every_kernel_says_how_many_threads_a_block_has():
    """Then the compiler gives each thread no more registers than there are for all."""
    sources = [
        path for name in ("include", "operators", "benchmarking") for path in (library.PACKAGE / name).rglob("*.cu*")
    ]
    kernels = re.findall(r"__global__\s+void\s+(\w+)", "".join(path.read_text() for path in sources))
    assert len(kernels) > 40
    # The other one is never launched.
    assert set(kernels) == {"__launch_bounds__", "compiled_as_this_file"}


@pytest.mark.slow
def test_no_plan_of_any_kernel_exceeds_a_device(kernels):
    # `python tools/devices/devices.py` draws five times as many. Of fewer, some kernel is not reached on some device.
    problems = devices.PROBLEMS // 5
    for operator, asked in devices.ask_plans(kernels, problems).items():
        for each in asked:
            assert not each["refused"], each["refused"][:3]
            assert not each["unreached"], (operator, each["device"], each["unreached"])
            assert not each["unable"] or each["device"] != 90, (operator, each["unable"])
            assert each["problems"] == problems
            assert each["launches"] > problems // 2


# In all dtypes with `python -m torchgraft.emulation -- --every-kernel`.
@pytest.mark.slow
def test_every_kernel_holds_on_all_that_it_supports(kernels):
    dtypes = ["--dtype", "float32", "--dtype", "bfloat16"]
    options = ["--every-kernel", "--property", "value", *dtypes, "--quick", "--workers", "2"]
    check_holds(kernels, own.check_command(own.find_folders(), options), multiprocessors=16)


@pytest.mark.slow
def test_random_calls_of_every_operator_hold(kernels):
    check_holds(kernels, own.check_command(own.find_folders(), ["--stress", "100", "--workers", "2"]))


# In one process: to start one takes longer than a sample does.
HALVES = """
import torch
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import find_subjects

for operator, sample in [
    ("lltm_grads", "products worth halves, more rows than gates, odd, back"),
    ("lltm_grads", "products worth halves, of small gradients"),
    ("lltm_cell_grads", "products worth halves, deeper than cuBLAS is given at once"),
    ("lltm_cell", "deeper products of two bytes than cuBLAS is given at once"),
]:
    halves = torch.float16, torch.bfloat16
    jobs = make_jobs(find_subjects([operator]), devices=["cpu"], properties=["value"], dtypes=halves, only=sample)
    results = [run_job(job) for job in jobs]
    assert [each.status for each in results] == ["pass", "pass"], "; ".join(map(describe, results))
"""


@pytest.mark.slow
def test_products_of_halves_hold(kernels):
    # More than these results have tiles: then cuBLAS may share the depth out.
    check_holds(kernels, [sys.executable, "-c", HALVES], multiprocessors=16)


@pytest.mark.slow
def test_an_input_gradient_of_halves_holds_whatever_lies_behind_the_image(kernels):
    given = ["depthwise_conv2d_input_grad", "--device", "cpu", "--property", "value", "--dtype", "float16"]
    sample = ["--sample", "7x7, padded behind", "--kernel", "bands_small", "--workers", "0"]
    check_holds(kernels, [sys.executable, "-m", "torchgraft", "check", *given, *sample])


@pytest.mark.slow
def test_what_is_asked_of_kernels_beside_their_properties(kernels):
    """Strides beyond 32 bits, memory that is not there, and results that are views of what was computed."""
    asked = [str(HERE / name) for name in ("test_depthwise_conv2d.py", "test_memory_of_kernels.py")]
    chosen = "cpu and (beyond_32_bits or as_pytorch_does or torch_ops or is_no_view)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked, "-k", chosen]
    check_holds(kernels, command, multiprocessors=16)


@pytest.mark.slow
def test_every_plan_fits_every_device(kernels, tmp_path):
    """Launches of every operator's samples, and of depthwise convolutions at borders, on devices old and new."""
    variables = {
        **os.environ,
        **library.environment(kernels, own.NAMESPACE, launches=tmp_path / "launches", multiprocessors=84),
    }
    command = [sys.executable, HERE.parent / "tools/devices/plans.py"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Arguments as (steps, batch, features, units): products of one row, of one column, and back. Products of gradients are
# those of cuBLAS: of so few rows one kernel would make all of them, in float32.
PRODUCTS = """
import ctypes
import torch
from torchgraft import native
from torchgraft.operators.lltm import operator, reference

[path] = [each.path for each in native.libraries() if each.device == "cpu"]
torch.manual_seed(0)
set_products = ctypes.PyDLL(str(path)).torchgraft_set_products
for steps, batch, features, units in [(3, 5, 7, 4), (1, 1, 1, 1), (2, 1, 5, 3), (2, 3, 1, 2), (2, 0, 3, 2)]:
    shapes = (steps, batch, features), (batch, units), (batch, units), (3 * units, features), (3 * units, units)
    x, h, c, *weights = (torch.randn(shape) for shape in shapes)
    kept = torch.rand(steps, batch, 3 * units), torch.rand(steps, batch, units)
    grads = torch.randn(steps, batch, units), None, None
    for called, meant, arguments in (
        (operator.sequence.raw, reference.lltm, (x, h, c, *weights, None, False, False)),
        (operator.sequence_grads.raw, reference.lltm_grads, (x, h, *weights, *kept, *grads, False, False, *[True] * 5)),
    ):
        exact = meant(*(each.double() if isinstance(each, torch.Tensor) else each for each in arguments))
        errors = []
        for products in (0, 1, 2):
            assert set_products(products) == 0
            with native.ForcedKernel("torchgraft", "cpu", "products_plain"):
                found = called(*arguments)
            assert set_products(0) == products
            pairs = zip(found, exact, strict=True)
            errors.append(max([float((one - other).abs().max()) for one, other in pairs if one.numel()], default=0.0))
        print(steps, batch, features, units, meant.__name__, errors)
        assert errors[0] < 1e-5 and errors[1] < 1e-5 and errors[2] < 2e-2
        assert batch == 0 or errors[2] > 8 * errors[1] or (batch, units) == (1, 1)
"""


@pytest.mark.slow
def test_products_have_the_precision_that_their_thread_was_told(kernels):
    check_holds(kernels, [sys.executable, "-c", PRODUCTS])


@pytest.fixture(scope="module")
def doubled():
    """An operator with several kernels, of which the policy chooses the slowest."""
    path = build(MEASURED, workers=2)
    operator = Operator(f"{MEASURED}::doubled(Tensor input) -> Tensor", reference=lambda input: 2 * input)
    native.load(MEASURED, path.parent)
    return operator


@pytest.mark.usefixtures("measured")
class TestChoicesThatAreMeasured:
    """Kernels of a GPU are timed by its events, and the fastest is kept; tests/test_choosing.py asks what is common."""

    @pytest.mark.parametrize(("count", "fastest"), [(4, "quick"), (7, "pytorch"), (9, "middle")])
    def test_the_policys_slow_kernel_is_left_for_the_fastest_that_supports_the_problem(self, doubled, count, fastest):
        for _ in range(2):
            assert torch.equal(doubled(NUMBERS[:count]), 2 * NUMBERS[:count])
            [choice] = torchgraft.choices()
            assert choice.kernel == fastest
            assert set(choice.microseconds) >= {"", "slow", "middle", fastest}
            # It begins with the device: compute capability and multiprocessors.
            assert choice.problem[0] == 900
        served = native.chosen_kernels(MEASURED, "cpu", lambda: doubled(NUMBERS[:count]))
        assert served == (() if fastest == "pytorch" else (fastest,))

    def test_a_captured_call_is_never_timed_and_takes_what_was_chosen_before(self, doubled, monkeypatch):
        def served():
            return native.chosen_kernels(MEASURED, "cpu", lambda: doubled(NUMBERS[:4]))

        with monkeypatch.context() as captured:
            captured.setenv("TORCHGRAFT_EMULATED_CAPTURE", "1")
            assert served() == ("slow",)
            assert not torchgraft.choices()
        doubled(NUMBERS[:4])
        monkeypatch.setenv("TORCHGRAFT_EMULATED_CAPTURE", "1")
        assert served() == ("quick",)

    def test_where_memory_to_time_with_is_wanting_the_policy_is_kept(self, doubled):
        pytorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
        arguments = [ctypes.c_int64, *2 * [ctypes.POINTER(ctypes.c_int64)], *3 * [ctypes.c_int32], ctypes.c_void_p]
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)
        allocate_by_pytorch = kind(("aoti_torch_empty_strided", pytorch))

        @kind
        def allocate(dim, sizes, *others):
            return 1 if dim == 1 and sizes[0] > 1 << 20 else allocate_by_pytorch(dim, sizes, *others)

        [loaded] = native.libraries_of(MEASURED, "cpu")
        loaded.function("torchgraft_set_allocate")(allocate)
        try:
            assert torch.equal(doubled(NUMBERS[:4]), 2 * NUMBERS[:4])
        finally:
            loaded.function("torchgraft_set_allocate")(None)
        doubled(NUMBERS[:4])
        [choice] = torchgraft.choices()
        assert (choice.kernel, choice.microseconds) == ("", {})

    @pytest.mark.slow
    def test_convolutions_and_their_gradients_hold_whatever_is_chosen(self, kernels):
        check_holds(kernels, [sys.executable, "-c", CONVOLUTIONS], multiprocessors=16)


def test_an_operator_without_kernels_is_refused():
    with pytest.raises(LookupError, match="none in nothing"):
        own.find_folders(["nothing"])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_kernels_of_each_operator_lie_in_one_folder(device):
    served = [each.name for folder in own.find_folders() for each in own.find_operators(folder, device)]
    declared = [each.name for each in Operator.registered.values() if each.module.startswith("torchgraft.operators")]
    assert sorted(served) == sorted(name for name in declared if name != "linear")


def test_kernels_are_built_with_those_that_they_call():
    def folders(name):
        return {
            path.relative_to(own.PACKAGE / "operators").parts[0] for path in own.sources_in(own.find_folders([name]))
        }

    assert folders("depthwise_conv2d") == {"depthwise_conv2d", "depthwise_conv3d"}
    assert folders("depthwise_conv3d") == {"depthwise_conv3d"}


def check_kernels_without_a_mistake(kernels):
    def of_each(parts, width):
        return parts.sum(1, keepdim=True).expand(-1, width).reshape(-1)

    assert torch.equal(kernels.sum(NUMBERS), of_each(NUMBERS.view(2, 64), 64))
    assert torch.equal(kernels.shuffle(NUMBERS), of_each(NUMBERS.view(4, 32), 32))
    assert torch.equal(kernels.reverse(NUMBERS), NUMBERS.view(4, 32).flip(1).reshape(-1))
    assert torch.equal(kernels.write(NUMBERS), NUMBERS)
    assert torch.equal(kernels.copy(NUMBERS), NUMBERS.view(-1, 2).flip(1).reshape(-1))
    assert torch.equal(kernels.send(NUMBERS), NUMBERS.view(2, 64).flip(0).reshape(-1))
    lanes = torch.arange(32)
    assert torch.equal(kernels.matrix(NUMBERS)[:32], (lanes // 4 * 8 + lanes % 4 * 2).float())


@pytest.mark.parametrize("order", [0, 1, 2])
def test_kernels_without_a_mistake_are_right(mistakes, watched_mistakes, monkeypatch, order):
    monkeypatch.setenv("TORCHGRAFT_EMULATION_ORDER", str(order))
    check_kernels_without_a_mistake(mistakes)
    check_kernels_without_a_mistake(watched_mistakes)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("barrier_in_branch", r"sum_kernel<kMistake> .*wait for each other in vain: 32 at __syncthreads, 32 have"),
        ("early_return", "in vain: 63 at __syncthreads, 1 have returned"),
        ("overrun", "a write beside shared memory, 0 bytes behind an array of 256"),
        ("shuffle_of_half_a_warp", "32 at __shfl_xor_sync of lanes 0xffffffff, 32 at __syncwarp"),
        ("matrix_off_its_boundary", "an access of 16 bytes of shared memory off their boundary"),
        ("more_bytes_expected", "in vain: 128 at a barrier that counts bytes"),
        ("matrix_outside", "an access beside shared memory: 16 bytes"),
        ("too_much_shared_memory", "mistakes did not launch: invalid argument"),
        ("too_much_declared", "256 bytes of static and 49152 of dynamic shared memory are more than 49152"),
        ("too_many_threads", "128 threads a block are more than the 64 that the kernel is compiled for"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(mistakes, mistake, says):
    with pytest.raises(RuntimeError, match=says):
        getattr(mistakes, mistake)(NUMBERS)
    # And the next launch is not affected.
    assert mistakes.sum(NUMBERS)[0] == 2016


def test_a_declaration_of_shared_memory_may_be_of_several_variables(mistakes):
    assert mistakes.declare(NUMBERS).tolist() == mistakes.sum(NUMBERS).tolist()


@pytest.mark.parametrize(
    ("declared", "names"),
    [
        ("unsigned long long a, b;", ["unsigned long long a", "unsigned long long b"]),
        ("float x[2][8],\n    y [N < 4 ? 1 : 2];", ["float[2][8] x", "float[N < 4 ? 1 : 2] y"]),
        ("std::pair<int, float> pair, pairs[3];", ["std::pair<int, float> pair", "std::pair<int, float>[3] pairs"]),
        ("A /* or B */ a[2 * (N + 1)];", ["A[2 * (N + 1)] a"]),
        ("alignas(16) unsigned char bytes[64];", ["unsigned char[64] bytes"]),
        ("T* pointer;", None),
    ],
)
def test_declarations_of_shared_memory_are_read(declared, names, tmp_path):
    source = tmp_path / "shared.cu"
    source.write_text(f"// Sums are in __shared__ memory.\nvoid kernel() {{\n  __shared__ {declared}\n}}\n")
    if names is None:
        with pytest.raises(translate.TranslationError, match="that is not of variables and arrays alone"):
            translate.translate(source)
        return
    text = translate.translate(source)
    found = re.findall(r"static const char (\w+)_key = 0; std::type_identity_t<(.+?)>& \1 = ", text)
    assert [f"{kind} {name}" for name, kind in found] == names
    assert (", 16));" in text) == declared.startswith("alignas")
    # Behind the line that names the file.
    assert text.count("\n") == source.read_text().count("\n") + 1


@pytest.mark.parametrize("mistake", ["too_much_shared_memory", "too_much_declared", "too_many_threads"])
def test_a_launch_is_refused_where_none_is_run(mistakes, monkeypatch, mistake):
    monkeypatch.setenv("TORCHGRAFT_EMULATED_LAUNCHES", os.devnull)
    # By what the kernel says as it begins, and from then on by what it has said.
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"are more than|did not launch: (invalid argument|too many resources)"):
            getattr(mistakes, mistake)(NUMBERS)
    mistakes.sum(NUMBERS)


def test_clusters_are_refused_that_are_too_large_or_empty_or_that_the_device_has_not(mistakes, monkeypatch):
    many = torch.zeros(16 * 64)
    mistakes.send(many)
    for mistake in (mistakes.too_large_cluster, mistakes.empty_cluster):
        with pytest.raises(RuntimeError, match="did not launch: cluster misconfiguration"):
            mistake(many)
    monkeypatch.setenv("TORCHGRAFT_EMULATED_LAUNCHES", os.devnull)
    monkeypatch.setenv("TORCHGRAFT_EMULATED_ARCHITECTURE", "80")
    mistakes.sum(NUMBERS)
    with pytest.raises(RuntimeError, match="did not launch: invalid argument"):
        mistakes.send(many)


@pytest.mark.parametrize("device", [90, 100, 120])
def test_a_newer_device_runs_what_kernels_are_compiled_for(mistakes, monkeypatch, device):
    monkeypatch.setenv("TORCHGRAFT_EMULATED_ARCHITECTURE", str(device))
    assert mistakes.architecture(NUMBERS)[:3].tolist() == [900, 10 * device, 900]


def test_an_older_device_has_no_code_to_run(mistakes, monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_EMULATED_ARCHITECTURE", "80")
    with pytest.raises(RuntimeError, match="did not launch: no kernel image is available"):
        mistakes.architecture(NUMBERS)


@pytest.mark.parametrize(("device", "most"), [(90, 227), (100, 227), (120, 99)])
def test_shared_memory_that_is_refused_leaves_no_error(mistakes, monkeypatch, device, most):
    monkeypatch.setenv("TORCHGRAFT_EMULATED_ARCHITECTURE", str(device))
    asked = torch.zeros(64)
    asked[:2] = torch.tensor([most << 10, (most << 10) + 16])
    assert mistakes.allowed(asked)[:3].tolist() == [1, 0, 0]


@pytest.mark.parametrize("mistake", ["no_barrier", "unwritten", "copy_not_waited_for"])
def test_memory_that_nobody_has_written_is_no_number(mistakes, mistake):
    assert getattr(mistakes, mistake)(NUMBERS).isnan().any()


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (
            "no_barrier",
            r"a race in shared memory: thread \d+ (read|wrote) at mistakes.cu:\d+, thread \d+ (read|write)s at",
        ),
        ("vote_for_a_barrier", r"a race in shared memory: thread \d+ wrote at mistakes.cu:\d+, thread \d+ reads at"),
        ("blocks_write_over_each_other", r"a race in device memory: thread \d+ of another block wrote at"),
    ],
)
def test_a_race_is_an_error_that_names_both_lines(watched_mistakes, monkeypatch, mistake, says, order):
    monkeypatch.setenv("TORCHGRAFT_EMULATION_ORDER", str(order))
    with pytest.raises(RuntimeError, match=says):
        getattr(watched_mistakes, mistake)(NUMBERS)
