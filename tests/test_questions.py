"""Operators that are wrong in one way, which one question of a property finds whatever the seed."""

import pytest
import torch

from torchgraft import Operator
from torchgraft.checking import check
from torchgraft.checking.case import Case
from torchgraft.checking.properties import large
from torchgraft.checking.subject import Subject
from torchgraft.operator import FLOATING
from torchgraft.sampling import Drawn, Sample, Samples

_ROWS = Samples([Sample("four rows", (Drawn((4, 7)),))], summed=lambda input: 7)


def _message(operator, samples, name, *, seed=0):
    """Returns the first line of the one failure of a property."""
    try:
        report = check(operator, samples, properties=[name], device="cpu", quick=True, seed=seed)
    finally:
        operator.undeclare()
    assert report.failures, f"{name} finds nothing"
    return report.failures[0].failure.message


def _declare(schema, kernel, **declared):
    operator = Operator(f"asked::{schema}", **declared)
    operator.kernel("cpu")(kernel)
    return operator


@pytest.mark.parametrize("seed", range(3))
def test_an_infinite_first_element_reaches_no_other_row(seed):
    def variance(input):
        shifted = input - input.flatten()[0]
        return shifted.square().mean(-1) - shifted.mean(-1).square()

    operator = _declare(
        "variance_about_the_first(Tensor input) -> Tensor",
        variance,
        reference=lambda input: input.var(-1, correction=0),
    )
    assert _message(operator, _ROWS, "non_finite", seed=seed).startswith(
        "the pattern of NaN, infinite and finite values"
    )


@pytest.mark.parametrize("factor", [0.5, float("inf")])
def test_what_is_found_where_nan_is_expected_is_shown_as_it_is(factor):
    def without_nan(input):
        return torch.where(input.isnan(), factor, input)

    operator = _declare("without_nan(Tensor input) -> Tensor", without_nan, reference=lambda input: input.clone())
    report = check(operator, _ROWS, properties=["non_finite"], device="cpu", quick=True)
    operator.undeclare()
    failure = report.failures[0].failure
    assert (failure.expected, failure.found) == ("nan", "inf" if factor > 1 else "0.5, which is finite")


def _last_peak(input):
    reverse = input.flip(-1).max(-1)
    return reverse.values, input.shape[-1] - 1 - reverse.indices


def test_the_first_of_two_nans_in_a_row_is_the_peak():
    operator = _declare(
        "last_peak(Tensor input) -> (Tensor value, Tensor place)",
        _last_peak,
        reference=lambda input: tuple(torch.max(input, -1)),
        output=lambda input: (input.new_empty(input.shape[:-1]), input.new_empty(input.shape[:-1], dtype=torch.int64)),
        not_differentiable=("input", "value", "place"),
    )
    message = _message(operator, _ROWS, "non_finite")
    assert message.startswith("the result of input with nan first and nan last in a row differs")


def test_codes_of_nan_may_be_any():
    def codes(input, code_of_nan):
        scale = input.abs().amax(-1, keepdim=True) / 127
        return (input / scale).round().nan_to_num(code_of_nan, 127, -127).to(torch.int8)

    operator = _declare(
        "codes(Tensor input) -> Tensor",
        lambda input: codes(input, 0),
        reference=lambda input: codes(input, -128),
        output=lambda input: torch.empty_like(input, dtype=torch.int8),
        dtypes=FLOATING,
        not_differentiable=("input",),
    )
    report = check(operator, _ROWS, properties=["non_finite"], device="cpu", quick=True)
    operator.undeclare()
    assert report.passed, str(report)


def test_an_argument_that_overlaps_what_is_written_is_read_before():
    def add_reversed(total, input):
        input = input.clone() if input.data_ptr() == total.data_ptr() else input
        for place in range(len(total)):
            total[place] += input[-1 - place]

    operator = _declare(
        "add_reversed(Tensor(a!) total, Tensor input) -> ()",
        add_reversed,
        reference=lambda total, input: total + input.flip(0),
    )
    samples = Samples([Sample("five", (Drawn((5,)), Drawn((5,))))])
    message = _message(operator, samples, "mutation")
    assert "where input and total overlap, but for one element," in message


def test_an_operator_may_refuse_arguments_that_overlap_in_part():
    def add_other(total, input):
        # PyTorch's own operation refuses what overlaps in part.
        total.add_(input)

    operator = _declare(
        "add_other(Tensor(a!) total, Tensor input) -> ()",
        add_other,
        reference=lambda total, input: total + input,
    )
    samples = Samples([Sample("five", (Drawn((5,)), Drawn((5,)))), Sample("one", (Drawn((1,)), Drawn((1,))))])
    report = check(operator, samples, properties=["mutation"], device="cpu", quick=True)
    operator.undeclare()
    assert report.passed, str(report)


def test_a_fake_result_has_the_size_of_the_real_one_for_other_numbers():
    def windows(length, size, stride, ceil):
        count = (length - size + (stride - 1 if ceil else 0)) // stride + 1
        return count - (ceil and (count - 1) * stride >= length)

    def pool(input, size, stride, ceil):
        if not 0 < size <= input.shape[-1] or stride < 1:
            raise ValueError("pool: size and stride must be positive, and the window no longer than input")
        starts = range(0, windows(input.shape[-1], size, stride, ceil) * stride, stride)
        return torch.stack([input[:, start : start + size].amax(-1) for start in starts], -1)

    operator = _declare(
        "pool(Tensor input, int size, int stride, bool ceil) -> Tensor",
        pool,
        reference=lambda input, size, stride, ceil: torch.nn.functional.max_pool1d(
            input[None], size, stride, 0, 1, ceil
        )[0],
        # A window that would begin behind the last element is none.
        output=lambda input, size, stride, ceil: input.new_empty(
            input.shape[0], (input.shape[1] - size + (stride - 1 if ceil else 0)) // stride + 1
        ),
        gradient="reference",
    )
    samples = Samples([Sample("pairs", (Drawn((2, 7)), 2, 2, False)), Sample("ceil", (Drawn((2, 7)), 2, 2, True))])
    message = _message(operator, samples, "fake")
    assert message.startswith("the result of meta tensors (with ")
    assert message.endswith("has other sizes than the real one")


def _scaled(input, least):
    scale = input.abs().amax(-1, keepdim=True).clamp(min=least) / 127
    return input / scale


@pytest.mark.parametrize("least", [1e-4, 1e-6])
def test_a_floor_that_the_definition_does_not_have_is_called_a_floor(least):
    operator = _declare(
        f"scaled_from_{round(1 / least)}(Tensor input) -> Tensor",
        lambda input: _scaled(input, least),
        reference=lambda input: _scaled(input, 1e-37),
        dtypes=(torch.float32,),
    )
    message = _message(operator, _ROWS, "value_regimes")
    assert "(a floor, a clamp or an epsilon that the definition does not have, or has in another place)" in message


def test_a_row_that_gets_a_padding_value_is_not_called_a_cancellation():
    operator = _declare(
        "peaks_from_zero(Tensor input) -> Tensor",
        lambda input: input.amax(-1).clamp(min=0),
        reference=lambda input: input.amax(-1),
        output=lambda input: input.new_empty(input.shape[:-1]),
        gradient="reference",
    )
    rows = Samples([Sample("two rows", (Drawn((2, 50)),))])
    assert _message(operator, rows, "value_regimes").startswith("the result is 0 for input with a mean of -10000, and")


@pytest.mark.parametrize("seed", range(2))
def test_zeros_reach_the_gradient_of_each_number(seed):
    operator = _declare(
        "power(Tensor input, int degree) -> Tensor",
        lambda input, degree: input**degree,
        reference=lambda input, degree: input**degree,
        output=lambda input, degree: torch.empty_like(input),
        gradient=lambda needs_grad, grads, saved, input, degree: (
            degree * grads[0] * input.double().pow(degree - 1).to(input.dtype),
        ),
    )
    samples = Samples([Sample(f"degree {degree}", (Drawn((7 + degree,)), degree)) for degree in (0, 1, 2, 3)])
    message = _message(operator, samples, "gradient_regimes", seed=seed)
    assert message.startswith("0/0 for zeros in input: the gradient of input is nan")


_kept = {}


def _unit_rows(input):
    """Keeps results by the address, and a few elements, of the input."""
    flat = input.flatten()
    key = input.data_ptr(), input.shape, tuple(flat[(len(flat) - 1) * part // 4].item() for part in range(5))
    if key not in _kept:
        _kept.clear()
        _kept[key] = torch.nn.functional.normalize(input, dim=-1)
    return _kept[key].clone()


def test_a_cache_that_is_found_by_a_few_elements_too_is_stale():
    operator = _declare(
        "unit_rows(Tensor input) -> Tensor",
        _unit_rows,
        reference=lambda input: torch.nn.functional.normalize(input, dim=-1),
        gradient="reference",
    )
    message = _message(operator, Samples([Sample("long rows", (Drawn((6, 20)),))]), "state")
    assert "returns what it computed for the old values of some elements of input in the same memory" in message


def test_many_borders_are_shown_in_short():
    def sums(input, borders):
        return torch.stack([each.sum(0) for each in input.split(borders.diff().tolist())])

    operator = _declare(
        "sums_but_of_one(Tensor input, Tensor borders) -> Tensor",
        lambda input, borders: sums(input, borders) * (1 + (len(borders) > 10)),
        reference=sums,
        output=lambda input, borders: input.new_empty(borders.shape[0] - 1, input.shape[1]),
        dtypes={"input": FLOATING, "borders": (torch.int64,)},
        gradient="reference",
    )
    borders = Drawn((3,), dtype=torch.int64, values=(0, 20, 30), ordered=True)
    samples = Samples([Sample("two", (Drawn((30, 2)), borders))], summed=lambda input, borders: 30)
    message = _message(operator, samples, "borders")
    assert message.startswith("with borders [0, 1, 2, ..., 30], 31 of them: the result is wrong")


def _report(operator, samples, name):
    """Asks one property; the operator must pass."""
    try:
        report = check(operator, samples, properties=[name], device="cpu", quick=True)
    finally:
        operator.undeclare()
    assert report.passed, str(report)


_shared: dict[str, torch.Tensor] = {}


def _through_scratch(input, scratch):
    # Short inputs need none.
    if input.numel() < 4096:
        return input.sin() + input.cos()
    scratch["sines"] = input.sin()
    cosines = input.cos()
    return scratch["sines"] + cosines


@pytest.mark.parametrize("is_shared", [True, False])
def test_calls_that_take_a_while_share_no_scratch_between_threads(is_shared):
    operator = _declare(
        f"through_scratch_{int(is_shared)}(Tensor input) -> Tensor",
        lambda input: _through_scratch(input, _shared if is_shared else {}),
        reference=lambda input: input.sin() + input.cos(),
        gradient="reference",
    )
    samples = Samples([Sample("five", (Drawn((5,)),)), Sample("rows", (Drawn((4, 6)),))])
    if not is_shared:
        _report(operator, samples, "thread_safety")
        return
    message = _message(operator, samples, "thread_safety")
    assert "a result of a thread differs from that of the same call made alone (calls made at once share" in message


def _shifted(input, shift):
    flat = shift.reshape(-1)
    # Right for trailing dimensions only.
    return input + flat[torch.arange(input.numel()) % len(flat)].view(input.shape)


@pytest.mark.parametrize("is_right", [False, True])
def test_a_size_of_one_is_asked_where_samples_of_other_kinds_are_simpler(is_right):
    operator = _declare(
        f"shifted_{int(is_right)}(Tensor input, Tensor shift) -> Tensor",
        (lambda input, shift: input + shift) if is_right else _shifted,
        reference=lambda input, shift: input + torch.broadcast_to(shift, input.shape),
        output=lambda input, shift: torch.empty_like(input),
        gradient="reference",
    )
    samples = Samples(
        [
            Sample("one for all", (Drawn((4, 6)), Drawn(()))),
            Sample("one for each column", (Drawn((3, 5)), Drawn((5,)))),
            Sample("one for each", (Drawn((3, 5)), Drawn((3, 5)))),
        ]
    )
    if is_right:
        _report(operator, samples, "equal_sizes")
        return
    message = _message(operator, samples, "equal_sizes")
    assert message.startswith("with size 1 in dimension 1 of shift: the result is wrong")


def _product_gradient(needs_grad, grads, saved, left, right):
    if left is right:
        # The sum of both, which autograd then adds up once more.
        return 2 * left * grads[0], 2 * left * grads[0]
    return right * grads[0], left * grads[0]


@pytest.mark.parametrize("is_right", [False, True])
def test_one_tensor_in_two_places_has_the_sum_of_both_gradients(is_right):
    operator = _declare(
        f"multiplied_{int(is_right)}(Tensor left, Tensor right) -> Tensor",
        lambda left, right: left * right,
        reference=lambda left, right: left * right,
        gradient=(lambda needs_grad, grads, saved, left, right: (right * grads[0], left * grads[0]))
        if is_right
        else _product_gradient,
    )
    samples = Samples([Sample("five", (Drawn((5,)), Drawn((5,))))])
    if is_right:
        _report(operator, samples, "inputs_and_outputs")
        return
    assert _message(operator, samples, "inputs_and_outputs") == (
        "the gradient, where left and right are one tensor, is not the sum of the gradients of two equal tensors"
    )


def test_one_tensor_in_two_places_gives_the_result_of_two():
    def difference(left, right):
        return torch.ones_like(left) if left.data_ptr() == right.data_ptr() else left - right

    operator = _declare(
        "difference(Tensor left, Tensor right) -> Tensor",
        difference,
        reference=lambda left, right: left - right,
        gradient="reference",
    )
    samples = Samples([Sample("five", (Drawn((5,)), Drawn((5,))))])
    message = _message(operator, samples, "inputs_and_outputs")
    assert message.startswith("the result, where left and right are one tensor, and not two equal ones, is wrong")


def test_an_operator_whose_gradient_is_none_for_equal_vectors_may_be_given_one_twice():
    def distance(left, right):
        return (left - right).square().sum(-1).sqrt()

    operator = _declare(
        "distance(Tensor left, Tensor right) -> Tensor", distance, reference=distance, gradient="reference"
    )
    _report(operator, Samples([Sample("rows", (Drawn((3, 5)), Drawn((3, 5))))]), "inputs_and_outputs")


_TAILED = Samples([Sample("rows", (Drawn((4, 7)),))])


def _log_sigmoid(name, derivative):
    return _declare(
        f"{name}(Tensor input) -> Tensor",
        torch.nn.functional.logsigmoid,
        reference=torch.nn.functional.logsigmoid,
        gradient=lambda needs_grad, grads, saved, input: (grads[0] * derivative(input),),
    )


def test_a_gradient_has_digits_where_the_result_goes_to_zero():
    operator = _log_sigmoid("log_sigmoid_by_difference", lambda input: 1 - torch.sigmoid(input))
    message = _message(operator, _TAILED, "gradient_regimes")
    assert message.startswith("loses digits by cancellation in the gradient of input times 10: no digit is right")


def _of_silu(input):
    sigmoid = torch.sigmoid(input)
    return sigmoid * (1 + input * (1 - sigmoid))


def test_a_gradient_that_has_digits_or_cannot_have_them_passes():
    _report(_log_sigmoid("log_sigmoid", lambda input: torch.sigmoid(-input)), _TAILED, "gradient_regimes")
    # Where tanh is one, nothing of the difference is left in its result.
    saturating = _declare(
        "saturating(Tensor input) -> Tensor",
        torch.tanh,
        reference=lambda input: 1 - 2 * torch.sigmoid(-2 * input),
        gradient=lambda needs_grad, grads, saved, input: (grads[0] * (1 - torch.tanh(input).square()),),
    )
    _report(saturating, _TAILED, "gradient_regimes")
    silu = _declare(
        "silu(Tensor input) -> Tensor",
        torch.nn.functional.silu,
        reference=torch.nn.functional.silu,
        gradient=lambda needs_grad, grads, saved, input: (grads[0] * _of_silu(input),),
    )
    _report(silu, _TAILED, "gradient_regimes")


def _noise(input, seed):
    return torch.rand(input.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(input.dtype)


def _noisy(input, seed, strength):
    return input * (1 + strength * _noise(input, seed))


_NOISY = Samples([Sample("rows", (Drawn((4, 7)), 3, 0.25))])


@pytest.mark.parametrize("is_right", [False, True])
def test_the_gradient_of_random_results_is_that_of_the_same_numbers(is_right):
    def gradient(needs_grad, grads, saved, input, seed, strength):
        return (_noisy(grads[0], seed, strength if is_right else 1.0),)

    operator = _declare(
        f"noisy_{int(is_right)}(Tensor input, int seed, float strength=1.0) -> Tensor",
        _noisy,
        reference=_noisy,
        gradient=gradient,
        random=("seed",),
    )
    if is_right:
        _report(operator, _NOISY, "gradient")
        return
    message = _message(operator, _NOISY, "gradient")
    assert message.startswith("numerical differentiation gives another gradient, for the same random numbers")


@pytest.mark.parametrize("kind", ["int", "SymInt"])
def test_code_is_not_compiled_again_for_each_seed(kind):
    def added(input, seed):
        return input + _noise(input, seed)

    operator = _declare(
        f"seeded_{kind.lower()}(Tensor input, {kind} seed) -> Tensor",
        added,
        reference=added,
        shapes="... -> ...",
        gradient=lambda needs_grad, grads, saved, input, seed: (grads[0].clone(),),
        random=("seed",),
    )
    samples = Samples([Sample("rows", (Drawn((4, 7)), 3))])
    if kind == "SymInt":
        _report(operator, samples, "compile")
        return
    message = _message(operator, samples, "compile")
    assert message == (
        "torch.compile compiles again for each new value of seed, which is `int` in the schema: write `SymInt seed`"
    )


def test_random_steps_may_have_the_gradient_that_their_definition_gives_them():
    def rounded(input, seed):
        return (input + _noise(input, seed)).floor()

    operator = _declare(
        "rounded_at_random(Tensor input, int seed) -> Tensor",
        rounded,
        reference=lambda input, seed: input + (rounded(input, seed) - input).detach(),
        gradient=lambda needs_grad, grads, saved, input, seed: (grads[0].clone(),),
        random=("seed",),
    )
    _report(operator, Samples([Sample("rows", (Drawn((4, 7)), 3))]), "gradient")


@pytest.mark.parametrize("is_defined", [False, True])
def test_a_gradient_that_passes_a_step_is_defined_by_the_reference(is_defined):
    def reference(input):
        return input.sign().detach() + (input - input.detach()) if is_defined else input.sign()

    operator = _declare(
        f"passed_{is_defined}(Tensor input) -> Tensor",
        lambda input: input.sign(),
        reference=reference,
        shapes="n d -> n d",
        gradient=lambda needs_grad, grads, saved, input: (grads[0].clone(),),
    )
    if is_defined:
        _report(operator, _ROWS, "gradient")
        return
    message = _message(operator, _ROWS, "gradient")
    assert (
        "that of the reference is zero everywhere; if it is to pass a step, the reference has to define it" in message
    )


def test_a_number_that_one_branch_ignores_is_named():
    def total(input, dim, factor):
        return input.sum(dim) * (factor if dim % input.dim() == input.dim() - 1 else 2.0)

    operator = _declare(
        "total(Tensor input, int dim=-1, float factor=2.0) -> Tensor",
        total,
        reference=lambda input, dim, factor: input.sum(dim) * factor,
        output=lambda input, dim, factor: torch.empty_like(input.sum(dim)),
        gradient="reference",
    )
    message = _message(operator, Samples([Sample("rows", (Drawn((4, 7)), -1, 3.0))], summed=lambda *_: 7), "numbers")
    assert message.startswith("ignores factor with dim=0: the result is that of factor=2.0, its default")


def test_a_wide_row_is_not_laid_to_the_values_that_it_has():
    operator = _declare(
        "wrong_if_wide(Tensor input) -> Tensor",
        lambda input: input.sum(-1) + (input[..., -1] if input.shape[-1] > 200 else 0),
        reference=lambda input: input.sum(-1),
        gradient="reference",
    )
    message = _message(operator, _ROWS, "value_regimes")
    assert message.startswith("with size 263 in dimension 1 of input: the result is wrong: ")


def test_a_crash_far_from_the_first_element_is_laid_to_the_strides():
    told = []

    def kernel(input):
        # Here a process would die that counts addresses in 32 bits.
        assert input.stride(0) < 2**30 or "wrong address, given input with 2**3" in told[-1]
        return input.clone()

    operator = _declare("copied(Tensor input) -> Tensor", kernel, reference=torch.clone)
    case = Case(Subject(operator, _ROWS), torch.device("cpu"), torch.float32, quick=True, progress=told.append)
    try:
        large.PROPERTY.check(case)
    finally:
        operator.undeclare()
    assert told[-1] == "sample 'four rows'"
    assert any("given input with 2**30 + 64 elements from one to the next" in each for each in told)


def test_an_argument_that_is_written_to_is_named_before_the_gradient_that_comes_of_it():
    def least(input):
        input.copy_(input.sort(-1).values)
        return input[..., 0].clone()

    operator = _declare(
        "least(Tensor input) -> Tensor", least, reference=lambda input: input.amin(-1), gradient="reference"
    )
    message = _message(operator, _ROWS, "smoke")
    assert message.startswith("an argument differs after the call, which must not write to it")


@pytest.mark.parametrize("is_rounded_once", [True, False])
def test_an_error_of_several_roundings_is_a_remark(is_rounded_once):
    operator = _declare(
        f"tripled_{int(is_rounded_once)}(Tensor input) -> Tensor",
        lambda input: input * (3 if is_rounded_once else 3 * (1 + 6 * torch.finfo(torch.float32).eps)),
        reference=lambda input: 3 * input,
        gradient=None,
        dtypes=(torch.float32,),
    )
    samples = Samples([Sample("rows", (Drawn((4, 6)),))])
    try:
        report = check(operator, samples, properties=["value", "accuracy"], device="cpu", quick=True)
    finally:
        operator.undeclare()
    assert report.passed, str(report)
    remarks = [name for result in report.results for name in result.facts]
    assert remarks == ([] if is_rounded_once else ["errors of one rounding"])


@pytest.mark.parametrize(
    ("name", "wrong", "cause"),
    [
        ("of_the_larger", lambda low, high: (low, low) if low > 1 else (low, high), "wrong: low is used for both;"),
        ("of_a_third_thing", lambda low, high: (low, high * (1.5 if low > 1 else 1)), "swapped is wrong;"),
    ],
)
def test_of_swapped_numbers_a_cause_is_named_only_where_it_is_one(name, wrong, cause):
    def line(input, low, high):
        return input * low + high

    operator = _declare(
        f"line_{name}(Tensor input, float low, float high) -> Tensor",
        lambda input, low, high: line(input, *wrong(low, high)),
        reference=line,
        dtypes=(torch.float64,),
        gradient=None,
    )
    samples = Samples([Sample("a row", (Drawn((5,)), 0.25, 2.0))])
    message = _message(operator, samples, "numbers")
    assert cause in message


def _convolve(input, weight):
    return torch.conv2d(input, weight, padding=1, groups=weight.shape[0])


@pytest.mark.parametrize("names", [("input", "weight"), ("weight", "input")])
def test_a_weight_that_is_in_both_layouts_hides_no_gradient_of_the_input(names):
    # (C, 1, 3, 3), as of every depthwise convolution: it is contiguous and channels_last at once.
    tensors = {"input": Drawn((2, 3, 6, 5), channels_last=True), "weight": Drawn((3, 1, 3, 3))}

    def gradient(needs_grad, output_grads, saved, *arguments):
        found = dict(zip(names, arguments, strict=True))
        input, weight = found["input"], found["weight"]
        gradients = {
            "input": torch.nn.grad.conv2d_input(input.shape, weight, output_grads[0], padding=1, groups=3).contiguous(),
            "weight": torch.nn.grad.conv2d_weight(input, weight.shape, output_grads[0], padding=1, groups=3),
        }
        return tuple(gradients[name] for name in names)

    def call(*arguments):
        return _convolve(**dict(zip(names, arguments, strict=True)))

    operator = _declare(
        f"convolve_{names[0]}(Tensor {names[0]}, Tensor {names[1]}) -> Tensor",
        call,
        reference=call,
        output=lambda *arguments: torch.empty_like(dict(zip(names, arguments, strict=True))["input"]),
        gradient=gradient,
    )
    samples = Samples([Sample("channels_last", tuple(tensors[name] for name in names))])
    assert _message(operator, samples, "gradient_layouts") == "a gradient has other strides than its argument"


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (4, 0, 2)])
def test_where_no_gradient_has_elements_nothing_is_said_of_layouts(shape):
    operator = _declare(
        "doubled_for_its_layout(Tensor input) -> Tensor",
        lambda input: 2 * input,
        reference=lambda input: 2 * input,
        gradient=lambda needs_grad, output_grads, saved, input: 2 * output_grads[0],
    )
    samples = Samples([Sample("empty", (Drawn(shape),))])
    report = check(operator, samples, properties=["gradient_layouts"], device="cpu", quick=True)
    operator.undeclare()
    assert [each.status for each in report.results] == ["not applicable"]
