"""Visible results that a gradient formula reads: `saved_outputs`."""

import pytest
import torch
from torch.testing import assert_close

import torchgraft
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples


def _exponential_gradient(needs_grad, output_grads, saved, input):
    assert input is None
    return output_grads[0] * saved[0]


exponential = Operator(
    "saved_outputs::exponential(Tensor input) -> (Tensor output)",
    reference=torch.exp,
    shapes="... -> ...",
    gradient=_exponential_gradient,
    unsaved=("input",),
    saved_outputs=("output",),
)


@exponential.kernel("cpu")
def _exponential(input):
    return torch.exp(input).contiguous()


def _norms(input, weight):
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    inverse = wide.square().mean(-1, keepdim=True).add(0.5).rsqrt()
    doubled = 2 * inverse
    return (wide * inverse).to(input.dtype) * weight, inverse.squeeze(-1), doubled.squeeze(-1)


def _norms_output(input, weight):
    kept = input.new_empty(input.shape[:-1], dtype=torch.promote_types(input.dtype, torch.float32))
    return input.new_empty(input.shape), kept, torch.empty_like(kept)


def _norms_gradient(needs_grad, output_grads, saved, input, weight):
    # `inverse` is visible, `doubled` hidden; the names in the declaration are in another order.
    (inverse, doubled), (grad, inverse_grad) = saved, output_grads
    wide, half = input.to(inverse.dtype), (doubled / 2).unsqueeze(-1)
    inverse = inverse.unsqueeze(-1)
    outer = 0 if grad is None else grad.to(inverse.dtype) * weight
    along = (outer * wide).sum(-1, keepdim=True)
    if inverse_grad is not None:
        along = along + inverse_grad.unsqueeze(-1)
    input_grad = outer * half - wide * inverse.pow(3) * along / input.shape[-1]
    weight_grad = None if grad is None else (grad.to(inverse.dtype) * wide * inverse).sum(0).to(weight.dtype)
    return input_grad.to(input.dtype), weight_grad


norms = Operator(
    "saved_outputs::norms(Tensor input, Tensor weight) -> (Tensor output, Tensor inverse, Tensor doubled)",
    reference=_norms,
    shapes="n d, d -> n d, n, n",
    output=_norms_output,
    gradient=_norms_gradient,
    saved_outputs=("inverse",),
    visible_outputs=2,
    autocast="lower",
)


@norms.kernel("cpu")
def _norms_kernel(input, weight):
    return tuple(each.clone(memory_format=torch.contiguous_format) for each in _norms(input, weight))


powers = Operator(
    "saved_outputs::powers(Tensor input) -> (Tensor[] powers)",
    reference=lambda input: [input**2, input**3],
    output=lambda input: [torch.empty_like(input), torch.empty_like(input)],
    gradient=lambda needs_grad, grads, saved, input: (
        (0 if grads[0][0] is None else 2 * grads[0][0] * saved[0][0] / input)
        + (0 if grads[0][1] is None else 3 * grads[0][1] * saved[0][1] / input)
    ),
    saved_outputs=["powers"],
)


@powers.kernel("cpu")
def _powers(input):
    return [input**2, input**3]


def _leaf(*shape):
    return torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_()


FUNCTIONS = {
    "exponential": (exponential, lambda: (_leaf(3, 4),)),
    "norms": (norms, lambda: (_leaf(3, 4), _leaf(4))),
    "the inverse of norms": (lambda *each: norms(*each)[1], lambda: (_leaf(3, 4), _leaf(4).detach())),
    "powers": (lambda input: tuple(powers(input)), lambda: (_leaf(3, 4),)),
}


@pytest.fixture(params=FUNCTIONS)
def case(request):
    function, make = FUNCTIONS[request.param]
    return function, make()


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
class TestDerivatives:
    def test_first_and_second_ones_are_right(self, case):
        assert torch.autograd.gradcheck(*case)
        assert torch.autograd.gradgradcheck(*case)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compiled_code_has_them(self, case, dynamic):
        function, arguments = case
        leaves = [each for each in arguments if each.requires_grad]

        def gradients(call):
            results = call(*arguments)
            results = [results] if isinstance(results, torch.Tensor) else results
            return torch.autograd.grad([each.square().sum() for each in results], leaves, allow_unused=True)

        torch.compiler.reset()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        assert_close(gradients(compiled), gradients(function))

    def test_functions_of_torch_func_have_them(self):
        batch = torch.rand(5, 3, 4, dtype=torch.float64)

        def total(input):
            output, inverse = norms(input, torch.ones(4, dtype=torch.float64))
            return output.sin().sum() + inverse.square().sum() + exponential(input).sum() + powers(input)[1].sum()

        def by_pytorch(input):
            output, inverse, _ = _norms(input, torch.ones(4, dtype=torch.float64))
            return output.sin().sum() + inverse.square().sum() + torch.exp(input).sum() + (input**3).sum()

        grad, vmap = torch.func.grad, torch.func.vmap
        assert_close(vmap(grad(total))(batch), vmap(grad(by_pytorch))(batch))
        assert_close(torch.func.jacrev(grad(total))(batch[0]), torch.func.jacrev(grad(by_pytorch))(batch[0]))
        assert_close(torch.func.hessian(total)(batch[0]), torch.func.hessian(by_pytorch)(batch[0]))

    def test_autocast_saves_the_result_that_it_returns(self):
        input, weight = torch.rand(3, 4, requires_grad=True), torch.rand(4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            output, inverse = norms(input, weight)
        assert (output.dtype, inverse.dtype) == (torch.bfloat16, torch.float32)
        found = torch.autograd.grad(output.float().sum() + inverse.sum(), (input, weight))
        expected_output, expected_inverse, _ = _norms(input, weight)
        expected = torch.autograd.grad(expected_output.sum() + expected_inverse.sum(), (input, weight))
        # The arguments are rounded once, the result once, its gradient and the sum over three rows once each.
        assert_close(
            found, expected, rtol=8 * torch.finfo(torch.bfloat16).eps, atol=8 * torch.finfo(torch.bfloat16).eps
        )


@pytest.mark.parametrize("through", ["eager", "torch.ops", "compile"])
def test_a_change_in_place_before_the_backward_pass_is_refused(through):
    input = torch.ones(3, requires_grad=True)
    function = {
        "eager": exponential,
        "torch.ops": torch.ops.saved_outputs.exponential,
        "compile": torch.compile(exponential, backend="aot_eager", fullgraph=True),
    }[through]
    output = function(input)
    total = output.sum()
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_result_that_is_not_named_may_be_changed_in_place():
    input, weight = torch.rand(3, 4, requires_grad=True), torch.rand(4)
    output, inverse = norms(input, weight)
    expected = torch.autograd.grad(output.sum(), input, retain_graph=True)
    total = output.sum()
    output.mul_(2)
    assert_close(torch.autograd.grad(total, input, retain_graph=True), expected)
    inverse.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(total, input)


def test_results_are_kept_once():
    input = torch.ones(3, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.data_ptr()) or each, lambda each: each):
        output = exponential(input)
    assert kept == [output.data_ptr()]


@pytest.mark.parametrize(
    ("operator", "samples"),
    [
        (exponential, [Sample("a matrix", (Drawn((3, 5)),)), Sample("empty", (Drawn((0, 5)),))]),
        (norms, [Sample("rows", (Drawn((3, 5)), Drawn((5,)))), Sample("no rows", (Drawn((0, 5)), Drawn((5,))))]),
    ],
    ids=["exponential", "norms"],
)
def test_the_check_holds(operator, samples):
    properties = [
        *("value", "gradient", "second_gradient", "functional_gradients", "gradient_subsets", "incoming_gradients"),
        *("gradient_layouts", "inputs_and_outputs", "vmap", "compile", "autocast", "opcheck", "pickle", "mutation"),
    ]
    report = torchgraft.check(operator, Samples(samples), device="cpu", properties=properties, quick=True)
    assert report.passed, report


@pytest.mark.parametrize(
    ("schema", "named", "gradient", "problem"),
    [
        (
            "(Tensor input) -> (Tensor output)",
            ("outputs",),
            lambda *each: None,
            r"saved_outputs names \['outputs'\], but the names of its visible results are \['output'\]",
        ),
        (
            "(Tensor input) -> (Tensor output, Tensor hidden)",
            ("hidden",),
            lambda *each: None,
            r"saved_outputs names \['hidden'\], but the names of its visible results are \['output'\]",
        ),
        ("(Tensor input) -> Tensor", ("output",), lambda *each: None, r"name them in the schema, as in '-> \(Tensor"),
        ("(Tensor input) -> (Tensor o)", "o", lambda *each: None, "saved_outputs names 'o', but"),
        ("(Tensor input) -> (Tensor o)", ("o",), "reference", "saved_outputs needs a gradient function"),
    ],
)
def test_names_that_cannot_be_saved_are_refused(schema, named, gradient, problem):
    with pytest.raises(ValueError, match=problem):
        Operator(
            f"saved_outputs::refused{schema}",
            reference=lambda input: input,
            gradient=gradient,
            saved_outputs=named,
            visible_outputs=1,
        )


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_gradient_from_rounded_results_says_what_to_save_instead(factor):
    """In float32 it is right; a formula that is wrong in float16 too is told as it was."""

    def gradient(needs_grad, output_grads, saved, input):
        output, wide = saved[0].float(), output_grads[0].float()
        return (factor * output * (wide - (wide * output).sum(-1, keepdim=True))).to(input.dtype)

    softmax = Operator(
        f"saved_outputs::softmax_{factor:.0f}(Tensor input) -> (Tensor output)",
        reference=lambda input: torch.softmax(input, -1),
        shapes="... d -> ... d",
        gradient=gradient,
        saved_outputs=("output",),
        kernels="reference",
    )
    samples = Samples([Sample("rows", (Drawn((30, 3)),))], summed=lambda input: input.shape[-1])
    report = torchgraft.check(softmax, samples, device="cpu", properties=["gradient"])
    said = {result.dtype: result.failure.message for result in report.failures}
    told = (
        "; the formula reads output (`saved_outputs`), rounded to {}: keep what it needs in float32, as a hidden result"
    )
    for dtype in ("float16", "bfloat16"):
        assert said[dtype].startswith("the gradient of input is wrong")
        assert (told.format(dtype) in said[dtype]) == (factor == 1)
    assert ("float32" in said) == (factor != 1)
