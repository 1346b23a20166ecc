"""The calls that `graft check --stress` draws: how many calls, and of which sizes."""

from collections import Counter
from random import Random

import pytest
import torch

from torchgraft import Operator
from torchgraft.checking import find_devices
from torchgraft.checking.call import Call
from torchgraft.checking.jobs import make_jobs, make_stress_jobs
from torchgraft.checking.properties import stress
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import find_subjects, subject_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.strides import in_any_strides
from torchgraft.operators.depthwise_conv2d.drawing import draw_any
from torchgraft.sampling import Budget, Drawn, Sample, Samples, SizedRandom, any_size, draw_at_border

SUBJECTS = {subject.name: subject for subject in find_subjects([])}


@pytest.mark.parametrize("calls", [1, 3, 10, 50, 401, 10000])
def test_each_operator_is_called_so_often_on_each_device(calls):
    asked = make_jobs(find_subjects(["shift", "linear"]), devices=["cpu", "cuda"], properties=["stress"], seed=7)
    jobs = make_stress_jobs(asked, calls)
    for place in {(job.name, job.device) for job in asked}:
        here = [job for job in jobs if (job.name, job.device) == place]
        seeds = [seed for job in here for seed in range(job.seed, job.seed + job.calls)]
        assert seeds == list(range(7, 7 + calls))
        assert max(job.calls for job in here) <= 50
        of_dtypes = Counter({job.dtype: 0 for job in asked})
        for job in here:
            of_dtypes[job.dtype] += job.calls
        assert max(of_dtypes.values()) - min(of_dtypes.values()) <= 50
        assert len(here) >= min(calls, len(of_dtypes))


@pytest.mark.parametrize("most", [0, 1, 2, 1000])
def test_sizes_are_mostly_beside_borders(most):
    random = Random(0)
    drawn = [any_size(random, most, (1, 100, 2000)) for _ in range(1000)]
    assert min(drawn) == 1
    assert max(drawn) <= max(most, 1)
    if most == 1000:
        counts = Counter(drawn)
        # Of sizes from nought to a thousand drawn alike often each came once.
        assert all(counts[size] > 3 for size in (99, 100, 101, 63, 64, 65))
        assert sum(counts[size] for size in range(500, 1001)) > 50


def test_a_search_ends_on_either_side_of_where_a_library_answers_otherwise():
    def draw(random):
        rows = any_size(random, 1000)
        return Sample("drawn", (Drawn((rows, any_size(random, 5000 // rows))),))

    def answers(sample):
        ((rows, columns),) = (tensor.shape for tensor in sample.tensors)
        return 1 + (rows > 36) + 2 * (columns >= 40)

    random = Random(0)
    found = [draw_at_border(draw, random, answers).arguments[0].shape for _ in range(400)]
    rows, columns = Counter(rows for rows, _ in found), Counter(columns for _, columns in found)
    assert min(rows[36], rows[37]) > 15
    assert min(columns[39], columns[40]) > 15
    assert draw_at_border(draw, Random(5), lambda sample: 0) == draw(Random(Random(5).getrandbits(64)))


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize(
    ("elements", "products"), [(1, 1 << 14), (300, 1 << 14), (1 << 16, 1 << 22), (1 << 23, 1 << 29)]
)
def test_what_is_drawn_makes_sense_and_keeps_to_its_budget(name, elements, products):
    subject = SUBJECTS[name]
    sizes = []
    for seed in range(40):
        moved = SizedRandom(seed)
        # Whatever size a search for borders tries must make sense too.
        moved.replaced = {Random(seed).randrange(8): Random(seed).choice((1, 2, 5, 40, 5000, 10**9))}
        for random in (moved, Random(seed)):
            sample = subject.samples.stress(random, Budget(elements, products))
            arguments = sample.make("meta", torch.float32)
            subject.operator.explain(*arguments)
            subject.operator.declaration.output(*arguments)
        sizes.append(sample.elements)
        assert sample == subject.samples.stress(Random(seed), Budget(elements, products))
    # A sequence, say, has several tensors of as many elements; of one element there may be more weights than that.
    assert max(sizes) <= 8 * elements + 1000
    assert sorted(sizes)[30] >= elements / 200


def test_convolutions_are_drawn_on_either_side_of_borders():
    """Where kernels were wrong that no sample of a table had shown."""
    random = Random(0)
    drawn = [draw_any(random, Budget(1 << 15, 1 << 22)) for _ in range(2000)]
    taller = [case for case in drawn if case.output.shape[2] >= 24]
    divided = [case for case in taller if case.window.dilation_height > 1 and _divides(*_steps(case))]
    assert len(divided) > 20
    assert sum(not _divides(*_steps(case)) for case in drawn) > 50

    wide = [case for case in drawn if not case.channels_last and case.window[:2] == (1, 1) and case.multiplier == 1]
    medium = [case for case in wide if max(case.kernel) in (6, 7) and case.window[6:] == (1, 1)]
    behind = [case for case in medium if case.window.padding_right >= case.kernel[1] > case.window.padding_left]
    below = [case for case in medium if case.window.padding_bottom >= case.kernel[0] > case.window.padding_top]
    assert len(behind) > 10
    assert len(below) > 10
    for kernel in (1, 3, 5, 6, 7, 8, 9, 13, 14, 27, 31):
        assert sum(case.kernel[0] == kernel for case in drawn) > 10
    assert any(case.input[0] == 0 for case in drawn)


def _steps(case):
    return case.window.stride_height, case.window.dilation_height


def _divides(stride, dilation):
    return dilation % stride == 0


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 4, 5)], ids=str)
def test_any_strides_hold_the_same_values(shape):
    values = torch.randn(shape)
    random = Random(0)
    drawn = [in_any_strides(values, random) for _ in range(100)]
    assert all(torch.equal(each, values) for each in drawn)
    kinds = {(each.stride(), each.storage_offset()) for each in drawn}
    assert len(kinds) > (12 if len(shape) == 4 else 4 if shape else 1)


def test_properties_draw_small_calls_unless_somebody_asks_for_so_many():
    from torchgraft.checking.case import Case

    def largest(calls):
        case = Case(subject_of(SUBJECTS["shift"].operator), torch.device("cpu"), torch.float32, calls=calls)
        sizes = []
        case.random_calls(lambda call, other, random: sizes.append(call.sample.elements))
        assert case.called == len(sizes) == (calls or 40)
        return max(sizes)

    assert largest(None) < 1 << 12
    assert largest(100) > 1 << 15


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_random_calls_of_any_size_hold(name):
    asked = make_jobs([SUBJECTS[name]], devices=find_devices("all"), properties=["stress"])
    failed = [result for result in map(run_job, make_stress_jobs(asked, 500)) if result.status == "fail"]
    assert not failed, describe(failed[0])


def _prepared(kernel):
    """A call of relu(a * b + c), of which some elements are nearer to 0 than a product in float32 is off."""
    operator = Operator(
        f"testsstress::{kernel.__name__}(Tensor a, Tensor b, Tensor c) -> Tensor",
        reference=lambda a, b, c: torch.relu(a * b + c),
        shapes="n, n, n -> n",
        gradient=lambda needs_grad, output_grads, saved, a, b, c: kernel(output_grads[0], a, b, c),
        dtypes=(torch.float32,),
        kernels={"cpu": (torch.float32,)},
    )
    operator.kernel("cpu")(lambda a, b, c: torch.relu(a * b + c))
    sample = Sample("products", (Drawn((200,)),) * 3)
    call = Call(operator, Samples([sample]), sample, torch.device("cpu"), torch.float32, 0)
    generator = torch.Generator().manual_seed(0)
    a, b, ordinary, grad = torch.randn(4, 200, generator=generator)
    c = torch.where(torch.arange(200) % 2 == 0, ordinary, -(a * b))
    arguments = tuple(each.requires_grad_() for each in (a, b, c))
    exact = [each.detach().double().requires_grad_() for each in arguments]
    result = operator.reference(*exact)
    gradients = torch.autograd.grad(result, exact, grad.double())
    # Else this test would ask nothing.
    with torch.no_grad():
        assert ((result > 0) != (operator.reference(a, b, c) > 0)).sum() > 10
    return stress._Prepared(call, arguments, (grad,), (result.detach(), *gradients), (None,) * 4, (2,) * 4, False)


def of_relu(grad, a, b, c):
    passed = torch.where(a * b + c > 0, grad, 0)
    return passed * b, passed * a, passed


def of_relu_but_one(grad, a, b, c):
    passed = torch.where((a * b + c > 0) & (torch.arange(200) != 42), grad, 0)
    return passed * b, passed * a, passed


def test_a_rounding_may_decide_on_which_side_of_a_kink_an_element_lies():
    prepared = _prepared(of_relu)
    prepared.expect(prepared.run(), "")


def test_a_wrong_gradient_beside_kinks_is_found():
    prepared = _prepared(of_relu_but_one)
    with pytest.raises(Mismatch, match=r"gradient 1 is wrong: 1 of 200 elements, the first at \[42\]"):
        prepared.expect(prepared.run(), "")
