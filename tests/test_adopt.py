"""`graft adopt`: operators that somebody else registered, right and wrong ones, checked without a declaration."""

import importlib
import json

import pytest
import torch
from torch import Tensor
from torch.library import custom_op
from typer.testing import CliRunner

from documents import read_document
from torchgraft.checking.adopting.adopted import adopt
from torchgraft.checking.adopting.adoption import Adoption
from torchgraft.checking.adopting.applicable import declined
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import find_subjects
from torchgraft.checking.workers import run_jobs
from torchgraft.cli import app
from torchgraft.operator import Operator
from torchgraft.sampling import Drawn, Sample, Samples

REFERENCES = """
import torch


def scaled(input, factor):
    return input * factor


def nonzero(input):
    return input.relu().flatten().nonzero()


def scaled_in_place(input, factor):
    return input * factor


def gelu(input, approximate="none"):
    if approximate == "tanh":
        return 0.5 * input * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (input + 0.044715 * input**3)))
    return 0.5 * input * (1 + torch.erf(input / 2**0.5))


def native_layer_norm(input, normalized_shape, weight, bias, eps):
    for each in (input[(0,) * (input.dim() - len(normalized_shape))], weight, bias):
        if not normalized_shape or (each is not None and list(each.shape) != list(normalized_shape)):
            raise ValueError("the last sizes of the input are to be normalized_shape")
    dims = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(dims, keepdim=True)
    mean, rstd = input.mean(dims, keepdim=True), (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    result = centred * rstd * (1 if weight is None else weight)
    return result + (0 if bias is None else bias), mean, rstd


def index_select(input, dim, index):
    if index.dim() != 1:
        raise ValueError("index has one dimension")
    return torch.stack([input.select(dim, int(place)) for place in index], dim)


def softmax(input, dim, dtype=None):
    exponents = (input if dtype is None else input.to(dtype)).exp()
    return exponents / exponents.sum(dim, keepdim=True)


def total(input, dim=None, keepdim=False, dtype=None):
    ones = torch.ones_like(input, dtype=dtype or input.dtype)
    return (input * ones).sum(dim, keepdim=keepdim)


def clamp(input, min=None, max=None):
    if min is None and max is None:
        raise ValueError("one of them is needed")
    input = input if min is None else torch.where(input < min, min, input)
    return input if max is None else torch.where(input > max, max, input)


def cat(tensors, dim=0):
    # An empty tensor of one dimension fits all.
    tensors = [each for each in tensors if list(each.shape) != [0]] or [tensors[0]]
    sizes = list(tensors[0].shape)
    if not -len(sizes) <= dim < len(sizes):
        raise IndexError("there is no such dimension")
    sizes[dim] = sum(each.shape[dim] for each in tensors)
    rows = [row for each in tensors for row in each.unbind(dim)]
    result = torch.stack(rows, dim) if rows else tensors[0].new_empty(sizes)
    if list(result.shape) != sizes or any(each.dim() != len(sizes) for each in tensors):
        raise ValueError("other sizes must be the same")
    return result


def masked_fill(input, mask, value):
    if mask.dtype != torch.bool:
        raise TypeError("mask holds booleans")
    return torch.where(mask, torch.as_tensor(value, dtype=input.dtype), input)


def bitwise_and(input, other):
    return ~(~input | ~other)


def hypot(input, other):
    return (input**2 + other**2).sqrt()


def product_of_codes(left, right):
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        raise ValueError("the sizes do not fit")
    return (left[:, :, None].int() * right[None].int()).sum(1, dtype=torch.int32)


def decoded(codes, scale):
    return codes * scale


def deviation(input, dim=None, correction=None, keepdim=False):
    dims = list(dim or range(input.dim()))
    count = torch.Size([input.shape[each] for each in dims]).numel() - (1 if correction is None else correction)
    squares = (input - input.mean(dims, keepdim=True)) ** 2
    return (squares.sum(dims, keepdim=keepdim) / max(count, 0)).sqrt()


def large_power(input):
    return 2**input + 2.0 ** (9 * input)


def addcmul_of_two(input, other):
    return input + input * other


def addcmul(input, tensor1, tensor2, value=1):
    return input + value * tensor1 * tensor2


def cumsum(input, dim, dtype=None):
    input = input if dtype is None else input.to(dtype)
    if not input.dim():
        return input.clone()
    return torch.stack([input.narrow(dim, 0, last + 1).sum(dim) for last in range(input.shape[dim])], dim)
"""


def _scaled(input: Tensor, factor: float) -> Tensor:
    return input * factor


def _wrong_value(input: Tensor, factor: float) -> Tensor:
    return input * factor if input.shape[-1:] != (3,) else input * factor + 1


def _writes_to_its_input(input: Tensor, factor: float) -> Tensor:
    result = input * factor
    input.mul_(factor)
    return result


def _keeps_context(ctx, inputs, output):
    ctx.factor = inputs[1]


def _gradient(ctx, grad):
    return grad * ctx.factor, None


def _declare(name, function=_scaled, *, gradient=_gradient, fake=torch.empty_like):
    operator = custom_op(f"adopt::{name}", function, mutates_args=())
    operator.register_fake(lambda input, factor: fake(input))
    if gradient:
        operator.register_autograd(gradient, setup_context=_keeps_context)


_declare("scaled")
_declare("wrong_value", _wrong_value)
_declare("wrong_gradient", gradient=lambda ctx, grad: (grad * ctx.factor**2, None))
_declare("missing_gradient", gradient=lambda ctx, grad: (None, None))
_declare("wrong_fake", fake=lambda input: input.new_empty(input.shape[::-1]))
_declare("writes_to_its_input", _writes_to_its_input)
_declare("without_gradient", gradient=None)


@custom_op("adopt::float32_only", mutates_args=())
def _float32_only(input: Tensor, factor: float) -> Tensor:
    if input.dtype != torch.float32:
        raise TypeError("float32_only takes float32")
    return input * factor


@custom_op("adopt::decoded", mutates_args=())
def _decoded(codes: Tensor, scale: Tensor) -> Tensor:
    if codes.dtype != torch.int8 or scale.numel() != 1 or not scale.is_floating_point():
        raise TypeError("decoded takes codes of int8, and one scale")
    return codes * scale


@custom_op("adopt::never", mutates_args=())
def _never(input: Tensor, factor: float) -> Tensor:
    raise TypeError("never takes float8_e4m3fn only")


@custom_op("adopt::nonzero", mutates_args=())
def _nonzero(input: Tensor) -> Tensor:
    return input.relu().flatten().nonzero()


@_nonzero.register_fake
def _(input):
    return input.new_empty((torch.library.get_ctx().new_dynamic_size(), 1), dtype=torch.int64)


@custom_op("adopt::scaled_in_place", mutates_args=("input",))
def _scaled_in_place(input: Tensor, factor: float) -> None:
    input.mul_(factor)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    path = tmp_path_factory.mktemp("adopted") / "references_of_adopted.py"
    path.write_text(REFERENCES)
    return path


def references_of(path):
    return importlib.import_module(path.stem)


def ask(operator, *properties):
    """The answer of each property, by its name: in float32 and float64, and the failure where one of them fails."""
    dtypes = (torch.float64, torch.float32)
    jobs = make_jobs(find_subjects([operator]), devices=["cpu"], properties=properties, dtypes=dtypes, quick=True)
    results = sorted(map(run_job, jobs), key=lambda result: result.status == "fail")
    return {result.property: result for result in results}


FAST = (
    "value",
    "sizes",
    "empty",
    "dtypes",
    "layouts",
    "inputs_and_outputs",
    "memory_bounds",
    "determinism",
    "gradient",
)
TRACED = ("second_gradient", "incoming_gradients", "opcheck", "fake", "compile", "export")


def test_of_a_right_operator_every_property_holds(references):
    operator = adopt(Adoption("torch.ops.adopt.scaled", f"{references}:scaled"))
    found = ask(operator, *FAST, *TRACED)
    assert {name: result.status for name, result in found.items()} == dict.fromkeys((*FAST, *TRACED), "pass"), [
        result.failure for result in found.values() if result.failure
    ]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("wrong_value", "value"),
        ("wrong_gradient", "gradient"),
        ("missing_gradient", "gradient"),
        ("wrong_fake", "fake"),
        ("writes_to_its_input", "inputs_and_outputs"),
    ],
)
def test_a_wrong_operator_is_caught_by_the_property_that_is_meant_to(references, name, wrong):
    operator = adopt(Adoption(f"adopt::{name}", f"{references}:scaled"))
    result = ask(operator, wrong)[wrong]
    assert result.status == "fail"
    assert result.failure.sample
    again = result.failure.reproduce
    assert again.startswith(f"graft adopt adopt::{name} --reference {references}:scaled --property {wrong} ")


@pytest.mark.parametrize("name", ["gelu", "native_layer_norm", "index_select", "addcmul", "cumsum"])
def test_of_pytorchs_own_values_and_gradients_are_those_of_references(references, name):
    operator = adopt(Adoption(f"torch.ops.aten.{name}.default", f"{references}:{name}"))
    assert len(operator.samples.table) >= 8
    found = ask(operator, "value", "sizes", "layouts", "gradient", "incoming_gradients")
    assert {result.status for result in found.values()} == {"pass"}, [each.failure for each in found.values()]


def test_an_adopted_operator_offers_all_that_an_operator_does(references):
    """Properties and tools may ask any of it. Only what registers needs the rest."""
    of_registration = {
        "_library",
        "declaration_word",
        "identity",
    }
    adopted, declared = (
        adopt(Adoption("adopt::scaled", f"{references}:scaled")),
        Operator.registered["torchgraft::shift"],
    )
    assert set(vars(declared)) - set(vars(adopted)) == of_registration
    for name in {*vars(declared), *dir(Operator)} - of_registration:
        assert hasattr(adopted, name), name


def ask_all(operator):
    """The failures of every property that is asked if nobody names any."""
    results = run_jobs(make_jobs(find_subjects([operator]), devices=["cpu"], quick=True), workers=2)
    return {result.property: result.failure.message for result in results if result.status == "fail"}


# What PyTorch's own operators do on a CPU: properties that find it may fail.
FOUND = {
    "gelu": {"non_finite": "of infinity it gives NaN in oneDNN"},
    "softmax.int": {
        "determinism": "another number of threads gives other bits",
        "non_finite": "it subtracts the greatest, so one infinity makes all NaN, and here others are 0",
    },
    "addcmul": {"fake": "its fake kernel cannot be traced if sizes are symbolic and tensors broadcast"},
    "native_layer_norm": {
        "non_finite": "the mean of one infinity is NaN",
        "second_gradient": "without a weight and with a bias it has none",
        "functional_gradients": "the same",
        "fake": "in bfloat16 its fake mean is float32 and its real one bfloat16",
    },
    "index_select": {"bad_input": "it takes an index without a dimension"},
}
# Defaults of text and of a dtype; optional numbers; a Scalar; lists; several results; integers, masks and indices.
KINDS = {
    "gelu": "gelu",
    "softmax.int": "softmax",
    "sum.dim_IntList": "total",
    "clamp": "clamp",
    "cumsum": "cumsum",
    "addcmul": "addcmul",
    "cat": "cat",
    "native_layer_norm": "native_layer_norm",
    "bitwise_and.Tensor": "bitwise_and",
    "masked_fill.Scalar": "masked_fill",
    "index_select": "index_select",
    "hypot": "hypot",
}


# gelu is asked below.
@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.slow) for each in KINDS if each != "gelu"])
def test_every_property_is_asked_of_each_kind_of_operator(references, name):
    failed = ask_all(adopt(Adoption(f"torch.ops.aten.{name}", f"{references}:{KINDS[name]}")))
    assert failed.keys() <= FOUND.get(name, {}).keys(), failed


def test_every_property_is_asked_where_nobody_names_any(references, tmp_path):
    report = tmp_path / "report.json"
    words = ["adopt", "torch.ops.aten.gelu", "--reference", f"{references}:gelu", "--quick", "--json", str(report)]
    done = CliRunner().invoke(app, [*words, "--workers", "2"])
    results = json.loads(report.read_text())["results"]
    assert {each["property"] for each in results} > {"value", "gradient", "compile", "vmap", "stress"}
    failed = {each["property"] for each in results if each["status"] == "fail"}
    assert failed <= FOUND["gelu"].keys(), done.output
    assert done.exit_code == bool(failed)


def test_a_wrong_reference_is_caught_where_nobody_names_a_property(references):
    assert {"value", "sizes", "gradient", "stress"} <= ask_all(
        adopt(Adoption("torch.ops.aten.hypot", f"{references}:addcmul_of_two"))
    ).keys()


@pytest.mark.parametrize("name", ["softmax.int", "sum.dim_IntList", "cumsum"])
def test_a_dtype_may_be_an_argument(references, name):
    operator = adopt(Adoption(f"torch.ops.aten.{name}", f"{references}:{KINDS[name]}"))
    assert {torch.float32, None} < {sample.arguments[-1] for sample in operator.samples.table}
    found = ask(operator, "value", "sizes", "gradient", "second_gradient", "stress")
    assert {result.status for result in found.values()} == {"pass"}, [each.failure for each in found.values()]


@pytest.mark.parametrize(
    ("target", "reference", "dtypes"),
    [
        ("aten::_int_mm", "product_of_codes", (torch.int8, torch.int8)),
        ("adopt::decoded", "decoded", (torch.int8, None)),
        ("aten::bitwise_and.Tensor", "bitwise_and", (torch.int64, torch.int64)),
    ],
)
def test_dtypes_of_tensors_are_found(references, target, reference, dtypes):
    operator = adopt(Adoption(target, f"{references}:{reference}"))
    assert {tuple(tensor.dtype for tensor in sample.tensors) for sample in operator.samples.table} == {dtypes}
    assert {result.status for result in ask(operator, "value", "layouts", "memory_bounds").values()} == {"pass"}


def test_an_operator_may_take_one_dtype_of_numbers(references):
    operator = adopt(Adoption("adopt::float32_only", f"{references}:scaled"))
    assert operator.declaration.dtypes == (torch.float32,)
    assert "torch.float64: refused, float32_only takes float32" in operator.notes


def test_results_of_samples_are_numbers_in_each_dtype(references):
    """Else what is finite in float64 is infinite in float16, and no fault of the operator."""
    operator = adopt(Adoption("torch.ops.aten.exp2", f"{references}:large_power"))
    for sample in operator.samples.table:
        (input,) = sample.make("cpu", torch.float64)
        assert references_of(references).large_power(input).half().isfinite().all()


def test_samples_have_gradients(references):
    """A standard deviation of equal numbers is zero, and its derivative is none."""
    operator = adopt(Adoption("torch.ops.aten.std.correction", f"{references}:deviation"))
    found = ask(operator, "value", "gradient", "second_gradient", "stress")
    assert {result.status for result in found.values()} == {"pass"}, [each.failure for each in found.values()]


def test_where_no_call_makes_sense_the_reasons_are_told(references):
    with pytest.raises(LookupError, match=r"dtype=torch.int8[\s\S]*[1-9]\d* x the operator: never takes float8_e4m3fn"):
        adopt(Adoption("adopt::never", f"{references}:scaled"))


def test_fake_results_are_laid_out_as_the_operator_lays_them_out_and_not_as_the_reference(references):
    operator = adopt(Adoption("torch.ops.aten.cat", f"{references}:cat"))
    images = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert operator.declaration.output([images], 0).is_contiguous(memory_format=torch.channels_last)


def test_what_is_not_registered_is_not_asked_for(references):
    operator = adopt(Adoption("adopt::without_gradient", f"{references}:scaled"))
    assert any("no autograd formula" in note for note in operator.notes)
    found = ask(operator, "value", "gradient", "second_gradient", "autocast", "flops", "fallbacks", "pickle")
    assert found.pop("value").status == "pass"
    assert {result.status for result in found.values()} == {"not applicable"}
    assert all(result.reason for result in found.values())


def test_an_argument_of_which_a_person_says_that_it_has_no_gradient_is_not_asked_for_one(references):
    operator = adopt(Adoption("adopt::missing_gradient", f"{references}:scaled", without_gradient=("input",)))
    assert ask(operator, "gradient")["gradient"].status == "not applicable"


def test_what_an_author_left_out_is_no_failure(references):
    operator = adopt(Adoption("adopt::scaled", f"{references}:scaled"))
    left_out = NotImplementedError("You must implement the jvp function for custom autograd.Function")
    assert "its author excluded it" in declined(operator, "forward_mode", left_out)
    assert not declined(operator, "value", left_out)
    assert not declined(operator, "forward_mode", RuntimeError("out of memory"))


def test_sizes_may_depend_on_data(references):
    operator = adopt(Adoption("adopt::nonzero", f"{references}:nonzero"))
    assert operator.declaration.sizes_from_data
    assert {result.status for result in ask(operator, "value", "fake").values()} == {"pass"}


def test_an_operator_may_write_to_what_its_schema_names(references):
    operator = adopt(Adoption("adopt::scaled_in_place", f"{references}:scaled_in_place"))
    assert {result.status for result in ask(operator, "value", "layouts", "memory_bounds").values()} == {"pass"}


def test_samples_of_a_person_go_before_drawn_ones(references, tmp_path):
    path = tmp_path / "samples_of_adopted.py"
    path.write_text(
        "from torchgraft.sampling import Drawn, Sample, Samples\n"
        "samples = {'scaled': Samples([Sample('two', (Drawn((2,)), 0.5))])}\n"
    )
    operator = adopt(Adoption("adopt::scaled", f"{references}:scaled", samples=str(path)))
    assert operator.samples == Samples([Sample("two", (Drawn((2,)), 0.5))], summed=operator.samples.summed)
    assert not operator.notes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"target": "gelu"}, "'gelu' is not an operator"),
        ({"target": "aten::no_such"}, "name the module that registers it with --import"),
        ({"target": "aten::add"}, "give one of the overloads of aten::add: Tensor, "),
        ({"target": "aten::add_.Tensor"}, "returns an argument or a view of one"),
        ({"target": "aten::empty.memory_format"}, "a schema needs at least one tensor argument"),
        ({"reference": "torch"}, "module:function or file.py:function"),
        ({"reference": "torch:no_such"}, "has no function 'no_such'"),
        ({"reference": "no_such_module:f"}, "there is no module 'no_such_module'"),
        ({"reference": "torch:bincount"}, "too few to check. Write samples"),
        ({"samples": "torch"}, "has no samples for adopt::scaled"),
        ({"without_gradient": ("no_such",)}, "must name one of the tensors input"),
    ],
)
def test_a_mistake_of_a_person_is_explained(references, words, said):
    with pytest.raises(LookupError, match=said):
        adopt(Adoption(**{"target": "adopt::scaled", "reference": f"{references}:scaled", **words}))


def test_the_command_says_what_it_found_and_writes_it(references, tmp_path):
    report = tmp_path / "report.json"
    words = ["adopt", "torch.ops.aten.gelu", "--reference", f"{references}:gelu", "--property", "value"]
    # A process of its own, which makes the operator again.
    done = CliRunner().invoke(app, [*words, "--workers", "1", "--json", str(report)])
    assert done.exit_code == 0, done.output
    assert "random calls that fit the schema" in done.output
    assert "every property holds" in done.output
    results = read_document("check", report.read_text())["results"]
    assert [(each["operator"], each["status"]) for each in results] == [("aten::gelu", "pass")] * 4


def test_the_command_ends_with_one_line_where_the_question_is_wrong():
    done = CliRunner().invoke(app, ["adopt", "aten::gelu", "--reference", "torch:no_such"])
    assert done.exit_code == 2
    assert done.output.strip() == "torch has no function 'no_such'"
