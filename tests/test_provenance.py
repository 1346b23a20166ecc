"""What a result was measured on: which changes to sources make a row stale, and which do not."""

import importlib.util
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from reports import ENVIRONMENT, make_report, make_row
from torchgraft.benchmarking import suite
from torchgraft.benchmarking.definitions import read_source
from torchgraft.benchmarking.live import print_report
from torchgraft.benchmarking.models import plan_models
from torchgraft.benchmarking.page import render_page
from torchgraft.benchmarking.provenance import Provenance, compiler_of, provenance_of_models, provenance_of_operator
from torchgraft.benchmarking.renewing import here, judge, plan_again, plan_new, without
from torchgraft.benchmarking.results import report_from_dict
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.sources import PACKAGE, Kernels, Sources
from torchgraft.benchmarking.standing import other_tools, sources_now, standing, tools
from torchgraft.benchmarking.suite import Wanted, plan
from torchgraft.benchmarking.summary import as_markdown
from torchgraft.benchmarking.timing import Time
from torchgraft.checking.subject import find_subjects
from torchgraft.environment import describe_environment
from torchgraft.native import libraries
from torchgraft.operator import Operator

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent
# So high that nothing is faster.
ROOFS = Roofs({2**20: 1e18}, {"float32": 1e21}, {"float32": 1e21}, 1e-12)
FOLDERS = [path.parent for path in sorted((PACKAGE / "operators").glob("*/__init__.py"))]

TREE = {
    "include/torchgraft/cuda.cuh": """
        #pragma once
        inline int divide(int a, int b) { return a / b; }
        inline int nobody_asks() { return 3; }
    """,
    "cmake/TorchgraftKernels.cmake": """
        target_compile_options(${namespace}_cpu PRIVATE -O3 -ffp-contract=fast)
        target_compile_options(${namespace}_cuda PRIVATE -O3 -t 0)
    """,
    "nn/__init__.py": """
        from pack.nn.double import Double
        from pack.nn.other import Other
    """,
    "nn/double.py": "from pack.operators.double import double",
    "nn/other.py": "from pack.operators.other import other",
    "grafting.py": '''
        """Swaps layers."""
        from pack.nn import Double
        GRAFTS = (Double,)
    ''',
    "operators/double/__init__.py": "from pack.operators.double.operator import double",
    "operators/double/operator.py": '''
        """Doubles."""
        import torch
        operator = Operator("pack::double(Tensor input) -> Tensor")
        grads = Operator("pack::double_grads(Tensor input) -> Tensor")
        def double(input: torch.Tensor) -> torch.Tensor:
            """Twice the input."""
            return operator(input)
    ''',
    "operators/double/samples.py": "samples = {}",
    "operators/double/cpu.cpp": """
        #include <torchgraft/cuda.cuh>
        namespace pack { namespace {
        int double_cpu(int x) { return divide(x, 1) * 2; }
        } }
        TORCHGRAFT_KERNEL(pack, CPU, double, double_cpu)
    """,
    "operators/double/choice.h": """
        #pragma once
        // Which kernel it is.
        namespace pack {
        constexpr int kFew = 100;  // of a thread
        constexpr int kGradsFew = 7;
        inline bool is_small(int count) { return count < kFew; }
        }
    """,
    "operators/double/launch.h": """
        #pragma once
        void launch_small(const float* x);
        void launch_large(const float* x);
        void launch_grads(const float* x);
    """,
    "operators/double/cuda.cu": """
        #include <torchgraft/cuda.cuh>
        #include "choice.h"
        #include "launch.h"
        namespace pack { namespace {
        void double_cuda(const float* x, int n) { is_small(n) ? launch_small(x) : launch_large(x); }
        void double_grads_cuda(const float* x, int n) { if (n > kGradsFew) launch_grads(x); }
        } }
        TORCHGRAFT_KERNEL(pack, CUDA, double, double_cuda)
        TORCHGRAFT_KERNEL(pack, CUDA, double_grads, double_grads_cuda)
    """,
    "operators/double/small.cu": """
        #include "launch.h"
        #include "shared.cuh"
        constexpr int kThreads = 128;
        template <typename T>
        __global__ void __launch_bounds__(kThreads) small_kernel(const T* x) { twice(x, "a // b"); }
        void launch_small(const float* x) { small_kernel<float><<<1, kThreads>>>(x); }
    """,
    "operators/double/large.cu": """
        #include "launch.h"
        #include "shared.cuh"
        constexpr int kWide = 256;
        __global__ void large_kernel(const float* x) { twice(x, kWide); }
        void launch_large(const float* x) { large_kernel<<<1, kWide>>>(x); }
    """,
    "operators/double/grads.cu": """
        #include "launch.h"
        __global__ void grads_kernel(const float* x) {}
        void launch_grads(const float* x) { grads_kernel<<<1, 1>>>(x); }
    """,
    "operators/double/shared.cuh": """
        #pragma once
        #define PACK_UNROLL _Pragma("unroll")
        template <typename T>
        __device__ void twice(const T* x, int wide) {
          PACK_UNROLL
          for (int i = 0; i < 2; ++i) x[i] *= 2;
        }
    """,
    "operators/other/__init__.py": "from pack.operators.other.operator import other",
    "operators/other/operator.py": 'operator = Operator("pack::other(Tensor input) -> Tensor")',
    "operators/other/reference.py": "",
}


class Tree:
    """A package on disk, and the hashes of its rows."""

    def __init__(self, folder: Path):
        self.package = folder / "pack"
        for name, text in TREE.items():
            self.write(name, text)
        self.before = self.rows()

    def write(self, name, text):
        path = self.package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # What stands in a file of Python begins at its margin.
        lines = text.strip("\n").splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
        path.write_text("\n".join(line[margin:] for line in lines) + "\n")

    def edit(self, name, old, new):
        text = (self.package / name).read_text()
        assert old in text
        (self.package / name).write_text(text.replace(old, new))

    def rows(self):
        sources = Sources(self.package)
        return {
            "cpu": sources.of_operator("double", "cpu"),
            "cuda": sources.of_operator("double", "cuda"),
            "small": sources.of_operator("double", "cuda", ran=("small_kernel", "somebody_elses")),
            "large": sources.of_operator("double", "cuda", ran=("large_kernel",)),
            "grads": sources.of_operator("double_grads", "cuda", ran=("grads_kernel",)),
            "backward": sources.of_operator("double", "cuda", gradients=True),
            "other": sources.of_operator("other", "cpu"),
            "model": sources.of_module("pack.grafting", "cuda"),
        }

    def changed(self):
        return {name for name, after in self.rows().items() if after != self.before[name]}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


ON_GPU = {"cuda", "backward", "model"}

# What is written in a file in place of what, and the rows that it makes stale.
EDITS = {
    "a comment": ("operators/double/choice.h", "// Which kernel it is.", "/* Which\n\n kernel. */", set()),
    "a comment behind code": ("operators/double/choice.h", "// of a thread", "", set()),
    "lines": ("operators/double/shared.cuh", "{\n  PACK", "\n{\n\n  PACK", set()),
    "spaces": ("operators/double/small.cu", "1, kThreads>>>", "1,kThreads >> >", set()),
    "a docstring": ("operators/double/operator.py", "Twice the input", "The input and the input", set()),
    "what two signs mean": ("operators/double/shared.cuh", "++i", "+ +i", {"small", "large", *ON_GPU}),
    "a word that looks like a comment": (
        "operators/double/small.cu",
        '"a // b"',
        '"a // c"',
        {"small", *ON_GPU},
    ),
    "a constant of one kernel": ("operators/double/small.cu", "kThreads = 128", "kThreads = 64", {"small", *ON_GPU}),
    "a constant of another": ("operators/double/large.cu", "kWide = 256", "kWide = 512", {"large", *ON_GPU}),
    "what both use": ("operators/double/shared.cuh", "*= 2", "*= 3", {"small", "large", *ON_GPU}),
    "a macro that both use": ("operators/double/shared.cuh", '("unroll")', '("unroll 2")', {"small", "large", *ON_GPU}),
    "what another operator launches": (
        "operators/double/grads.cu",
        "{}",
        "{ return; }",
        {"grads", "backward", "model"},
    ),
    "the choice": ("operators/double/choice.h", "kFew = 100", "kFew = 99", {"small", "large", *ON_GPU}),
    "the choice of another": (
        "operators/double/choice.h",
        "kGradsFew = 7",
        "kGradsFew = 8",
        {"grads", "backward", "model"},
    ),
    "a header of all": ("include/torchgraft/cuda.cuh", "return a / b", "return b / a", {"cpu"}),
    "what nobody uses": ("include/torchgraft/cuda.cuh", "return 3", "return 4", set()),
    "an option of the compiler": ("cmake/TorchgraftKernels.cmake", "-O3 -ffp", "-O2 -ffp", {"cpu"}),
    "how a compiler works": ("cmake/TorchgraftKernels.cmake", "-t 0", "-t 2", set()),
    "the declaration": (
        "operators/double/operator.py",
        "operator(input)",
        "operator(input + 0)",
        {"backward", "model"},
    ),
    "what it is measured on": ("operators/double/samples.py", "{}", "{1: 2}", set()),
    "what a model is grafted with": ("grafting.py", "(Double,)", "(Double, None)", {"model"}),
    "another layer": ("nn/other.py", "import other", "import other as it", set()),
    "another operator": ("operators/other/operator.py", "Tensor input", "Tensor image", {"other"}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_makes_the_rows_stale_that_it_can_change(tree, edit):
    file, old, new, stale = EDITS[edit]
    tree.edit(file, old, new)
    assert tree.changed() == stale


def test_the_same_sources_have_the_same_hash_everywhere(tree):
    """On every machine, by every Python. Where this changes, every row that was ever measured becomes stale."""
    assert tree.before == {
        "cpu": "cb9f644e3eafff86",
        "cuda": "b360bea1ea80d804",
        "small": "e91c02dd9395ae26",
        "large": "82662a28983a3eda",
        "grads": "16505febfadae8b5",
        "backward": "4e5baa3a53aeea11",
        "other": "c7a156377b4650d8",
        "model": "63f48ae8c87fc402",
    }


def test_moved_files_and_renamed_headers_keep_every_row(tree):
    rooms = tree.package / "operators/double"
    (rooms / "cuda").mkdir()
    for name in ("small.cu", "large.cu", "shared.cuh"):
        shutil.move(rooms / name, rooms / "cuda" / name)
    (rooms / "choice.h").rename(rooms / "policy.h")
    tree.edit("operators/double/cuda.cu", "choice.h", "policy.h")
    for name in ("small.cu", "large.cu"):
        tree.edit(f"operators/double/cuda/{name}", '"launch.h"', '"../launch.h"')
    assert not tree.changed()


def test_a_definition_that_moves_to_another_header_keeps_every_row(tree):
    tree.edit("operators/double/choice.h", "constexpr int kGradsFew = 7;\n", "")
    tree.edit("operators/double/launch.h", "#pragma once", "#pragma once\nconstexpr int kGradsFew = 7;")
    assert not tree.changed()


def test_a_condition_around_a_definition_is_part_of_it(tree):
    tree.edit("operators/double/grads.cu", "__global__", "#if __CUDA_ARCH__ >= 900\n__global__")
    tree.edit("operators/double/grads.cu", "{}", "{}\n#endif")
    assert tree.changed() == {"grads", "backward", "model"}


def test_a_member_that_is_defined_elsewhere_counts(tree):
    tree.edit("operators/double/launch.h", "#pragma once", "#pragma once\nclass Scope { void open(); };")
    tree.edit("operators/double/cuda.cu", "{ is_small", "{ Scope scope; is_small")
    tree.write("operators/double/scope.cu", '#include "launch.h"\nvoid Scope::open() { run(1); }')
    tree.before = tree.rows()
    tree.edit("operators/double/scope.cu", "run(1)", "run(2)")
    assert tree.changed() == {"small", "large", *ON_GPU}


def test_a_table_of_macros_leads_to_the_kernels_that_its_rows_name(tree):
    """A row declares a launcher, and makes the case that calls it: neither stands anywhere but in the table."""
    table = "#define PACK_KERNELS(ROW) ROW(small, launch_small) ROW(large, launch_large)"
    declared = "#define PACK_LAUNCHER(NAME, LAUNCH) void LAUNCH(const float* x);\nPACK_KERNELS(PACK_LAUNCHER)"
    for name in ("small", "large"):
        tree.edit("operators/double/launch.h", f"void launch_{name}(const float* x);\n", "")
    tree.edit("operators/double/launch.h", "#pragma once", f"#pragma once\n{table}\n{declared}")
    called = "#define PACK_CALL(NAME, LAUNCH) LAUNCH(x);\nPACK_KERNELS(PACK_CALL)\n"
    tree.edit("operators/double/cuda.cu", "is_small(n) ? launch_small(x) : launch_large(x);", f"is_small(n);\n{called}")
    tree.before = tree.rows()
    tree.edit("operators/double/small.cu", "a // b", "b // a")
    assert tree.changed() == {"small", *ON_GPU}
    tree.edit("operators/double/small.cu", "b // a", "a // b")
    tree.edit("operators/double/large.cu", "kWide = 256", "kWide = 512")
    assert tree.changed() == {"large", *ON_GPU}


def test_what_python_calls_by_its_name_counts(tree):
    tree.edit(
        "operators/double/grads.cu", "void launch", 'extern "C" int set_mode(int mode) { return 1; }\nvoid launch'
    )
    tree.before = tree.rows()
    tree.edit("operators/double/grads.cu", "return 1", "return 2")
    assert tree.changed() == {"grads", "backward", "model"}


def test_without_sources_nothing_is_said(tree):
    # As in a wheel, which holds no kernels' sources but the declarations.
    for path in tree.package.rglob("*.c*"):
        if path.suffix in (".cpp", ".cu", ".cuh"):
            path.unlink()
    assert set(tree.rows().values()) == {""}
    assert Sources(tree.package).of_calls("cpu") == ""


def test_names_of_kernels_are_known(tree):
    named = ["small_kernel<float, 3>", "at::vectorized<4>", "large_kernel"]
    assert Sources(tree.package).kernels_among(named) == ("large_kernel", "small_kernel")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_definition_in_a_source_of_ours_counts_for_some_operator(folder, device):
    """What is not reached from a registration would never make a row stale."""
    kernels = Kernels(folder, device, PACKAGE / "include")
    counted = kernels.texts(list(kernels.operators))
    own = {each.text for unit in kernels._units for each in unit.own}
    assert own <= counted


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("template <int k = (3 > 2), typename T> __device__ T f(T x) { return g<k>(x); }", {"f"}),
        ("template void f<float, 3>(const float*);", {"f"}),
        ("enum class Kernel { small, large };", {"Kernel", "small", "large"}),
        ("struct alignas(16) Pair { int a[2]; };", {"Pair"}),
        ("template <> struct Of<3> : Base<4> { int f() { return 1; } };", {"Of"}),
        ("constexpr Rule kRules[] = {{1, f}, {2, g}};", {"kRules"}),
        ("using Scalar = std::conditional_t<true, A, B>;", {"Scalar"}),
        ("using other::name;", {"name"}),
        ("int Class::member(int x) const { return x; }", {"member"}),
        ("#define PACK(T) \\\n  T pack(T x)", {"PACK"}),
        ("bool operator==(A a, B b) { return true; }", set()),
        ("PACK(float)", set()),
        ('const char* kText = R"(a " // b)";', {"kText"}),
        ("constexpr auto kSquare = [](int x) { return x * x; };", {"kSquare"}),
    ],
)
def test_a_definition_introduces_names(text, names):
    definition, *_ = read_source(f"namespace a::b {{\n{text}\n}}\n").definitions
    assert definition.names == names


def test_a_member_function_is_a_definition_of_its_own():
    text = """
        class Scope : public Base {
         public:
          explicit Scope(int x) : x_{x} {}
          template <typename T> T run(T value) const { return launch(value, x_); }
          int* begin() { return &x_; }
          int operator()(int y) { return y; }
         private:
          void declared();
          int x_ = 3;
        };
    """
    scope, run = read_source(text).definitions
    assert (scope.names, run.names) == ({"Scope"}, {"run"})
    assert run.text.endswith("T run ( T value ) const { return launch ( value , x_ ) ; }")
    assert all(part in scope.text for part in ("x_ { x }", "begin", "operator", "declared", "x_ = 3"))


SHIFT = Operator.registered["torchgraft::shift"]


def rows_of_shift():
    """A row that is current, two that are not, and one of an operator that nobody knows."""
    current = provenance_of_operator(SHIFT, "cpu")
    stale = replace(current, sources="0" * 16)
    return [
        make_row(operator="shift", provenance=current),
        make_row(operator="shift", direction="backward", provenance=stale),
        make_row(operator="a_model", suite="training step", direction="training", provenance=stale),
        make_row(provenance=stale),
    ]


def test_what_is_measured_here_and_now_is_current():
    model = make_row(operator="a_model", direction="training", provenance=provenance_of_models("cpu"))
    rows = [*rows_of_shift()[:1], model]
    assert standing(rows, "cpu").stale == ()
    assert str(standing(rows, "cpu")) == "All rows were measured on these sources."
    assert rows[0].provenance.torch == torch.__version__
    assert sources_now(rows[0], "cuda") != sources_now(rows[0], "cpu") != sources_now(model, "cpu")


def test_rows_of_earlier_sources_are_named_by_operator_and_suite():
    report = make_report(rows_of_shift(), environment=replace(ENVIRONMENT, device="cpu"))
    said = (
        "2 of 3 rows were measured on earlier sources: shift, sizes (1); a_model, training step (1). "
        "`make results` measures them again."
    )
    assert str(standing(report.rows, "cpu")) == said
    stale = standing(standing(report.rows, "cpu").stale, "cpu")
    assert str(stale) == "All rows were measured on earlier sources. `make results` measures them again."
    assert said in as_markdown(report)
    assert said in render_page(report)
    console = Console(file=io.StringIO(), width=1000)
    print_report(console, report)
    assert said in console.file.getvalue()


def test_of_unknown_sources_nothing_is_said():
    assert str(standing([make_row(), make_row(provenance=Provenance("0" * 16))], "cpu")) == ""


def test_a_library_says_what_compiled_it(tmp_path):
    library = tmp_path / "kernels.so"
    library.write_bytes(b"\x7fELF\0\xfftorchgraft: compiled by gcc 12.2.0\0\0more")
    assert compiler_of(library) == "gcc 12.2.0"
    assert compiler_of(tmp_path / "none.so") == ""
    ours = [each.path for each in libraries() if each.namespace == "torchgraft" and each.loaded]
    assert ours
    assert all(re.match(r"(gcc|clang|nvcc) \d+\.\d+", compiler_of(path)) for path in ours)


@pytest.mark.parametrize(
    ("provenance", "said"),
    [
        (Provenance("1", "gcc 12.2.0", "2.13.0"), ""),
        (Provenance("1", "gcc 12.2.0", "2.12.0"), "PyTorch 2.12.0"),
        (Provenance("1", "gcc 11.1.0", "2.12.0"), "PyTorch 2.12.0, gcc 11.1.0"),
        (Provenance("1"), ""),
    ],
)
def test_another_compiler_or_pytorch_is_told(provenance, said):
    assert other_tools(make_row(provenance=provenance), "gcc 12.2.0", "2.13.0") == said


def test_tools_are_counted_where_they_differ():
    one, other = Provenance("1", "gcc 12.2.0", "2.13.0"), Provenance("1", "", "2.12.0")
    assert tools([make_row(provenance=one)] * 2) == "compiled by gcc 12.2.0, PyTorch 2.13.0"
    both = [make_row(provenance=each) for each in (one, one, other)]
    assert tools(both) == "compiled by gcc 12.2.0, PyTorch 2.13.0 (2 rows); PyTorch 2.12.0 (1 row)"
    assert tools([make_row()]) == ""


def report_of(rows, **changes):
    return make_report(rows, environment=replace(ENVIRONMENT, device="cpu", **changes))


@pytest.fixture
def rows():
    """A row of each kind: stale, current by the same tools and by others, of a commit, and of an operator that went."""
    current = provenance_of_operator(Operator.registered["torchgraft::mul_constant"], "cpu")
    kinds = {
        "stale": replace(current, sources="0" * 16),
        "current": current,
        "other tools": replace(current, torch="1.13"),
        "unknown": Provenance(),
    }
    [sample, *_] = [each.sample for each in plan(find_subjects(["mul_constant"]), Wanted(CPU))]
    rows = {
        name: make_row(sample, operator="mul_constant", layout=name, provenance=provenance)
        for name, provenance in kinds.items()
    }
    return rows | {"gone": make_row(operator="gone", provenance=current)}


def test_what_is_measured_again(rows):
    found = judge(report_of(rows.values()), here("cpu"))
    assert found.stale == (rows["stale"], rows["unknown"])
    assert found.by_other_tools == (rows["other tools"],)
    assert found.gone == (rows["gone"],)
    kept = without(report_of(rows.values()), found.gone).rows
    assert kept == tuple(rows[name] for name in ("stale", "current", "other tools", "unknown"))


def test_a_row_is_measured_again_as_it_was():
    [model, *_] = plan_models(["convnext_small_images"], Wanted(CPU, dtypes=(torch.float32,)))
    asked = [
        make_row(
            "T128,B16,I32,S128", operator="lltm", suite="sequence", direction="backward", rivals={"pytorch": None}
        ),
        make_row("T128,B16,I32,S128", operator="lltm", suite="sequence", direction="backward", layout="upside_down"),
        make_row(model.sample, operator=model.operator, suite="training step", direction="training"),
        make_row(operator="gone"),
    ]
    planned = plan_again(asked, CPU)
    assert [each.key for each in planned] == [asked[0].key, asked[2].key]
    candidate = planned[0].measure.args[0]
    assert (candidate.direction, candidate.against) == ("backward", ("pytorch",))


def test_new_rows_are_those_that_a_report_has_not():
    every = plan_new(None, CPU)
    first = make_row(every[0].sample, **dict(zip(("operator", "suite"), every[0].key, strict=False)))
    rest = plan_new(report_of([first]), CPU)
    assert [each.key for each in rest] == [each.key for each in every[1:]]


@pytest.mark.usefixtures("busy_machine")
class TestMeasure:
    """`make results`."""

    @pytest.fixture
    def measure(self, tmp_path, monkeypatch):
        spec = importlib.util.spec_from_file_location("measure", ROOT / "benchmarks/measure.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "measure", module)
        spec.loader.exec_module(module)
        monkeypatch.setattr(module, "RESULTS", tmp_path)
        self.commands = []
        monkeypatch.setattr(module, "succeeds", lambda command: self.commands.append(command) or True)
        monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)

        def run(*arguments):
            monkeypatch.setattr(sys, "argv", ["measure.py", *arguments])
            return module.main()

        return run

    @staticmethod
    def write(tmp_path, folder, rows, **changes):
        (tmp_path / folder).mkdir()
        environment = replace(describe_environment("cpu"), **changes)
        (tmp_path / folder / "bench.json").write_text(make_report(rows, environment=environment).as_json())

    def test_to_ask_measures_nothing(self, measure, tmp_path, rows, capsys):
        self.write(tmp_path, "cpu", rows.values())
        before = (tmp_path / "cpu/bench.json").read_text()
        assert measure("--check") == 1
        assert "2 of 5 rows are stale\n  mul_constant, sizes (2)" in capsys.readouterr().out
        assert (tmp_path / "cpu/bench.json").read_text() == before
        assert not self.commands

    def test_what_takes_another_machine_is_told_and_left(self, measure, tmp_path, rows, capsys):
        self.write(tmp_path, "card", [rows["stale"]], device="cuda", chip="A made-up card")
        self.write(tmp_path, "other", [rows["stale"]], chip="Another")
        before = (tmp_path / "card/bench.json").read_text()
        assert measure() == 0
        out = capsys.readouterr().out
        assert "1 of 1 rows are stale" in out
        assert re.search(r"takes a GPU, A made-up card, and this machine has none|takes A made-up card; this", out)
        assert "to measure them takes Another; this machine has" in out
        assert (tmp_path / "card/bench.json").read_text() == before
        assert not self.commands

    def test_all_rows_of_a_folder_are_measured_anew_on_another_machine(self, measure, tmp_path, rows, monkeypatch):
        monkeypatch.setattr(sys.modules["measure"], "plan_new", lambda report, device: [])
        current = replace(rows["current"], layout="contiguous", time=Time(1.0, 1.0, 1.0))
        self.write(tmp_path, "cpu", [current, rows["gone"]], chip="Another")
        assert measure("--anew", "--chip", "cpu") == 0
        report = report_from_dict(json.loads((tmp_path / "cpu/bench.json").read_text()))
        assert report.environment.chip == describe_environment("cpu").chip
        assert [row.key for row in report.rows] == [current.key]
        assert report.rows[0].time.median < 1

    def test_a_run_that_is_stopped_keeps_what_it_came_to(self, measure, tmp_path, rows, monkeypatch, capsys):
        stale = replace(rows["stale"], layout="contiguous", time=Time(1.0, 1.0, 1.0))
        others = [each.key for each in plan(find_subjects(["shift"]), Wanted(CPU))][:2]
        names = ("operator", "suite", "sample", "dtype", "layout", "direction")
        later = [replace(stale, **dict(zip(names, key, strict=True))) for key in others]
        self.write(tmp_path, "cpu", [stale, *later])

        def stop(*arguments):
            raise KeyboardInterrupt

        measured = suite.measure
        monkeypatch.setattr(
            suite, "measure", lambda each, *rest: (measured if "mul" in each.operator.name else stop)(each, *rest)
        )
        assert measure("--no-new") == 130
        assert "what was measured is kept" in capsys.readouterr().err
        found = report_from_dict(json.loads((tmp_path / "cpu/bench.json").read_text())).rows
        assert [row.key for row in found] == [stale.key, *others]
        assert [row.time.median < 1 for row in found] == [True, False, False]

    def test_stale_rows_are_measured_and_current_ones_kept(self, measure, tmp_path, rows):
        stale = replace(rows["stale"], layout="contiguous", time=Time(1.0, 1.0, 1.0))
        self.write(tmp_path, "cpu", [rows["current"], stale, rows["gone"]])
        assert measure("--no-new") == 0
        found = report_from_dict(json.loads((tmp_path / "cpu/bench.json").read_text())).rows
        assert found[0] == rows["current"]
        [_, again] = found
        assert again.key == stale.key
        assert again.time.median < 1
        assert again.provenance == rows["current"].provenance
        # What stands beside the rows was never measured, and is by its own command.
        assert [command[3] for command in self.commands] == ["demo", "bench", "bench", "bench"]
        assert measure("--check", "mul_constant") == 0

    def test_what_was_drawn_is_drawn_again_by_the_same_seed(self, measure, tmp_path, rows):
        self.write(tmp_path, "cpu", [rows["current"]])
        for row, commands in ((rows["current"], 0), (rows["stale"], 1)):
            self.commands.clear()
            drawn = make_report([row], environment=describe_environment("cpu"), drawn=(200, 5))
            (tmp_path / "cpu/draw.json").write_text(drawn.as_json())
            # Another file, of another seed, of which nothing is stale.
            other = make_report([rows["current"]], environment=describe_environment("cpu"), drawn=(7, 8))
            (tmp_path / "cpu/draw-other.json").write_text(other.as_json())
            assert measure("--no-new") == 0
            asked = [command[3:11] for command in self.commands if "--draw" in command]
            assert asked == commands * [["bench", "run", row.operator, "--draw", "200", "--seed", "5", "--device"]]
