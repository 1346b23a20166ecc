"""Right operators of every kind pass the properties that are asked of them: a false alarm is a fault of the check."""

from dataclasses import dataclass

import pytest
import torch

import torchgraft
from torchgraft import Operator
from torchgraft.checking import check
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers import bounds, mistakes
from torchgraft.checking.mutants.questions import make_questions
from torchgraft.checking.properties import bad_input
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.subject import Subject, subject_of
from torchgraft.checking.tensors.compare import Mismatch, expect_close
from torchgraft.operator import FLOATING
from torchgraft.sampling import Drawn, Sample, Samples

samples = {}


@dataclass(frozen=True)
class Right:
    """An operator without a fault.

    Attributes:
        properties: those to ask, all of which must hold or say why they have no meaning.
        not_applicable: those that have none for it.
    """

    operator: Operator
    properties: tuple[str, ...]
    not_applicable: tuple[str, ...] = ()


def _sampled(*arguments, draw=None, summed=1):
    table = [Sample(f"sample {number}", each) for number, each in enumerate(arguments)]
    drawn = None if draw is None else lambda random: Sample("drawn", draw(random))
    return Samples(table, drawn, summed=lambda *_: summed)


def _declare(schema, kernel, **declared):
    operator = Operator(f"right::{schema}", **declared)
    if kernel is not None:
        operator.kernel("cpu")(kernel)
    return operator


def _right(schema, kernel, properties, sampled, not_applicable=(), **declared):
    """Declares an operator with a kernel in Python, and its samples."""
    operator = _declare(schema, kernel, **declared)
    samples[operator.name] = sampled
    return Right(operator, tuple(properties.split()), tuple(not_applicable))


def _of(*shapes, **drawn):
    return [(Drawn(shape, **drawn),) for shape in shapes]


def _pairs(*shapes, **drawn):
    return [(Drawn(shape, **drawn), Drawn(shape, **drawn)) for shape in shapes]


# Integers

_OF_INTEGERS = "smoke value sizes empty dtypes layouts compile export stress vmap functional_gradients forward_mode"


def _explain_one_hot(index, classes):
    if classes < 1:
        raise ValueError(f"one_hot: classes must be at least 1, got {classes}")
    if not index.is_meta and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < classes:
        raise ValueError(f"one_hot: index must be below {classes}")


def _one_hot(index, classes):
    _explain_one_hot(index, classes)
    return torch.zeros((*index.shape, classes)).scatter_(-1, index.unsqueeze(-1), 1.0)


one_hot = _right(
    "one_hot(Tensor index, int classes) -> Tensor",
    _one_hot,
    f"{_OF_INTEGERS} bad_input",
    _sampled(
        *[(Drawn(shape, high=4), 4) for shape in ((0,), (1,), (3, 5))],
        draw=lambda random: (Drawn((random.randint(0, 5),), high=5), 5),
    ),
    ("functional_gradients", "forward_mode"),
    reference=lambda index, classes: torch.nn.functional.one_hot(index, classes).float(),
    output=lambda index, classes: torch.empty((*index.shape, classes), device=index.device),
    dtypes={"index": (torch.int64,)},
    gradient="reference",
    explain=_explain_one_hot,
)
gray = _right(
    "gray(Tensor input) -> Tensor",
    lambda input: torch.bitwise_xor(input, torch.bitwise_right_shift(input, 1)),
    _OF_INTEGERS,
    _sampled(*_of((0,), (1,), (3, 5), high=100), draw=lambda random: (Drawn((random.randint(0, 5), 2), high=50),)),
    ("functional_gradients", "forward_mode"),
    reference=lambda input: input ^ (input >> 1),
    output=torch.empty_like,
    dtypes=(torch.int32, torch.int64),
    gradient="reference",
)
masked_mean = _right(
    "masked_mean(Tensor input, Tensor mask) -> Tensor",
    lambda input, mask: ((input * mask).sum(-1).double() / mask.sum(-1).clamp(min=1)).float(),
    "smoke value layouts vmap",
    _sampled(*[(Drawn(shape, high=50), Drawn(shape, dtype=torch.bool)) for shape in ((0, 3), (1, 1), (3, 5))]),
    reference=lambda input, mask: (input * mask).sum(-1).float() / mask.sum(-1).clamp(min=1),
    shapes="... d, ... d -> ...",
    output=lambda input, mask: torch.empty(input.shape[:-1], device=input.device),
    dtypes={"input": (torch.int32, torch.int64), "mask": (torch.bool,)},
    gradient="reference",
)
in_dtype = _right(
    "in_dtype(Tensor input, ScalarType dtype) -> Tensor",
    lambda input, dtype: (input.double() / 3).to(dtype),
    "smoke value",
    _sampled(*[(Drawn((3, 5), high=50), dtype) for dtype in (torch.float16, torch.float32)]),
    reference=lambda input, dtype: (input.double() / 3).to(dtype),
    output=lambda input, dtype: torch.empty_like(input, dtype=dtype),
    dtypes=(torch.int64,),
    gradient="reference",
)

# Gradients that PyTorch computes


def _by_reference(name, reference, properties, count=1, shapes=((0, 4), (1,), (3, 5), (4, 1001))):
    """An operator whose kernel rounds once, and whose gradient is the reference's."""
    arguments = [f"Tensor input{number}" for number in range(count)]

    def kernel(*inputs):
        wide = [each if each.dtype == torch.float64 else each.float() for each in inputs]
        return torch.empty_like(inputs[0]).copy_(reference(*wide))

    return _right(
        f"{name}({', '.join(arguments)}) -> Tensor",
        kernel,
        properties,
        _sampled(
            *[tuple(Drawn(shape) for _ in range(count)) for shape in shapes],
            draw=lambda random: (Drawn((random.randint(1, 4), random.randint(1, 6))),) * count,
        ),
        reference=reference,
        shapes=f"{', '.join(['...'] * count)} -> ...",
        output=lambda *inputs: torch.empty_like(inputs[0]),
        gradient="reference",
    )


_ROWS = ((0, 4), (1, 1), (3, 5), (64, 65))
log_softmax = _by_reference("log_softmax", lambda x: torch.log_softmax(x, -1), "gradient stress", shapes=_ROWS)
softmax = _by_reference("softmax", lambda x: torch.softmax(x, -1), "gradient stress determinism", shapes=_ROWS)
hypot = _by_reference("hypot", torch.hypot, "gradient stress", count=2)
expm1 = _by_reference("expm1", torch.expm1, "gradient stress")
tanh = _by_reference("tanh", torch.tanh, "gradient stress incoming_gradients")
sigmoid = _by_reference("sigmoid", torch.sigmoid, "gradient stress determinism", shapes=((1,), (2, 20001)))
softplus = _by_reference("softplus", torch.nn.functional.softplus, "determinism", shapes=((1,), (2, 20001)))
# PyTorch has no derivative of the first one's derivative in forward mode.
silu = _by_reference("silu", torch.nn.functional.silu, "determinism forward_mode", shapes=((1,), (7,), (2, 20001)))
by_pytorch = _right(
    "by_pytorch(Tensor input) -> Tensor",
    None,
    "value sizes layouts gradient stress",
    _sampled(*_of(*_ROWS), draw=lambda random: (Drawn((random.randint(1, 4), random.randint(1, 6))),)),
    reference=lambda input: torch.log_softmax(input, -1),
    output=torch.empty_like,
    kernels="reference",
    compile="reference",
)

# Layouts, and gradients that are passed on

row_sum = _right(
    "row_sum(Tensor input) -> Tensor",
    lambda input: input.sum(-1).contiguous(),
    "gradient_layouts",
    _sampled(*_of((1, 1), (3, 5)), (Drawn((2, 3, 4, 5), channels_last=True),), summed=5),
    reference=lambda input: input.sum(-1),
    output=lambda input: input.new_empty(input.shape[:-1]),
    gradient=lambda needs_grad, output_grads, saved, input: output_grads[0].unsqueeze(-1).expand(input.shape),
)
transposed = _right(
    "transposed(Tensor input) -> Tensor",
    lambda input: (2 * input.t()).contiguous(),
    "gradient_layouts",
    _sampled(*_of((1, 1), (3, 5))),
    reference=lambda input: 2 * input.t(),
    shapes="a b -> b a",
    output=lambda input: input.new_empty(input.shape[::-1]),
    gradient=lambda needs_grad, output_grads, saved, input: 2 * output_grads[0].t(),
)
laid_out = _right(
    "laid_out(Tensor input) -> Tensor",
    lambda input: (2 * input.t()).contiguous().t(),
    "gradient_layouts",
    _sampled(*_of((1, 1), (3, 5))),
    reference=lambda input: 2 * input,
    shapes="a b -> a b",
    output=lambda input: input.new_empty(input.shape[::-1]).t(),
    gradient=lambda needs_grad, output_grads, saved, input: 2 * output_grads[0],
)
add = _right(
    "add(Tensor left, Tensor right) -> Tensor",
    lambda left, right: torch.empty_like(left).copy_(left + right),
    "gradient_subsets",
    _sampled(*_pairs((1, 1), (3, 5))),
    reference=lambda left, right: left + right,
    shapes="..., ... -> ...",
    output=lambda left, right: torch.empty_like(left),
    gradient=lambda needs_grad, output_grads, saved, left, right: (output_grads[0], output_grads[0]),
)
conjugated = _right(
    "conjugated(Tensor left, Tensor right) -> Tensor",
    lambda left, right: torch.empty_like(left).copy_(left.conj_physical() * right),
    "smoke gradient second_gradient compile",
    _sampled(*_pairs((1,), (3, 5)), summed=2),
    reference=lambda left, right: left.conj() * right,
    shapes="..., ... -> ...",
    output=lambda left, right: torch.empty_like(left),
    dtypes=(torch.complex64, torch.complex128),
    gradient=lambda needs_grad, output_grads, saved, left, right: (
        output_grads[0].conj() * right if needs_grad[0] else None,
        output_grads[0] * left if needs_grad[1] else None,
    ),
)

# Sizes that depend on data, lists, and arguments that are written to

positive = _right(
    "positive(Tensor input) -> Tensor",
    lambda input: (input > 0).nonzero().flatten(),
    "smoke bad_input",
    _sampled(*_of((0,), (1,), (7,))),
    reference=lambda input: (input > 0).nonzero().flatten(),
    shapes="n -> _",
    output=lambda input: torch.empty(torchgraft.unknown_size(), dtype=torch.int64, device=input.device),
    sizes_from_data=True,
    gradient="reference",
)
kept = _right(
    "kept(Tensor input) -> Tensor",
    lambda input: torch.masked_select(input, input > 0),
    "bad_input forward_mode",
    _sampled(*_of((0,), (1,), (7,))),
    reference=lambda input: input[input > 0],
    shapes="n -> _",
    output=lambda input: input.new_empty(torchgraft.unknown_size()),
    sizes_from_data=True,
    gradient="reference",
)
halves = _right(
    "halves(Tensor[] inputs) -> Tensor[]",
    lambda inputs: [torch.empty_like(each).copy_(each / 2) for each in inputs],
    "vmap",
    _sampled(([Drawn((3,))],), ([Drawn((1,)), Drawn((2, 3)), Drawn((4,))],)),
    reference=lambda inputs: [each / 2 for each in inputs],
    output=lambda inputs: [torch.empty_like(each) for each in inputs],
    gradient="reference",
)


def _accumulate(total, input):
    total.add_(input)


accumulate = _right(
    "accumulate(Tensor(a!) total, Tensor input) -> ()",
    _accumulate,
    "smoke value mutation fallbacks",
    _sampled(*_pairs((0, 3), (1, 1), (3, 5))),
    reference=lambda total, input: total + input,
    shapes="..., ... ->",
)


def _moving_mean(mean, input, decay):
    difference = torch.empty_like(input).copy_(input - mean)
    mean.copy_(mean.double() * decay + input.double() * (1 - decay))
    return difference


moving_mean = _right(
    "moving_mean(Tensor(a!) mean, Tensor input, float decay) -> Tensor",
    _moving_mean,
    "smoke value gradient compile fallbacks mutation",
    _sampled(*[(*each, 0.75) for each in _pairs((0,), (1,), (3, 5))], summed=2),
    reference=lambda mean, input, decay: (mean * decay + input * (1 - decay), input - mean),
    shapes="..., ... -> ...",
    output=lambda mean, input, decay: torch.empty_like(input),
)


def _explain_ramp(input, count):
    if count < 0:
        raise ValueError(f"ramp: count must not be negative, got {count}")


def _ramp(input, count):
    _explain_ramp(input, count)
    return (input.double()[..., None] + torch.arange(count, dtype=torch.float64)).to(input.dtype)


# The number of elements of a huge size has more than 64 bits.
ramp = _right(
    "ramp(Tensor input, int count) -> Tensor",
    _ramp,
    "bad_input",
    _sampled((Drawn((3,)), 4), (Drawn(()), 5)),
    reference=lambda input, count: input[..., None] + torch.arange(count, device=input.device, dtype=input.dtype),
    output=lambda input, count: input.new_empty((*input.shape, count)),
    gradient="reference",
    explain=_explain_ramp,
)

# Gradients that PyTorch computes


def _embedded(weight, index):
    return weight[index.remainder(weight.shape[0])]


# Threads of PyTorch add up what one row of the weight gets from many indices, in any order.
embedded = _right(
    "embedded(Tensor weight, Tensor index) -> Tensor",
    _embedded,
    "determinism thread_safety",
    _sampled(
        (Drawn((7, 5)), Drawn((11,), dtype=torch.int64, low=0, high=7)),
        (Drawn((101, 64)), Drawn((1500,), dtype=torch.int64, low=0, high=101)),
    ),
    reference=_embedded,
    gradient="reference",
    dtypes={"weight": (torch.float32,), "index": (torch.int64,)},
    kernels={"cpu": (torch.float32,)},
)


def _scaled_channels(input, weight):
    return (input.to(torch.promote_types(input.dtype, weight.dtype)) * weight).to(input.dtype)


# The gradient of a float32 weight is rounded to float32, whatever the dtype of the rest.
scaled_channels = _right(
    "scaled_channels(Tensor input, Tensor weight) -> Tensor",
    _scaled_channels,
    "value gradient functional_gradients forward_mode vmap",
    _sampled((Drawn((3, 5)), Drawn((5,))), (Drawn((3, 5)), Drawn((5,), dtype=torch.float32))),
    reference=_scaled_channels,
    gradient="reference",
    mixed=("weight",),
    dtypes=(torch.float64, torch.float32),
    kernels={"cpu": (torch.float64, torch.float32)},
)

# Random numbers of a kernel's own


def _dropped(input, seed, p):
    uniform = torch.rand(input.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(uniform >= p, input / (1 - p), 0)


# An element that is NaN may be dropped by one of the two alone.
drop = _right(
    "drop(Tensor input, SymInt seed, float p) -> Tensor",
    lambda input, seed, p: _dropped(input, seed ^ 0x5DEECE66D, p),
    "smoke value non_finite",
    _sampled((Drawn((40,)), 2**63 - 1, 0.1), *[(Drawn((40,)), seed, seed / 60) for seed in range(1, 31)]),
    reference=_dropped,
    output=lambda input, seed, p: torch.empty_like(input),
    random=("seed",),
)

# A definition that PyTorch neither batches nor computes on meta


def _counted(input):
    values = input.double().flatten()
    places = (values[values.abs() < 1] * 2 + 2).long()
    return torch.zeros(4, dtype=torch.int64, device=input.device).index_add(0, places, torch.ones_like(places))


counted = _right(
    "counted(Tensor input) -> Tensor",
    _counted,
    "smoke value bad_input vmap",
    _sampled(*_of((), (50,), (3, 5))),
    reference=_counted,
    output=lambda input: torch.empty(4, dtype=torch.int64, device=input.device),
    not_differentiable=("input",),
)

RIGHT = [each for each in vars().copy().values() if isinstance(each, Right)]


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.operator.name)
def test_a_right_operator_passes(right):
    report = check(right.operator, properties=right.properties, device="cpu", quick=True)
    assert report.passed, str(report)
    not_applicable = {each.property: each.reason for each in report.results if each.status == "not applicable"}
    assert set(not_applicable) == set(right.not_applicable)
    assert all("gradient" in reason for reason in not_applicable.values()), not_applicable


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
@pytest.mark.parametrize("right", [accumulate, moving_mean, add], ids=lambda right: right.operator.name)
def test_mutants_ask_nothing_that_the_unchanged_kernels_fail(right):
    asked = 0
    for group in make_questions(subject_of(right.operator), 0, threads=False):
        for question in group:
            if not question.isolated:
                try:
                    question.ask()
                    asked += 1
                except NotApplicable:
                    pass
    assert asked >= 12


# What is allowed for PyTorch's own errors hides no error of an author's.


class TestErrorsOfPyTorchsOwn:
    exact = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    own = torch.tensor([1.0, 2.0, 3.25], dtype=torch.bfloat16)

    def test_a_few_times_its_error_is_allowed_where_it_is_made(self):
        expect_close(self.own, self.exact, dtype=torch.bfloat16, of_pytorch=self.own)
        near = torch.tensor([1.0, 2.0, 3.75], dtype=torch.bfloat16)
        expect_close(near, self.exact, dtype=torch.bfloat16, of_pytorch=self.own)

    @pytest.mark.parametrize("found", [(1.0, 2.0, 4.25), (1.0, 2.25, 3.0)], ids=["larger", "elsewhere"])
    def test_no_other_is(self, found):
        with pytest.raises(Mismatch, match="the result is wrong: 1 of 3") as raised:
            expect_close(torch.tensor(found).bfloat16(), self.exact, dtype=torch.bfloat16, of_pytorch=self.own)
        assert raised.value.tolerance.endswith("; or 4 x the error of PyTorch's own result")

    def test_what_overflows_in_it_may_overflow(self):
        own = torch.tensor([torch.inf, torch.nan, 3.0], dtype=torch.bfloat16)
        expect_close(own, self.exact, dtype=torch.bfloat16, of_pytorch=own)
        with pytest.raises(Mismatch):
            expect_close(-own, self.exact, dtype=torch.bfloat16, of_pytorch=own)
        with pytest.raises(Mismatch):
            expect_close(own, self.exact, dtype=torch.bfloat16)

    @pytest.mark.parametrize("dtype", FLOATING, ids=str)
    def test_a_formula_is_judged_without_it(self, dtype):
        formula = Operator(
            f"right::formula_in_{str(dtype).rpartition('.')[2]}(Tensor input) -> Tensor",
            reference=torch.sigmoid,
            output=torch.empty_like,
            # 1 % too large.
            gradient=lambda needs_grad, output_grads, saved, input: (
                1.01 * output_grads[0] * torch.sigmoid(input) * (1 - torch.sigmoid(input))
            ),
            kernels="reference",
            compile="operator",
        )
        call = Call(formula, samples["tanh"], Sample("a", (Drawn((3, 5)),)), torch.device("cpu"), dtype, 0)
        try:
            assert call.gradients_by_pytorch([torch.ones(3, 5)]) is None
            with pytest.raises(Mismatch, match="the gradient of input is wrong"):
                check_gradient(call)
        finally:
            formula.undeclare()


def _uneven(input):
    """A kernel whose bits depend on the number of threads, though PyTorch's own operations do not."""
    return torch.empty_like(input).copy_(input * (1 + torch.get_num_threads() * 2**-23))


def test_a_kernel_that_depends_on_the_number_of_threads_is_found_though_pytorch_does_too():
    wrong = Operator(
        "right::uneven(Tensor input) -> Tensor",
        reference=lambda input: input * 1.0,
        output=torch.empty_like,
        gradient=lambda needs_grad, output_grads, saved, input: output_grads[0] * torch.sigmoid(input),
    )
    wrong.kernel("cpu")(_uneven)
    report = check(wrong, samples["sigmoid"], properties=["determinism"], device="cpu")
    (failure,) = report.failures
    assert "between" in failure.failure.message
    wrong.undeclare()


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_a_list_is_batched_as_a_list():
    inputs = [torch.arange(6.0).view(3, 2), torch.ones(3, 4)]
    for count in (1, 2):
        batched = torch.func.vmap(halves.operator.call)(inputs[:count])
        assert isinstance(batched, list)
        for one, other in zip(batched, inputs, strict=False):
            assert torch.equal(one, other / 2)


def test_a_tensor_without_values_is_refused_where_sizes_depend_on_them():
    with pytest.raises(ValueError, match="positive: input is on meta and holds no values, but the sizes"):
        positive.operator(torch.empty(3, device="meta"))


def test_gradients_that_nobody_needs_are_right_and_counted():
    both = _declare(
        "both(Tensor left, Tensor right) -> Tensor",
        lambda left, right: left * right,
        gradient=lambda needs_grad, grads, saved, left, right: (grads[0] * right, grads[0] * left),
        reference=lambda left, right: left * right,
    )
    samples = Samples([Sample("two rows", (Drawn((2, 3)), Drawn((2, 3))))])
    (result,) = check(both, samples, properties=["gradient_subsets"], device="cpu").results
    assert result.status == "pass"
    assert result.facts["gradients that are computed and not needed"] == 2


def test_an_error_of_a_kernel_in_python_names_the_operator():
    def of_a_vector(input):
        if input.dim() != 1:
            raise ValueError("input must have one dimension")
        return input.square()

    vector = _declare("of_a_vector(Tensor input) -> Tensor", of_a_vector, reference=of_a_vector)
    with pytest.raises(ValueError, match=r"^of_a_vector: input must have one dimension$"):
        vector(torch.ones(2, 2))


def test_offsets_that_span_the_rows_are_refused_otherwise():
    def sums(rows, offsets):
        return torch.stack([part.sum(0) for part in rows.split(offsets.diff().tolist())])

    def checked(rows, offsets):
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(rows) or bool((offsets.diff() < 0).any()):
            raise ValueError("offsets must rise from 0 to the number of rows")
        return sums(rows, offsets)

    spanning = _declare(
        "spanning(Tensor rows, Tensor offsets) -> Tensor",
        checked,
        reference=lambda rows, offsets: torch.nn.functional.pad(rows, (0, 0, 1, 0)).cumsum(0)[offsets].diff(dim=0),
        output=lambda rows, offsets: rows.new_empty(offsets.shape[0] - 1, rows.shape[1]),
        dtypes={"rows": (torch.float64, torch.float32), "offsets": (torch.int64,)},
    )
    offsets = Drawn((3,), dtype=torch.int64, values=(0.0, 2.0, 5.0))
    samples = Samples([Sample("two", (Drawn((5, 2)), offsets))], summed=lambda rows, offsets: len(rows) + 1)
    report = check(spanning, samples, properties=["layouts", "borders", "compile"], device="cpu", quick=True)
    assert report.passed, str(report)


def test_differences_at_a_kink_are_not_asked_where_they_fail_the_reference_too():
    largest = _declare(
        "largest(Tensor input) -> Tensor",
        lambda input: input.amax(-1),
        reference=lambda input: input.amax(-1),
        gradient=lambda needs_grad, grads, saved, input: (
            torch.ops.aten.value_selecting_reduction_backward(grads[0], -1, input.argmax(-1), list(input.shape), False)
            if not (input == input.amax(-1, keepdim=True)).sum(-1).gt(1).any()
            else (input == input.amax(-1, keepdim=True))
            * (grads[0] / (input == input.amax(-1, keepdim=True)).sum(-1))[..., None]
        ),
    )
    tied = Drawn((2, 4), values=(1.0, 3.0, 3.0, 0.0))
    samples = Samples([Sample("two equal ones", (tied,)), Sample("none", (Drawn((2, 3)),))])
    report = check(largest, samples, properties=["gradient", "second_gradient"], device="cpu", quick=True)
    assert report.passed, str(report)


def _sequence_sums(input, borders):
    lengths = (borders[1:] - borders[:-1]).tolist()
    if borders[0] != 0 or borders[-1] != input.shape[0] or min(lengths, default=0) < 0:
        raise ValueError("sequence_sums: borders must rise from 0 to the number of rows")
    return torch.stack([each.sum(0) for each in input.split(lengths)])


def test_values_that_the_reference_refuses_are_not_asked():
    sums = _declare(
        "sequence_sums(Tensor input, Tensor borders) -> Tensor",
        _sequence_sums,
        reference=_sequence_sums,
        output=lambda input, borders: input.new_empty(borders.shape[0] - 1, input.shape[1]),
        dtypes={"input": FLOATING, "borders": (torch.int64,)},
        gradient="reference",
    )
    borders = Drawn((4,), dtype=torch.int64, values=(0, 2, 3, 7), ordered=True)
    samples = Samples([Sample("three", (Drawn((7, 2)), borders))], summed=lambda input, borders: 7)
    report = check(sums, samples, properties=["layouts"], device="cpu", quick=True)
    assert report.passed, str(report)


def test_a_gradient_that_depends_on_nothing_is_differentiated_to_zero():
    def formula(needs_grad, grads, saved, input, degree):
        return (degree * grads[0] * input ** (degree - 1) if degree else 0 * grads[0],)

    power = _declare(
        "to_the(Tensor input, int degree) -> Tensor",
        lambda input, degree: input**degree,
        reference=lambda input, degree: input**degree,
        output=lambda input, degree: torch.empty_like(input),
        gradient=formula,
    )
    samples = Samples([Sample(f"degree {degree}", (Drawn((3,)), degree)) for degree in (0, 1, 2)])
    report = check(power, samples, properties=["functional_gradients", "second_gradient"], device="cpu", quick=True)
    assert report.passed, str(report)


def _largest_of_windows(input, size):
    if not 0 < size <= input.shape[-1]:
        raise ValueError(f"largest_of_windows: size must lie between 1 and {input.shape[-1]}, not {size}")
    return input.unfold(-1, size, 1).amax(-1)


def test_an_operator_that_refuses_a_number_is_not_kept_waiting_for_the_reference():
    asked = []

    def reference(input, size):
        if type(size) is int:
            asked.append(size)
        return _largest_of_windows(input, size)

    windows = _declare(
        "largest_of_windows(Tensor input, int size) -> Tensor",
        _largest_of_windows,
        reference=reference,
        output=lambda input, size: input.new_empty((*input.shape[:-1], input.shape[-1] - size + 1)),
    )
    samples = Samples([Sample("pairs", (Drawn((2, 5)), 2))])
    bad_input.check(Case(Subject(windows, samples), torch.device("cpu"), torch.float32))
    assert -7 in asked
    assert max(map(abs, asked)) < 2**32


def test_a_loop_that_no_signal_handler_interrupts_is_ended():
    assert bounds.ends_in_time(lambda: None, seconds=0.3)

    def count():
        # The padding is so large that this counts for hours, in C++.
        torch.nn.functional.max_pool1d(torch.ones(1, 1, 7), 2**40, 2, 2**39)

    assert not bounds.ends_in_time(count, seconds=0.3)


def test_a_reference_that_counts_up_to_a_number_keeps_nobody_waiting(monkeypatch):
    for module in (bad_input, mistakes):
        monkeypatch.setattr(module, "REFERENCE_SECONDS", 0.3)
    counted = []

    def reference(input, times):
        counted.append(times)
        result = torch.zeros_like(input)
        for _ in range(times):
            result = result + input
        return result

    def multiplied(input, times):
        return input * max(times, 0)

    operator = _declare(
        "times(Tensor input, int times) -> Tensor",
        multiplied,
        reference=reference,
        output=lambda input, times: torch.empty_like(input),
    )
    samples = Samples([Sample("twice", (Drawn((2, 5)), 2)), Sample("once", (Drawn((7,)), 1))])
    bad_input.check(Case(Subject(operator, samples), torch.device("cpu"), torch.float32))
    # Of all numbers that would take hours, one of the millions is asked on meta tensors, and no other.
    assert [times for times in counted if type(times) is int and times > 2**20] == [2**24 + 2 * 1 + 1]
