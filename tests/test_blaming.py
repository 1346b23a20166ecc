"""The part that `graft check` blames, and the failures that it takes for one: known mistakes, alone and by twos."""

import itertools
import os
import re

import pytest
import torch

from planted import elementwise, kernels, products
from torchgraft import Operator
from torchgraft.checking import check
from torchgraft.checking.explaining import find_explanation
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.report.check_report import describe, group_alike
from torchgraft.checking.subject import subject_of
from torchgraft.checking.tensors.compare import Mismatch, expect_close
from torchgraft.checking.workers import run_jobs
from torchgraft.sampling import Drawn, Sample, Samples

PLANTED = {bug.name: bug.operator for bug in (*elementwise.BUGS, *products.BUGS)}


def _doubled(input):
    return input * 2


def _gradient(needs_grad, grads, saved, input):
    return (grads[0] * 2,)


def _wrong_gradient(needs_grad, grads, saved, input):
    return (grads[0] * 3,)


def _declare(name, kernel=_doubled, *, reference=_doubled, output=torch.empty_like, gradient=_gradient):
    operator = Operator(
        f"blaming::{name}(Tensor input) -> Tensor", reference=reference, output=output, gradient=gradient
    )
    for each in (name, f"_{name}"):
        operator._library.impl(each, kernel, "CPU")
    return operator


def _off_at_the_end(input):
    result = input * 2
    if result.numel() > 8:
        result.view(-1)[-1] += 1
    return result


def _refuse(input):
    if input.numel() > 8:
        raise RuntimeError("no more than 8 elements")
    return input * 2


def _raise(input):
    raise ArithmeticError("the definition has a mistake")


def _in_float16(input):
    return torch.empty_like(input, dtype=torch.float16)


_calls = {"strays": itertools.count(), "dies_later": itertools.count()}


def _strays(input):
    return input * 2 + (next(_calls["strays"]) == 0)


def _dies_later(input):
    if next(_calls["dies_later"]):
        os.abort()
    return input * 2 + 1


def _direction(input):
    return input * (input * input + 1e-12).rsqrt()


cancelling = _declare("cancelling", _direction, reference=_direction, gradient="reference")
twice_wrong = _declare("twice_wrong", _off_at_the_end, gradient=_wrong_gradient)
refusing = _declare("refusing", _refuse)
undefined = _declare("undefined", reference=_raise)
promised_otherwise = _declare("promised_otherwise", output=_in_float16)
misshaped = _declare("misshaped", lambda input: (input * 2).reshape(-1))
strays = _declare("strays", _strays)
dies_later = _declare("dies_later", _dies_later)
right_once = _declare(
    "right_once",
    torch.square,
    reference=torch.square,
    gradient=lambda needs_grad, grads, saved, input: (2 * input.detach() * grads[0],),
)
samples = dict.fromkeys(
    (
        each.name
        for each in (twice_wrong, refusing, undefined, promised_otherwise, misshaped, strays, dies_later, right_once)
    ),
    Samples([Sample("a few", (Drawn((2, 2)),)), Sample("more", (Drawn((3, 4)),))]),
)

EAGER = ["value", "layouts", "gradient", "second_gradient", "vmap"]


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    kernels.load()


def ask(operator, properties=EAGER):
    """The reports on an operator: for each the properties, and what is said to be at fault."""
    report = check(operator, properties=properties, device="cpu", quick=True)
    groups = group_alike(report.failures)
    assert sum(map(len, groups)) == len(report.failures)
    return report, [
        (list(dict.fromkeys(each.property for each in group)), group[0].failure.at_fault) for group in groups
    ]


def test_a_formula_that_is_right_only_once_is_named():
    _, reports = ask(right_once, ["gradient", "second_gradient"])
    ((together, said),) = reports
    assert together == ["second_gradient"]
    assert "its own derivative is not: make it of operations that autograd records" in said


@pytest.mark.parametrize(
    ("operator", "properties", "failing", "at_fault"),
    [
        ("wrong_last_element", EAGER, {"value", "layouts", "gradient"}, "the kernel: its values are wrong"),
        ("ignores_strides", EAGER, {"layouts"}, "the kernel: it is right only if"),
        (
            "wrong_gradient",
            EAGER,
            {"gradient", "second_gradient", "vmap"},
            "the gradient formula: with the gradient of the reference",
        ),
        ("fake_with_wrong_strides", [*EAGER, "fake"], {"fake"}, "`output=`: `output=` says strides (36, 12, 4, 1), "),
        (refusing, EAGER, {"value", "gradient", "layouts"}, "the kernel: it raises RuntimeError"),
        (undefined, EAGER, {"value", "layouts"}, "the reference: it raises ArithmeticError: the definition has a mis"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_one_mistake_is_one_report_that_names_it(operator, properties, failing, at_fault):
    report, reports = ask(PLANTED[operator] if isinstance(operator, str) else operator, properties)
    ((together, said),) = reports
    assert said.startswith(at_fault)
    assert failing <= set(together)
    # Each verdict is there still, and the others are named in a line.
    assert {each.property for each in report.failures} == set(together)
    first, *others = together
    assert str(report).count("\n  again ") == 1
    if others:
        assert f"\n  also fail, most likely for the same reason: {', '.join(others)}\n" in str(report)
    assert f"\n  at fault  {said}\n" in str(report)
    assert report.as_dict()["results"][0]["property"] == EAGER[0]
    assert f": {first}\n" in str(report)


def test_a_definition_that_loses_digits_is_told_apart_from_a_mistake():
    """Nobody made a mistake: two terms of the gradient cancel, however it is computed."""
    samples = Samples([Sample("small", (Drawn((5,), scale=0.01),))])
    ((failed,),) = group_alike(check(cancelling, samples, properties=["compile"], device="cpu", quick=True).failures)
    assert failed.failure.at_fault.startswith("the sample: ")
    assert find_explanation(failed.failure.at_fault).key == "sample"


def test_two_mistakes_are_two_reports():
    _, reports = ask(twice_wrong, ["value", "layouts", "gradient", "second_gradient"])
    assert [said.partition(":")[0] for _, said in reports] == ["the kernel", "the gradient formula"]
    (of_kernel, _), (of_formula, _) = reports
    assert "value" in of_kernel
    assert {"gradient", "second_gradient"} <= set(of_formula)


@pytest.mark.parametrize(
    ("operator", "at_fault"),
    [
        (
            promised_otherwise,
            "`output=`: `output=` says dtype torch.float16, the kernel gives torch.float32, the refer",
        ),
        (misshaped, "the kernel: `output=` says sizes (2, 2), the kernel gives (4,), the reference (2, 2)"),
    ],
)
def test_whose_sizes_and_dtypes_differ_is_said(operator, at_fault):
    _, reports = ask(operator, ["fake"])
    ((_, said),) = reports
    assert said.startswith(at_fault)


def test_what_holds_when_it_is_asked_again_is_laid_to_no_part():
    _, reports = ask(strays, ["value"])
    ((_, said),) = reports
    assert said.startswith("what changes from call to call")


def test_a_failure_is_told_also_where_asking_again_ends_the_process():
    (result,) = run_jobs(
        make_jobs([subject_of(dies_later)], devices=["cpu"], properties=["value"], dtypes=[torch.half])
    )
    assert result.failure.message.startswith("the result is wrong")
    assert result.failure.sample == "a few"
    assert not result.failure.at_fault
    assert "at fault" not in describe(result)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"coherent": True, "summed": 9}, {"summed": 9, "scale": 10.0}], ids=str)
@pytest.mark.parametrize("roundings", [1, 3])
def test_how_a_tolerance_came_about_is_its_calculation(dtype, options, roundings):
    expected = torch.tensor([2.0, -5.0], dtype=torch.float64)
    with pytest.raises(Mismatch) as raised:
        expect_close((expected + 9).to(dtype), expected, dtype=dtype, roundings=roundings, **options)
    allowed = float(re.search(r"([\d.e-]+) of difference is allowed", str(raised.value))[1])
    text = raised.value.tolerance
    assert "expected there" in text
    assert "terms summed" in text
    # What stands between are words.
    sums = text.replace("x the same", f"x {re.findall(r'x ([0-9.]+), the largest', text)[0]}").split(" + ")
    total = 0.0
    for each in sums:
        product = 1.0
        for factor in each.split(" x "):
            root = re.match(r"sqrt\(([\d,]+)\)", factor)
            product *= float(root[1]) ** 0.5 if root else float(re.match(r"[\d.e+-]+", factor)[0])
        total += product
    assert total == pytest.approx(allowed, rel=0.01)


@pytest.mark.parametrize(
    ("operator", "message", "at_fault"),
    [
        (refusing, "RuntimeError: no more than 8 elements", "the kernel: it raises RuntimeError"),
        (
            promised_otherwise,
            "the results differ from the declaration: `output=`: `output=` says dtype torch.float16",
            "`out",
        ),
        (twice_wrong, "the result is wrong: 1 of 12 elements", "the kernel: its values are wrong"),
        (PLANTED["wrong_gradient"], "the gradient of right is wrong", "the gradient formula"),
        (PLANTED["claims_a_kernel"], "planted::claims_a_kernel has no kernel", ""),
    ],
    ids=lambda value: value.name if isinstance(value, Operator) else "",
)
def test_what_is_not_wired_fails_the_first_question(operator, message, at_fault):
    report = check(operator, properties=["value", "smoke"], device="cpu")
    first = report.results[0]
    assert first.property == "smoke"
    assert first.failure.message.startswith(message)
    assert first.failure.at_fault.startswith(at_fault)


def test_what_is_wired_passes_the_first_question():
    operators = PLANTED["ignores_strides"], PLANTED["wrong_between_samples"], PLANTED["leaks_memory"], products.multiply
    for operator in operators:
        (result,) = check(operator, properties=["smoke"], device="cpu").results
        assert result.status == "pass", describe(result)
        assert result.seconds < 5
