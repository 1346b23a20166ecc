"""What a gradient formula is given, and what becomes of what it returns."""

import pytest
import torch
from torch.testing import assert_close

from torchgraft import Operator
from torchgraft.differentiation import gradient_by_reference

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
