"""The arguments that a gradient formula gets, and the use that is made of its results."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import torchgraft
from torchgraft import Operator
from torchgraft.operator.gradients import gradient_by_reference

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

numbers = iter(range(1000))


def declare(schema, reference, **declared):
    return Operator(f"gradients::made_{next(numbers)}{schema}", reference=reference, **declared)


def values(*shapes):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def every_way(function, *arguments):
    """The gradients of a function's sum by each path that a call may take."""
    assert all(argument.requires_grad for argument in arguments)
    compiled = torch.compile(lambda *each: function(*each), backend="aot_eager", fullgraph=True)
    yield torch.autograd.grad(function(*arguments).sum(), arguments)
    yield torch.autograd.grad(compiled(*arguments).sum(), arguments)
    every = tuple(range(len(arguments)))
    yield torch.func.grad(lambda *each: function(*each).sum(), every)(*(each.detach() for each in arguments))


@pytest.fixture
def seen():
    return []


@pytest.fixture
def product(seen):
    """All three gradients, whichever are needed: a formula that nobody asks needs_grad for."""

    def gradient(needs_grad, output_grads, saved, left, factor, right, bias):
        seen.append(tuple(needs_grad))
        (grad,) = output_grads
        return grad * factor * right, grad * factor * left, grad

    return declare(
        "(Tensor left, float factor, Tensor right, Tensor? bias=None) -> Tensor",
        lambda left, factor, right, bias: factor * left * right + (0 if bias is None else bias),
        gradient=gradient,
    )


def test_needs_grad_has_one_for_each_tensor_argument(product, seen):
    left, right = values(3, 3)
    for _ in every_way(lambda left: product(left, 2.0, right.detach()), left):
        pass
    # The public name, which torch.ops and exported programs call.
    product.public(left.detach(), 2.0, right).sum().backward()
    assert len(seen) >= 3
    assert set(seen) == {(True, False, False), (False, True, False)}


def test_gradients_that_nobody_needs_are_dropped(product):
    left, right = values(3, 3)
    for (found,) in every_way(lambda left: product(left, 2.0, right.detach()), left):
        assert_close(found, 2 * right.detach())
    product(left, 2.0, right.detach(), None).sum().backward()
    assert right.grad is None


def test_a_gradient_of_what_has_none_is_dropped():
    operator = declare(
        "(Tensor input, Tensor constant, Tensor index) -> Tensor",
        lambda input, constant, index: input * constant + index,
        gradient=lambda needs_grad, grads, saved, input, constant, index: (
            grads[0] * constant,
            grads[0] * input,
            grads[0],
        ),
        not_differentiable=("constant",),
        dtypes={"input": (torch.float64,), "constant": (torch.float64,), "index": (torch.int64,)},
    )
    input, constant = values(3, 3)
    operator(input, constant, torch.arange(3)).sum().backward()
    assert_close(input.grad, constant.detach())
    assert constant.grad is None


@pytest.mark.parametrize(
    "declared",
    [
        {"gradient": lambda needs_grad, grads, saved, input, constants: (grads[0] * sum(constants), None)},
        {"gradient": "reference"},
        {},
        {"compile": "reference"},
        {"kernels": "reference", "compile": "reference"},
        {"kernels": {"cpu": (torch.float32,)}},
    ],
    ids=["a formula", "the reference", "nothing", "compiled reference", "a name", "no kernel for the dtype"],
)
def test_nothing_passes_through_what_is_not_differentiable(declared):
    operator = declare(
        "(Tensor input, Tensor[] constants) -> (Tensor, Tensor statistics)",
        lambda input, constants: (input * sum(constants), input.square()),
        not_differentiable=("constants", "statistics"),
        **declared,
    )

    def sum_of_results(function, way=lambda each: each):
        return way(lambda input, constant: sum(function(input, [constant, constant])))

    def constant_by_hand(input, constants):
        return input * sum(constants).detach(), input.square().detach()

    input, constant = values(3, 3)
    plain = input.detach(), constant.detach()
    gradients = 2 * plain[1], torch.zeros_like(plain[1])
    called = sum_of_results(operator)
    for way in (lambda each: each, lambda each: torch.compile(each, backend="aot_eager", fullgraph=True)):
        assert_close(
            torch.autograd.grad(way(called)(input, constant).sum(), (input, constant), materialize_grads=True),
            gradients,
        )
    for function in (operator, getattr(torch.ops.gradients, operator.name)):
        found = torch.func.jvp(sum_of_results(function), plain, plain)
        assert_close(found, torch.func.jvp(sum_of_results(constant_by_hand), plain, plain))
        for way in (lambda each: each, torch.func.functionalize):
            called = sum_of_results(function, way)
            assert_close(torch.func.grad(lambda *each: called(*each).sum(), (0, 1))(*plain), gradients)  # noqa: B023


def test_one_gradient_need_not_stand_in_a_tuple():
    operator = declare(
        "(Tensor input) -> Tensor",
        lambda input: 3 * input,
        gradient=lambda needs_grad, grads, saved, input: 3 * grads[0],
    )
    for (found,) in every_way(operator, *values((2, 3))):
        assert_close(found, torch.full((2, 3), 3.0, dtype=torch.float64))


def test_of_a_list_too():
    operator = declare(
        "(Tensor[] tensors, Tensor scale) -> Tensor",
        lambda tensors, scale: scale * sum(tensors),
        gradient=lambda needs_grad, grads, saved, tensors, scale: (
            [scale * grads[0] for _ in tensors],
            (grads[0] * sum(tensors)).sum(),
        ),
    )
    one, other, scale = values(3, 3, ())
    for (found,) in every_way(lambda one: operator([one, other.detach()], scale.detach()), one):
        assert_close(found, scale.detach().expand(3))


@pytest.mark.parametrize(
    ("schema", "returned", "message"),
    [
        ("(Tensor a, Tensor b) -> Tensor", lambda grad: (grad,), "one for each of the arguments a, b, got 1"),
        ("(Tensor a, Tensor b) -> Tensor", lambda grad: (grad,) * 3, "one for each of the arguments a, b, got 3"),
        ("(Tensor[] a, Tensor b) -> Tensor", lambda grad: ([grad] * 3, grad), "each of the 2 tensors of a, got 3"),
    ],
)
def test_another_number_of_gradients_is_an_error(schema, returned, message):
    operator = declare(
        schema,
        lambda a, b: b * (sum(a) if isinstance(a, list) else a),
        gradient=lambda needs_grad, grads, saved, a, b: returned(grads[0]),
    )
    one, other = values(3, 3)
    result = operator([one, other.detach()] if "[]" in schema else one, other)
    with pytest.raises(ValueError, match=message):
        result.sum().backward()


class TestMaterialized:
    @staticmethod
    def declare(materialize):
        seen = []

        def gradient(needs_grad, grads, saved, input):
            seen.append([grad is None for grad in grads])
            first, second, _ = (torch.zeros_like(input) if grad is None else grad for grad in grads)
            return 2 * first + 3 * second

        operator = declare(
            "(Tensor input) -> (Tensor, Tensor, Tensor)",
            lambda input: (2 * input, 3 * input, (input > 0).long()),
            gradient=gradient,
            materialize_grads=materialize,
        )
        return operator, seen

    @pytest.mark.parametrize("materialize", [False, True])
    def test_gradients_are_none_or_zero_where_nothing_flows_back(self, materialize):
        operator, seen = self.declare(materialize)
        (input,) = values(3)
        (found,) = torch.autograd.grad(operator(input)[1].sum(), input)
        assert_close(found, torch.full((3,), 3.0, dtype=torch.float64))
        # Of whole numbers there is no gradient, and no zeros of them either.
        assert seen == [[not materialize, False, True]]

    @pytest.mark.parametrize("materialize", [False, True])
    def test_every_way_agrees(self, materialize):
        operator, _ = self.declare(materialize)
        for (found,) in every_way(lambda input: operator(input)[1], *values(3)):
            assert_close(found, torch.full((3,), 3.0, dtype=torch.float64))


class TestByReference:
    def test_is_the_gradient_of_the_reference_to_every_order(self, recwarn):
        operator = declare(
            "(Tensor input, Tensor weight, int power=3) -> Tensor",
            lambda input, weight, power: weight * input**power,
            gradient="reference",
        )
        input, weight = values(4, 4)
        assert torch.autograd.gradcheck(operator, (input, weight))
        assert torch.autograd.gradgradcheck(operator, (input, weight))
        for found in every_way(operator, input, weight):
            assert_close(found, (3 * weight * input**2, input**3))
        # It is the best that there is: no warning says that a formula is missing.
        assert not [each for each in recwarn if "no gradient formula" in str(each.message)]

    def test_is_that_of_a_function_too(self):
        def reference(input):
            return input.sin()

        by_word = declare("(Tensor input) -> Tensor", reference, gradient="reference")
        by_function = declare("(Tensor input) -> Tensor", reference, gradient=gradient_by_reference(reference, 1))
        (input,) = values(3)
        one, other = (torch.autograd.grad(each(input).sum(), input) for each in (by_word, by_function))
        assert_close(one, other, rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("schema", "declared", "error", "message"),
        [
            (
                "(Tensor input) -> Tensor",
                {"gradient": "autograd"},
                TypeError,
                "a function, 'reference' or None, got 'auto",
            ),
            (
                "(Tensor input) -> Tensor",
                {"gradient": "reference", "unsaved": ["input"]},
                ValueError,
                "unsaved needs a gradient function, and gradient is 'reference'",
            ),
            ("(Tensor(a!) input) -> ()", {"gradient": "reference"}, ValueError, "Leave gradient out"),
        ],
    )
    def test_is_refused_where_it_cannot_be(self, schema, declared, error, message):
        with pytest.raises(error, match=message):
            declare(schema, lambda input: input, **declared)


class TestHiddenResults:
    """A formula that reads hidden results has right derivatives of every order: theirs come from the reference."""

    @staticmethod
    def declare(reference, formula, schema="(Tensor input) -> (Tensor, Tensor)", **declared):
        return declare(schema, reference, gradient=formula, visible_outputs=1, kernels={}, **declared)

    @pytest.fixture
    def exponential(self):
        return self.declare(
            lambda input: (torch.exp(2 * input), torch.exp(2 * input)),
            lambda needs_grad, grads, saved, input: 2 * saved[0] * grads[0],
        )

    def test_every_order_eagerly(self, exponential):
        (input,) = values(1)
        with torch.no_grad():
            input.zero_()
        found = exponential(input)
        for order in range(1, 5):
            (found,) = torch.autograd.grad(found.sum(), input, create_graph=True)
            assert found.item() == pytest.approx(2**order)

    def test_every_order_by_torch_func(self, exponential):
        def derivative(function):
            return lambda input: torch.func.grad(lambda input: function(input).sum())(input)

        function = exponential
        zero = torch.zeros(1, dtype=torch.float64)
        for order in range(1, 4):
            function = derivative(function)
            assert function(zero).item() == pytest.approx(2**order)
            assert torch.vmap(function)(torch.zeros(3, 1, dtype=torch.float64)).unique().item() == pytest.approx(
                2**order
            )
        assert torch.func.hessian(lambda input: exponential(input).sum())(zero).item() == pytest.approx(4)

    def test_through_the_public_name(self, exponential):
        (input,) = values(3)
        assert torch.autograd.gradgradcheck(lambda input: exponential.public(input)[0], (input,))

    CASES = {  # noqa: RUF012
        "of two arguments": (
            "(Tensor a, Tensor b) -> (Tensor, Tensor, Tensor)",
            lambda a, b: (a.sin() * b.exp(), a.sin(), b.exp()),
            lambda needs_grad, grads, saved, a, b: (grads[0] * a.cos() * saved[1], grads[0] * saved[0] * saved[1]),
            (3, 3),
        ),
        "with an index": (
            "(Tensor a, Tensor b) -> (Tensor, Tensor, Tensor)",
            lambda a, b: (torch.maximum(a, b) ** 3, (a > b).long(), torch.maximum(a, b)),
            lambda needs_grad, grads, saved, a, b: (
                grads[0] * 3 * saved[1] ** 2 * saved[0],
                grads[0] * 3 * saved[1] ** 2 * (1 - saved[0]),
            ),
            (4, 4),
        ),
        "a number beside": (
            "(Tensor a, float power, Tensor b) -> (Tensor, Tensor)",
            lambda a, power, b: (a.sin() ** power * b, a.sin() ** (power - 1)),
            lambda needs_grad, grads, saved, a, power, b: (
                grads[0] * power * saved[0] * a.cos() * b,
                grads[0] * saved[0] * a.sin(),
            ),
            (3, 3),
        ),
        "of a list": (
            "(Tensor[] a) -> (Tensor, Tensor)",
            lambda a: (sum(each**2 for each in a) ** 2, sum(each**2 for each in a)),
            lambda needs_grad, grads, saved, a: ([4 * grads[0] * saved[0] * each for each in a],),
            (3, 3),
        ),
        "a list of hidden results": (
            "(Tensor a, Tensor b) -> (Tensor, Tensor[])",
            lambda a, b: (a.exp() * b.sin(), [a.exp(), b.sin()]),
            lambda needs_grad, grads, saved, a, b: (
                grads[0] * saved[0][0] * saved[0][1],
                grads[0] * saved[0][0] * b.cos(),
            ),
            (3, 3),
        ),
        "a normalisation": (
            "(Tensor a, Tensor b) -> (Tensor, Tensor)",
            lambda a, b: (a / a.square().mean(-1, True).sqrt() * b, 1 / a.square().mean(-1, True).sqrt()),
            lambda needs_grad, grads, saved, a, b: (
                grads[0] * b * saved[0] - a * saved[0] ** 3 * (grads[0] * b * a).mean(-1, True),
                (grads[0] * a * saved[0]).sum(0),
            ),
            ((2, 3), (3,)),
        ),
        "an optional argument": (
            "(Tensor a, Tensor? b) -> (Tensor, Tensor)",
            lambda a, b: (a.exp() + (0 if b is None else b**3), a.exp()),
            lambda needs_grad, grads, saved, a, b: (
                grads[0] * saved[0],
                None if b is None else grads[0] * 3 * b**2,
            ),
            (3, 3),
        ),
    }

    @pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
    def test_second_derivatives_are_those_of_the_reference(self, case):
        schema, reference, formula, shapes = case
        operator = self.declare(reference, formula, schema)
        tensors = values(*shapes)
        with torch.no_grad():
            for each in tensors:
                each.abs_().add_(0.1)

        def call(one, other):
            if "[] a" in schema:
                return operator([one, other])
            return operator(one, 2.5, other) if "power" in schema else operator(one, other)

        assert torch.autograd.gradcheck(call, tensors)
        assert torch.autograd.gradgradcheck(call, tensors)
        assert torch.autograd.gradgradcheck(lambda one: call(one, tensors[1].detach()), tensors[:1])

    def test_what_is_not_kept_is_named(self):
        operator = self.declare(
            lambda input, bias: (torch.exp(input) + bias, torch.exp(input)),
            lambda needs_grad, grads, saved, input, bias: (saved[0] * grads[0], grads[0]),
            "(Tensor input, Tensor bias) -> (Tensor, Tensor)",
            unsaved=("bias",),
        )
        input, bias = values(3, 3)
        message = "but bias is not kept: remove it from unsaved"
        for call in (operator, lambda *each: operator.public(*each)[0]):
            with pytest.raises(RuntimeError, match=message):
                torch.autograd.grad(call(input, bias).sum(), input, create_graph=True)
            # Whether or not it needs a gradient itself.
            (first,) = torch.autograd.grad(call(input, bias.detach()).sum(), input, create_graph=True)
            with pytest.raises(RuntimeError, match=message):
                first.sum().backward()
            torch.autograd.grad(call(input, bias).sum(), (input, bias))
        assert torch.func.vmap(torch.func.grad(lambda *each: operator(*each).sum()))(
            torch.ones(2, 3), torch.ones(2, 3)
        ).shape == (2, 3)

    def test_what_is_not_kept_is_named_also_where_another_transform_asks(self):
        operator = self.declare(
            lambda x, y: (torch.exp(2 * x) * torch.tanh(y), torch.exp(2 * x), torch.tanh(y)),
            lambda needs_grad, grads, saved, x, y: (
                2 * grads[0] * saved[0] * saved[1],
                grads[0] * saved[0] * (1 - saved[1] ** 2),
            ),
            "(Tensor x, Tensor y) -> (Tensor, Tensor, Tensor)",
            unsaved=("x",),
        )
        x, y = torch.tensor([0.3, -0.2]).double(), torch.tensor([1.1, 0.4]).double()

        def total(x, y):
            return operator(x, y).sum()

        def twice(first, second):
            return lambda x, y: grad(lambda x, y: grad(total, first)(x, y).sum(), second)(x, y)

        grad, jacrev, vmap = torch.func.grad, torch.func.jacrev, torch.func.vmap
        seconds = [twice(first, second) for first in (0, 1) for second in (0, 1)]
        seconds += [jacrev(jacrev(total, 0), 0), vmap(grad(grad(operator)))]
        for second in seconds:
            with pytest.raises(RuntimeError, match="but x is not kept"):
                second(x, y)
        # Forward mode goes through the reference, and first derivatives need no argument that is not kept.
        expected = 4 * torch.exp(2 * x) * torch.tanh(y)
        assert_close(torch.func.hessian(total)(x, y).diag(), expected)
        assert_close(jacrev(operator)(x, y).diag(), expected / 2)
        assert_close(grad(total)(x, y), expected / 2)

    def test_a_visible_list_before_hidden_results(self):
        operator = declare(
            "(Tensor input) -> (Tensor[], Tensor, Tensor)",
            lambda input: ([input.sin(), input.exp()], input.cos(), torch.argsort(input)),
            gradient=lambda needs_grad, grads, saved, input: sum(
                grad * by for grad, by in zip(grads[0], (saved[0], input.exp()), strict=True) if grad is not None
            ),
            visible_outputs=1,
            kernels={},
        )
        (input,) = values(3)
        for (found,) in every_way(lambda input: sum(operator(input)), input):
            assert_close(found, (input.cos() + input.exp()).detach())
        assert torch.autograd.gradgradcheck(lambda input: sum(operator(input)), (input,))

    def test_a_first_derivative_costs_no_reference(self, recwarn):
        calls = []

        def reference(input):
            calls.append(input)
            return torch.exp(input), torch.exp(input)

        operator = self.declare(
            reference, lambda needs_grad, grads, saved, input: saved[0] * grads[0], output=lambda x: (x * 1, x * 1)
        )
        (input,) = values(3)
        operator(input).sum().backward()
        (first,) = torch.autograd.grad(operator(input).sum(), input, create_graph=True)
        before = len(calls)
        first.sum().backward()
        assert (before, len(calls)) == (2, 3)
        assert any("reads hidden results" in str(each.message) for each in recwarn)


class TestInABatch:
    """PyTorch computes the rows of a Jacobian in one batch where `vectorize` or `is_grads_batched` says so."""

    @pytest.mark.parametrize(
        ("function", "by_pytorch", "shapes"),
        [
            (torchgraft.depthwise_conv1d, lambda *each: F.conv1d(*each, groups=2), [(1, 2, 4), (4, 1, 2)]),
            (
                lambda grad, weight: torchgraft.depthwise_conv1d_input_grad(grad, weight, (2, 4)),
                lambda grad, weight: F.conv_transpose1d(grad, weight, groups=2),
                [(1, 2, 3), (2, 1, 2)],
            ),
            (
                lambda input, grad: torchgraft.depthwise_conv1d_weight_grad(grad, input, 2),
                lambda input, grad: F.conv1d(input, grad.transpose(0, 1), groups=2).transpose(0, 1),
                [(1, 2, 4), (1, 2, 3)],
            ),
            (torchgraft.depthwise_conv2d, lambda *each: F.conv2d(*each, groups=2), [(1, 2, 3, 3), (2, 1, 2, 1)]),
            (torchgraft.depthwise_conv3d, lambda *each: F.conv3d(*each, groups=1), [(1, 1, 3, 2, 2), (2, 1, 2, 1, 2)]),
            (
                torchgraft.causal_conv1d,
                lambda input, weight: F.conv1d(F.pad(input, (1, 0)), weight[:, None], groups=2),
                [(1, 2, 3), (2, 2)],
            ),
            (torchgraft.linear, F.linear, [(2, 3), (4, 3)]),
        ],
    )
    def test_of_second_derivatives(self, function, by_pytorch, shapes):
        arguments = tuple(values(*shapes))
        found, expected = (
            torch.autograd.functional.hessian(lambda *each: (computed(*each) ** 3).sum(), arguments, vectorize=True)  # noqa: B023
            for computed in (function, by_pytorch)
        )
        assert_close(found, expected)


class TestTorchOps:
    """PyTorch's register_autograd refuses torch.func.grad, and gives forward mode tangents of zero."""

    @pytest.fixture(params=["plain", "named", "list"])
    def cubed(self, request):
        schema, given = {
            "plain": ("(Tensor x, Tensor? y=None, float by=2.0)", {}),
            "named": ("(Tensor x, *, Tensor? y=None, float by)", {"by": 2.0}),
            "list": ("(Tensor x, Tensor?[] y, float by=2.0)", {"y": [None]}),
        }[request.param]

        def gradient(needs_grad, output_grads, saved, x, y, by):
            return output_grads[0] * 3 * by * x**2, None

        operator = declare(
            f"{schema} -> Tensor",
            lambda x, y, by: by * x**3,
            output=lambda x, y, by: torch.empty_like(x),
            gradient=gradient,
            kernels={},
        )
        overload = getattr(torch.ops.gradients, operator.name)
        return lambda x: overload(x, **given)

    def test_autograd(self, cubed):
        (x,) = values(3)
        (first,) = torch.autograd.grad(cubed(x).sum(), x, create_graph=True)
        assert_close(first, 6 * x**2)
        assert_close(torch.autograd.grad(first.sum(), x)[0], 12 * x)

    def test_torch_func(self, cubed):
        x, summed = values(3)[0].detach(), lambda x: cubed(x).sum()
        ones = torch.ones_like(x)
        assert_close(torch.func.grad(summed)(x), 6 * x**2)
        assert_close(torch.func.hessian(summed)(x), torch.diag(12 * x))
        assert_close(torch.func.jvp(cubed, (x,), (ones,))[1], 6 * x**2)
        assert_close(torch.func.jacfwd(torch.func.grad(summed))(x), torch.diag(12 * x))
        assert_close(torch.vmap(torch.func.grad(summed))(x[:, None]), 6 * x[:, None] ** 2)

    def test_forward_mode(self, cubed):
        x = values(3)[0].detach()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            assert_close(torch.autograd.forward_ad.unpack_dual(cubed(dual)).tangent, 6 * x**2)

    def test_what_looks_on_sees_the_public_name(self, cubed):
        class Looks(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                names.append(function.overloadpacket.__name__)
                return function(*arguments, **(named or {}))

        names = []
        with Looks():
            cubed(values(3)[0])
        assert [name for name in names if "made" in name] == [f"made_{next(numbers) - 1}"]


class TestNoneInAList:
    """None may stand in a list of tensors, on every path, and the other tensors keep their gradients."""

    @staticmethod
    def declare(gradient):
        formula = lambda needs_grad, grads, saved, input, others: (  # noqa: E731
            grads[0],
            [None if each is None else 2 * grads[0] for each in others],
        )
        return declare(
            "(Tensor input, Tensor?[] others) -> Tensor",
            lambda input, others: input + sum(2 * each for each in others if each is not None),
            output=lambda input, others: torch.empty_like(input),
            gradient=formula if gradient == "formula" else gradient,
            kernels={},
        )

    PATHS = {  # noqa: RUF012
        "eager": lambda operator, call, input, other: call(operator)(input, other),
        "torch.ops": lambda operator, call, input, other: call(operator.public)(input, other),
        "compiled": lambda operator, call, input, other: torch.compile(
            call(operator), backend="aot_eager", fullgraph=True
        )(input, other),
        "torch.ops compiled": lambda operator, call, input, other: torch.compile(
            call(operator.public), backend="aot_eager", fullgraph=True
        )(input, other),
        "exported": lambda operator, call, input, other: torch.export.export(
            _Module(call(operator)), (input, other)
        ).module()(input, other),
        "a mode": lambda operator, call, input, other: _counted(call(operator), input, other),
        "jit.trace": lambda operator, call, input, other: torch.jit.trace(call(operator), (input, other))(input, other),
    }

    @pytest.mark.parametrize("order", ["first", "last", "alone between", "twice"])
    @pytest.mark.parametrize("gradient", ["formula", "reference", None], ids=str)
    @pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
    def test_gradients_arrive(self, path, gradient, order):
        operator = self.declare(gradient)
        arranged = {
            "first": lambda each: [None, each],
            "last": lambda each: [each, None],
            "alone between": lambda each: [None, each, None],
            "twice": lambda each: [each, None, each],
        }[order]

        def call(function):
            return lambda input, other: function(input, arranged(other))

        input, other = values(3, 3)
        result = path(operator, call, input, other)
        times = 4.0 if order == "twice" else 2.0
        assert_close(result, input + times * other)
        found = torch.autograd.grad(result.sum(), (input, other))
        assert_close(found, (torch.ones_like(input), torch.full_like(other, times)))


class _Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


def _counted(function, *arguments):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        return function(*arguments)
