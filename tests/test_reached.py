"""The calls that `make coverage` makes, and its counts of gcovr's report."""

import json
import subprocess
import time

import pytest

import counting
import reached

SOURCE = """\
template <typename T>
void scale(T* to, int count) {
  if (count < 0) {
    fail("no count is negative");
  }
  for (int i = 0; i < count; ++i) to[i] *= 2;
}
"""


def line(number: int, count: int, *branches: int) -> dict:
    return {"line_number": number, "count": count, "branches": [{"count": each} for each in branches]}


@pytest.fixture
def lines_of(tmp_path, monkeypatch):
    """`lines_of(*lines)`: what is counted of a report of SOURCE."""
    monkeypatch.setattr(reached, "ROOT", tmp_path)
    (tmp_path / "scale.cu").write_text(SOURCE)
    return lambda *lines: reached._lines_of("scale.cu", lines)


def test_what_instantiations_reach_is_merged(lines_of):
    found = lines_of(line(3, 5, 0, 5), line(6, 5, 5, 0), line(3, 2, 0, 2), line(6, 2, 0, 2))
    assert {number: (each.runs, list(each.branches.values())) for number, each in found.items()} == {
        3: (True, [False, True]),
        6: (True, [True, True]),
    }


def test_branches_of_one_library_are_not_taken_for_those_of_another(tmp_path, monkeypatch):
    """gcov numbers them in each: behind another number of branches that no exception is left with."""
    monkeypatch.setattr(reached, "ROOT", tmp_path)
    monkeypatch.setattr(counting, "WORK", tmp_path)
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale/scale.cu").write_text(SOURCE)
    for place, first in (("75", 0), ("90", 2)):
        loop = line(6, 5, 5, 5)
        for number, branch in enumerate(loop["branches"], first):
            branch["branchno"] = number
        report = {"files": [{"file": "scale/scale.cu", "lines": [loop]}]}
        (tmp_path / f"scale-{place}.json").write_text(json.dumps(report))
    (tmp_path / "choice.json").write_text('{"files": []}')
    [found] = reached._merged(tmp_path / "scale", tmp_path / "choice.json").values()
    assert [*found[6].branches.values()] == [True, True]


def test_an_instantiation_that_never_runs_has_no_branches_of_its_own(lines_of):
    """gcov tells no edge of an exception from others there: they would count, and no sample could reach them."""
    for order in (1, -1):
        found = lines_of(*[line(6, 0, 0, 0, 0), line(6, 5, 5, 5)][::order])
        assert list(found[6].branches.values()) == [True, True]
    assert not any(lines_of(line(6, 0, 0, 0))[6].branches.values())


def test_what_only_says_that_nothing_comes_there_is_not_counted(lines_of):
    assert lines_of(line(4, 0), line(5, 0), line(7, 0), line(2, 3), line(8, 1)).keys() == {2}


def test_an_assertion_is_to_run_and_never_to_fail(tmp_path, monkeypatch):
    """Where a caller's arguments are checked, both are asked for."""
    monkeypatch.setattr(reached, "ROOT", tmp_path)
    ours, pytorchs = (
        'TORCHGRAFT_CHECK(count >= 0, "no count is negative");\n',
        "TORCH_ERROR_CODE_CHECK(resize(count));\n",
    )
    documented = 'TORCHGRAFT_CHECK(result.is_contiguous(), "PyTorch gives another layout");\n'
    for name, text, expected in (
        ("cuda/scale.cu", ours, []),
        ("host.h", ours, [True, False]),
        ("host.h", pytorchs, []),
        ("host.h", documented, []),
    ):
        path = tmp_path / "scale" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        found = reached._lines_of(f"scale/{name}", [line(1, 5, 5, 0)])
        assert found[1].runs
        assert list(found[1].branches.values()) == expected


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("const Tensor sums = sum<A, T>(from(std::vector<int64_t>{height, width}), value->second);", False),
        ("stream << name << values[0];", False),
        ("const bool is_small = rows < 3;", True),
        ("return static_cast<unsigned>(row) < static_cast<unsigned>(rows);", True),
        ("is_aligned(from) &&", True),
        ("step ? step : 1,", True),
        ("return !empty;", True),
        ("while (take()) {", True),
    ],
)
def test_branches_are_those_of_a_written_condition(text, counts, tmp_path, monkeypatch):
    """The compiler asks of each temporary object whether it is there to be destroyed."""
    monkeypatch.setattr(reached, "ROOT", tmp_path)
    (tmp_path / "host.h").write_text(f"  {text}\n")
    found = reached._lines_of("host.h", [line(1, 5, 5, 0)])
    assert list(found[1].branches.values()) == ([True, False] if counts else [])


@pytest.mark.parametrize(
    ("cases", "counted"),
    [
        (["case Kernel::one: return 1;", "case Kernel::two: return 2;"], [True, False]),
        (["case 1: return 1;", "default: return 2;"], [True, False, False]),
    ],
)
def test_the_way_past_a_switch_that_names_every_value_is_not_counted(cases, counted, tmp_path, monkeypatch):
    monkeypatch.setattr(reached, "ROOT", tmp_path)
    lines = ["  switch (kernel) {", *(f"    {case}" for case in cases), "  }", "  default: of another;"]
    (tmp_path / "host.h").write_text("\n".join(lines))
    found = reached._lines_of("host.h", [line(1, 5, 5, 0, 0)])
    assert list(found[1].branches.values()) == counted


def test_what_was_not_reached_is_shown_with_its_text(lines_of):
    assert reached._missing({"scale.cu": lines_of(line(3, 5, 0, 5), line(6, 0))}) == [
        "scale.cu:3: 1 of 2 branches: if (count < 0) {",
        "scale.cu:6: never: for (int i = 0; i < count; ++i) to[i] *= 2;",
    ]


def test_an_answer_stands_until_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "WORK", tmp_path)
    folder = tmp_path / "scale"
    folder.mkdir()
    (folder / "scale.cu").write_text(SOURCE)
    report = tmp_path / "scale-90.json"

    counting.Answered(folder).add("90:16 scale --property value")
    report.write_text(json.dumps({}))
    assert counting.Answered(folder).lines == {"90:16 scale --property value"}
    assert report.is_file()

    (folder / "samples.py").write_text("TABLE = []\n")
    assert not counting.Answered(folder).lines
    assert not report.exists()


def test_the_kernels_of_a_library_are_listed_for_each_operator():
    folder = counting.PACKAGE / "operators/shift"
    kernels = counting.Library("cpu", folder, folder, {})._kernels()
    assert {"shift", "shift_grads", "depthwise_conv1d"} <= kernels.keys()


def test_products_in_tf32_are_asked_of_samples_that_tf32_holds(monkeypatch):
    """For other numbers the result is as far from the exact one as tf32 is, and right."""
    monkeypatch.setattr(counting.Library, "_kernels", lambda library: {})
    [folder] = counting.own.find_folders(["lltm"])
    asked = list(counting.Library("90:16", folder, folder, {}).questions())
    assert ["1", "lltm_grads", "--property", "value"] in asked
    in_tf32 = [question for question in asked if question[0] == "2"]
    assert ["2", "lltm", "--sample", "tf32", "--property", "value"] in in_tf32
    assert {operator for _, operator, *_ in in_tf32} == {"lltm"}
    assert all("--sample" in question for question in in_tf32)


# In the place of what asks a library: of one operator it does not end, and is told so by an interrupt or not at all.
STANDS_IN = """
import json, signal, sys, time
for question in sys.stdin:
    _, _, _, operator, *_ = json.loads(question)
    if operator.startswith("endless"):
        signal.signal(signal.SIGINT, signal.SIG_IGN if operator.endswith("deaf") else signal.default_int_handler)
        time.sleep(600)
    print(json.dumps([0, ""]), flush=True)
"""


@pytest.mark.parametrize("last", ["quick", "endless", "endless and deaf"])
def test_what_is_asked_when_time_is_over_is_asked_again(last, tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "WORK", tmp_path)
    monkeypatch.setattr(counting, "ASKED", STANDS_IN)
    monkeypatch.setattr(counting, "PATIENCE", 0.5)
    folder = tmp_path / "scale"
    folder.mkdir()
    answered = {folder: counting.Answered(folder)}
    libraries = [counting.Library(place, folder, folder, {}) for place in ("90:16", "cpu")]
    operators = ["one", "two", last]
    waiting = ((library, ["", operator]) for operator in operators for library in libraries)
    started = time.monotonic()
    counting._Asking(waiting, answered, started + (60 if last == "quick" else 2)).run(jobs=2)
    assert time.monotonic() - started < 30
    known = operators[: 3 if last == "quick" else 2]
    assert answered[folder].lines == {f"{each.place}  {operator}" for each in libraries for operator in known}


TWICE = """\
#ifdef ELSEWHERE
static int twice(int count) { return 2 * count; }
#else
static int twice(int count) { return count + count; }
#endif
int main(int count, char**) {
  if (count > 1)
    return twice(0);
  return twice(0);
}
"""


def test_what_was_counted_elsewhere_is_kept(tmp_path, monkeypatch):
    """A report is all that another machine leaves of what it asked; a function may stand on other lines there."""
    monkeypatch.setattr(counting, "ROOT", tmp_path)
    source = tmp_path / "src/torchgraft/twice.cpp"
    source.parent.mkdir(parents=True)
    source.write_text(TWICE)
    report = tmp_path / "twice.json"
    for place, words in {"here": [], "elsewhere": ["more"]}.items():
        objects = tmp_path / place
        objects.mkdir()
        program = objects / "program"
        command = ["c++", "--coverage", "-O0", str(source), "-o", str(program), f"-D{place.upper()}"]
        subprocess.run(command, check=True, cwd=objects)
        subprocess.run([str(program), *words], check=True, cwd=objects)
        counting.report(objects, report)
    [file] = json.loads(report.read_text())["files"]
    assert {each["line_number"]: each["count"] for each in file["lines"]} == {2: 1, 4: 1, 6: 2, 7: 2, 8: 1, 9: 1}
    assert [path.name for path in tmp_path.glob("twice*")] == ["twice.json"]
