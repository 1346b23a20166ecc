"""The checker itself: how it compares, what a failure holds, and that nothing that an operator does ends it."""

import importlib
import itertools
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

import torchgraft
from torchgraft import Operator
from torchgraft.checking import PROPERTIES, CheckReport, check, make_test
from torchgraft.checking.case import Case
from torchgraft.checking.jobs import Job, make_jobs
from torchgraft.checking.properties import memory
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.run import run_job
from torchgraft.checking.sanitizers.serial import filled_products, products_in_float32
from torchgraft.checking.subject import Subject, find_subjects, subject_of, target_of
from torchgraft.checking.tensors.compare import Mismatch, expect_close, expect_equal, rounding
from torchgraft.checking.tensors.strides import in_awkward_strides
from torchgraft.checking.workers import run_jobs
from torchgraft.sampling import Drawn, Sample, Samples


def _operator(name: str, kernel, gradient=None) -> Operator:
    """Doubles, by a kernel in Python."""
    operator = Operator(
        f"checking::{name}(Tensor input) -> Tensor",
        reference=lambda input: input * 2,
        output=torch.empty_like,
        gradient=gradient or (lambda needs_grad, output_grads, saved, input: (operator(output_grads[0]),)),
    )

    def host(input):
        if not input.is_floating_point():
            raise RuntimeError("floating-point numbers only")
        return kernel(input)

    for registered in (name, f"_{name}"):
        for key in ("CPU", "CUDA"):
            operator._library.impl(registered, host, key)
    return operator


def _wrong_above_eight(input):
    result = input * 2
    if input.numel() > 8:
        result.view(-1)[8] += 1
    return result


def _die_on_three(input):
    if input.numel() == 3:
        os.abort()
    return input * 2


def _fault_on_three(input):
    if input.numel() == 3:
        # What the device asserts ends every process's use of it.
        torch.zeros(1, device=input.device)[torch.full((1,), 9, device=input.device)]
    return input * 2


correct = _operator("correct", lambda input: input * 2)
wrong_above_eight = _operator("wrong_above_eight", _wrong_above_eight)
dies_on_three = _operator("dies_on_three", _die_on_three)
faults_on_three = _operator("faults_on_three", _fault_on_three)
resizes = _operator("resizes", lambda input: torch.where(input.isfinite(), input, 0) * 2)

# Without kernels, and one whose gradient is.
unbuilt, declared_so, elsewhere = (
    Operator(
        f"checking::{name}(Tensor input) -> Tensor",
        reference=lambda input: input * 2,
        output=torch.empty_like,
        gradient=lambda needs_grad, output_grads, saved, input: (output_grads[0] * 2,),
        kernels=kernels,
    )
    for name, kernels in (
        ("unbuilt", None),
        ("declared_so", "reference"),
        ("elsewhere", {"cuda": (torch.float32,)}),
    )
)
half_built = _operator(
    "half_built",
    lambda input: input * 2,
    gradient=lambda needs_grad, output_grads, saved, input: (unbuilt(output_grads[0]),),
)


def _doubled_and_cubed(grad, input, first, second):
    """The results of a gradient with flags: an empty tensor, or zeros, for what is not wanted."""
    return 2 * grad if first else grad.new_empty(0), input**3 * float(second)


def _flagged(name: str, slope: float) -> Operator:
    def gradient(needs_grad, output_grads, saved, grad, input, first, second):
        doubled, cubed = output_grads
        return (
            torch.zeros_like(grad) if doubled is None or not first else 2 * doubled,
            torch.zeros_like(input) if cubed is None or not second else slope * input**2 * cubed,
        )

    return Operator(
        f"checking::{name}(Tensor grad, Tensor input, bool first, bool second) -> (Tensor, Tensor)",
        reference=_doubled_and_cubed,
        output=lambda grad, input, first, second: (
            torch.empty_like(grad) if first else grad.new_empty(0),
            torch.empty_like(input),
        ),
        gradient=gradient,
        kernels="reference",
        compile="operator",
    )


flagged, wrongly_flagged = _flagged("flagged", 3.0), _flagged("wrongly_flagged", 2.0)

_TABLE = tuple(Sample(f"{size} elements", (Drawn((size,)),)) for size in (100, 0, 1, 3, 9, 40))
samples = {
    name: Samples(_TABLE, lambda random: Sample("drawn", (Drawn((random.randint(0, 30),)),)))
    for name in (
        *("correct", "wrong_above_eight", "dies_on_three", "faults_on_three", "resizes"),
        *("unbuilt", "declared_so", "elsewhere", "half_built"),
    )
}
_FLAGGED = tuple(
    Sample(f"first {first}, second {second}", (Drawn((3, 4)), Drawn((3, 18)), first, second))
    for first in (True, False)
    for second in (True, False)
)
samples |= dict.fromkeys(("flagged", "wrongly_flagged"), Samples(_FLAGGED))

EAGER = ["value", "sizes", "empty", "dtypes", "layouts", "gradient", "second_gradient", "determinism"]


def test_a_dtype_that_a_sample_gives_stays():
    negated = Operator(
        "checking::negated(Tensor input) -> Tensor",
        reference=torch.neg,
        dtypes=(torch.int32, torch.int64),
        kernels={"cpu": (torch.int32, torch.int64)},
    )
    negated.kernel("cpu")(lambda input: -input)
    samples = Samples([Sample("of 64 bits", (Drawn((3,), dtype=torch.int64, high=4),))])
    report = check(negated, samples, properties=["dtypes"], device="cpu")
    assert report.passed, str(report)


def test_a_correct_operator_passes():
    report = torchgraft.check(correct, properties=EAGER, device="cpu")
    assert isinstance(report, CheckReport)
    assert report.passed, str(report)
    assert report.count("pass") == len(report.results) > len(EAGER)


@pytest.mark.parametrize("sample", _FLAGGED, ids=lambda sample: sample.name)
def test_gradients_that_are_empty_or_constant_are_compared_with_their_own(sample):
    # PyTorch's gradgradcheck takes a gradient that is constant for the next one: "size of tensor a (54) must match".
    of = Samples((sample,))
    report = check(flagged, of, properties=["gradient", "second_gradient"], device="cpu")
    assert report.passed, str(report)
    wrong = check(wrongly_flagged, of, properties=["gradient", "second_gradient"], device="cpu")
    assert wrong.passed is not sample.arguments[-1], str(wrong)
    assert {each.status for each in wrong.results} == {"pass" if wrong.passed else "fail"}


def test_a_question_about_a_kernel_that_is_not_there_fails_and_says_so():
    asked = [name for name, each in PROPERTIES.items() if "cpu" in each.devices and not each.isolated]
    report = check(unbuilt, properties=[name for name in asked if PROPERTIES[name].of_kernels], device="cpu")
    assert {result.status for result in report.results} == {"fail"}
    messages = {result.failure.message for result in report.results}
    assert len(messages) == 1
    # Said once, with what it is said of, and what to do.
    for part in ("so the reference would be compared with itself", "torchgraft.native.load('checking'", "kernels='ref"):
        assert str(report).count(part) == 1, str(report)
    assert "  also fail, most likely for the same reason: value, accuracy, sizes, empty, dtypes, " in str(report)
    # A question that no kernel has a part in.
    assert check(unbuilt, properties=["pickle"], device="cpu").count("pass") == 1


@pytest.mark.parametrize("operator", [declared_so, elsewhere], ids=lambda operator: operator.name)
def test_who_declares_no_kernel_is_asked_for_none(operator):
    report = check(operator, properties=["value", "gradient"], device="cpu")
    assert report.passed, str(report)
    assert report.count("pass") == len(report.results)


def test_a_gradient_whose_kernel_is_not_there_is_seen_where_the_gradient_is_asked_about():
    report = check(half_built, properties=["value", "gradient"], device="cpu")
    failed = {result.property for result in report.failures}
    assert failed == {"gradient"}
    assert report.failures[0].failure.message.startswith("checking::unbuilt has no kernel, so the reference")


def test_products_fill_what_they_write_to_where_a_tool_does_not_see_them_write(monkeypatch):
    filled = []
    zero = torch.Tensor.zero_
    monkeypatch.setattr(torch.Tensor, "zero_", lambda tensor: filled.append(tensor.data_ptr()) or zero(tensor))
    one, other, result = torch.randn(3, 4), torch.randn(4, 5), torch.empty(3, 5)
    with filled_products("CPU"):
        torch.mm(one, other, out=result)
    assert filled == [result.data_ptr()]
    assert torch.allclose(result, one @ other)
    torch.mm(one, other, out=result)
    assert len(filled) == 1


def test_products_of_halves_are_computed_in_float32_where_a_tool_breaks_them():
    one, other, result = torch.randn(3, 4).half(), torch.randn(4, 5).half(), torch.empty(3, 5)
    ones, others, results = torch.randn(2, 3, 4).half(), torch.randn(2, 4, 5).half(), torch.empty(2, 3, 5)
    with products_in_float32("CPU"):
        torch.mm(one, other, out_dtype=torch.float32, out=result)
        assert torch.equal(torch.mm(one, other, out_dtype=torch.float32), result)
        torch.bmm(ones, others, out_dtype=torch.float32, out=results)
        assert torch.equal(torch.bmm(ones, others, out_dtype=torch.float32), results)
        twice = torch.addmm(result, one, other, out_dtype=torch.float32, out=torch.empty_like(result))
    assert torch.equal(result, one.float() @ other.float())
    assert torch.equal(results, ones.float() @ others.float())
    assert torch.allclose(twice, 2 * result)


def test_memory_that_pytorch_itself_makes_larger_is_not_taken_for_overrun():
    # PyTorch makes the result of where() with no elements, and then resizes it.
    report = check(resizes, properties=["memory_bounds"], device="cpu")
    assert report.passed, str(report)


@pytest.mark.parametrize(("growing_rounds", "holds"), [(12, True), (sys.maxsize, False)])
def test_what_other_processes_take_of_a_device_for_a_while_is_no_leak(monkeypatch, growing_rounds, holds):
    rounds = itertools.count()
    monkeypatch.setattr(memory, "_on_device", lambda device: {"bytes of the device": min(next(rounds), growing_rounds)})
    report = check(correct, properties=["memory"], device="cpu", quick=True)
    assert report.passed == holds, str(report)
    if not holds:
        assert "more bytes of the device in use, in each of" in report.failures[0].failure.message


def test_a_failure_tells_the_smallest_input_the_values_and_how_to_see_it_again():
    report = check(wrong_above_eight, properties=["value"], device="cpu")
    assert not report.passed
    failure = report.failures[0].failure
    assert failure.sample == "9 elements"
    assert failure.index == (8,)
    assert float(failure.found) == pytest.approx(float(failure.expected) + 1)
    assert failure.arguments == "input=(9,)"
    assert failure.reproduce == (
        f"graft check {__file__}:wrong_above_eight --property value --device cpu --dtype float64 --seed 0 "
        "--sample '9 elements'"
    )
    text = describe(report.failures[0])
    for part in ("9 elements", "expected", "found", failure.reproduce):
        assert part in text


def test_of_drawn_inputs_a_small_one_is_shown():
    (failure,) = (each.failure for each in check(wrong_above_eight, properties=["sizes"]).failures[:1])
    assert "(drawn)" in failure.sample
    size = int(re.search(r"input=\((\d+),\)", failure.arguments)[1])
    assert 9 <= size <= 12


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    sample = _TABLE[0]
    first, again, other = (sample.make("cpu", torch.float32, seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_distinct_values_are_not_begun_anew():
    slots = Drawn((2,), dtype=torch.int64, values=(5.0, -1.0, -1.0), distinct=True)
    assert slots.make("cpu", torch.float32, torch.Generator()).tolist() == [5, -1]
    with pytest.raises(ValueError, match="values must hold 4 different values, got 3"):
        replace(slots, shape=(4,)).make("cpu", torch.float32, torch.Generator())


def test_a_rival_without_a_kernel_for_a_dtype_is_no_failure_and_one_that_takes_nothing_is():
    def without_kernel(input):
        raise NotImplementedError("'double' not implemented for 'Half'")

    def of_other_arguments(input, factor):
        return factor * input

    for rival, status in ((without_kernel, "not applicable"), (of_other_arguments, "fail")):
        asked = replace(samples["correct"], rivals={"rival": rival})
        results = check(correct, asked, properties=["accuracy"], device="cpu").results
        assert {result.status for result in results} == {status}


def test_a_rival_need_not_take_the_one_sample_that_is_asked():
    def of_few(input):
        if input.numel() > 1:
            raise TypeError("a rival of one number")
        return 2 * input

    asked = replace(samples["correct"], rivals={"rival": of_few})
    subject = Subject(correct, asked)
    case = Case(subject, torch.device("cpu"), torch.float32, 0, quick=True, only=asked.table[-1].name)
    with pytest.raises(NotApplicable, match="rival does not accept this sample"):
        PROPERTIES["accuracy"].check(case)


def test_a_rival_that_computes_something_else_is_named_and_one_of_lower_precision_is_none():
    def coarse(input):
        # Of 16 levels, as a quantization to four bits has them.
        step = input.abs().amax().clamp(min=1e-6) / 8 if input.numel() else 1
        return ((2 * input / step).round() * step).to(input.dtype)

    for rival, problem in ((lambda input: input, "computes something else"), (coarse, ""), (torch.sum, "other shapes")):
        asked = replace(samples["correct"], rivals={"rival": rival})
        for result in check(correct, asked, properties=["accuracy"], device="cpu").results:
            said = "" if result.failure is None else result.failure.message
            assert (problem in said) if problem else not said, said


def test_pytorch_adds_halves_up_in_float32_where_it_computes_what_is_asked(monkeypatch):
    """Kernels are asked with PyTorch's switches as they are: what they make of its products they answer for."""
    permitted = {}
    matmul = torch.backends.cuda.matmul
    assert matmul.allow_bf16_reduced_precision_reduction

    def ask(case):
        permitted[case.operator.name] = matmul.allow_bf16_reduced_precision_reduction

    monkeypatch.setitem(PROPERTIES, "value", replace(PROPERTIES["value"], check=ask))
    for operator in (correct, declared_so, elsewhere):
        run_job(Job("value", operator, samples[operator.name], "cpu", torch.float32, 0, True, None))
    assert permitted == {"correct": True, "declared_so": False, "elsewhere": False}
    assert matmul.allow_bf16_reduced_precision_reduction


def test_a_process_that_dies_is_a_failure_and_the_rest_goes_on():
    subjects, properties = [subject_of(dies_on_three), subject_of(correct)], ["value", "sizes"]
    jobs = make_jobs(subjects, devices=["cpu"], properties=properties, dtypes=[torch.float32])
    results = run_jobs(jobs, workers=2)
    assert [result.operator for result in results] == [job.name for job in jobs]
    of_value = [result for result in results if result.property == "value"]
    died = [result for result in of_value if "dies_on_three" in result.operator]
    assert all(result.status == "fail" and "SIGABRT" in result.failure.message for result in died)
    assert {result.failure.sample for result in died} == {"3 elements"}
    assert all(result.status == "pass" for result in results if "correct" in result.operator)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a process loses its GPU: there must be one")
def test_what_breaks_the_gpu_for_its_process_is_a_failure_and_the_rest_goes_on():
    subjects = [subject_of(operator) for operator in (correct, faults_on_three, wrong_above_eight, resizes)]
    jobs = make_jobs(subjects, devices=["cuda"], properties=["value"], dtypes=[torch.float32])
    assert [result.status for result in run_jobs(jobs)] == ["pass", "fail", "fail", "pass"]


def test_samples_may_be_given():
    given = Samples((Sample("two elements", (Drawn((2,)),)),))
    assert check(wrong_above_eight, given, properties=["value"], device="cpu").passed
    assert check("checking::wrong_above_eight", given, properties=["value"], device="cpu").passed
    report = check(correct, given, properties=["stress"], device="cpu")
    assert {result.reason for result in report.results} == {"its samples have no `draw`"}


def test_one_line_makes_a_test_with_a_case_a_property_device_and_dtype():
    test = make_test(correct, device="cpu", quick=True)
    (mark,) = test.pytestmark
    ids = [parameter.id for parameter in mark.args[1]]
    assert "checking::correct-value-cpu-bfloat16" in ids
    assert len(ids) == len(set(ids))
    values = [parameter.values[0] for parameter in mark.args[1]]
    assert all(isinstance(job, Job) for job in values)
    assert not any(PROPERTIES[job.property_name].slow for job in values)
    test(next(job for job in values if job.property_name == "value"))


def test_a_failing_case_fails_the_test_with_the_description():
    test = make_test(wrong_above_eight, device="cpu")
    jobs = [parameter.values[0] for parameter in test.pytestmark[0].args[1]]
    with pytest.raises(pytest.fail.Exception, match="9 elements"):
        test(next(job for job in jobs if job.property_name == "value"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_operator", "there is no operator 'no_such_operator'"),
        ("no.such.module:operator", "there is no module 'no.such.module'"),
        (f"{__name__}:EAGER", "is not a torchgraft.Operator; its operators: correct"),
    ],
)
def test_what_is_not_found_is_said(target, message):
    with pytest.raises(LookupError, match=message):
        find_subjects([target])


def test_an_operator_is_found_by_its_module():
    (subject,) = find_subjects([f"{__name__}:correct"])
    assert subject.operator is correct
    assert subject.samples is samples["correct"]


DOUBLING = """
import {imported}
import torch, torchgraft
from torchgraft.sampling import Drawn, Sample, Samples

named, other = (
    torchgraft.Operator(f"{namespace}::{{name}}(Tensor input) -> Tensor", reference=lambda input: input * 2,
                        output=torch.empty_like, kernels="reference")
    for name in ("doubling", "other")
)
"""


def test_a_folder_of_an_operator_is_found(tmp_path):
    folder = tmp_path / "doubling"
    folder.mkdir()
    (folder / "operator.py").write_text(DOUBLING.format(imported="os", namespace="folder"))
    with pytest.raises(LookupError, match="has no samples"):
        find_subjects([str(folder)])
    (folder / "samples.py").write_text(
        "from torchgraft.sampling import *\nsamples = Samples((Sample('one', (Drawn((1,)),)),))\n"
    )
    importlib.invalidate_caches()
    names = ["folder::doubling", "folder::other"]
    assert [each.operator.qualified_name for each in find_subjects([str(folder)])] == names
    # One of them, by its own name or by that which its module has for it.
    for target in (f"{folder}:doubling", f"{folder}/operator.py:doubling", "doubling.operator:named"):
        (subject,) = find_subjects([target])
        assert subject.operator.qualified_name == "folder::doubling"
        assert target_of(subject.operator) == f"{folder}:doubling"
    with pytest.raises(LookupError, match="declares no operator 'tripling'; it declares doubling, other"):
        find_subjects([f"{folder}:tripling"])


def test_nothing_beside_a_folder_is_imported_in_place_of_what_is_installed(tmp_path, monkeypatch):
    for place in ("installed", "beside"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "check_installed.py").write_text(f"place = {place!r}")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    folder = tmp_path / "beside" / "check_alone"
    folder.mkdir()
    (folder / "declaration.py").write_text(DOUBLING.format(imported="check_installed", namespace="check_alone"))
    (folder / "samples.py").write_text("raise SystemExit('asked for before an operator needs it')")
    (folder / "train.py").write_text("raise SystemExit('a script is run')")
    path = list(sys.path)
    with pytest.raises(SystemExit, match="before an operator"):
        find_subjects([str(folder)])
    assert sys.path == path
    assert sys.modules["check_alone.declaration"].check_installed.place == "installed"
    pickled = pickle.dumps(Operator.registered["check_alone::doubling"])
    assert pickle.loads(pickled) is Operator.registered["check_alone::doubling"]


def test_a_file_that_declares_operators_is_found(tmp_path):
    file = tmp_path / "check_one_file.py"
    samples = "samples = Samples((Sample('one', (Drawn((1,)),)),))"
    file.write_text(DOUBLING.format(imported="os", namespace="check_one_file") + samples)
    assert len(find_subjects([str(file)])) == 2
    (subject,) = find_subjects([f"{file}:other"])
    assert target_of(subject.operator) == f"{file}:other"


@pytest.mark.parametrize("name", ["numpy", "operator", "not.a.name"])
def test_a_folder_with_a_name_that_it_cannot_have_is_not_imported(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "operator.py").write_text("raise SystemExit('it is imported')")
    with pytest.raises(LookupError, match=r"rename it|rename the folder"):
        find_subjects([str(tmp_path / name)])


def test_an_unknown_property_is_said():
    with pytest.raises(LookupError, match="there is no property 'speed'; the properties are smoke, value, "):
        check(correct, properties=["speed"])


class TestComparing:
    """How far a result may be from the exact one, and what is said where it is further."""

    def test_one_rounding_is_allowed_and_no_more(self):
        exact = torch.full((4,), 1000.0, dtype=torch.float64)
        eps = torch.finfo(torch.bfloat16).eps
        expect_close(exact * (1 + 0.9 * eps), exact, dtype=torch.bfloat16)
        with pytest.raises(Mismatch):
            expect_close(exact * (1 + 1.2 * eps), exact, dtype=torch.bfloat16)

    def test_halves_are_summed_in_float32(self):
        relative, absolute = rounding(torch.float16, summed=100)
        assert relative == torch.finfo(torch.float16).eps
        assert absolute == 80 * torch.finfo(torch.float32).eps

    def test_the_first_wrong_element_is_named(self):
        expected = torch.zeros(2, 3, dtype=torch.float64)
        found = expected.clone()
        found[1, 0] = 5
        with pytest.raises(Mismatch, match=r"1 of 6 elements, the first at \[1, 0\]") as raised:
            expect_close(found, expected, dtype=torch.float64)
        assert (raised.value.index, raised.value.found, raised.value.expected) == ((1, 0), 5.0, 0.0)

    @pytest.mark.parametrize("shape", [(2**19 + 1,), (3, 2**18, 1), (2**10 + 1, 2**9), (5, 3, 300, 301), (2,) * 19])
    @pytest.mark.parametrize("turned", [False, True])
    @pytest.mark.parametrize("wrong", [1.001, float("nan"), float("inf")])
    def test_of_large_results_each_element_counts(self, shape, turned, wrong):
        """They are compared in pieces, along any dimension."""
        expected = torch.ones(shape, dtype=torch.float64)
        expected = expected.mT.contiguous().mT if turned and len(shape) > 1 else expected
        # What is allowed follows from the largest of all, in whatever piece it is.
        expected[(0,) * len(shape)] = 4.0
        found = expected.float()
        expect_close(found, expected, dtype=torch.float32)
        for place in (0, found.numel() // 2, -1):
            other = found.flatten().clone()
            other[place] *= wrong
            with pytest.raises(Mismatch, match=f"1 of {found.numel()} elements"):
                expect_close(other.view(shape), expected, dtype=torch.float32)

    @pytest.mark.parametrize("compare", [expect_equal, partial(expect_close, dtype=torch.float64)])
    def test_of_several_results_the_wrong_one_is_named(self, compare):
        expected = [torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
        compare([each.clone() for each in expected], expected)
        with pytest.raises(Mismatch, match=r"^what a graph gives, part 2 (differs|is wrong)"):
            compare([expected[0], expected[0]], expected, what="what a graph gives,")
        with pytest.raises(Mismatch, match=r"^what a graph gives has 1 parts, not 2"):
            compare(expected[:1], expected, what="what a graph gives")

    def test_nan_is_equal_to_nan_and_to_nothing_else(self):
        nan = torch.tensor([float("nan")], dtype=torch.float64)
        expect_close(nan, nan, dtype=torch.float64)
        expect_equal(nan, nan)
        for one, other in ((nan, torch.zeros_like(nan)), (torch.zeros_like(nan), nan)):
            with pytest.raises(Mismatch):
                expect_close(one, other, dtype=torch.float64)
            with pytest.raises(Mismatch):
                expect_equal(one, other)

    def test_what_is_beyond_the_numbers_of_a_dtype_is_infinite(self):
        expected = torch.tensor([7e4, -7e4, 6e4, 65500.0], dtype=torch.float64)
        rounded = torch.tensor([float("inf"), float("-inf"), 6e4, float("inf")], dtype=torch.float16)
        expect_close(rounded, expected, dtype=torch.float16)
        for place, wrong in ((0, float("-inf")), (1, 6e4), (2, float("inf"))):
            found = rounded.clone()
            found[place] = wrong
            with pytest.raises(Mismatch):
                expect_close(found, expected, dtype=torch.float16)

    def test_what_is_infinite_is_that_and_nothing_else(self):
        infinite = torch.tensor([float("inf")], dtype=torch.float64)
        expect_close(infinite, infinite, dtype=torch.float64)
        for found in (torch.ones_like(infinite), -infinite):
            with pytest.raises(Mismatch):
                expect_close(found, infinite, dtype=torch.float64)

    def test_a_shape_that_would_broadcast_is_wrong(self):
        with pytest.raises(Mismatch, match="shape"):
            expect_close(torch.zeros(1), torch.zeros(3), dtype=torch.float32)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4, 5)], ids=str)
def test_awkward_strides_hold_the_same_values(shape):
    values = torch.randn(shape)
    kinds = in_awkward_strides(values)
    assert all(torch.equal(each, values) for each in kinds.values())
    assert shape in ((), (1,)) or any(not each.is_contiguous() for each in kinds.values())
    # Not where PyTorch's allocator would have put it.
    assert not shape or kinds["offset by one element"].storage_offset() == 1


def test_a_random_operator_without_float64_is_asked_in_each_of_its_dtypes():
    def by_seed(input, seed):
        return input * torch.rand(input.shape, generator=torch.Generator().manual_seed(seed)).to(input.dtype)

    operator = torchgraft.Operator(
        "checking_random::scaled(Tensor input, int seed) -> Tensor",
        reference=by_seed,
        shapes="... -> ...",
        dtypes=(torch.float32, torch.float16),
        random=("seed",),
        kernels={"cpu": (torch.float32, torch.float16)},
    )
    operator.kernel("cpu", name="in Python")(by_seed)
    samples = torchgraft.sampling.Samples(
        [torchgraft.sampling.Sample("a few", (torchgraft.sampling.Drawn((5,)), 7))],
    )
    report = torchgraft.check(operator, samples, device="cpu", properties=["dtypes"])
    assert report.passed, report


@pytest.mark.parametrize("detaches", [False, True])
def test_a_reference_whose_result_is_constant_has_a_gradient_of_zero_and_one_that_loses_it_has_none(detaches):
    def polynomial(input, coefficients):
        result = torch.zeros_like(input)
        for each in coefficients:
            result = result * input + each
        return result.detach() if detaches else result

    operator = Operator(
        f"checking_constant::polynomial_{detaches}(Tensor input, float[] coefficients) -> Tensor",
        reference=polynomial,
        gradient=lambda needs_grad, grads, saved, input, coefficients: (
            grads[0]
            * sum(power * each * input ** (power - 1) for power, each in enumerate(coefficients[::-1]) if power)
            + torch.zeros_like(input),
        ),
        dtypes=(torch.float64,),
        kernels={"cpu": (torch.float64,)},
    )
    operator.kernel("cpu")(polynomial)
    table = [Sample(f"{len(each)} of them", (Drawn((5,)), each)) for each in ([], [2.0], [1.0, 0.5, -3.0])]
    (job,) = make_jobs([subject_of(operator, Samples(table))], devices=["cpu"], properties=["gradient"])
    result = run_job(job)
    assert result.status == ("fail" if detaches else "pass"), result.failure
    if detaches:
        assert "the reference has no gradient" in result.failure.message


_DRAWN = """
import torch
import torchgraft
from hypothesis import configuration
from torchgraft.sampling import Drawn, Sample, Samples

configuration.set_hypothesis_home_dir("own")
operator = torchgraft.Operator(
    "kept::negative(Tensor input) -> Tensor",
    reference=lambda input: -input,
    kernels="reference",
    dtypes=(torch.float32,),
)
samples = Samples(
    [Sample("one element", (Drawn((1,)),))], lambda random: Sample("drawn", (Drawn((random.randint(1, 4000),)),))
)
report = torchgraft.check(operator, samples, device="cpu", properties=["sizes"], quick=True)
assert report.passed, report
print(configuration.storage_directory(intent_to_write=False).path)
"""


def test_a_check_leaves_nothing_in_the_working_directory(tmp_path):
    """Hypothesis writes a folder even without a database; that of an author's own tests stays where it is."""
    place, cache = tmp_path / "place", tmp_path / "cache"
    place.mkdir()
    (place / "drawn.py").write_text(_DRAWN)
    environment = {**os.environ, "TORCHGRAFT_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "drawn.py"], cwd=place, env=environment, capture_output=True, text=True, check=True
    )
    assert [path.name for path in place.iterdir()] == ["drawn.py"]
    assert list((cache / "hypothesis").iterdir())
    assert done.stdout.splitlines()[-1] == "own"


def test_samples_of_one_operator_are_no_samples_of_another_one_of_its_file(tmp_path):
    (tmp_path / "two_in_a_file.py").write_text(
        "from torchgraft import Operator\nfrom torchgraft.sampling import Drawn, Sample, Samples\n"
        "grad = Operator('two_in::grad(Tensor grad, Tensor input) -> Tensor', reference=lambda grad, x: grad * x)\n"
        "operator = Operator('two_in::square(Tensor input, float by=1.0) -> Tensor', reference=lambda x, by: x * x)\n"
        "samples = Samples([Sample('a few', (Drawn((3,)),))])\n"
    )
    with pytest.raises(LookupError, match="sample 'a few' has 1 arguments, and the operator needs 2: grad, input"):
        find_subjects([str(tmp_path / "two_in_a_file.py")])
    (found,) = find_subjects([f"{tmp_path / 'two_in_a_file.py'}:operator"])
    assert found.operator.name == "square"
