"""Regimes of values: right operators pass them, samples limit them, and what is wrong is named by its cause."""

import pytest
import torch
import torch.nn.functional as F

from planted import values
from planted.finding import find_by_property
from torchgraft import Operator
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.regimes import Unit, changed, times, units
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import Subject, subject_of
from torchgraft.checking.tensors.dtypes import is_number
from torchgraft.checking.tensors.own_error import OwnError, nearby_arguments
from torchgraft.sampling import Drawn, Sample, Samples

REGIMES = ("value_regimes", "gradient_regimes", "numbers")
ROWS = (Sample("two rows", (Drawn((2, 5)),)), Sample("seven rows", (Drawn((7, 20)),)))
PAIRS = (Sample("pairs", (Drawn((4, 9)), Drawn((4, 9)))),)
UNARY, BINARY = "(Tensor input) -> Tensor", "(Tensor input, Tensor other) -> Tensor"
FLOATS = (torch.float64, torch.float32, torch.float16)


def declare(name, signature, reference, kernel, gradient=None, dtypes=FLOATS, **more):
    if gradient is not None:
        more["gradient"] = lambda needs_grad, grads, saved, *arguments: gradient(grads[0], *arguments)
    of_primary = next(iter(dtypes.values())) if isinstance(dtypes, dict) else dtypes
    operator = Operator(
        f"regimes::{name}{signature}", reference=reference, dtypes=dtypes, kernels={"cpu": of_primary}, **more
    )
    operator.kernel("cpu")(kernel)
    return operator


def ask(operator, table, *properties, **more):
    """The failures of properties, by name and dtype."""
    subject = Subject(operator, Samples(table, **more), beside=False)
    jobs = make_jobs([subject], devices=["cpu"], properties=properties or REGIMES, quick=True)
    results = [run_job(job) for job in jobs]
    return {(each.property, each.dtype): each.failure.message for each in results if each.status == "fail"}


def in_float(function):
    """A kernel that computes in float32 for halves."""

    def kernel(*arguments):
        wide = [each.float() if each.dtype == torch.float16 else each for each in arguments]
        return function(*wide).to(arguments[0].dtype)

    return kernel


def two_pass(input):
    return ((input - input.mean(-1, keepdim=True)) ** 2).mean(-1)


def welford(input):
    mean, squares = torch.zeros_like(input[..., 0]), torch.zeros_like(input[..., 0])
    for count in range(input.shape[-1]):
        difference = input[..., count] - mean
        mean = mean + difference / (count + 1)
        squares = squares + difference * (input[..., count] - mean)
    return squares / input.shape[-1]


def normalized(variance):
    return lambda input: (input - input.mean(-1, keepdim=True)) * torch.rsqrt(variance(input)[..., None] + 1e-5)


def softmax(input):
    powers = torch.exp(input - input.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def softmax_grad(grad, input):
    result = softmax(input)
    return (result * (grad - (grad * result).sum(-1, keepdim=True)),)


def first_of_equal(grad, input):
    return (torch.zeros_like(input).scatter(-1, input.argmax(-1, keepdim=True), grad[..., None]),)


def added_in_turn(input):
    total = torch.zeros_like(input[..., 0])
    for column in input.unbind(-1):
        total = total + column
    return total


def codes(input):
    # 127 over the largest, where the reference divides by the largest over 127: halves are rounded otherwise.
    return torch.round(input * (127 / input.abs().amax(-1, keepdim=True).clamp(min=1e-6))).to(torch.int8)


# Operators that are right, and compute in another way than their references.
RIGHT = {
    "sigmoid": (torch.sigmoid, in_float(lambda input: 1 / (1 + torch.exp(-input))), None),
    "silu": (F.silu, in_float(lambda input: input / (1 + torch.exp(-input))), None),
    "gelu": (F.gelu, in_float(lambda input: 0.5 * input * (1 + torch.erf(input * 0.5**0.5))), None),
    "softmax": (lambda input: torch.softmax(input, -1), in_float(softmax), softmax_grad),
    "variance": (lambda input: input.var(-1, correction=0), in_float(two_pass), None),
    "variance_in_turn": (lambda input: input.var(-1, correction=0), in_float(welford), None),
    "deviation": (lambda input: input.std(-1, correction=0), in_float(lambda input: two_pass(input).sqrt()), None),
    "layer_norm": (lambda input: F.layer_norm(input, input.shape[-1:]), in_float(normalized(two_pass)), None),
    "largest": (lambda input: input.amax(-1), lambda input: input.max(-1).values, first_of_equal),
    "clamped": (
        lambda input: input.clamp(-1, 1),
        lambda input: input.clamp(-1, 1),
        lambda grad, input: (grad * ((input >= -1) & (input <= 1)),),
    ),
    "total": (lambda input: input.sum(-1), in_float(added_in_turn), None),
    "codes": (
        lambda input: torch.round(input / (input.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127)).to(torch.int8),
        lambda input: codes(input.float()),
        None,
    ),
    "remainder": (
        lambda input: torch.remainder(input, 0.75),
        in_float(lambda input: input - torch.floor(input / 0.75) * 0.75),
        None,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_of_a_right_operator_all_regimes_hold(name):
    reference, kernel, gradient = RIGHT[name]
    operator = declare(f"right_{name}", UNARY, reference, kernel, gradient)
    assert ask(operator, ROWS, summed=lambda input: input.shape[-1]) == {}


@pytest.mark.parametrize("name", ["attention", "squared_distance"])
def test_of_a_right_operator_of_several_tensors_all_regimes_hold(name):
    def attention(query, key):
        return torch.softmax(query @ key.mT, -1) @ key

    def distance(one, other):
        return (one[:, None] - other[None]).square().sum(-1)

    functions = {
        "attention": (attention, lambda query, key: softmax(query @ key.mT) @ key),
        "squared_distance": (distance, distance),
    }
    reference, kernel = functions[name]
    operator = declare(f"right_{name}", BINARY, reference, in_float(kernel))
    assert ask(operator, PAIRS, summed=lambda input, other: input.shape[-1]) == {}


CAUSES = {
    "overflows_in_exp": "overflows: finite up to about 88.7 in input and infinite beyond",
    "cancels_near_zero": "loses digits by cancellation: error ",
    "cancels_around_a_mean": "times that of the reference when the values of input have a mean of 10000",
    "divides_by_a_length_of_zero": "0/0 for a row of zeros in input",
    "takes_the_last_of_equal": "ties: where values are equal, the result for input rounded is",
    "squares_huge_numbers": "overflows: finite up to about 1.84e+19 in input and infinite beyond",
    "multiplies_masks": "the result is nan for mask with elements of -inf",
    "loses_a_masked_block": "the result is nan for mask with False in all but the last column and True beside",
    "begins_a_maximum_at_zero": "the result is -inf for input with a mean of -10000, where the reference is finite",
    "halves_towards_zero": "the result for input negated is 0 and the reference's -1",
    "squares_tiny_numbers": "underflows: the result is 0 for input and other times 1e-30, where that of the",
    "takes_no_sign_of_zero": "takes -0.0 for 0 in input: the result is 1, and the reference's -1",
    "takes_subnormals_for_zero": "underflows: the result is 0 for input in subnormal numbers",
    "adds_bytes_in_a_byte": "the result for input at the maximum of its dtype is -128 and the reference's 128",
    "divides_by_a_range_of_zero": "is nan for input all equal to its first, where the reference is finite (0/0,",
    "has_no_gradient_at_a_limit": "a kink: for input rounded the gradient of input is not that of the reference",
    "takes_even_numbers_alone": "the result of by=3 is the one of the call before",
    "has_another_kink": "a kink: for input rounded the gradient of input is not that of the reference",
    "divides_zero_by_zero": "0/0 for values that are rounded in input: the gradient of input is nan",
    "gives_each_maximum_all": "ties: for input rounded the gradient of input adds up to ",
    "overflows_in_its_gradient": "overflows in the gradient of input: finite up to about 88",
    "rounds_a_number": "rounds slope to float32",
    "rounds_a_number_to_halves": "rounds slope to float16: the result of slope=100000.0 in float16, with tensors times",
    "rounds_halves_away_from_zero": "rounds halves in another direction: the result for input halfway between",
    "batches_dimensions_that_are_counted_from_the_front": "torch.func.vmap over all tensors, with dim=-1 is wrong",
    "counts_positions_in_float32": "first of 16777217: the result of the operator is wrong",
    "swaps_numbers": "the result of slope=0.1 is wrong",
    "divides_by_what_is_left_of_a_number": "the result of slope=1.0 is wrong",
    "takes_the_larger_for_a_slope": "the result of slope=2.75 is wrong",
    "divides_running_sums_by_other_counts": "the result of running=True and mean=True (right one by one) is wrong",
    "forgets_weights_of_running_sums": "with weight given, as in sample 'weighted', running=True: the gradient",
    "ignores_a_number": "ignores slope: ",
    "has_a_gradient_for_one_number": "with slope=0.1: the gradient of input is wrong",
    "keeps_a_number": "a stale cache: something is kept from an earlier call: ",
    "ignores_a_flag": "ignores negative, or keeps something",
    "mistakes_the_sign_of_an_integer": "takes by=-2 for the number before",
    "keeps_what_is_left_out": "ignores that bias is left out, or keeps it from an earlier call",
    "returns_its_argument_unmoved": "with by=0, returns_its_argument_unmoved: result 0 of the kernel",
    "counts_ignored_rows_if_weighted": "with weight given, as in sample 'weights': the gradient of input is wrong",
    "loses_the_gradient_of_the_last": "the gradient of table is wrong for index counted from the end",
    "leaves_out_no_row_from_the_end": "with row=-2: the gradient of input is wrong",
    "keeps_what_equals_a_limit": "the result is 0.6000000238418579 for input at limit=0.6 and multiples, and the",
    "adds_up_sizes_to_see_infinity": "the result is right up to about 9.63e+36 in input and wrong beyond",
    "skips_zeros": "the pattern of NaN, infinite and finite values in the result of input with one nan, where",
    "sorts_some_nan_first": "the pattern of NaN, infinite and finite values in the result of input with one NaN with",
    "has_the_slope_of_its_result": "with slope=0.0: the gradient of input is wrong",
    "ranks_in_float32": "takes float64 for float32: the result for input that float32 does not tell apart",
    "mean_of_none": "the result is 0.0 for group all equal to its smallest, where the reference gives NaN",
}


@pytest.mark.parametrize("bug", values.BUGS, ids=lambda bug: bug.name)
def test_a_failure_names_its_cause(bug):
    failure = find_by_property(bug, "cpu").failure
    assert CAUSES[bug.name] in failure.message.partition("\n")[0]
    assert not failure.traceback


def test_an_epsilon_beside_a_root_is_no_loss_of_digits():
    def normalized(within, beside):
        return lambda input: input / ((input.square().mean(-1, keepdim=True) + within).sqrt() + beside)

    operator = declare("beside_a_root", UNARY, in_float(normalized(1e-5, 0)), in_float(normalized(0, 1e-5)))
    message = ask(operator, ROWS, "value_regimes")["value_regimes", "float16"]
    assert "an epsilon that the definition does not have, or has in another place" in message


@pytest.mark.parametrize("bug", values.BUGS, ids=lambda bug: bug.name)
def test_ordinary_values_do_not_tell(bug):
    names = ["value", "gradient"] if bug.caught_by == "gradient_regimes" else ["value"]
    jobs = make_jobs([subject_of(bug.operator)], devices=["cpu"], properties=names, quick=True)
    assert {run_job(job).status for job in jobs if job.dtype.is_floating_point} <= {"pass"}


def in_blocks(of_block, width):
    """A kernel that computes each block of so many columns alone."""
    return lambda input: torch.cat([of_block(block) for block in input.split(width, -1)], -1)


def scaled(block):
    return block / block.abs().amax(-1, keepdim=True).clamp(min=1e-12)


def span(block):
    return block.amax(-1, True) - block.amin(-1, True)


def softmax_until(is_last, width):
    """Adds up the powers of blocks of a row until there is nothing more in one, as where a mask is causal."""

    def kernel(input):
        powers = torch.exp(input - input.amax(-1, keepdim=True))
        total = torch.zeros_like(input[..., :1])
        for block in powers.split(width, -1):
            if is_last(block):
                break
            total = total + block.sum(-1, keepdim=True)
        return powers / total

    return kernel


def softmax_of_rows(input):
    return torch.softmax(input, -1)


# Kernels in blocks of columns, right where a block holds some ordinary value, and a part of what a failure says.
OF_PARTS = {
    "a block of zeros": (
        in_blocks(scaled, 32),
        in_blocks(lambda block: block / block.abs().amax(-1, keepdim=True), 32),
        "zeros in all but the last column",
    ),
    "wide blocks of zeros": (
        in_blocks(scaled, 128),
        in_blocks(lambda block: block / block.abs().amax(-1, keepdim=True), 128),
        "zeros in all but the last column",
    ),
    "equal values": (
        in_blocks(lambda block: (block - block.amin(-1, True)) / span(block).clamp(min=1e-12), 64),
        in_blocks(lambda block: (block - block.amin(-1, True)) / span(block), 64),
        "in all but the",
    ),
    "a masked block": (softmax_of_rows, softmax_until(lambda block: not block.any(), 64), "in all but the"),
    "a masked block of a warp": (softmax_of_rows, softmax_until(lambda block: not block.any(), 16), "in all but the"),
    "large values": (
        softmax_of_rows,
        lambda input: torch.exp(input - input[..., :1] - 80) / torch.exp(input - input[..., :1] - 80).sum(-1, True),
        "times 3000 in all but the",
    ),
}


@pytest.mark.parametrize("name", OF_PARTS)
def test_whole_blocks_of_a_row_are_special(name):
    reference, kernel, words = OF_PARTS[name]
    table = (Sample("two rows", (Drawn((2, 7)),)),)

    def in_wide_rows(input):
        return (kernel if input.shape[-1] > 128 else reference)(input)

    for number, function in enumerate((reference, in_wide_rows)):
        operator = declare(
            f"of_parts_{list(OF_PARTS).index(name)}_{number}", UNARY, reference, function, dtypes=(torch.float32,)
        )
        found = ask(operator, table, "value_regimes", summed=lambda input: input.shape[-1])
        assert bool(found) == (function is in_wide_rows), found
    assert words in found["value_regimes", "float32"]


def test_rows_become_wide_without_the_sizes_that_belong_to_numbers():
    seen = set()

    def noting(input, index):
        seen.add(tuple(input.shape))
        return input[index]

    operator = declare(
        "noting_rows",
        "(Tensor input, Tensor index) -> Tensor",
        lambda input, index: input[index],
        noting,
        dtypes={"input": FLOATS, "index": (torch.int64,)},
    )
    assert ask(operator, (Sample("rows", (Drawn((4, 3)), Drawn((5,), dtype=torch.int64, high=4))),)) == {}
    assert (4, 263) in seen


def test_the_limits_of_a_sample_hold():
    seen = []

    def reference(input):
        seen.append((input.min().item(), input.max().item()))
        return torch.log(input) + torch.log1p(-input)

    operator = declare("within_limits", UNARY, reference, lambda input: torch.log(input * (1 - input)))
    table = (Sample("probabilities", (Drawn((3, 5), low=0.01, high=0.99),)),)
    assert ask(operator, table, "value_regimes") == {}
    # Arguments that differ by a rounding may lie beyond a limit by as much.
    assert min(low for low, _ in seen) >= 0.0099
    assert max(high for _, high in seen) <= 0.9901
    # Without limits the same kernel is asked for numbers for which the reference is not defined, and passes too.
    assert ask(operator, (Sample("probabilities", (Drawn((3, 5), values=(0.25, 0.5)),)),), "value_regimes") == {}


@pytest.mark.parametrize(
    ("drawn", "factor", "makes_sense"),
    [
        (Drawn((4,)), 30.0, True),
        (Drawn((4,), low=0.0), 30.0, True),
        (Drawn((4,), low=0.0), -1.0, False),
        (Drawn((4,), low=0.0, high=1.0), 30.0, False),
        (Drawn((4,), values=(0.5, 1.0)), 0.9, False),
        (Drawn((4,), ordered=True), 30.0, True),
        (Drawn((4,), ordered=True), -1.0, False),
        (Drawn((4,), distinct=True, values=(1.0, 2.0, 3.0, 4.0)), 0.0, False),
        (Drawn((4,), rounded=torch.bfloat16), 1.001, False),
    ],
)
def test_values_change_as_far_as_a_sample_allows(drawn, factor, makes_sense):
    operator = Operator.registered.get("regimes::limited") or declare("limited", UNARY, torch.neg, torch.neg)
    subject = Subject(operator, Samples((Sample("four", (drawn,)),)), beside=False)
    call = Case(subject, torch.device("cpu"), torch.float32).call(subject.samples.table[0])
    assert list(units(call, is_number)) == [Unit("input", (0,))]
    assert (changed(call, Unit("input", (0,)), times(factor)) is not None) == makes_sense


@pytest.mark.parametrize(("low", "high"), [(None, None), (0.5, None), (None, -0.5), (0.0, 1.0), (-3.0, 7.0)])
def test_real_numbers_are_drawn_within_limits(low, high):
    made = Drawn((1000,), low=low, high=high).make("cpu", torch.float64, torch.Generator().manual_seed(0))
    assert low is None or made.min() >= low
    assert high is None or made.max() <= high
    assert made.unique().numel() == 1000
    if low is not None and high is not None:
        # Evenly: a tenth of them lies in each tenth.
        shares = torch.histc(made, 10, low, high) / 1000
        assert ((shares - 0.1).abs() < 0.04).all()


def test_an_operator_may_refuse_values():
    def kernel(input):
        if input.abs().max() > 20:
            raise ValueError("refusing: input must lie between -20 and 20")
        return torch.log(1 + torch.exp(input))

    operator = declare("refusing", UNARY, lambda input: torch.log(1 + torch.exp(input)), kernel, dtypes=FLOATS[:2])
    assert ask(operator, ROWS, "value_regimes") == {}


def test_a_reference_that_overflows_itself_asks_nothing():
    naive = declare("as_its_reference", UNARY, lambda x: torch.log(1 + torch.exp(x)), in_float(F.softplus))
    assert ask(naive, ROWS, "value_regimes") == {}


def test_a_sample_says_where_any_gradient_is_right_at_a_kink():
    operator = declare("other_side", UNARY, torch.relu, torch.relu, lambda grad, input: (grad * (input >= 0),))
    assert ask(operator, ROWS, "gradient_regimes")
    assert ask(operator, ROWS, "gradient_regimes", kinks=lambda sample: False) == {}


OF_KINKS = (Sample("kinks", (Drawn((7,), values=(-3.0, 3.0, 0.0, 1.0, -4.0, 4.0, -1.0)),)),)


def with_hardswish_gradient(name, slope):
    return declare(name, UNARY, hardswish, hardswish, lambda grad, input: (grad * slope(input),), shapes="... -> ...")


def hardswish(input):
    return input * (input + 3).clamp(0, 6) / 6


def other_side(input):
    return torch.where(input <= -3, 0.0, torch.where(input >= 3, 1.0, (2 * input + 3) / 6)).to(input.dtype)


@pytest.mark.parametrize("asked", ["smoke", "gradient", "equal_sizes", "ranks", "limits"])
def test_a_sample_says_so_to_each_property_that_compares_gradients(asked):
    operator = with_hardswish_gradient(f"hardswish_{asked}", other_side)
    assert ask(operator, OF_KINKS, asked)
    assert ask(operator, OF_KINKS, asked, kinks=lambda sample: False) == {}


@pytest.mark.parametrize(("place", "value"), [(-4, 0.5), (3, torch.inf)], ids=["beside_a_kink", "not_finite"])
def test_where_kinks_are_free_a_gradient_is_right_elsewhere_and_finite(place, value):
    def wrong(input):
        return torch.where(input == place, value, other_side(input)).to(input.dtype)

    operator = with_hardswish_gradient(f"hardswish_at_{abs(place)}", wrong)
    assert ask(operator, OF_KINKS, "gradient", kinks=lambda sample: False)


def test_a_kernel_that_takes_what_the_reference_refuses_is_wrong():
    def reference(input, by):
        if by > 2:
            raise ValueError("by must be at most 2")
        return input * by

    operator = declare("takes_more", "(Tensor input, int by) -> Tensor", reference, lambda input, by: input * by)
    (message,) = ask(operator, (Sample("two", (Drawn((2,)), 2)),), "numbers").values()
    assert message.startswith("takes by=3, which the reference refuses: ValueError: by must be at most 2")


def known(exact, own, nearby=()):
    return OwnError(exact=exact, own=own, nearby=lambda: iter(nearby), dtype=torch.float32, summed=1)


def test_an_error_is_measured_by_that_of_the_reference():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = (exact + 1e-4).float()
    assert known(exact, exact.float()).worst(found).kind == "error"
    assert known(exact, (exact + 2e-5).float()).worst(found) is None
    assert known(exact, exact.float(), [exact + 2e-5]).worst(found) is None


def test_results_are_finite_where_those_of_the_reference_are_finite_and_right():
    exact = torch.tensor([1.0, 1e30, torch.inf, 1.0], dtype=torch.float64)
    own = torch.tensor([1.0, 1e30, torch.inf, 0.0])
    for place, kind in enumerate(("not finite", "not finite", None, None)):
        found = own.clone()
        found[place] = torch.nan
        worse = known(exact[place : place + 1], own[place : place + 1]).worst(found[place : place + 1])
        assert (worse and worse.kind) == kind


def test_equal_numbers_stay_equal_nearby():
    values = torch.tensor([1.0, 2.0, 1.0, -0.0, 2.0], dtype=torch.float64)
    made = [each for (each,) in nearby_arguments((values,), torch.float32, keep_ties=True)]
    assert all(each[0] == each[2] and each[1] == each[4] and each[3] == 0 for each in made)
    assert any(each[1] != 2 * each[0] for each in made)
    assert all(((each - values).abs() <= 1.2e-7 * values.abs()).all() for each in made)


def test_a_zero_is_no_missing_number_and_the_kernel_is_at_fault():
    def scaled(query, key, scale):
        return query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)

    def taken_for_missing(query, key, scale):
        return query @ key.mT * (scale or query.shape[-1] ** -0.5)

    schema = "(Tensor query, Tensor key, float? scale=None) -> Tensor"
    table = (
        Sample("as it is", (Drawn((2, 4)), Drawn((3, 4)))),
        Sample("with a scale", (Drawn((2, 4)), Drawn((3, 4)), 0.25)),
    )
    right = declare("scaled_products", schema, scaled, scaled)
    assert ask(right, table, "numbers", summed=lambda query, key, scale=None: query.shape[-1]) == {}
    wrong = declare("scaled_products_or", schema, scaled, taken_for_missing)
    asked = subject_of(wrong, Samples(table, summed=lambda query, key, scale=None: query.shape[-1]))
    (job,) = make_jobs([asked], devices=["cpu"], properties=["numbers"], quick=True)
    failure = run_job(job).failure
    assert failure.message.startswith("the result of scale=0.0 is wrong")
    assert failure.at_fault.startswith("the kernel: ")


def test_optional_tensors_are_no_numbers():
    def added(input, other):
        return input.clone() if other is None else input + other

    operator = declare("optional_tensor", "(Tensor input, Tensor? other=None) -> Tensor", added, added)
    assert ask(operator, (Sample("two", (Drawn((2,)), Drawn((2,)))),), "numbers") == {}


def test_a_list_of_optional_tensors_may_lack_one():
    def added(input, more):
        return sum((each for each in more if each is not None), input)

    def overflowing(input, more):
        return torch.log(torch.exp(added(input, more)))

    schema = "(Tensor input, Tensor?[] more) -> Tensor"
    table = (Sample("one is missing", (Drawn((2, 5)), [Drawn((2, 5)), None])),)
    assert ask(declare("optional_list", schema, added, added), table) == {}
    assert ask(declare("optional_list_overflows", schema, added, overflowing), table) != {}


def test_equal_maxima_may_divide_a_gradient_in_any_way_and_in_no_other():
    table = (Sample("rows", (Drawn((3, 5)),)), Sample("equal", (Drawn((2, 4), values=(1.0, 3.0, 3.0, 2.0)),)))
    properties = "smoke", "gradient", "second_gradient", "limits", "functional_gradients", "vmap"

    def to_the_second(grad, input):
        places = input.topk(2, -1).indices[..., 1:]
        is_tied = input.gather(-1, places) == input.amax(-1, keepdim=True)
        places = torch.where(is_tied, places, input.argmax(-1, keepdim=True))
        return (torch.zeros_like(input).scatter(-1, places, grad[..., None]),)

    def to_all(grad, input):
        return ((input == input.amax(-1, keepdim=True)) * grad[..., None],)

    reference, kernel, first = RIGHT["largest"]
    for name, gradient in (("first", first), ("second", to_the_second)):
        assert ask(declare(f"maximum_{name}", UNARY, reference, kernel, gradient), table, *properties) == {}
    failed = ask(declare("maximum_all", UNARY, reference, kernel, to_all), table, "smoke", "gradient")
    assert failed["gradient", "float32"].startswith("the gradient of input is wrong")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_rounded_to_halves_is_named(dtype):
    def scaled(input, scale):
        return (input.double() * scale).to(input.dtype)

    def rounded(input, scale):
        return input * torch.tensor(scale, dtype=input.dtype)

    operator = declare(
        f"scaled_in_{dtype}".replace("torch.", ""), "(Tensor input, float scale) -> Tensor", scaled, rounded
    )
    failed = ask(operator, (Sample("twice", (Drawn((4, 6)), 2.0)),), "numbers")
    assert "rounds scale to float16" in failed["numbers", "float64"]


def test_a_product_whose_order_decides_about_nan_is_not_asked():
    table = (Sample("large numbers and few zeros", (Drawn((2, 6), values=(0.0, *[1e30] * 400)),)),)

    def zero_first(input):
        return torch.where((input == 0).any(-1), 0, input.prod(-1))

    operator = declare("product_of_rows", UNARY, lambda input: input.prod(-1), zero_first, None, FLOATS[:2])
    assert ask(operator, table, "limits", "sizes") == {}
