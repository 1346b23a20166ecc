"""Which changes to sources make a row stale, and which do not; and how stale rows are measured again."""

import importlib.util
import io
import json
import re
import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from reports import ENVIRONMENT, make_report, make_row
from torchgraft.benchmarking import suite
from torchgraft.benchmarking.live import print_report
from torchgraft.benchmarking.models import plan_models
from torchgraft.benchmarking.page import render_page
from torchgraft.benchmarking.provenance import Provenance, compiler_of, provenance_of_models, provenance_of_operator
from torchgraft.benchmarking.renewing import here, judge, plan_again, plan_new, without
from torchgraft.benchmarking.results import report_from_dict
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.sources import _KERNEL, PACKAGE, Sources, _code_of, _reached
from torchgraft.benchmarking.standing import other_tools, sources_now, standing, tools
from torchgraft.benchmarking.suite import Wanted, plan
from torchgraft.benchmarking.summary import as_markdown
from torchgraft.benchmarking.timing import Time
from torchgraft.checking.subject import find_subjects
from torchgraft.machine.environment import describe_environment
from torchgraft.native import libraries
from torchgraft.operator import Operator

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent
# So high that nothing is faster.
ROOFS = Roofs({2**20: 1e18}, {"float32": 1e21}, {"float32": 1e21}, 1e-12)

TREE = {
    "include/torchgraft/cuda.cuh": """
        #pragma once
        inline int divide(int a, int b) { return a / b; }
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
    "grafting.py": """
        from pack.nn import Double
        GRAFTS = (Double,)
    """,
    "call.py": "def call(operator): ...",
    "operators/double/__init__.py": "from pack.operators.double.operator import double",
    "operators/double/operator.py": '''
        """Doubles."""
        import torch
        from pack.call import call
        operator = Operator("pack::double(Tensor input) -> Tensor")
        def double(input: torch.Tensor) -> torch.Tensor:
            """Twice the input."""
            return operator(input)
    ''',
    "operators/double/samples.py": "samples = {}",
    "operators/double/cpu.cpp": """
        #include <torchgraft/cuda.cuh>
        int double_cpu(int x) { return divide(x, 1) * 2; }
        TORCHGRAFT_KERNEL(pack, CPU, double, double_cpu)
    """,
    "operators/double/cuda/policy.h": """
        #pragma once
        // Which kernel it is.
        constexpr int kFew = 100;  // elements of a thread
    """,
    "operators/double/cuda/shared.cuh": """
        #pragma once
        #define PACK_UNROLL _Pragma("unroll")
        template <typename T>
        __device__ void twice(const T* x, int wide) {
          PACK_UNROLL
          for (int i = 0; i < 2; ++i) x[i] *= 2;
        }
    """,
    "operators/double/cuda/small/plain.cu": """
        #include "../shared.cuh"
        template <typename T>
        __global__ void __launch_bounds__(sizeof(T) * (16 + 16))
            small_plain(const T* x) { twice(x, "a // b"); }
        void launch_small(const float* x) { small_plain<float><<<1, 128>>>(x); }
    """,
    "operators/double/cuda/large/tiles.cuh": """
        #pragma once
        #include "../shared.cuh"
        template <typename T>
        __global__ void large_tiles(const T* x) { twice(x, 256); }
    """,
    "operators/double/cuda/large/tiles_float.cu": """
        #include "tiles.cuh"
        void launch_large(const float* x) { large_tiles<<<1, 256>>>(x); }
    """,
    "operators/double/cuda/products.cu": """
        #include <torchgraft/cublas.h>
        __global__ void products_small(const float* x) {}
        void multiply(const float* x, int n) { n < 9 ? products_small<<<1, 1>>>(x) : cublas(x); }
    """,
    "include/torchgraft/cublas.h": "void cublas(const float* x);",
    "operators/double/cuda.cu": """
        #include <torchgraft/cuda.cuh>
        #include "cuda/policy.h"
        void double_cuda(const float* x, int n) { n < kFew ? launch_small(x) : launch_large(x); }
        TORCHGRAFT_KERNEL(pack, CUDA, double, double_cuda)
    """,
    "operators/other/__init__.py": "from pack.operators.other.operator import other",
    "operators/other/operator.py": 'operator = Operator("pack::other(Tensor input) -> Tensor")',
    "operators/other/cpu.cpp": """
        int other_cpu(int x) { return x; }
        TORCHGRAFT_KERNEL(pack, CPU, other, other_cpu)
    """,
    "operators/reference/__init__.py": "",
    "operators/reference/operator.py": 'operator = Operator("pack::reference(Tensor input) -> Tensor")',
}


class Tree:
    """A package on disk, and the hashes of its rows."""

    def __init__(self, folder: Path):
        self.package = folder / "pack"
        for name, text in TREE.items():
            path = self.package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
        self.before = self.rows()

    def edit(self, name, old, new):
        text = (self.package / name).read_text()
        assert old in text
        (self.package / name).write_text(text.replace(old, new))

    def rows(self):
        sources = Sources(self.package)
        return {
            "cpu": sources.of_operator("double", "cpu"),
            "cuda": sources.of_operator("double", "cuda"),
            "small": sources.of_operator("double", "cuda", ran=("small_plain", "somebody_elses")),
            "large": sources.of_operator("double", "cuda", ran=("large_tiles",)),
            "backward": sources.of_operator("double", "cuda", gradients=True),
            "other": sources.of_operator("other", "cpu"),
            "reference": sources.of_operator("reference", "cpu"),
            "model": sources.of_module("pack.grafting", "cuda"),
            "calls": sources.of_calls("cpu"),
        }

    def changed(self):
        return {name for name, after in self.rows().items() if after != self.before[name]}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


CUDA = "operators/double/cuda"
ALL_KERNELS = {"cuda", "backward", "model"}
EVERY_GPU_ROW = {"small", "large", *ALL_KERNELS}

# An edit: the file, a text in it, the text in its place, and the rows that it makes stale.
EDITS = {
    "a comment": (f"{CUDA}/policy.h", "// Which kernel it is.", "/* Which\n\n kernel. */", set()),
    "a comment behind code": (f"{CUDA}/policy.h", "  // elements of a thread", "", set()),
    "a docstring": ("operators/double/operator.py", "Twice the input", "The input and the input", set()),
    "a type hint": ("operators/double/operator.py", "input: torch.Tensor", "input: Tensor", set()),
    "code on another line": (f"{CUDA}/shared.cuh", "{\n  PACK", "\n{\n\n  PACK", set()),
    "a broken line": (f"{CUDA}/small/plain.cu", "launch_small(const", "launch_small(\n    const", set()),
    "what it is measured on": ("operators/double/samples.py", "{}", "{1: 2}", set()),
    "how the compiler works": ("cmake/TorchgraftKernels.cmake", "-t 0", "-t 2", set()),
    "a kernel": (f"{CUDA}/small/plain.cu", "twice(x,", "twice(x + 1,", {"small", *ALL_KERNELS}),
    "another kernel": (f"{CUDA}/large/tiles.cuh", "256", "512", {"large", *ALL_KERNELS}),
    "the launch of a kernel": (f"{CUDA}/large/tiles_float.cu", "<<<1,", "<<<2,", {"large", *ALL_KERNELS}),
    "a string that looks like a comment": (f"{CUDA}/small/plain.cu", "a // b", "a // c", {"small", *ALL_KERNELS}),
    "one sign in place of two": (f"{CUDA}/shared.cuh", "++i", "+ +i", EVERY_GPU_ROW),
    "a header of two kernels": (f"{CUDA}/shared.cuh", "*= 2", "*= 3", EVERY_GPU_ROW),
    "a macro in it": (f"{CUDA}/shared.cuh", '("unroll")', '("unroll 2")', EVERY_GPU_ROW),
    "the choice of a kernel": (f"{CUDA}/policy.h", "kFew = 100", "kFew = 99", EVERY_GPU_ROW),
    "a product of cuBLAS": (f"{CUDA}/products.cu", "n < 9", "n < 8", EVERY_GPU_ROW),
    "a shared header": ("include/torchgraft/cuda.cuh", "a / b", "b / a", {"cpu", "calls", *EVERY_GPU_ROW}),
    "an option of the compiler": ("cmake/TorchgraftKernels.cmake", "-O3 -ffp", "-O2 -ffp", {"cpu", "other", "calls"}),
    "another operator": ("operators/other/cpu.cpp", "return x", "return x + 0", {"other", "calls"}),
    "an operator without kernels": ("operators/reference/operator.py", "input", "image", {"reference", "calls"}),
    "a declaration": ("operators/double/operator.py", "(input)\n", "(input + 0)\n", {"backward", "model", "calls"}),
    "what every call runs": ("call.py", "...", "return 1", {"calls"}),
    "what a model is grafted with": ("grafting.py", "(Double,)", "(Double, None)", {"model"}),
    "a layer that no model has": ("nn/other.py", "import other", "import other\nother(1)", set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_makes_the_rows_stale_that_it_can_change(tree, edit):
    file, old, new, stale = EDITS[edit]
    tree.edit(file, old, new)
    assert tree.changed() == stale


def test_the_same_sources_have_the_same_hash_on_every_machine_and_every_python(tree):
    """If this changes, every row that was ever measured becomes stale."""
    assert tree.before == {
        "cpu": "a3300ae874e3cc58",
        "cuda": "98b368089c96227a",
        "small": "70cf48cf67e98d9a",
        "large": "63bdf28429a54b1f",
        "backward": "64a4b1bab98465eb",
        "other": "04e81a5badd3bccf",
        "reference": "9a8bd72905834060",
        "model": "6e6b70836c8b3864",
        "calls": "4c06d4d63161a555",
    }


@pytest.mark.parametrize(
    ("text", "changed", "is_same"),
    [
        ("f(a);  // it's", "f(a);", True),
        ("f(a, /* one\n two */ b);", "f(a,\n  b);", True),
        ("int n = 10'000;  // of 'all'", "int n = 10'000;", True),
        ("#define F(x) \\\n  g(x)", "#define F(x)   g(x)", True),
        ('#include "a.h"\nf();', "#  include <b.h>\nf();", True),
        ("const char c = '\"';  // one", "const char c = '\"';  // two", True),
        ('const char* s = R"(" // one)";', 'const char* s = R"(" // two)";', False),
        ('const char* s = "\\"// one";', 'const char* s = "\\"// two";', False),
        ("f();  // g(); \\\n h();\nk();", "f();\nk();", True),
        ("int a;", "inta;", False),
        ("a - -b;", "a--b;", False),
        ("a = b / c; d = e;", "a = b; d = e;", False),
    ],
)
def test_comments_and_white_space_do_not_count_and_strings_do(text, changed, is_same):
    assert (_code_of(text) == _code_of(changed)) == is_same


def test_moved_and_renamed_files_keep_every_row(tree):
    cuda = tree.package / CUDA
    (cuda / "tiny").mkdir()
    shutil.move(cuda / "small/plain.cu", cuda / "tiny/planes.cu")
    shutil.move(cuda / "shared.cuh", cuda / "tiny/twice.cuh")
    tree.edit(f"{CUDA}/tiny/planes.cu", "../shared.cuh", "twice.cuh")
    tree.edit(f"{CUDA}/large/tiles.cuh", "../shared.cuh", "../tiny/twice.cuh")
    shutil.move(tree.package / "call.py", tree.package / "nn/calling.py")
    tree.edit("operators/double/operator.py", "pack.call", "pack.nn.calling")
    assert tree.changed() == {"backward", "model"}, "layers call what now lies among them"


def test_a_declaration_beside_that_of_its_folder_counts(tree):
    step = tree.package / "operators/double/step.py"
    step.write_text('step = Operator("pack::double_step(Tensor input) -> Tensor")\n')
    assert tree.changed() == {"backward", "calls"}
    tree.before = tree.rows()
    step.write_text('step = Operator("pack::double_step(Tensor input, int n) -> Tensor")\n')
    assert tree.changed() == {"backward", "calls"}


def test_without_sources_there_is_no_hash(tree):
    # As in a wheel, which holds the declarations and no kernels.
    for path in tree.package.rglob("*.c*"):
        if path.suffix in (".cpp", ".cu", ".cuh"):
            path.unlink()
    assert set(tree.rows().values()) == {""}
    assert Sources(tree.package / "nowhere").of_operator("double", "cpu") == ""


def test_names_of_kernels_are_known(tree):
    named = ["small_plain<float, 3>", "at::vectorized<4>", "large_tiles"]
    assert Sources(tree.package).kernels_among(named) == ("large_tiles", "small_plain")


@pytest.mark.parametrize("room", [path.parent for path in sorted((PACKAGE / "operators").glob("*/cuda.cu"))])
def test_if_one_of_our_kernels_ran_its_file_counts_and_other_techniques_do_not(room):
    sources = Sources()
    kernels_of = {file: set(_KERNEL.findall(file.read_text())) for file in room.resolve().rglob("*.cu*")}
    every = {kernel for kernels in kernels_of.values() for kernel in kernels}
    assert set(sources.kernels_among(f"{kernel}<float>" for kernel in every)) == every
    for file, kernels in kernels_of.items():
        assert file.read_text().count("__global__") == len(kernels)
        for kernel in kernels:
            serving = sources._serving(room, "cuda", (kernel,))
            assert file in _reached(serving, sources._included)
            if file.parent.parent.name == "cuda":
                left_out = {
                    each for each in kernels_of if each.parent.name not in ("cuda", file.parent.name, "products")
                }
                assert not [each for each in left_out.intersection(serving) if kernels_of[each]]


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
    assert str(standing(rows, "cpu")) == "No source that decides these times has changed since they were measured."
    assert rows[0].provenance.torch == torch.__version__
    assert sources_now(model, "cpu") != ""
    assert sources_now(rows[0], "cuda") != sources_now(rows[0], "cpu") != sources_now(model, "cpu")


def test_rows_of_an_earlier_commit_are_named_by_operator_and_suite():
    report = make_report(rows_of_shift(), environment=replace(ENVIRONMENT, device="cpu"))
    said = (
        "2 of 3 rows were measured at an earlier commit: shift, sizes (1); a_model, training step (1). "
        "`make results` measures them again."
    )
    assert str(standing(report.rows, "cpu")) == said
    stale = standing(standing(report.rows, "cpu").stale, "cpu")
    assert str(stale) == "All rows were measured at an earlier commit. `make results` measures them again."
    assert said in as_markdown(report)
    assert said in render_page(report)
    console = Console(file=io.StringIO(), width=1000)
    print_report(console, report)
    assert said in console.file.getvalue()


def test_a_row_without_a_hash_is_stale():
    row = make_row(operator="shift")
    assert not row.provenance.sources
    assert standing([row], "cpu").stale == judge(report_of([row]), here("cpu")).stale == (row,)


def test_a_row_without_sources_here_is_neither_current_nor_stale():
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
