"""Whose fault a failure is: the words of causes that are known, the place in the source, and reports for machines."""

import ctypes
import itertools
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from sarif_format import expect_sarif
from torchgraft import Operator
from torchgraft.checking import check, kernel_code
from torchgraft.checking.call import Call
from torchgraft.checking.causes import find_cause
from torchgraft.checking.jobs import find_unreached_lines, make_jobs
from torchgraft.checking.kernel_code import LineRecorder, lines_of
from torchgraft.checking.kernel_place import place_of_kernel
from torchgraft.checking.report.check_report import CheckReport, describe, group_alike
from torchgraft.checking.report.junit import as_junit
from torchgraft.checking.report.sarif import as_sarif
from torchgraft.checking.result import (
    CHANGED_GLOBAL,
    DATA_RACE,
    EMULATED,
    INCOMING_CHANGED,
    KINDS,
    OUT_OF_BOUNDS,
    STALE_CACHE,
    UNDECLARED_SIZE,
    UNWRITTEN_MEMORY,
    Failure,
    Result,
)
from torchgraft.checking.subject import subject_of
from torchgraft.cli import app
from torchgraft.kernels import python_kernels
from torchgraft.sampling import Drawn, Sample, Samples

HERE = Path(__file__).resolve()
SAMPLES = Samples([Sample("a few", (Drawn((2, 3)),)), Sample("more", (Drawn((3, 4)),))])


def _double(input):
    return 2 * input


def _declare(name, kernel, *, reference=_double, gradient=None, output=torch.empty_like, **more):
    operator = Operator(
        f"fault::{name}(Tensor input) -> Tensor",
        reference=reference,
        output=output,
        gradient=gradient or (lambda needs_grad, grads, saved, input: (2 * grads[0],)),
        dtypes=(torch.float32, torch.float64),
        kernels={"cpu": (torch.float32, torch.float64)},
        **more,
    )
    operator.kernel("cpu", name=name)(kernel)
    return operator


_by_address = {}
_by_size = {}
_workspace = None
_calls = itertools.count()
_total = [0.0]


def _remembers_addresses(input):
    key = input.data_ptr(), input.shape, input.dtype
    if key not in _by_address:
        # The memory must not be given to another tensor.
        _by_address[key] = input, 2 * input
    return _by_address[key][1].clone()


def _remembers_sizes(input):
    return _by_size.setdefault((input.shape, input.dtype), 2 * input).clone()


def _counts_calls(input):
    global _workspace
    _workspace = 0 if _workspace is None else _workspace + 1
    return 2 * input + _workspace


def _adds_up(input):
    _total[0] += 1
    return 2 * input + _total[0]


def _draws(input):
    return 2 * input + torch.rand(())


def _leaves_one(input):
    result = torch.empty_like(input)
    result.view(-1)[:-1] = 2 * input.reshape(-1)[:-1]
    return result


def _adds_to_unwritten(input):
    return torch.empty_like(input).add_(2 * input)


def _reads_past_its_input(input):
    # What lies behind the last element is the neighbour of a tensor in an arena.
    behind = (ctypes.c_byte * 4).from_address(input.data_ptr() + input.numel() * input.element_size())
    return 2 * input if any(each == 0 for each in behind) else 2 * input + behind[0]


_buffer = torch.zeros(100, dtype=torch.float64)


def _shares_a_buffer(input):
    _buffer[: input.numel()] = 2 * input.reshape(-1)
    time.sleep(0.0005)
    return _buffer[: input.numel()].clone().reshape(input.shape).to(input.dtype)


def _changes_default_dtype(input):
    torch.set_default_dtype(torch.float32 if torch.get_default_dtype() == torch.float64 else torch.float64)
    return 2 * input + 1


def _changes_threads(input):
    torch.set_num_threads(1)
    return 2 * input + 1


def _races(input):
    # Stands for a kernel whose threads write to one place: right on one thread alone.
    return 2 * input + (0 if torch.get_num_threads() == 1 else next(_calls) % 5)


def _counts_positive(input):
    return input[input > 0] * 2


CAUSES = [
    (_declare("remembers_sizes", _remembers_sizes), STALE_CACHE, "for other values of the same sizes"),
    (_declare("counts_calls", _counts_calls), CHANGED_GLOBAL, "the global `_workspace`"),
    (_declare("adds_up", _adds_up), CHANGED_GLOBAL, "the global `_total`"),
    (_declare("draws", _draws), CHANGED_GLOBAL, "or draws random numbers"),
    (_declare("leaves_one", _leaves_one), UNWRITTEN_MEMORY, "memory that is never written"),
    (_declare("adds_to_unwritten", _adds_to_unwritten), UNWRITTEN_MEMORY, "memory that is never written"),
    (_declare("reads_past_its_input", _reads_past_its_input), OUT_OF_BOUNDS, "a read out of bounds"),
    (_declare("shares_a_buffer", _shares_a_buffer), CHANGED_GLOBAL, "such as a buffer. Its kernel in Python uses the"),
    (_declare("changes_default_dtype", _changes_default_dtype), CHANGED_GLOBAL, "the default dtype"),
    (_declare("changes_threads", _changes_threads), CHANGED_GLOBAL, "the number of threads of the whole process, to 1"),
    (_declare("races", _races), DATA_RACE, "a missing barrier"),
    (
        _declare(
            "counts_positive",
            _counts_positive,
            reference=lambda input: input[input > 0] * 2,
            output=lambda input: input.new_empty(input.shape[0]),
            gradient="reference",
        ),
        UNDECLARED_SIZE,
        "an undeclared size that depends on data",
    ),
]


def _halves_in_place(needs_grad, grads, saved, input):
    return (grads[0].mul_(2),)


def _writes_and_is_wrong(needs_grad, grads, saved, input):
    grads[0].zero_()
    return (torch.ones_like(input),)


def _wrong_value(input):
    return 2 * input + 1


def _wrong_gradient(needs_grad, grads, saved, input):
    return (3 * grads[0],)


remembers_addresses = _declare("remembers_addresses", _remembers_addresses)
in_place = _declare("in_place", _double, gradient=_halves_in_place)
in_place_and_wrong = _declare("in_place_and_wrong", _double, gradient=_writes_and_is_wrong)
only_wrong = _declare("only_wrong", _wrong_value)
wrong_twice = _declare("wrong_twice", _remembers_addresses, gradient=_wrong_gradient)
right = _declare("right", lambda input: 2 * input)
samples = dict.fromkeys(
    (name.rpartition("::")[2] for name in Operator.registered if name.startswith("fault::")), SAMPLES
)


@pytest.fixture(autouse=True)
def _settings_put_back():
    before = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(before[0])
    torch.set_num_threads(before[1])


def ask(operator, *properties):
    return check(operator, SAMPLES, properties=properties, device="cpu", quick=True)


@pytest.mark.parametrize(("operator", "kind", "words"), CAUSES, ids=lambda value: getattr(value, "name", ""))
def test_a_cause_that_is_known_is_named_first(operator, kind, words):
    report = ask(operator, "smoke", "value", "layouts", "inputs_and_outputs", "memory_bounds", "thread_safety", "fake")
    assert report.failures
    named = [each.failure for each in report.failures if each.failure.kind]
    assert {each.kind for each in named} == {kind}, report
    _, first, *_ = describe(*group_alike(report.failures)[0]).splitlines()
    assert first.strip().startswith(
        {
            STALE_CACHE: "a stale cache: ",
            CHANGED_GLOBAL: "a changed global: ",
            UNWRITTEN_MEMORY: "memory that is never written: ",
            OUT_OF_BOUNDS: "a read out of bounds: ",
            DATA_RACE: "a data race",
            UNDECLARED_SIZE: "an undeclared size that depends on data: ",
        }[kind]
    )
    assert words in first, first


@pytest.mark.parametrize("operator", [only_wrong, right], ids=lambda value: value.name)
def test_an_operator_that_is_only_wrong_is_given_no_cause(operator):
    report = ask(operator, "value", "layouts", "gradient", "memory_bounds", "inputs_and_outputs")
    assert bool(report.failures) == (operator is only_wrong)
    assert not any(each.failure.kind for each in report.failures)


@pytest.mark.parametrize("operator", [in_place, in_place_and_wrong], ids=lambda value: value.name)
def test_a_formula_that_writes_to_its_incoming_gradient_has_its_own_words(operator):
    report = ask(operator, "gradient", "second_gradient", "incoming_gradients", "inputs_and_outputs", "determinism")
    assert {each.property for each in report.failures} >= {"gradient", "inputs_and_outputs", "incoming_gradients"}
    # Each of its runs has incoming gradients of its own.
    assert "determinism" not in {each.property for each in report.failures}
    for each in report.failures:
        if each.property != "second_gradient":
            assert each.failure.message.startswith("the gradient formula writes to its incoming gradient: ")
            assert each.failure.kind == INCOMING_CHANGED
            # What was there before stands as expected, and not what the formula has made of it.
            assert each.failure.expected != each.failure.found
    first = describe(*group_alike(report.failures)[0])
    assert "the gradient formula writes to its incoming gradient" in first.splitlines()[1]
    assert f"  source    {HERE}:{operator.declaration.gradient.__code__.co_firstlineno}\n" in first


def test_a_cause_of_the_kernel_is_not_laid_to_a_formula_that_is_wrong_too():
    report = ask(wrong_twice, "gradient")
    assert report.failures
    for each in report.failures:
        assert each.failure.at_fault.startswith("the gradient formula")
        assert not each.failure.kind


@pytest.mark.parametrize("seed", range(3))
def test_what_is_remembered_by_address_is_a_stale_cache(seed):
    sample = SAMPLES.table[seed % 2]
    cause = find_cause(Call(remembers_addresses, SAMPLES, sample, torch.device("cpu"), torch.float32, seed), 60)
    assert cause.kind == STALE_CACHE
    assert cause.words.endswith(
        "for new values in the memory of an earlier call it returns what it computed for the old values. Its kernel in"
        " Python uses the global `_by_address`"
    )


def _result(name, kind="", dtype="float32", cause="value"):
    failure = Failure(f"{name} says", sample="one", reproduce="graft check", cause=cause, kind=kind)
    return Result(name, "an_operator", "cpu", dtype, "fail", 0.5, failure=failure)


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["value", "layouts"], "value"),
        (["smoke", "value", "memory_bounds"], "memory_bounds"),
        (["value", "mutation", "memory_bounds"], "mutation"),
        (["value", "gradient", "inputs_and_outputs"], "inputs_and_outputs"),
        (["value", "memory_bounds", "stress*"], "stress*"),
        (["value", "compile*", "determinism*"], "determinism*"),
    ],
)
def test_the_property_that_names_the_cause_heads_a_merged_report(names, head):
    kinds = {True: STALE_CACHE, False: ""}
    failures = [_result(name.rstrip("*"), kinds[name.endswith("*")]) for name in names]
    ((first, *others),) = group_alike(failures)
    assert first.property == head.rstrip("*")
    told = describe(first, *others)
    assert all(each.property in told.rpartition("also fail, most likely for the same reason: ")[2] for each in others)


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["equal_sizes", "limits", "state"], "state"),
        (["layouts", "numbers"], "numbers"),
        (["value", "numbers"], "value"),
        (["smoke", "value_regimes", "surroundings"], "surroundings"),
        (["value", "state", "gradient*"], "gradient*"),
        (["equal_sizes", "layouts"], "equal_sizes"),
    ],
)
def test_what_names_a_cause_is_told_first_unless_ordinary_calls_are_wrong(names, head):
    kinds = {True: STALE_CACHE, False: ""}
    failures = [_result(name.rstrip("*"), kinds[name.endswith("*")], cause=name) for name in names]
    groups = group_alike(failures)
    assert groups[0][0].property == head.rstrip("*")
    rest = [name.rstrip("*") for name in names if name != head]
    assert sorted(group[0].property for group in groups[1:]) == sorted(rest)


def test_operators_are_told_in_the_order_in_which_they_were_asked():
    failures = [
        replace(_result(name, cause=name), operator=operator) for operator, name in (("b", "value"), ("a", "state"))
    ]
    assert [group[0].operator for group in group_alike(failures)] == ["b", "a"]


def test_the_place_of_a_kernel_in_python_is_its_function():
    assert place_of_kernel(right, "cpu") == (str(HERE), right_line())
    assert place_of_kernel(only_wrong, "cpu") == (str(HERE), _wrong_value.__code__.co_firstlineno)
    assert place_of_kernel(only_wrong, "cuda") == ("", 0)
    report = ask(only_wrong, "value")
    failure = report.failures[0].failure
    assert (failure.file, failure.line) == (str(HERE), _wrong_value.__code__.co_firstlineno)
    assert f"\n  source    {HERE}:{failure.line}\n" in str(report)


def test_a_process_that_died_and_a_sanitizer_name_the_place_too():
    (job,) = make_jobs([subject_of(only_wrong)], devices=["cpu"], properties=["value"], dtypes=[torch.float32])
    for each in (job, replace(job, under="address sanitizer")):
        died = each.result("fail", 0.0, failure=Failure("the process died: SIGSEGV"))
        assert died.failure.place == f"{HERE}:{_wrong_value.__code__.co_firstlineno}"
    emulated = replace(job, place=EMULATED).result("fail", 0.0, failure=Failure("a race"))
    assert emulated.failure.place == ""


def right_line():
    text = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(text, 1) if line.startswith('right = _declare("right"'))


def test_the_place_of_one_of_several_kernels_is_that_of_the_one_that_is_chosen():
    operator = Operator("fault::of_two(Tensor input) -> Tensor", reference=_double, kernels={"cpu": (torch.float32,)})

    @operator.kernel("cpu")
    def small(input):
        return 2 * input

    @operator.kernel("cpu")
    def large(input):
        return 2 * input

    @operator.choose_kernel("cpu")
    def choose(input):
        return "small" if input.numel() < 4 else "large"

    lines = [each.__code__.co_firstlineno for each in (small, large)]
    assert [place_of_kernel(operator, "cpu", "", (torch.ones(n),)).line for n in (1, 9)] == lines
    assert [place_of_kernel(operator, "cpu", name).line for name in ("small", "large")] == lines
    operator.undeclare()


SOURCE = """#include <torchgraft/registration.h>
// softplus_cpu without a parenthesis is no function.
torchgraft::Tensor softplus_cpu(torchgraft::Tensor input) {
  return input;
}
TORCHGRAFT_KERNEL(fault_sources, CPU, softplus, softplus_cpu)
TORCHGRAFT_KERNEL(fault_sources, CPU,
                  elsewhere, ns::defined_elsewhere)
"""


@pytest.mark.parametrize(("name", "line"), [("softplus", 3), ("elsewhere", 8), ("nobody", 0)])
def test_the_place_of_a_compiled_kernel_is_its_function_or_its_registration(name, line, tmp_path, monkeypatch):
    source = tmp_path / "cpu.cpp"
    source.write_text(SOURCE)
    monkeypatch.setattr("torchgraft.checking.kernel_place.sources_of", lambda operator, device: [source])
    operator = Operator(f"fault_sources::{name}(Tensor input) -> Tensor", reference=_double)
    # A call of `defined_elsewhere` or its registration: the first line that names it before a parenthesis, or itself.
    found = place_of_kernel(operator, "cpu")
    operator.undeclare()
    if name == "elsewhere":
        assert found == (str(source), 7)
    else:
        assert found == ((str(source), line) if line else ("", 0))


def test_the_place_of_a_text_is_in_the_file_that_holds_it(tmp_path):
    from torchgraft.building.inline import GivenText, _texts

    text = "Tensor helper();\n\nTensor inlined_cpu(Tensor input) { return input; }\n"
    holder, path = tmp_path / "holder.py", tmp_path / "kernel.cpp"
    holder.write_text(f'# A module.\nTEXT = """{text}"""\nload_inline(\n    cpu=TEXT)\n')
    path.write_text(text)
    operator = Operator("fault::inlined(Tensor input) -> Tensor", reference=_double)
    places = []
    for given in (
        GivenText(text, str(holder), 3),
        GivenText(text.replace("input", "in"), str(holder), 3),
        GivenText(path, str(holder), 3),
        GivenText(text, "<ipython-input-3>", 3),
    ):
        _texts["fault::inlined", "cpu"] = given
        places.append(tuple(place_of_kernel(operator, "cpu")))
    del _texts["fault::inlined", "cpu"]
    operator.undeclare()
    assert places == [(str(holder), 4), (str(holder), 3), (str(path), 3), ("", 0)]


def make_report():
    results = (
        _result("value"),
        _result("value", dtype="float64"),
        _result("memory_bounds", UNWRITTEN_MEMORY),
        Result(
            "address sanitizer: value", "x::other", "cpu", "float32", "fail", 1.0, failure=Failure("\x1b[1m <&> \x00")
        ),
        Result("empty", "an_operator", "cpu", "float32", "pass", 0.25, lines=((str(HERE), 3),)),
        Result("vmap", "an_operator", "cpu", "float32", "not applicable", 0.0, reason="no <reason>"),
    )
    return CheckReport(results, {}, 0, True)


def test_the_report_as_json_has_a_format():
    told = make_report().as_dict()
    assert told["format"] == 1
    assert "lines" not in told["results"][0]
    assert {"kind", "file", "line"} <= set(told["results"][0]["failure"])


def test_the_report_as_junit_counts_and_names_each_result():
    root = ElementTree.fromstring(as_junit(make_report()))
    assert root.tag == "testsuites"
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "4",
        "errors": "0",
        "skipped": "1",
    }
    first, second = root.findall("testsuite")
    assert first.get("name") == "an_operator on cpu"
    assert [each.get("name") for each in first.findall("testcase")] == [
        "value[float32]",
        "value[float64]",
        "memory_bounds[float32]",
        "empty[float32]",
        "vmap[float32]",
    ]
    assert [len(each.findall("failure")) for each in first.findall("testcase")] == [1, 1, 1, 0, 0]
    assert first.find("testcase/skipped").get("message") == "no <reason>"
    assert second.find("testcase").get("classname") == "x.other.cpu"
    # XML cannot hold the characters by which terminals are coloured.
    assert second.find("testcase/failure").get("message") == "\ufffd[1m <&> \ufffd"


def test_the_report_as_sarif_is_what_the_format_wants(monkeypatch, tmp_path):
    monkeypatch.chdir(HERE.parent)
    told = json.loads(as_sarif(make_report()))
    expect_sarif(told)
    (run,) = told["runs"]
    # One finding for what has one cause.
    assert [each["ruleId"] for each in run["results"]] == ["memory_bounds", "value"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"].startswith("The operator writes all of its")
    placed = ask(only_wrong, "value")
    for folder, uri in ((HERE.parent, "test_fault.py"), (tmp_path, HERE.as_uri())):
        monkeypatch.chdir(folder)
        told = json.loads(as_sarif(placed))
        expect_sarif(told)
        (location,) = told["runs"][0]["results"][0]["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == uri
        assert location["physicalLocation"]["region"]["startLine"] == _wrong_value.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda told: told.pop("version"), "version"),
        (lambda told: told["runs"][0]["tool"]["driver"].pop("name"), "name"),
        (lambda told: told["runs"][0]["results"][0].pop("message"), "message"),
        (lambda told: told["runs"][0]["results"][0].update(level="bad"), "level"),
        (lambda told: told["runs"][0]["results"][0].update(ruleIndex=7), "ruleIndex"),
        (lambda told: told["runs"][0].update(unknown=1), "unknown"),
    ],
)
def test_what_is_no_sarif_is_seen(broken, said):
    told = json.loads(as_sarif(make_report()))
    broken(told)
    with pytest.raises(AssertionError, match=said):
        expect_sarif(told)


def test_a_command_writes_all_reports_and_ends_as_it_is_documented(tmp_path, monkeypatch):
    files = {name: tmp_path / "made" / f"report.{name}" for name in ("json", "junit", "sarif")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    asked = ["mul_constant", "--property", "empty", "--device", "cpu", "--workers", "0"]
    done = CliRunner().invoke(app, ["check", *asked, *options])
    assert done.exit_code == 0, done.output
    assert json.loads(files["json"].read_text())["format"] == 1
    root = ElementTree.parse(files["junit"]).getroot()
    assert root.find("testsuite").get("timestamp")
    expect_sarif(json.loads(files["sarif"].read_text()))
    # A file that two options name, a mistake on the line, and a package that is missing.
    same = ["--junit", str(files["json"]), "--sarif", str(files["json"])]
    assert CliRunner().invoke(app, ["check", *asked, *same]).exit_code == 2
    mutants = CliRunner().invoke(app, ["check", "mul_constant", "--mutants", "1", "--sarif", str(files["sarif"])])
    assert mutants.exit_code == 2
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert CliRunner().invoke(app, ["check", *asked]).exit_code == 3


def _helper(input):
    if input.dim() > 7:
        return -input
    return input


def _with_branches(input):
    """Has a docstring, which is no line that runs."""
    if input.numel() == 12345:
        input = input + 1
        input = input - 1

    def inner(value):
        return value * 2

    for _ in range(2):
        pass
    return inner(_helper(input))


with_branches = _declare("with_branches", _with_branches)
one_line = _declare("one_line", lambda input: 2 * input)
samples["with_branches"] = samples["one_line"] = SAMPLES


def _lines_that_say(*texts):
    every = HERE.read_text().splitlines()
    return tuple(sorted(number for number, line in enumerate(every, 1) if line in texts))


def test_the_lines_that_no_question_reached_are_found():
    recorder = LineRecorder()
    functions = kernel_code.functions_of(with_branches, "cpu")["with_branches"]
    assert {each.__name__ for each in functions} == {"_with_branches", "_helper"}
    held = python_kernels.kernels_of("fault::with_branches", "cpu").kernels
    before = dict(held)
    with recorder.recording(with_branches, "cpu"), recorder.recording(one_line, "cpu"):
        for size in ((2,), (3, 4)):
            with_branches(torch.ones(size))
            one_line(torch.ones(size))
    ran = recorder.take()
    (found,) = kernel_code.unreached_lines([with_branches, one_line, right], ["cpu"], [*ran, (str(HERE), right_line())])
    wanted = ("        input = input + 1", "        input = input - 1", "        return -input")
    assert found.lines == _lines_that_say(*wanted)
    assert found.count == len(lines_of(functions)) == 11
    numbers = ", ".join(map(str, found.lines))
    assert re.fullmatch(
        rf"3 of {found.count} lines of fault::with_branches were reached by no question: {HERE}:{numbers}", str(found)
    )
    assert recorder.take() == ()
    # Nothing stays behind in the operator.
    assert held == before
    assert sys.gettrace() is None


def _finished(job, lines, failure=None):
    return replace(job.result("fail" if failure else "pass", 0.0, failure=failure), lines=lines)


def test_lines_are_counted_over_all_jobs_and_not_at_all_where_some_are_not_known():
    (first,) = make_jobs([subject_of(with_branches)], devices=["cpu"], properties=["smoke"], dtypes=[torch.float32])
    second = replace(first, property_name="value")
    functions = kernel_code.functions_of(with_branches, "cpu")["with_branches"]
    every = sorted(lines_of(functions))
    some, others = (_finished(job, tuple(lines)) for job, lines in ((first, every[:4]), (second, every[4:-2])))
    (found,) = find_unreached_lines([first, second], [some, others])
    assert found.lines == tuple(line for _, line in every[-2:])
    assert not find_unreached_lines([first, second], [some, _finished(second, tuple(every[4:]))])
    for unknown in (_finished(second, None), _finished(second, (), Failure("the process died: SIGSEGV"))):
        assert not find_unreached_lines([first, second], [some, unknown])
    report = replace(make_report(), unreached=(found,))
    assert str(found) in str(report)
    assert report.as_dict()["unreached"][0]["lines"] == found.lines


def test_where_another_tool_traces_nothing_is_claimed(monkeypatch):
    if hasattr(sys, "monitoring"):
        monkeypatch.setattr(kernel_code, "_MONITORING", None)
    recorder = LineRecorder()
    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: None)
    try:
        with recorder.recording(with_branches, "cpu"):
            with_branches(torch.ones(3))
    finally:
        sys.settrace(before)
    assert recorder.take() is None


def test_every_kind_has_words():
    assert {kind for _, kind, _ in CAUSES} | {INCOMING_CHANGED} == set(KINDS)
