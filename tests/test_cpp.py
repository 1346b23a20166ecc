"""C++ without Python: schemas, the CMake package, calls and their errors, and exported models in a C++ program."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchgraft
import wrong_calls
from documents import read_document
from test_docs import FENCED, ROOT
from torchgraft import Operator
from torchgraft.authoring import cpp
from torchgraft.checking.subject import find_subjects

PACKAGE = Path(torchgraft.__file__).parent
LIBRARIES = PACKAGE / "lib"
EXAMPLE = ROOT / "examples/cpp"
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=[pytest.mark.cuda, NO_CUDA])]


def run(*command, status=0, **environment):
    """The output of a program, on both streams."""
    done = subprocess.run(
        [str(each) for each in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == status, f"exit status {done.returncode}: {done.stdout}"
    return done.stdout


def configure(source, build, *options):
    tools = [f"-DTORCHGRAFT_PYTHON={sys.executable}", f"-DCMAKE_PREFIX_PATH={PACKAGE.parent}"]
    return run("cmake", "-S", source, "-B", build, "-G", "Ninja", *tools, *options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder that all workers share, and that one of them at a time fills."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "cpp"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@pytest.fixture(scope="module")
def programs(shared):
    """The example and the programs of tests/cpp, built as a reader builds the example."""
    build = shared / "build"
    if not build.exists():
        (shared / "calls.cpp").write_text(wrong_calls.program())
        configure(ROOT / "tests/cpp", build, f"-DCALLS={shared / 'calls.cpp'}", "-DCMAKE_BUILD_TYPE=Debug")
        run("cmake", "--build", build)
    return build


def export(folder, name, device="cpu"):
    """The file that examples/cpp/export.py writes."""
    path = folder / device / f"{name}.pt2"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        quickly = "import torch._inductor.config as c; c.aot_inductor.compile_wrapper_opt_level = 'O0'"
        quickly += "; c.aot_inductor.precompile_headers = False"
        call = f"export.export({name!r}, pathlib.Path({str(path.parent)!r}), {device!r})"
        code = f"{quickly}; import export, pathlib; {call}"
        run(sys.executable, "-c", code, PYTHONPATH=os.pathsep.join((str(EXAMPLE), *sys.path)))
    return path


def requests(model):
    """The files that a program is given for a model, and those that it is to write."""
    return [
        path
        for size in (1, 2, 7)
        for path in (f"{model.with_suffix('')}-{size}.{kind}.pt" for kind in ("input", "output"))
    ]


def expect_the_bits_of_python(model):
    for size in (1, 2, 7):
        found, expected = (torch.load(f"{model.with_suffix('')}-{size}.{kind}.pt") for kind in ("output", "expected"))
        assert len(found) == len(expected) == 1
        assert torch.equal(found[0], expected[0]), size


def test_the_page_shows_the_example():
    blocks = {block["file"]: block["text"] for block in FENCED.finditer((ROOT / "docs/cpp.md").read_text())}
    assert blocks["serve/serve.cpp"] in (EXAMPLE / "serve.cpp").read_text()


class TestGeneratedSources:
    def test_are_those_of_the_declarations(self):
        operators, written = cpp.operators_of("torchgraft"), "`make schemas` has written this file."
        advice = "an operator has changed: run `make schemas`"
        assert cpp.SOURCE.read_text() == cpp.schemas_source("torchgraft", operators, written), advice
        assert cpp.HEADER.read_text() == cpp.header("torchgraft", operators, written), advice

    def test_define_in_another_process_what_python_declares(self):
        """PyTorch alone, without torchgraft's Python, reads the library."""
        names = [overload.name() for each in cpp.operators_of("torchgraft") for overload in (each.public, each.raw)]
        code = f"""
import ctypes, torch
ctypes.CDLL({str(LIBRARIES / "torchgraft_schemas.so")!r})
for name in {names!r}:
    print(torch._C._get_schema(name, ""))
"""
        found = run(sys.executable, "-c", code).splitlines()
        assert found == [str(torch._C._get_schema(name, "")) for name in names]

    def test_are_never_loaded_by_python(self):
        assert "torchgraft_cpu.so" in Path("/proc/self/maps").read_text()
        assert "torchgraft_schemas.so" not in Path("/proc/self/maps").read_text()

    def test_have_names_and_defaults_of_cpp(self):
        operator = Operator(
            "in_cpp::defaults(Tensor input, int[2] default, float scale=2.0, *, Tensor(a!) out, bool flag=True,"
            ' str mode="mean", int? count=None, int[2] pair=[1, 2]) -> Tensor',
            reference=lambda input, default, scale, *, out, flag, mode, count, pair: (out, input),
        )
        try:
            text = cpp.header("in_cpp", [operator])
        finally:
            operator.undeclare()
        parameters = re.search(r"inline Tensor defaults\((.*)\) \{", text)[1]
        assert parameters == (
            "const Tensor& input, const std::vector<int64_t>& default_, double scale, const Tensor& out,"
            ' bool flag = true, const std::string& mode = "mean", const std::optional<int64_t>& count = std::nullopt,'
            " const std::vector<int64_t>& pair = std::vector<int64_t>{1, 2}"
        )

    def test_leave_out_what_cannot_be_called(self):
        operator = Operator(
            "in_cpp::scalar(Tensor input, Scalar factor) -> Tensor", reference=lambda input, factor: input
        )
        try:
            text = cpp.header("in_cpp", [operator])
        finally:
            operator.undeclare()
        assert "// scalar is not here: PyTorch's stable ABI does not carry Scalar factor." in text


class TestCMakePackage:
    def test_lies_where_the_command_says(self):
        folder = Path(run(sys.executable, "-m", "torchgraft", "--cmake-path").strip())
        assert (folder / "torchgraft/cmake/torchgraftConfig.cmake").is_file()

    @pytest.mark.parametrize(
        ("asked", "found"),
        [("", True), ("0.1", True), ("0.1.0", True), ("0.0", False), ("0.2", False), ("1.0", False)],
    )
    def test_has_a_version(self, tmp_path, asked, found):
        rules = PACKAGE / "cmake/torchgraftConfigVersion.cmake"
        script = tmp_path / "asked.cmake"
        script.write_text(
            f'set(PACKAGE_FIND_VERSION "{asked}")\ninclude("{rules}")\n'
            'message("version ${PACKAGE_VERSION}: ${PACKAGE_VERSION_COMPATIBLE}")\n'
        )
        assert run("cmake", "-P", script) == f"version {torchgraft.__version__}: {str(found).upper()}\n"

    def test_names_a_component_that_is_not_there(self, tmp_path):
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.24)\nproject(asked LANGUAGES CXX)\n"
            "find_package(torchgraft REQUIRED COMPONENTS schemas rocm)\n"
        )
        with pytest.raises(AssertionError, match=r"there is no torchgraft_rocm\.so"):
            configure(tmp_path, tmp_path / "build")


def test_an_argument_in_cpp_keeps_whole_numbers():
    """They may be places, as the borders of sequences are: an operator would refuse ones."""
    assert cpp.in_cpp(torch.tensor([0, 6], dtype=torch.int32)) == "tensor({2}, ScalarType::Int, {0, 6})"
    assert cpp.in_cpp(torch.zeros(2, 0, dtype=torch.int64)) == "tensor({2, 0}, ScalarType::Long)"
    assert cpp.in_cpp(torch.zeros(3)) == "tensor({3}, ScalarType::Float)"


@pytest.mark.slow
class TestPrograms:
    def test_pass_what_ctest_asks(self, programs):
        assert "100% tests passed" in run("ctest", "--test-dir", programs, "--output-on-failure")

    def test_need_no_python(self, programs):
        for program in ("examples/serve", "examples/operators", "calls"):
            loaded = run("ldd", programs / program)
            assert "torchgraft_schemas.so" in loaded
            assert "libpython" not in loaded
            assert "libtorch_python" not in loaded

    def test_refuse_what_python_refuses_in_the_same_words(self, programs):
        lines = [line.split("\t") for line in run(programs / "calls").splitlines() if re.match(r"\d+\t", line)]
        found = {int(number): said for number, said in lines}
        calls = list(wrong_calls.calls())
        assert len(calls) > 800
        assert sorted(found) == list(range(len(calls)))
        for number, (operator, arguments) in enumerate(calls):
            assert found[number] == wrong_calls.in_python(operator, arguments), (operator, arguments)
        assert sum(said == "fine" for said in found.values()) > 50

    def test_name_a_library_of_another_version(self, programs, tmp_path):
        library = (LIBRARIES / "torchgraft_cpu.so").read_bytes()
        assert library.count(b"mul_constant_cpu\0") == 1
        schemas = (LIBRARIES / "torchgraft_schemas.so").read_bytes()
        assert schemas.count(b"Tensor, float\0") == 1
        (tmp_path / "torchgraft_schemas.so").write_bytes(schemas.replace(b"Tensor, float\0", b"Tensor, other\0"))
        said = run(programs / "examples/operators", LD_LIBRARY_PATH=str(tmp_path))
        assert f"refused: torchgraft::mul_constant is of another version in {tmp_path}/torchgraft_schemas.so" in said


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
class TestServing:
    def test_a_convnext_block_in_threads_and_batches(self, programs, shared, device):
        model = export(shared, "convnext", device)
        run(programs / "examples/serve", model, *requests(model))
        expect_the_bits_of_python(model)

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (lambda x: (x[0],), "input must have the shape (1..64, 16, 14, 14), got (16, 14, 14)"),
            (lambda x: (x.double(),), "input must have dtype torch.float32, got torch.float64"),
            (lambda x: (x.expand(65, -1, -1, -1).clone(),), "input must have the shape (1..64, 16, 14, 14), got (65,"),
            (lambda x: (x, x), "the package takes 1 inputs, got 2"),
            (lambda x: (x.to("meta"),), ""),
        ],
        ids=["rank", "dtype", "size", "count", "device"],
    )
    def test_wrong_inputs_are_refused(self, programs, shared, tmp_path, device, made, said):
        model = export(shared, "convnext", device)
        torch.save(made(torch.randn(1, 16, 14, 14, device=device)), tmp_path / "wrong.pt")
        printed = run(programs / "examples/serve", model, tmp_path / "wrong.pt", tmp_path / "out.pt", status=1)
        assert f"serve: {said}" in printed

    def test_other_strides_are_laid_out(self, programs, shared, tmp_path, device):
        model = export(shared, "convnext", device)
        [input] = torch.load(f"{model.with_suffix('')}-7.input.pt")
        torch.save((input.contiguous(memory_format=torch.channels_last),), tmp_path / "strided.pt")
        run(programs / "examples/serve", model, tmp_path / "strided.pt", tmp_path / "out.pt")
        [expected] = torch.load(f"{model.with_suffix('')}-7.expected.pt")
        assert torch.equal(torch.load(tmp_path / "out.pt")[0], expected)

    def test_a_missing_library_is_named(self, programs, shared, device):
        model = export(shared, "convnext", device)
        paths = {kind: str(LIBRARIES / f"torchgraft_{kind}.so") for kind in ("schemas", "cpu", "cuda")}
        name = "torchgraft::depthwise_conv2d"
        bare = programs / "serve_bare"
        assert f"{name} has no schema: load torchgraft_schemas.so" in run(bare, model, *requests(model), status=1)
        printed = run(bare, model, *requests(model), status=1, LD_PRELOAD=paths["schemas"])
        assert f"{name} has no kernel for {device}: load torchgraft_{device}.so" in printed
        run(bare, model, *requests(model), LD_PRELOAD=f"{paths['schemas']}:{paths[device]}")
        expect_the_bits_of_python(model)

    def test_a_package_of_another_version_is_refused(self, programs, shared, device, tmp_path):
        model = export(shared, "convnext", device)
        schemas = (LIBRARIES / "torchgraft_schemas.so").read_bytes()
        words = b"Tensor, Tensor, Tensor?, int, int, int, int, int, int, int, int\0"
        assert schemas.count(words) == 1
        other = tmp_path / "torchgraft_schemas.so"
        other.write_bytes(schemas.replace(words, words.replace(b"int\0", b"any\0")))
        preload = f"{other}:{LIBRARIES / f'torchgraft_{device}.so'}"
        printed = run(programs / "serve_bare", model, *requests(model), status=1, LD_PRELOAD=preload)
        assert f"torchgraft::depthwise_conv2d is of another version in {other}" in printed

    @pytest.mark.slow
    def test_a_character_model(self, programs, shared, device):
        model = export(shared, "characters", device)
        run(programs / "examples/serve", model, *requests(model))
        expect_the_bits_of_python(model)


@pytest.mark.slow
def test_a_package_that_is_no_file_is_refused(programs):
    assert "nowhere.pt2 cannot be loaded: " in run(programs / "examples/serve", "nowhere.pt2", "a", "b", status=1)


def test_a_package_needs_its_ending_and_compiled_kernels(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, input):
            return operator(input)

    operator = Operator("in_cpp::no_kernel(Tensor input) -> Tensor", reference=lambda input: input + 1)
    try:
        program = torch.export.export(Model(), (torch.ones(2),))
        with pytest.raises(ValueError, match=r"path must end in .pt2, got model.zip"):
            torchgraft.package(program, "model.zip")
        with pytest.raises(ValueError, match="in_cpp::no_kernel has no compiled kernel for cpu"):
            torchgraft.package(program, tmp_path / "model.pt2")
    finally:
        operator.undeclare()


def test_a_compiler_without_a_shared_standard_library_is_refused(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho libstdc++.so\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    program = torch.export.export(torch.nn.Identity(), (torch.ones(2),))
    with pytest.raises(RuntimeError, match=r"g\+\+ has no libstdc\+\+\.so"):
        torchgraft.package(program, tmp_path / "model.pt2")


@pytest.mark.slow
def test_an_operator_of_another_package_from_its_wheel(shared, tmp_path):
    """The package of examples/rms_norm: made into a wheel, installed beside a copy of torchgraft, and served."""
    command = sys.executable, "-m", "torchgraft", "wheel", ROOT / "examples/rms_norm", "--directory", tmp_path / "dist"
    run(*command, TORCHGRAFT_CUDA="0")
    [wheel] = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(wheel, site, "zip")
    # Relocatable: neither package lies where it was built.
    shutil.copytree(PACKAGE, site / "torchgraft")
    (site / "torch").symlink_to(Path(torch.__file__).parent)
    build = tmp_path / "build"
    run(
        "cmake",
        "-S",
        EXAMPLE,
        "-B",
        build,
        f"-DCMAKE_PREFIX_PATH={site}",
        "-DPACKAGES=rms_norm",
        "-DTORCHGRAFT_PYTHON=",
    )
    run("cmake", "--build", build)
    code = "import export, pathlib; export.export('rms_norm', pathlib.Path('.'), 'cpu')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{site}:{EXAMPLE}"}, check=False
    )
    assert done.returncode == 0
    model = tmp_path / "rms_norm.pt2"
    run(build / "serve", model, *requests(model))
    expect_the_bits_of_python(model)
    assert str(site / "rms_norm/lib/rms_norm_schemas.so") in run("ldd", build / "serve")


@pytest.mark.slow
def test_what_a_call_costs_is_measured_in_both_languages(tmp_path):
    run(sys.executable, "-m", "torchgraft", "bench", "cpp", "--seconds", 1, "--json", tmp_path / "cpp.json")
    operators = read_document("bench-cpp", (tmp_path / "cpp.json").read_text())["operators"]
    assert [each["name"] for each in operators] == [
        each.name for each in find_subjects([]) if cpp.is_callable(each.operator)
    ]
    for each in operators:
        assert all(0.1 < each[path] < 10_000 for path in ("cpp", "kernel", "python")), each
