"""`graft adopt`: operators that somebody else registered, right and wrong ones, checked without a declaration."""

import json

import pytest
import torch
from torch import Tensor
from torch.library import custom_op
from typer.testing import CliRunner

from torchgraft.checking.adopted import Adoption, adopt, declined
from torchgraft.checking.running import make_jobs, run_job
from torchgraft.checking.subject import find_subjects
from torchgraft.cli import app
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


def addcmul(input, tensor1, tensor2, value=1):
    return input + value * tensor1 * tensor2


def cumsum(input, dim, dtype=None):
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


def ask(operator, *properties):
    """What each property says, by its name: in float32 and float64, and the failure where one of them fails."""
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
    assert operator.sizes_from_data
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
    results = json.loads(report.read_text())["results"]
    assert [(each["operator"], each["status"]) for each in results] == [("aten::gelu", "pass")] * 4


def test_the_command_ends_with_one_line_where_the_question_is_wrong():
    done = CliRunner().invoke(app, ["adopt", "aten::gelu", "--reference", "torch:no_such"])
    assert done.exit_code == 2
    assert done.output.strip() == "torch has no function 'no_such'"
