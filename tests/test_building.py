"""Building kernels as a user does: one tiny operator, compiled once; and what a build that fails says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchgraft import Operator, native
from torchgraft.building import BuildError, MissingToolError, build, find_tool, has_tool
from torchgraft.building import compile as compiling
from torchgraft.kernels import signatures

KERNEL = """
#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

using namespace torchgraft;

Tensor twice_cpu(Tensor input) {
  TORCHGRAFT_CHECK(input.scalar_type() == ScalarType::Float, "float32 only");
  const Tensor source = to_contiguous(input);
  Tensor output = empty_as(source);
  const float* from = static_cast<const float*>(source.const_data_ptr());
  float* to = static_cast<float*>(output.mutable_data_ptr());
  parallel_for(0, output.numel(), 2, [&](int64_t begin, int64_t end) {
    TORCHGRAFT_CHECK(from[begin] != 13, "thirteen");
    for (int64_t i = begin; i < end; ++i) to[i] = 2 * from[i];
  });
  return output;
}

TORCHGRAFT_KERNEL(building, CPU, twice, twice_cpu)
"""

PROGRAM = """
import sys, torch, torchgraft
from pathlib import Path
operator = torchgraft.Operator(
    "building::twice(Tensor input) -> Tensor", reference=lambda input: 3 * input, output=torch.empty_like
)
torchgraft.native.load("building", Path(sys.argv[1]))
print([library.problem for library in torchgraft.native.libraries() if library.namespace == "building"][0])
print(operator(torch.arange(5.0)).tolist())
try:
    operator(torch.full((5,), 13.0))
except (ValueError, RuntimeError):  # PyTorch's loop over threads makes a RuntimeError of a refusal
    print("refused")
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    path = tmp_path_factory.mktemp("sources with a space") / "cpu.cpp"
    path.write_text(KERNEL)
    return path


def run_with(directory: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_users_kernel_is_built_and_found(kernel, tmp_path):
    build("building", [kernel, kernel.parent / "operator.py"], tmp_path)
    assert run_with(tmp_path).splitlines() == ["", "[0.0, 2.0, 4.0, 6.0, 8.0]", "refused"]

    # Nothing changed, and nothing is done; then something does.
    built = (tmp_path / "building_cpu.so").stat().st_mtime_ns
    build("building", [kernel], tmp_path)
    assert (tmp_path / "building_cpu.so").stat().st_mtime_ns == built

    broken = tmp_path / "broken.cpp"
    broken.write_text(KERNEL.replace("float* to =", "float* to = nonsense +"))
    with pytest.raises(BuildError, match=r"(?s)building does not build:\n.*broken\.cpp:14:\d+: error: .*nonsense"):
        build("building", [broken], tmp_path)


@pytest.mark.slow
def test_several_build_in_one_folder_at_once(kernel, tmp_path):
    program = "import sys; from pathlib import Path; from torchgraft.building import build\n"
    program += "build('building', [Path(sys.argv[1])], Path(sys.argv[2]))"
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(kernel), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build", "building_cpu.so"]
    assert "refused" in run_with(tmp_path)


def test_a_library_that_is_loaded_keeps_what_it_had_when_it_is_built_anew(tmp_path):
    source = tmp_path / "cpu.cpp"
    source.write_text(KERNEL)
    build("building", [source], tmp_path)
    library = tmp_path / "building_cpu.so"
    with library.open("rb") as loaded:
        before = loaded.read()
        source.write_text(KERNEL.replace("2 * from", "4 * from"))
        build("building", [source], tmp_path)
        loaded.seek(0)
        assert loaded.read() == before
    assert library.read_bytes() != before
    assert "[0.0, 4.0, 8.0, 12.0, 16.0]" in run_with(tmp_path)


@pytest.mark.slow
def test_the_loop_for_threads_that_a_sanitizer_knows(kernel, tmp_path):
    # The loop alone, without the sanitizer, whose runtime would have to be loaded first.
    unsanitized = tmp_path / "cpu.cpp"
    unsanitized.write_text("#define TORCHGRAFT_STD_THREADS\n" + kernel.read_text())
    build("building", [unsanitized], tmp_path)
    assert run_with(tmp_path).splitlines() == ["", "[0.0, 2.0, 4.0, 6.0, 8.0]", "refused"]


def test_what_is_missing_is_named(kernel, tmp_path, monkeypatch):
    with pytest.raises(BuildError, match=r"sources must hold a \.cpp file, or a \.cu file and cuda=True, got"):
        build("building", [tmp_path / "operator.py"], tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(compiling.sys, "executable", str(tmp_path / "python"))
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(BuildError, match=r"cmake is not installed: run pip install 'torchgraft\[check\]'"):
            build("building", [kernel], tmp_path)

    with monkeypatch.context() as patch:
        patch.delenv("CXX", raising=False)
        patch.setenv("PATH", str(Path(sys.executable).parent))
        with pytest.raises(BuildError, match=r"no C\+\+ compiler: install g\+\+"):
            build("building", [kernel], tmp_path)

    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="the environment variable CXX names no-such-compiler"):
        build("building", [kernel], tmp_path)


def write_program(path, printed):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{printed}'\n")
    path.chmod(0o755)
    return path


class TestCMakeThatIsTooOld:
    @pytest.fixture
    @staticmethod
    def programs(tmp_path, monkeypatch):
        """Makes CMakes: that of the environment, whose folder has a space, and that of the machine."""
        monkeypatch.setattr(compiling.sys, "executable", str(tmp_path / "an environment/python"))
        monkeypatch.setenv("PATH", str(tmp_path / "machine"), prepend=os.pathsep)

        def write(**versions):
            folders = {"environment": "an environment", "machine": "machine"}
            return [
                str(write_program(tmp_path / folders[place] / "cmake", f"cmake version {version}"))
                for place, version in versions.items()
            ]

        return write

    def test_is_named_before_kernels_for_cuda_are_built(self, programs, tmp_path):
        programs(machine="3.25.1")
        (tmp_path / "cuda.cu").touch()
        with pytest.raises(MissingToolError) as raised:
            build("building", [tmp_path / "cuda.cu"], tmp_path, cuda=True)
        assert str(raised.value) == (
            f"cmake in {tmp_path / 'machine'} is version 3.25.1, and this build needs 3.25.2 or newer: "
            "run pip install 'cmake>=3.25.2'"
        )

    def test_is_named_before_kernels_for_the_cpu_are_built(self, programs, kernel, tmp_path):
        programs(machine="3.18.4")
        with pytest.raises(MissingToolError, match=r"version 3\.18\.4, and this build needs 3\.24 or newer"):
            build("building", [kernel], tmp_path)

    @pytest.mark.parametrize(
        ("oldest", "versions", "chosen"),
        [
            ("3.25.2", {"environment": "3.25.2", "machine": "3.30.0"}, 0),
            ("3.25.2", {"environment": "3.25.1", "machine": "4.0.3"}, 1),
            ("3.25.2", {"environment": "nothing", "machine": "3.26.0-rc1"}, 1),
            ("3.25.2", {"environment": "4.4"}, 0),
            ("3.9.1", {"environment": "3.10.0"}, 0),
            ("3.24", {"environment": "3.25.1", "machine": "3.30.0"}, 0),
            ("", {"environment": "3.1", "machine": "3.30.0"}, 0),
        ],
    )
    def test_is_passed_over(self, programs, oldest, versions, chosen):
        paths = programs(**versions)
        assert find_tool("cmake", oldest=oldest) == paths[chosen]

    @pytest.mark.parametrize("version", ["3.25.1", "3.25", "2.8.12", "nothing"])
    def test_is_no_tool(self, programs, version):
        programs(environment=version, machine=version)
        assert not has_tool("cmake", oldest="3.25.2")
        assert has_tool("cmake")


def test_everything_asks_for_the_same_cmake():
    root = Path(__file__).parent.parent
    oldest = re.escape(compiling.OLDEST_CMAKE_FOR_CUDA)
    assert re.search(
        rf"^cmake_minimum_required\(VERSION {oldest}\)$", (root / "CMakeLists.txt").read_text(), re.MULTILINE
    )
    assert re.search(rf"CMAKE_VERSION VERSION_LESS {oldest}\)", compiling._MODULE.read_text())
    project = (root / "pyproject.toml").read_text()
    assert re.findall(r'"cmake([^"]*)"', project) == [f">={compiling.OLDEST_CMAKE_FOR_CUDA}"] * 2
    # What pip is told to fetch for the build: scikit-build-core reads CMakeLists.txt.
    program = "from scikit_build_core.build import *; print(get_requires_for_build_wheel())"
    asked = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert f"cmake>={compiling.OLDEST_CMAKE_FOR_CUDA}" in asked.stdout


class TestWhetherCudaIsBuilt:
    """The decision of the CMake module, with a PyTorch, a compiler and GPUs that are only names."""

    @staticmethod
    def decide(folder, *, torch_cuda=True, nvcc="sm_75 sm_80 sm_90 sm_120", gpus="", defined=(), first="", **variables):
        """The last line that CMake prints, such as `ON 90-real`; and all that it printed."""
        header = folder / "torch/include/torch/csrc/stable/library.h"
        header.parent.mkdir(parents=True)
        header.touch()
        (folder / "torch/lib").mkdir()
        if torch_cuda:
            (folder / "torch/lib/libtorch_cuda.so").touch()
        compiler = write_program(folder / "bin/nvcc", nvcc.replace(" ", "\n")) if nvcc else ""
        if gpus:
            write_program(folder / "bin/nvidia-smi", gpus.replace(" ", "\n"))
        else:
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin/nvidia-smi").write_text("#!/bin/sh\necho 'NVML library version: 580.12'; exit 9\n")
            (folder / "bin/nvidia-smi").chmod(0o755)
        (folder / "CheckLanguage.cmake").write_text(
            f'macro(check_language language)\n  set(CMAKE_CUDA_COMPILER "{compiler}")\nendmacro()\n'
        )
        script = folder / "decide.cmake"
        script.write_text(f"""
            cmake_minimum_required(VERSION 3.24)
            set(CMAKE_MODULE_PATH "{folder}")
            {first}
            function(enable_language)
            endfunction()
            include("{compiling._MODULE}")
            message(STATUS "decided: ${{_torchgraft_builds_cuda}} ${{CMAKE_CUDA_ARCHITECTURES}}")
        """)
        kept = {key: value for key, value in os.environ.items() if key not in ("TORCHGRAFT_CUDA", "CUDAARCHS")}
        path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
        done = subprocess.run(
            [find_tool("cmake"), f"-DPython_EXECUTABLE={sys.executable}", *defined, "-P", str(script)],
            capture_output=True,
            text=True,
            check=False,
            env={**kept, "PATH": path, "TORCHGRAFT_TORCH_INCLUDE": str(folder / "torch/include"), **variables},
        )
        printed = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode == 0) == ("decided: " in printed), printed
        return printed.rpartition("decided: ")[2] if done.returncode == 0 else "", printed

    SUPPORTED = "75-real;80-real;90-real;100-real;120"

    @pytest.mark.parametrize(
        ("given", "decided"),
        [
            ({}, f"ON {SUPPORTED}"),
            ({"gpus": "9.0"}, "ON 90-real"),
            ({"gpus": "9.0 9.0 7.5"}, "ON 90-real;75-real"),
            ({"gpus": "9.0", "TORCHGRAFT_CUDA": "all"}, f"ON {SUPPORTED}"),
            ({"gpus": "9.0", "TORCHGRAFT_CUDA": "0"}, "OFF"),
            ({"gpus": "9.0", "CUDAARCHS": "80-real;90-real"}, "ON 80-real;90-real"),
            ({"gpus": "9.0", "defined": ("-DCMAKE_CUDA_ARCHITECTURES=80",), "CUDAARCHS": "90"}, "ON 80"),
            # A GPU that the compiler does not know, which newer architectures of the library may run; and an old one.
            ({"gpus": "12.1"}, f"ON {SUPPORTED}"),
            ({"gpus": "6.1", "nvcc": "sm_61 sm_90"}, f"ON {SUPPORTED}"),
            ({"nvcc": ""}, "OFF"),
            ({"torch_cuda": False, "gpus": "9.0"}, "OFF"),
            ({"torch_cuda": False, "gpus": "9.0", "TORCHGRAFT_CUDA": "1"}, "ON 90-real"),
            ({"torch_cuda": False, "TORCHGRAFT_CUDA": "ALL"}, f"ON {SUPPORTED}"),
            # The option goes before the variable.
            ({"torch_cuda": False, "defined": ("-DTORCHGRAFT_CUDA=ON",), "TORCHGRAFT_CUDA": "0"}, f"ON {SUPPORTED}"),
            ({"defined": ("-DTORCHGRAFT_CUDA=OFF",), "TORCHGRAFT_CUDA": "1"}, "OFF"),
        ],
        ids=str,
    )
    def test_follows_from_pytorch_the_compiler_the_gpu_and_what_is_asked(self, given, decided, tmp_path):
        assert self.decide(tmp_path, **given)[0] == decided

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (
                {"torch_cuda": False},
                "no CUDA library, as .*/torch was built without CUDA. TORCHGRAFT_CUDA=1 builds one",
            ),
            ({"nvcc": ""}, r"no CUDA compiler \(nvcc\) found, building the CPU library only"),
            ({"nvcc": "", "TORCHGRAFT_CUDA": "1"}, "there is no CUDA compiler, and TORCHGRAFT_CUDA asks for CUDA"),
            ({"TORCHGRAFT_CUDA": "maybe"}, "TORCHGRAFT_CUDA must be 0, 1 or all, got 'MAYBE'"),
            ({"first": "set(CMAKE_VERSION 3.25.1)"}, r"need CMake 3\.25\.2 or newer, and .* Run pip install 'cmake>="),
            ({"TORCHGRAFT_CUDA": "1"}, "no GPU here to compile for, so all supported architectures"),
            ({"gpus": "12.1"}, r"a GPU of compute capability 12\.1 is none that"),
        ],
        ids=str,
    )
    def test_is_said(self, given, said, tmp_path):
        assert re.search(said, self.decide(tmp_path, **given)[1])


def test_the_first_error_is_shown_and_not_a_flag_that_is_called_so():
    output = "FAILED: x.o\nc++ -Werror -c x.cpp\nx.cpp:3:7: error: no\n  3 | what\n[2/3] y.o\nninja: build stopped\n"
    assert compiling._first_error(output) == "x.cpp:3:7: error: no\n  3 | what"
    assert compiling._first_error("x.cu(3): error: no\n").startswith("x.cu(3)")
    assert compiling._first_error("one\ntwo\n") == "one\ntwo"


SCHEMA = "(Tensor input, Tensor? bias, float scale, int[] sizes) -> (Tensor, Tensor)"
FITTING = ("Tensor input", "std::optional<Tensor> bias", "double scale", "std::vector<int64_t> sizes")
RETURNED = "std::tuple<Tensor, Tensor>"
# A function, what it takes and returns in C++, and what is said of it.
FUNCTIONS = {
    "fits": (FITTING, RETURNED, ""),
    "takes_int": (
        (*FITTING[:2], "int64_t scale", FITTING[3]),
        RETURNED,
        "says float scale, but takes_int takes int64_t: write double",
    ),
    "takes_tensor": (
        (FITTING[0], "Tensor bias", *FITTING[2:]),
        RETURNED,
        "says Tensor? bias, but takes_tensor takes Tensor: write std::optional<Tensor>",
    ),
    "takes_one": (
        (*FITTING[:3], "int64_t sizes"),
        RETURNED,
        "says int[] sizes, but takes_one takes int64_t: write std::vector<int64_t>",
    ),
    "takes_another_order": (
        (FITTING[0], *FITTING[:0:-1]),
        RETURNED,
        "says Tensor? bias, but takes_another_order takes std::vector<int64_t>: write std::optional<Tensor>",
    ),
    "takes_fewer": (
        FITTING[:3],
        RETURNED,
        "has 4 arguments, but takes_fewer takes 3: write"
        " takes_fewer(Tensor, std::optional<Tensor>, double, std::vector<int64_t>)",
    ),
    "returns_one": (FITTING, "Tensor", "returns Tensor, Tensor, but returns_one returns Tensor"),
}


class TestTypes:
    """The arguments that the function of a kernel takes are compared with the schema before it is ever called."""

    @pytest.fixture(scope="class")
    @staticmethod
    def built(tmp_path_factory):
        folder = tmp_path_factory.mktemp("types")
        functions = "\n".join(
            f"{returns} {function}({', '.join(takes)}) {{ std::abort(); }}\n"
            f"TORCHGRAFT_KERNEL(NAMESPACE, CPU, {function}, {function})"
            for function, (takes, returns, _) in FUNCTIONS.items()
        )
        head = "#include <cstdlib>\n#include <torchgraft/checks.h>\n#include <torchgraft/registration.h>\n"
        for namespace in ("types_first", "types_last"):
            text = f"{head}using namespace torchgraft;\n{functions.replace('NAMESPACE', namespace)}\n"
            (folder / f"{namespace}.cpp").write_text(text)
            build(namespace, [folder / f"{namespace}.cpp"], folder)
        return folder

    @staticmethod
    def declare(namespace, function):
        return Operator(f"{namespace}::{function}{SCHEMA}", reference=lambda input, *rest: (input, input))

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_are_compared_where_an_operator_is_declared(self, built, function):
        native.load("types_first", built)
        problem = FUNCTIONS[function][2]
        if not problem:
            self.declare("types_first", function)
            return
        with pytest.raises(TypeError) as raised:
            self.declare("types_first", function)
        assert str(raised.value) == f"types_first::{function}: the schema {problem}"

    def test_are_compared_where_a_library_is_loaded(self, built, monkeypatch):
        monkeypatch.setattr(signatures, "_declared", [])
        operators = {function: self.declare("types_last", function) for function in FUNCTIONS}
        with pytest.raises(TypeError) as raised:
            native.load("types_last", built)
        expected = [
            f"types_last::{function}: the schema {problem}"
            for function, (_, _, problem) in FUNCTIONS.items()
            if problem
        ]
        assert str(raised.value).splitlines() == expected
        # No name reaches a kernel that does not fit, which would end the process.
        for function, operator in operators.items():
            for name in (operator, operator.public, operator.raw) if FUNCTIONS[function][2] else ():
                with pytest.raises(TypeError, match="the schema"):
                    name(torch.ones(1), None, 1.0, [1])


def test_a_type_that_no_schema_has_does_not_compile(tmp_path):
    source = tmp_path / "cpu.cpp"
    source.write_text(KERNEL.replace("Tensor twice_cpu(Tensor input) {", "Tensor twice_cpu(Tensor input, float) {"))
    with pytest.raises(BuildError, match="int64_t for int, double for"):
        build("unknown", [source], tmp_path)
