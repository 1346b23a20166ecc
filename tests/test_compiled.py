"""Compiled code belongs to one declaration: no other one gets its value, its gradient or the layout of its results."""

import functools
import itertools
from inspect import currentframe
from types import SimpleNamespace

import pytest
import torch
from functorch.compile import make_boxed_compiler, make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.exc import InductorError
from torch._inductor.utils import fresh_cache
from torch.utils.flop_counter import FlopCounterMode

from torchgraft import Operator
from torchgraft.checking.call import Call
from torchgraft.checking.properties.compile import _check_static as check_static
from torchgraft.checking.properties.compile import _compiler_expected as compiler_expected
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.sampling import Drawn, Sample, Samples

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

numbers = itertools.count()


def times(factor, schema="(Tensor x) -> Tensor", **declared):
    """An operator that multiplies by a factor; all of them have the same code."""
    return Operator(
        f"compiled::times_{next(numbers)}{schema}",
        reference=lambda x: x * factor,
        gradient=lambda needs_grad, grads, saved, x: grads[0] * factor,
        kernels={},
        **declared,
    )


def pair(factor):
    """The same, with a hidden result and two visible ones."""
    return Operator(
        f"compiled::times_{next(numbers)}(Tensor x) -> (Tensor, Tensor, Tensor)",
        reference=lambda x: (x * factor, x + factor, x * 1),
        gradient=lambda needs_grad, grads, saved, x: sum(
            grad * by for grad, by in zip(grads, (factor, 1), strict=True) if grad is not None
        ),
        visible_outputs=2,
        kernels={},
    )


def of_list(factor):
    """The same of a list of tensors, with a list of results."""
    return Operator(
        f"compiled::times_{next(numbers)}(Tensor[] x) -> Tensor[]",
        reference=lambda x: [factor * each for each in x],
        gradient=lambda needs_grad, grads, saved, x: ([factor * grad for grad in grads[0]],),
        kernels={},
    )


def by_reference(factor):
    return Operator(
        f"compiled::times_{next(numbers)}(Tensor x) -> Tensor", reference=lambda x: x * factor, gradient="reference"
    )


def without_formula(factor):
    return Operator(f"compiled::times_{next(numbers)}(Tensor x) -> Tensor", reference=lambda x: x * factor)


class Layer(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x):
        return self.operator(x)


def through_a_closure(operator):
    return lambda x: operator(x)


def through_an_argument(operator):
    compiled = torch.compile(lambda function, x: function(x), backend="aot_eager", fullgraph=True)
    return lambda x: compiled(operator, x)


here = SimpleNamespace(operator=None)


def _call_what_is_here(x):
    return here.operator(x)


def through_what_is_bound_anew(operator):
    def call(x):
        here.operator = operator
        return compiled(x)

    compiled = torch.compile(_call_what_is_here, backend="aot_eager", fullgraph=True)
    return call


ROUTES = {"attribute": Layer, "closure": through_a_closure}
ROUTES_COMPILED = {"argument": through_an_argument, "rebound": through_what_is_bound_anew}


def value_and_gradient(function, x):
    x = x.clone().requires_grad_()
    result = function(x)
    result = result[0] if isinstance(result, (tuple, list)) else result
    result.sum().backward()
    return result[0].item(), x.grad[0].item()


@pytest.mark.parametrize("declare", [times, pair, by_reference, without_formula], ids=lambda each: each.__name__)
@pytest.mark.parametrize("route", [*ROUTES, *ROUTES_COMPILED])
def test_each_operator_gets_its_own_value_and_gradient(declare, route):
    found = []
    for factor in (2.0, 3.0, 5.0):
        operator = declare(factor)
        if route in ROUTES:
            function = torch.compile(ROUTES[route](operator), backend="aot_eager", fullgraph=True)
        else:
            function = ROUTES_COMPILED[route](operator)
        found.append(value_and_gradient(function, torch.ones(3)))
    assert found == [(2.0, 2.0), (3.0, 3.0), (5.0, 5.0)]


@pytest.mark.parametrize("kind", ["float", "float[]", "int", "Scalar"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_number_reaches_several_operators(kind, backend):
    """PyTorch 2.13 loses a number that it first meets in one autograd.Function in the next one."""
    is_list = kind.endswith("[]")

    def scaling(name):
        def of(x, amount):
            return x * (amount[0] if is_list else amount)

        return Operator(
            f"several::{name}(Tensor x, {kind} amount) -> Tensor",
            reference=of,
            output=lambda x, amount: torch.empty_like(x),
            gradient=lambda needs_grad, grads, saved, x, amount: of(grads[0], amount),
            kernels={},
        )

    one, two = scaling("one"), scaling("two")

    def model(x, amount):
        given = [amount] if is_list else amount
        return two(one(x, given), given) * amount

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    try:
        for amount in (2, 3, 5) if kind == "int" else (1.5, 2.5, 3.5):
            x = torch.ones(2, requires_grad=True)
            result = compiled(x, amount)
            result.sum().backward()
            assert result.unique().item() == x.grad.unique().item() == amount**3
    finally:
        one.undeclare()
        two.undeclare()


def test_lists_too():
    def gradient(operator):
        function = torch.compile(lambda *x: operator(list(x)), backend="aot_eager", fullgraph=True)
        one, other = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
        first, second = function(one, other)
        (first.sum() + 10 * second.sum()).backward()
        return one.grad[0].item(), other.grad[0].item()

    assert [gradient(of_list(factor)) for factor in (2.0, 3.0)] == [(2.0, 20.0), (3.0, 30.0)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of TorchDynamo's own look
def test_layers_compiled_one_by_one():
    model = torch.nn.Sequential(Layer(times(2.0)), Layer(times(3.0)))
    for layer in model:
        layer.compile(backend="aot_eager")
    assert value_and_gradient(model, torch.ones(2)) == (6.0, 6.0)


def test_by_inductor():
    layers = [torch.compile(Layer(times(factor)), fullgraph=True) for factor in (2.0, 3.0)]
    assert [value_and_gradient(layer, torch.ones(2)) for layer in layers] == [(2.0, 2.0), (3.0, 3.0)]


def test_vmap_of_a_gradient():
    def gradients(operator):
        function = torch.vmap(torch.func.grad(lambda x: operator(x).sum()))
        return torch.compile(function, backend="aot_eager", fullgraph=True)(torch.ones(2, 2)).unique().tolist()

    assert [gradients(times(2.0)), gradients(times(3.0))] == [[2.0], [3.0]]


def test_operators_that_write_to_their_arguments():
    def result(factor):
        operator = Operator(
            f"compiled::scale_{next(numbers)}(Tensor(a!) x) -> ()", reference=lambda x: x * factor, kernels={}
        )
        x = torch.ones(1)
        torch.compile(lambda x: operator(x), backend="aot_eager", fullgraph=True)(x)
        return x.item()

    assert [result(2.0), result(3.0)] == [2.0, 3.0]


def test_one_name_declared_again():
    def declare(factor):
        return Operator(
            "compiled::again(Tensor x) -> Tensor",
            reference=lambda x: x * factor,
            gradient=lambda needs_grad, grads, saved, x: grads[0] * factor,
            kernels={},
        )

    holder = SimpleNamespace(operator=None)
    compiled = torch.compile(lambda x: holder.operator(x), backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0, 2.0):
        holder.operator = declare(factor)
        assert value_and_gradient(compiled, torch.ones(2)) == (factor, factor)
        holder.operator.undeclare()


class TestCachesOnDisk:
    """PyTorch keeps compiled graphs, with the layout of every result, by the names of the operators in them."""

    @staticmethod
    def run(output, reference=lambda x: 3 * x, then=lambda: None):
        operator = Operator(
            "compiled::cached(Tensor x) -> Tensor",
            reference=reference,
            output=output,
            gradient=lambda needs_grad, grads, saved, x: 3 * grads[0].to(x.dtype).reshape(x.shape),
            kernels={},
        )
        then()
        torch._dynamo.reset()
        try:
            x = torch.ones(2, 3, requires_grad=True)
            result = torch.compile(lambda x: operator(x) * 1.5 + operator(x), fullgraph=True)(x)
            result.sum().backward()
            assert torch.equal(result, 7.5 * torch.ones_like(result)), result
            assert torch.equal(x.grad, torch.full((2, 3), 7.5))
            return result.dtype, result.shape, operator.declaration_word
        finally:
            operator.undeclare()

    def test_another_output_compiles_anew(self):
        with fresh_cache():
            plain = self.run(torch.empty_like)
            wide = self.run(lambda x: torch.empty_like(x, dtype=torch.float64))
            turned = self.run(lambda x: x.new_empty(3, 2).t())
            flat = self.run(lambda x: x.new_empty(x.numel()), lambda x: 3 * x.flatten())
        assert [each[0] for each in (plain, wide, turned, flat)] == [torch.float32, torch.float64, *[torch.float32] * 2]
        assert flat[1] == (6,)
        assert len({each[2] for each in (plain, wide, turned, flat)}) == 4

    @pytest.mark.parametrize("route", ["defined later", "set in a class", "set in a container", "a decorator's"])
    def test_what_is_set_after_the_declaration_counts_too(self, route):
        class Setting:
            dtype = None

        class Decorator:
            def __init__(self, function, dtype):
                functools.update_wrapper(self, function)
                self.dtype = dtype

            def __call__(self, x):
                return self.__wrapped__(x, self.dtype)

        def empty(x, dtype):
            return torch.empty_like(x, dtype=dtype)

        found = []
        with fresh_cache():
            for dtype in (torch.float32, torch.float64, torch.float32):
                container, world = {}, {"torch": torch}
                output = {
                    "defined later": eval("lambda x: later(x)", world),
                    "set in a class": lambda x: empty(x, Setting.dtype),
                    "set in a container": lambda x, container=container: empty(x, container["dtype"]),
                    "a decorator's": Decorator(empty, dtype),
                }[route]

                def set_it(dtype=dtype, container=container, world=world):
                    Setting.dtype = container["dtype"] = world["dtype"] = dtype
                    exec("def later(x):\n    return torch.empty_like(x, dtype=dtype)", world)

                found.append(self.run(output, then=set_it)[0])
        assert found == [torch.float32, torch.float64, torch.float32]

    def test_the_same_declaration_is_found_again(self):
        from torch._dynamo.utils import counters

        with fresh_cache():
            words = {self.run(lambda x: torch.empty_like(x))[2]}
            counters.clear()
            words.add(self.run(lambda x: torch.empty_like(x))[2])
        assert len(words) == 1
        assert counters["inductor"]["fxgraph_cache_hit"] == 2
        assert counters["inductor"]["fxgraph_cache_miss"] == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "reference"])
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_lazy_conjugates_inside_are_computed_in_the_first_call_and_under_a_mode(backend, has_kernel):
    # AOTAutograd makes the first call under a mode, in which PyTorch leaves out what computes them.
    product = Operator(
        f"compiled::product_{backend}_{has_kernel}(Tensor left, Tensor right) -> Tensor",
        reference=lambda left, right: left.conj() * right,
        output=lambda left, right: torch.empty_like(left),
        dtypes=(torch.complex64,),
        kernels={"cpu": (torch.complex64,)} if has_kernel else "reference",
    )
    if has_kernel:

        @product.kernel("cpu")
        def conjugated_product(left, right):
            return (left.conj() * right).resolve_conj()

    left, right = torch.tensor([1 + 2j]), torch.tensor([3 - 1j])
    function = torch.compile(lambda left, right: product(left, right), backend=backend)
    assert [function(left, right).item() for _ in range(2)] == [1 - 7j] * 2
    with FlopCounterMode(display=False):
        assert product(left, right).item() == 1 - 7j


@pytest.mark.parametrize("gradient", [None, "reference", "formula"])
@pytest.mark.parametrize(
    ("results", "of"),
    [
        ("Tensor", lambda x: (x > 0).long()),
        ("(Tensor, Tensor)", lambda x: (x > 0, x.long())),
        ("Tensor[]", lambda x: [(x > 0).int()]),
        ("(Tensor, Tensor[])", lambda x: (x > 0, [x.long(), (x > 1).to(torch.uint8)])),
    ],
)
def test_results_that_are_whole_numbers_have_no_gradient(results, of, gradient):
    asked = []
    operator = Operator(
        f"compiled::whole_{next(numbers)}(Tensor x) -> {results}",
        reference=of,
        gradient=(lambda *arguments: asked.append(arguments) or (None,)) if gradient == "formula" else gradient,
        kernels={},
    )
    x = torch.tensor([-1.5, 0.5, 2.0], requires_grad=True)

    def trained(x):
        found = torch.utils._pytree.tree_leaves(operator(x))
        return sum((each * x).sum() for each in found)

    expected = torch.autograd.grad(trained(x), x)
    found = torch.autograd.grad(torch.compile(trained, backend="aot_eager", fullgraph=True)(x), x)
    assert torch.equal(found[0], expected[0])
    assert asked == []


def test_what_is_wrong_is_told_where_a_call_is_traced():
    def refuse(*arguments):
        raise RuntimeError("the formula cannot do this")

    operator = Operator(
        f"compiled::refusing_{next(numbers)}(Tensor x) -> Tensor", reference=lambda x: x, gradient=refuse, kernels={}
    )
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="the formula cannot do this"):
        compiled(torch.ones(3, requires_grad=True))


def _refuse_cosines(graph, inputs):
    """Compiles no graph with a cosine, and says as little about it as assertions of Inductor do."""
    try:
        if any("cos" in str(node.target) for node in graph.graph.nodes):
            raise AssertionError  # in the code of a compiler
    except AssertionError as error:
        raise InductorError(error, currentframe()).with_traceback(error.__traceback__) from None
    return make_boxed_func(graph.forward)


@pytest.mark.parametrize(
    ("reference", "gradient", "by_reference"),
    [
        (torch.sin, "reference", True),
        (lambda x: x * x, lambda needs_grad, grads, saved, x: grads[0] * x.cos(), False),
    ],
    ids=["reference", "formula"],
)
def test_a_failure_of_a_compiler_says_where_it_is_and_whether_the_reference_is_the_reason(
    reference, gradient, by_reference
):
    operator = Operator(
        f"compiled::refused_{next(numbers)}(Tensor x) -> Tensor",
        reference=reference,
        output=torch.empty_like,
        gradient=gradient,
        kernels={},
    )
    sample = Sample("three", (Drawn((3,)),))
    call = Call(operator, Samples([sample]), sample, torch.device("cpu"), torch.float32, 0)
    backend = aot_autograd(fw_compiler=make_boxed_compiler(lambda graph, inputs: graph), bw_compiler=_refuse_cosines)
    with pytest.raises(Mismatch) as raised:
        compiler_expected(check_static)(backend, call)
    said = str(raised.value)
    assert said.startswith("torch.compile fails at the gradient: AssertionError at `raise AssertionError")
    assert f"{__file__}:" in said
    assert ("PyTorch cannot compile the reference alone either" in said) == by_reference
