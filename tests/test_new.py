"""`graft new`: packages that pass at once, formatted, of any schema; and what it refuses."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import torchgraft
from torchgraft import building
from torchgraft.authoring.new import add_operator, make_package
from torchgraft.checking import PROPERTIES
from torchgraft.cli import app

SCHEMAS = {
    "optional": "(Tensor input, Tensor weight, Tensor? bias=None, float eps=1e-5) -> Tensor",
    "lists": 'other(Tensor[] tensors, int dim=0, *, float scale=1.0, bool flag=False, str mode="mean") -> Tensor[]',
    "several": "new_several::several(Tensor input, int[2] sizes, int[]? more=None) -> (Tensor values, Tensor rest)",
    "written": "(Tensor(a!) total, Tensor input, Tensor(b!)? other=None) -> Tensor",
    "written_lists": "(Tensor(a!)[] parameters, Tensor[] grads, float rate, *, Tensor?[] masks) -> ()",
    "kinds": "(Tensor default, ScalarType dtype, Device device, Layout layout, MemoryFormat? format=None,"
    " str? text=None, float[] scales=[1.0, 2.0], SymInt n=3, *, Tensor?[] more) -> (Tensor, Tensor[])",
    "no_reference": "(Tensor input, Tensor weight, *, int n=1) -> Tensor",
}
# Schemas with the shapes of their tensors.
SHAPES = {
    "rows": ("(Tensor input, Tensor weight, float eps=1e-5) -> Tensor", "... columns, columns -> ... columns"),
    "sizes": ("(Tensor a, Tensor b, int n, Tensor? c=None) -> (Tensor, Tensor)", "n d, 2*d 4 n, d _ -> n d, 2*d 4 n"),
    "elements": ("(Tensor input, Tensor other) -> Tensor", "..., () -> ..."),
    # Results that have no argument's shape.
    "groups": ("(Tensor values, Tensor weight, SymInt groups) -> Tensor", "n d, n -> groups d"),
    "reduced": ("(Tensor input, Tensor weight) -> Tensor", "... k, k -> ..."),
    "halves": ("(Tensor a, Tensor b) -> (Tensor, Tensor)", "n 2*k, k n m -> (), 3*k 4"),
    "moments": (
        "(Tensor x, Tensor w, float eps=1e-5) -> (Tensor output, Tensor mean, Tensor x)",
        "n d, d -> n d, n, n d",
    ),
    # No results at all, and three names.
    "turned": ("(Tensor(a!) x, Tensor cos, Tensor sin) -> ()", "... length 2*half, length 2*half, length 2*half ->"),
}
# Those of which some tensors hold integers.
INDEXED = {
    "indexed": {
        "schema": "(Tensor values, Tensor index, Tensor weight, SymInt groups) -> Tensor",
        "shapes": "n d, n, d -> groups d",
        "integers": ["index"],
    },
    "looked_up": {"schema": "(Tensor index, Tensor table, *, float scale=1.0) -> Tensor", "integers": ["index"]},
}
# Those that may have a backward operator, beside those with an index.
WITH_BACKWARD = ("no_reference", "several", "rows", "elements", "groups", "reduced", "halves", "moments")
EVERYTHING = {"cuda": True, "triton": True}


def make(name, directory, **options):
    folder = make_package(name, directory, **options)
    return folder, folder / "src" / name


def holds(folder, *properties):
    report = torchgraft.check(str(folder), device="cpu", properties=properties, quick=True)
    assert report.passed, str(report)
    return report


def test_a_package_holds_what_is_asked_of_it_and_needs_no_sources_once_it_is_built(tmp_path, monkeypatch):
    """It is as in a wheel: the library in lib/, and nothing to compile."""
    folder, package = make("new_complete", tmp_path, backward=True)
    built = building.build_once("new_complete", [package / "cpu.cpp"])
    shutil.copytree(built, package / "lib")
    (package / "cpu.cpp").unlink()
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    report = holds(folder, "value", "gradient")
    assert {result.operator for result in report.results} == {
        "new_complete::new_complete",
        "new_complete::new_complete_backward",
    }


@pytest.mark.parametrize("schema", ["kinds", "written"])
def test_a_package_of_a_schema_holds_what_is_asked_of_it(schema, tmp_path):
    folder, _ = make(f"new_{schema}", tmp_path, schema=SCHEMAS[schema])
    assert holds(folder, "value").results


def test_a_package_of_shapes_holds_what_is_asked_of_it(tmp_path):
    schema, shapes = SHAPES["rows"]
    folder, package = make("new_rows", tmp_path, schema=schema, shapes=shapes, backward=True)
    assert holds(folder, "value", "fake").results
    assert 'shapes="... columns, ... columns, columns -> ... columns, columns"' in (package / "operator.py").read_text()


def test_borders_of_sequences_rise_in_samples_that_say_where_better_ones_come_from(tmp_path):
    schema = "(Tensor values, Tensor offsets, Tensor index) -> Tensor"
    options = {"schema": schema, "shapes": "n d, m, n -> n d", "integers": ("offsets", "index")}
    folder, package = make("new_borders", tmp_path, **options)
    written = (package / "samples.py").read_text()
    assert "Drawn((m,), dtype=torch.int64, high=2, ordered=True)" in written
    assert "Drawn((n,), dtype=torch.int64, high=2)" in written
    assert "# offsets: rises, from any number to any other. " in written
    assert "`packed_samples` and `draw_packed`" in written
    assert "# index: drawn from 0 to 1 until you say below which size each must stay" in written
    expect_formatted(folder)
    assert holds(folder, "value").results


@pytest.mark.parametrize("said", ["int", "SymInt"])
def test_a_seed_is_a_number_that_compiled_code_takes_every_value_of(said, tmp_path):
    schema = f"(Tensor input, {said} seed, int groups=1) -> Tensor"
    folder, package = make(f"new_seeded_{said.lower()}", tmp_path, schema=schema, shapes="... -> ...")
    declared = (package / "operator.py").read_text()
    assert "(Tensor input, SymInt seed, int groups=1) -> Tensor" in declared
    assert 'Add `random=("seed",)`' in declared
    assert holds(folder, "value", "compile").results


@pytest.mark.parametrize("name", ["several", "moments"])
def test_a_backward_of_several_results_holds_what_is_asked_of_it(name, tmp_path):
    """A result that has the shape of one before is zero, so that a gradient is that of one result."""
    schema, shapes = SHAPES.get(name, (SCHEMAS.get(name, ""), None))
    folder, package = make(f"new_{name}", tmp_path, schema=schema, shapes=shapes, backward=True)
    assert holds(folder, "value", "fake", "gradient", "second_gradient", "incoming_gradients").results
    declared = (package / "operator.py").read_text()
    grads = {"several": "Tensor values_grad, Tensor rest_grad", "moments": "Tensor output_grad_0, Tensor output_grad_1"}
    assert grads[name] in declared
    assert "materialize_grads=True" in declared


@pytest.mark.parametrize("name", ["groups", "turned"])
def test_a_package_of_other_shapes_holds_what_is_asked_of_it(name, tmp_path):
    """Results that have no argument's shape are zeros; an operator without results has nothing behind its arrow."""
    schema, shapes = SHAPES[name]
    folder, package = make(f"new_{name}", tmp_path, schema=schema, shapes=shapes)
    assert holds(folder, "value", "fake", "gradient").results
    assert f'shapes="{shapes}"' in (package / "operator.py").read_text()


@pytest.mark.parametrize("name", INDEXED)
def test_a_package_with_an_index_holds_what_is_asked_of_it(name, tmp_path):
    folder, package = make(f"new_{name}", tmp_path, backward=name == "indexed", **INDEXED[name])
    assert holds(folder, "value", "dtypes", "bad_input", "gradient", "second_gradient").results
    assert '"index": (torch.int64,)' in (package / "operator.py").read_text()


@pytest.mark.parametrize(
    "shapes", ["... d, d -> ... d", "... l 2*d, l d -> l d", "m k, k n -> m n", "b h l d, d -> d", "d d d, d -> d"]
)
def test_the_benchmark_of_shapes_is_as_large_as_four_mi_elements_at_most(shapes, tmp_path):
    schema = "(Tensor x, Tensor y) -> Tensor"
    _, package = make("new_sized", tmp_path, schema=schema, shapes=shapes)
    values = {}
    exec((package / "samples.py").read_text(), values)
    (benchmark,) = values["samples"]["new_sized"].benchmarks
    assert 2**20 <= max(each.elements for each in benchmark.sample.tensors) <= 2**22


@pytest.mark.parametrize("shapes", ["..., ... ->", "n, n ->", "n n, n ->", None])
def test_samples_are_what_their_names_say(shapes, tmp_path):
    schema = "(Tensor(a!) x, Tensor y) -> ()"
    _, package = make("new_named", tmp_path, schema=schema, shapes=shapes)
    values = {}
    exec((package / "samples.py").read_text(), values)
    table = {each.name.partition(",")[0]: each for each in values["samples"]["new_named"].table}
    assert len(table) == {"n, n ->": 7, "n n, n ->": 6}.get(shapes, 10)
    for name, size in {"seven": 7, "eight": 8, "nine": 9, "one more than a block of threads": 257}.items():
        sample = table.get(name) or table[f"{name} elements"]
        assert [each.shape[-1] for each in sample.tensors] == [size, size]
    assert 32768 < max(each.tensors[0].elements for each in table.values()) < 100_000


def test_what_a_package_says_of_itself_stays_true_once_it_is_written(tmp_path):
    """The README becomes the description of a wheel."""
    folder, _ = make("new_described", tmp_path, schema="(Tensor input) -> Tensor")
    for page in ("README.md", "AGENTS.md"):
        assert "opies" not in (folder / page).read_text()
    assert "[README.md](README.md) | what the operator computes" in (folder / "AGENTS.md").read_text()


@pytest.mark.parametrize("backward", [False, True], ids=["", "backward"])
@pytest.mark.parametrize("schema", [None, *SCHEMAS, *SHAPES, *INDEXED])
def test_what_is_made_is_formatted(schema, backward, tmp_path):
    if backward and schema not in (None, *WITH_BACKWARD, *INDEXED):
        pytest.skip("such a backward operator is refused")
    text, shapes = SHAPES.get(schema, (schema and SCHEMAS.get(schema, "").replace("new_", "made_"), None))
    options = INDEXED.get(schema, {"schema": text, "shapes": shapes})
    folder, _ = make(f"made_{schema}", tmp_path, backward=backward, **options, **EVERYTHING)
    expect_formatted(folder)


def test_the_kernels_of_a_cell_are_written_again(tmp_path, monkeypatch):
    """Its test says which command does that, and fails until it was run."""
    folder, package = make("new_cell", tmp_path, cell=True)
    monkeypatch.syspath_prepend(folder / "src")
    monkeypatch.setattr(building, "load", lambda *_: None)
    found = runpy.run_path(str(folder / "tests/test_new_cell.py"))
    assert isinstance(found["new_cell"], torchgraft.Recurrence)
    assert found["new_cell"].operator.declaration.kernels.keys() == {"cpu", "cuda"}
    compare = found["test_the_kernels_are_those_of_the_cell"]
    compare(made_folder(tmp_path / "first"))
    file = package / "cell.py"
    file.write_text(file.read_text().replace("share * torch.tanh(candidate)", "share * torch.relu(candidate)"))
    # The test of another process, to which the edited cell belongs.
    compare.__globals__["CELL"] = runpy.run_path(str(file))["CELL"]
    with pytest.raises(AssertionError, match=r"cell\.h is not that of the cell: run `python src/new_cell/cell.py`"):
        compare(made_folder(tmp_path / "second"))
    runpy.run_path(str(file), run_name="__main__")
    assert "aten.relu" in (package / "cell.h").read_text()
    compare(made_folder(tmp_path / "third"))


@pytest.mark.parametrize("name", ["class", "template", "building", "CELL", "random"])
def test_a_cell_gets_no_name_that_its_package_needs(name, tmp_path):
    folder, _ = make("named_cell", tmp_path, cell=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"{name} cannot be the name of an operator"):
        add_operator(name, folder, cell=True)
    assert sorted(tmp_path.rglob("*")) == before
    if name == "building":
        with pytest.raises(
            ValueError, match="building cannot be the name of an operator, as it is a name that its files"
        ):
            make_package(name, tmp_path, cell=True)


def made_folder(path):
    path.mkdir()
    return path


@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "joined"])
def test_what_is_made_of_a_cell_is_formatted(is_joined, tmp_path):
    folder, package = make("made_cell", tmp_path, cell=not is_joined)
    if is_joined:
        written = add_operator("network_with_a_long_name", folder, cell=True)
        joined = package / "network_with_a_long_name"
        assert {path.name for path in written if path.parent == joined} == {
            *("__init__.py", "cell.h", "cell.py", "cpu.cpp", "cuda.cu")
        }
        assert f"python src/made_cell/{joined.name}/cell.py" in (joined / "cell.py").read_text()
        assert f'__file__).parent / "{joined.name}/cuda.cu"' in (package / "__init__.py").read_text()
    expect_formatted(folder)


@pytest.mark.parametrize("name", ["alpha", "scaled"])
def test_operators_join_a_package_in_a_folder_of_their_own(name, tmp_path):
    folder, package = make(f"joined_{name}", tmp_path)
    schema, shapes = SHAPES["rows"]
    written = add_operator(name, folder, schema=schema, shapes=shapes, backward=True, **EVERYTHING)
    add_operator("later", folder)
    names = ("__init__.py", "cpu.cpp", "cuda.cu", "kernels.py", "operator.py", "reference.py", "samples.py")
    assert set(written) == {
        *(package / name / each for each in names),
        folder / f"tests/test_{name}.py",
        package / "__init__.py",
    }
    expect_formatted(folder)
    report = holds(folder, "value")
    assert {each.operator for each in report.results} == {
        f"joined_{name}::{each}" for each in (f"joined_{name}", name, f"{name}_backward", "later")
    }
    # One library has the kernels of all.
    program = f"import sys; sys.path.insert(0, 'src'); import torch, torchgraft, joined_{name} as package; "
    program += "print(package.later(torch.full((2,), 3.0), 2.0).tolist(), "
    program += (
        f"torch.equal(package.{name}(torch.ones(2, 3), torch.ones(3)), torch.ones(2, 3)), torchgraft.fallbacks())"
    )
    assert run(sys.executable, "-c", program, cwd=folder) == "[18.0, 18.0] True []\n"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("there", {}, "there already exists: choose another name"),
        ("joined_not", {}, "declares joined_not::joined_not already"),
        ("cpu", {}, "'cpu' cannot be the name of an operator"),
        ("a-b", {}, "'a-b' cannot be the name of an operator"),
        ("one", {"schema": "other(Tensor input) -> Tensor"}, "the schema names the operator other: write one"),
        ("one", {"schema": "(int n) -> Tensor"}, "a schema needs at least one tensor argument"),
    ],
)
def test_an_operator_that_cannot_join_changes_nothing(name, options, said, tmp_path):
    folder, package = make("joined_not", tmp_path)
    (package / "there").mkdir()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=re.escape(said)):
        add_operator(name, folder, **options)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_an_operator_joins_what_is_a_package_only(tmp_path):
    with pytest.raises(ValueError, match="there must be one package in"):
        add_operator("one", tmp_path)
    folder, package = make("joined_by_hand", tmp_path)
    (package / "__init__.py").write_text("from torchgraft import native\n")
    with pytest.raises(ValueError, match=r"does not call building\.load with a list of sources: add the files by hand"):
        add_operator("one", folder)


def run(*command, cwd=None, **more):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expect_formatted(folder):
    programs = Path(sys.executable).parent
    rules = ("--select=E,F,I,UP,B,SIM,RUF,D", "--ignore=D105,D107,D203,D213,D413,D401,D100,D103")
    for command in (("format", "--diff"), ("check", *rules)):
        run(programs / "ruff", *command, "--no-cache", folder)
    run(programs / "clang-format", "--dry-run", "--Werror", *folder.rglob("*.cpp"), *folder.rglob("*.cu"))


def invoke(directory, monkeypatch, *arguments):
    monkeypatch.chdir(directory)
    return CliRunner().invoke(app, ["new", *arguments])


def test_the_command_lists_what_it_made(tmp_path, monkeypatch):
    result = invoke(tmp_path, monkeypatch, "new_listed", "--cuda", "--triton")
    assert result.exit_code == 0
    listed = result.stdout.partition("\n\n")[0].splitlines()
    assert listed == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert "new_listed/src/new_listed/cuda.cu" in listed


def test_the_command_says_which_numbers_it_wrote_otherwise(tmp_path, monkeypatch):
    schemas = {"new_noise": "(Tensor input, int noise_seed) -> Tensor", "new_scale": "(Tensor input, int n) -> Tensor"}
    said = {name: invoke(tmp_path, monkeypatch, name, "--schema", text).stdout for name, text in schemas.items()}
    told = "numbers that change from call to call are SymInt"
    assert {name: told in text for name, text in said.items()} == {"new_noise": True, "new_scale": False}


def test_the_command_adds_an_operator(tmp_path, monkeypatch):
    make("new_host", tmp_path)
    result = invoke(tmp_path, monkeypatch, "guest", "--into", "new_host")
    assert result.exit_code == 0, result.output
    listed = result.stdout.partition("\n\n")[0].splitlines()
    assert "new_host/src/new_host/guest/cpu.cpp" in listed
    assert all((tmp_path / each).is_file() for each in listed)
    assert result.stdout.endswith("Next: cd new_host && make test\n")
    again = invoke(tmp_path, monkeypatch, "guest", "--into", "new_host")
    assert again.exit_code == 2


def test_the_command_names_the_file_that_is_edited_and_the_command_after_it(tmp_path, monkeypatch):
    result = invoke(tmp_path, monkeypatch, "new_told", "--cell")
    assert result.exit_code == 0, result.output
    listed = result.stdout.partition("\n\n")[0].splitlines()
    assert listed == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    next_steps = "Next: cd new_told && make test\nAfter an edit of src/new_told/cell.py: python src/new_told/cell.py\n"
    assert result.stdout.endswith(next_steps)
    assert "python src/new_told/cell.py" in (tmp_path / "new_told/README.md").read_text()
    result = invoke(tmp_path, monkeypatch, "guest", "--cell", "--into", "new_told")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(
        "Next: cd new_told && make test\n" + next_steps.splitlines()[1].replace("/cell.py", "/guest/cell.py") + "\n"
    )
    again = invoke(tmp_path, monkeypatch, "guest", "--cell", "--into", "new_told")
    assert "declares new_told::guest already" in again.output


OF_ONE = ["new_x", "--schema", "(Tensor input) -> Tensor", "--shapes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-name"], r"'no-name' cannot be the name of a package: use letters"),
        (["_hidden"], "cannot be the name of a package"),
        (["taken"], "taken already exists: choose another name, or remove it"),
        (["new_x", "--schema", "(int n) -> Tensor"], "a schema needs at least one tensor argument"),
        (["new_x", "--schema", "(Tensor input) -> int"], "results must be tensors or lists of tensors"),
        (["new_x", "--schema", "(Tensor input -> Tensor"], "PyTorch cannot read the schema"),
        (["new_x", "--schema", "Tensor"], "schema must be 'new_x::name"),
        (
            ["new_x", "--schema", "other::f(Tensor input) -> Tensor"],
            "the namespace of the schema must be the name of the package",
        ),
        (["new_x", "--schema", "samples(Tensor input) -> Tensor"], "samples cannot be the name of an operator"),
        (["new_x", "--schema", "(Tensor lambda) -> Tensor"], "cannot be named lambda: rename it in the schema"),
        (
            ["new_x", "--schema", "(Tensor input, Generator g) -> Tensor"],
            "g is a Generator, which a C\\+\\+ kernel cannot take",
        ),
        (["new_x", "--schema", "(Tensor? input) -> Tensor"], "a kernel needs a required tensor"),
        (["new_x", "--schema", "(Tensor[] input) -> Tensor", "--backward"], "leave --backward out"),
        (["new_x", "--integers", "index"], "--integers names tensors of a schema: give --schema, too"),
        (
            [*OF_ONE[:3], "--integers", "index"],
            "--integers must name required tensors that are not written to, of input",
        ),
        ([*OF_ONE[:3], "--integers", "input"], "needs a required tensor beside those of integers"),
        (["new_x", "--cell", "--backward"], "schema, gradient and kernels .* follow from it: leave --backward out"),
        (["new_x", "--cell", *OF_ONE[1:], "d -> d", "--cuda"], "leave --schema and --shapes and --cuda out"),
        (["new_x", "--cell", "--triton", "--integers", "i"], "leave --integers and --triton out"),
        (["cell", "--cell"], "cell is the name of a file in the package"),
        (["new_x", "--shapes", "d -> d"], "--shapes describes the tensors of a schema: give --schema, too"),
        (
            [*OF_ONE, "d, d -> d"],
            "shapes must give one shape for its tensor argument, '->' and one shape for its result",
        ),
        ([*OF_ONE, "... d -> ... 2*d"], "cannot make the result, ... 2\\*d, as no\\s+tensor argument has its shape"),
        ([*OF_ONE, "d -> _"], "without _, got 'd -> _'.*leave\\s+--shapes\\s+out, and\\s+then write output="),
        ([*OF_ONE, "d -> k"], "nothing\\s+gives \\['k'\\], got 'd -> k'. .*write output= in\\s+operator.py"),
        ([*OF_ONE, "d+1 -> d"], "must be like .*, got\\s+'d\\+1'. .*Write _ for a size of an argument"),
        ([*OF_ONE, "4 -> 4"], "shapes must have at least one size with a name"),
        ([*OF_ONE, "class -> class"], "a size cannot be named class: rename it in --shapes"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_what_cannot_be_made_is_refused_in_one_line(arguments, said, tmp_path, monkeypatch):
    (tmp_path / "taken").mkdir()
    result = invoke(tmp_path, monkeypatch, *arguments)
    assert result.exit_code == 2
    assert re.search(said, result.output, re.DOTALL), result.output
    assert not isinstance(result.exception, ValueError)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


# Names that would fail later: Python or C++ reads them otherwise, a package or a file has them, or no wheel can.
NAMES = {
    "a keyword of Python or C++": "class lambda namespace int new operator and template true nullptr xor",
    "the name of a file in the package": "cell cpu cuda kernels reference samples",
    "already a namespace of PyTorch or of a loaded package": "aten prims torchgraft quantized",
    "already a Python module": "json torch test math numpy setuptools",
    "already a name in C++": "std main at c10 abs exp log index remove rename read write gamma j1 free fork",
}


@pytest.mark.parametrize(("why", "name"), [(why, name) for why, names in NAMES.items() for name in names.split()])
def test_a_name_that_would_fail_later_is_refused_with_one_that_does_not(why, name, tmp_path):
    with pytest.raises(ValueError, match=f"^{name} is {re.escape(why)}: choose another name, such as {name}_ops$"):
        make_package(name, tmp_path)
    make_package(f"{name}_ops", tmp_path)


@pytest.mark.parametrize("name", ["a__b", "trailing_", "_", "9lives", "größe", "a-b", "a.b", "", "q", "Q", "x" * 101])
def test_a_name_that_is_no_name_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="use letters, digits and single underscores between them"):
        make_package(name, tmp_path)


@pytest.mark.parametrize("name", ["qr", "x1", "MyKernels", "a_b_c", "x" * 100])
def test_a_name_that_holds_later_is_taken(name, tmp_path):
    assert make_package(name, tmp_path).name == name


def test_without_a_compiler_names_of_cpp_are_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert make_package("index", tmp_path).is_dir()


def test_a_package_is_found_from_its_folder_and_from_the_one_above(tmp_path, monkeypatch):
    from torchgraft.checking.subject import _place_of

    _, package = make("new_found", tmp_path)
    for directory, target in (
        (tmp_path, "new_found"),
        (tmp_path / "new_found", "new_found"),
        (tmp_path / "new_found", "."),
    ):
        monkeypatch.chdir(directory)
        assert _place_of(target).resolve() == package.resolve()


# Between them these have every kind of kernel, the complete operator, shapes, and what a schema may be.
WALKS = {
    "walked": {"backward": True, **EVERYTHING},
    "walked_kinds": {"schema": SCHEMAS["kinds"], **EVERYTHING},
    "walked_written_lists": {"schema": SCHEMAS["written_lists"], **EVERYTHING},
    "walked_rows": {"schema": SHAPES["rows"][0], "shapes": SHAPES["rows"][1], "backward": True, **EVERYTHING},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_its_own_test_holds(name, tmp_path):
    pytest.importorskip("triton")
    folder, _ = make(name, tmp_path, **WALKS[name])
    assert "passed" in run("make", "test", f"PYTHON={sys.executable}", cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "joined"])
def test_a_cell_holds_every_property(is_joined, tmp_path):
    folder, _ = make("walked_cell", tmp_path, cell=not is_joined)
    if is_joined:
        add_operator("guest", folder, cell=True)
    assert "passed" in run("make", "test", f"PYTHON={sys.executable}", cwd=folder)


# The other schemas. Every package holds the same reference and kernels, which copy: what a schema decides is asked of
# each, and what only kernels decide of the walks: threads, memory, sums, and code that Inductor makes.
OTHERS = {
    "other_plain": {},
    **{
        f"other_{name}": {"schema": SCHEMAS[name].replace("new_", "other_")}
        for name in ("optional", "lists", "several", "written")
    },
    **{
        f"other_{name}": {"schema": schema, "shapes": shapes}
        for name, (schema, shapes) in SHAPES.items()
        if name != "rows"
    },
    **{f"other_{name}": options for name, options in INDEXED.items()},
    "other_both": {"schema": SCHEMAS["no_reference"], "backward": True},
    **{
        f"other_{name}_both": {"schema": SHAPES[name][0], "shapes": SHAPES[name][1], "backward": True}
        for name in ("halves", "moments")
    },
}
OF_KERNELS = ("accuracy", "aot_inductor", "determinism", "large", "memory", "memory_bounds", "thread_safety")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_schema_decides_holds(name, tmp_path):
    folder, _ = make(name, tmp_path, **OTHERS[name])
    properties = [each for each in PROPERTIES if each not in OF_KERNELS]
    assert {"compile", "export", "gradient", "mutation", "opcheck", "vmap"} <= {
        result.property for result in holds(folder, *properties).results
    }


@pytest.mark.slow
def test_every_property_holds(tmp_path):
    folder, _ = make("walked_slowly", tmp_path)
    check = ("-m", "torchgraft", "check", "walked_slowly", "--device", "cpu", "--json", "-")
    results = json.loads(run(sys.executable, *check, cwd=folder))["results"]
    assert {each["status"] for each in results} <= {"pass", "not applicable"}
