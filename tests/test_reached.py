"""What `make coverage` counts of gcovr's report, and what it asks again."""

import json

import pytest

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
    return lambda *lines: reached._lines_of({"file": "scale.cu", "lines": lines})


def test_what_instantiations_reach_is_merged(lines_of):
    found = lines_of(line(3, 5, 0, 5), line(6, 5, 5, 0), line(3, 2, 0, 2), line(6, 2, 0, 2))
    assert {number: (each.runs, list(each.branches.values())) for number, each in found.items()} == {
        3: (True, [False, True]),
        6: (True, [True, True]),
    }


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
    for name, expected in (("cuda/scale.cu", []), ("host.h", [True, False])):
        path = tmp_path / "scale" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('TORCHGRAFT_CHECK(count >= 0, "no count is negative");\n')
        found = reached._lines_of({"file": f"scale/{name}", "lines": [line(1, 5, 5, 0)]})
        assert list(found[1].branches.values()) == expected


def test_what_was_not_reached_is_shown_with_its_text(lines_of):
    assert reached._missing({"scale.cu": lines_of(line(3, 5, 0, 5), line(6, 0))}) == [
        "scale.cu:3: 1 of 2 branches: if (count < 0) {",
        "scale.cu:6: never: for (int i = 0; i < count; ++i) to[i] *= 2;",
    ]


def test_an_answer_stands_until_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(reached, "WORK", tmp_path)
    folder = tmp_path / "scale"
    folder.mkdir()
    (folder / "scale.cu").write_text(SOURCE)
    report = tmp_path / "scale-90.json"

    reached.Answered(folder).add("90:16 scale --property value")
    report.write_text(json.dumps({}))
    assert reached.Answered(folder).lines == {"90:16 scale --property value"}
    assert report.is_file()

    (folder / "samples.py").write_text("TABLE = []\n")
    assert not reached.Answered(folder).lines
    assert not report.exists()
