"""An operator under composition: derivatives of every order, torch.func in every nesting, compile of those.

Three kinds of operator stand for all: one with a gradient formula made of operators (ours), a user's with none, and a
user's with two visible results and a hidden one that its gradient reads. The last two are declared here, in a
namespace of their own, with kernels in Python.
"""

import contextlib
import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import torchgraft
from torchgraft import Operator, PerformanceWarning
from torchgraft._private import pytorch
from torchgraft.operators.depthwise_conv2d import reference as depthwise_reference
from torchgraft.operators.depthwise_conv2d.operator import convolution
from torchgraft.operators.linear.operator import operator as linear_operator
from torchgraft.operators.mul_constant.operator import operator as mul_constant_operator

D = torch.float64
WINDOW = (2, 1, 1, 2, 1, 2, 1, 1)


def _kernel(operator: Operator, function) -> None:
    """A kernel on CPU, in Python, as a library would register one."""
    for name in (operator.name, f"_{operator.name}"):
        operator._library.impl(name, function, "CPU")


plain = Operator(
    "composition::plain(Tensor input, Tensor weight, Tensor? bias, int unused) -> Tensor",
    reference=lambda input, weight, bias, unused: torch.sin(input) * weight + (0 if bias is None else bias),
    output=lambda input, weight, bias, unused: torch.empty_like(input),
)
_kernel(plain, lambda input, weight, bias, unused: plain.reference(input, weight, bias, unused).clone())


def _cell(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = torch.tanh(input * weight)
    return first, torch.sin(input) * first, first.clone()


def _cell_gradient(needs_grad, output_grads, saved, input, weight):
    grads = [torch.zeros_like(input) if each is None else each for each in output_grads]
    return cell_grad(*grads, input, weight, *saved)


def _cell_grad(first_grad: Tensor, second_grad: Tensor, input: Tensor, weight: Tensor, hidden: Tensor):
    # By definition the vjp of the reference; `hidden` is a hint, and nothing is differentiated through it.
    _, pull = vjp(lambda input, weight: _cell(input, weight)[:2], input, weight)
    return pull((first_grad, second_grad))


def _cell_grad_kernel(first_grad, second_grad, input, weight, hidden):
    total = (first_grad + second_grad * torch.sin(input)) * (1 - hidden * hidden)
    return total * weight + second_grad * torch.cos(input) * hidden, total * input


cell = Operator(
    "composition::cell(Tensor input, Tensor weight) -> (Tensor, Tensor, Tensor)",
    reference=_cell,
    output=lambda input, weight: tuple(torch.empty_like(input) for _ in range(3)),
    gradient=_cell_gradient,
    visible_outputs=2,
)
_kernel(cell, _cell)
cell_grad = Operator(
    "composition::cell_grad(Tensor first_grad, Tensor second_grad, Tensor input, Tensor weight, Tensor hidden)"
    " -> (Tensor, Tensor)",
    reference=_cell_grad,
    output=lambda first_grad, second_grad, input, weight, hidden: (torch.empty_like(input), torch.empty_like(weight)),
)
_kernel(cell_grad, _cell_grad_kernel)


class Case:
    """A scalar function of three tensors through an operator, the same through its reference, and arguments."""

    def __init__(self, operated, referred, x, w, b):
        self.operated, self.referred = operated, referred
        self.x, self.w, self.b = x, w, b
        self.xg, self.wg, self.bg = (t.clone().requires_grad_() for t in (x, w, b))


def _depthwise_case() -> Case:
    return Case(
        lambda x, w, b: (convolution(x, w, b, *WINDOW) ** 3).sum(),
        lambda x, w, b: (depthwise_reference.depthwise_conv2d(x, w, b, *WINDOW) ** 3).sum(),
        torch.randn(1, 2, 5, 4, dtype=D),
        torch.randn(4, 1, 3, 2, dtype=D),
        torch.randn(4, dtype=D),
    )


def _plain_case() -> Case:
    return Case(
        lambda x, w, b: (plain(x, w, b, 1) ** 3).sum(),
        lambda x, w, b: (plain.reference(x, w, b, 1) ** 3).sum(),
        *(torch.randn(5, dtype=D) for _ in range(3)),
    )


def _cell_case(choose) -> Case:
    def through(function):
        return lambda x, w, b: sum((each**2).sum() for each in choose(function(x, w))) * b.sum()

    return Case(through(cell), through(lambda x, w: _cell(x, w)[:2]), *(torch.randn(5, dtype=D) for _ in range(3)))


CASES = {
    "formula": _depthwise_case,
    "no formula": _plain_case,
    "hidden result, both used": lambda: _cell_case(lambda results: results),
    "hidden result, first used": lambda: _cell_case(lambda results: results[:1]),
    "hidden result, second used": lambda: _cell_case(lambda results: results[1:]),
}


@pytest.fixture(params=CASES)
def case(request):
    # A user's operator without formula or vmap rule says so; that it does is tested below.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        yield CASES[request.param]()


def same(found, expected):
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected) > 0
    assert any(each.abs().max() > 1e-3 for each in expected), "a comparison of zeros proves nothing"
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_gradcheck_and_gradgradcheck(case):
    torch.autograd.gradcheck(case.operated, (case.xg, case.wg, case.bg))
    torch.autograd.gradgradcheck(case.operated, (case.xg, case.wg, case.bg))


def test_optional_argument_left_out():
    x, w = torch.randn(1, 2, 5, 4, dtype=D, requires_grad=True), torch.randn(4, 1, 3, 2, dtype=D, requires_grad=True)
    torch.autograd.gradcheck(lambda x, w: convolution(x, w, None, *WINDOW), (x, w))
    torch.autograd.gradgradcheck(lambda x, w: convolution(x, w, None, *WINDOW), (x, w))


def test_third_derivative(case):
    def third(f):
        first = torch.autograd.grad(f(case.xg, case.wg, case.bg), (case.xg, case.wg), create_graph=True)
        through_first = (first[0] ** 2).sum() + (first[1] ** 3).sum()
        second = torch.autograd.grad(through_first, (case.xg, case.wg), create_graph=True)
        return torch.autograd.grad((second[0] ** 2).sum() + second[1].sum(), (case.xg, case.wg))

    same(third(case.operated), third(case.referred))


def twice(t, dim=0):
    return torch.stack([t, 2 * t], dim)


TRANSFORMS = {
    "grad": lambda f, c: grad(f, (0, 1, 2))(c.x, c.w, c.b),
    "grad of grad": lambda f, c: grad(lambda x, w: (grad(f, (0, 1))(x, w, c.b)[1] ** 2).sum(), (0, 1))(c.x, c.w),
    "vmap over the first": lambda f, c: vmap(f, (0, None, None))(twice(c.x), c.w, c.b),
    "vmap over the second": lambda f, c: vmap(f, (None, 0, None))(c.x, twice(c.w), c.b),
    "vmap over the third": lambda f, c: vmap(f, (None, None, 0))(c.x, c.w, twice(c.b)),
    "vmap over the last dimension": lambda f, c: vmap(f, (-1, None, None))(twice(c.x, -1), c.w, c.b),
    "vmap of grad": lambda f, c: vmap(grad(f, (0, 1, 2)), (0, None, None))(twice(c.x), c.w, c.b),
    "vmap of grad over all": lambda f, c: vmap(grad(f, (0, 1, 2)), (0, -1, 0))(twice(c.x), twice(c.w, -1), twice(c.b)),
    "vmap of vmap": lambda f, c: vmap(vmap(f, (0, None, None)), (None, 0, None))(twice(c.x), twice(c.w), c.b),
    "grad of vmap": lambda f, c: grad(lambda x: vmap(f, (0, None, None))(x, c.w, c.b).sum())(twice(c.x)),
    "jvp": lambda f, c: jvp(f, (c.x, c.w, c.b), (c.x, c.w, c.b)),
    "jvp of one": lambda f, c: jvp(lambda x: f(x, c.w, c.b), (c.x,), (c.x,)),
    "jacfwd": lambda f, c: jacfwd(f, (0, 1, 2))(c.x, c.w, c.b),
    "jacrev": lambda f, c: jacrev(f, (0, 1, 2))(c.x, c.w, c.b),
    "hessian": lambda f, c: hessian(f, (1, 2))(c.x, c.w, c.b),
    "hessian of the first": lambda f, c: hessian(f)(c.x, c.w, c.b),
    "reverse over reverse": lambda f, c: jacrev(jacrev(f, 1), 1)(c.x, c.w, c.b),
    "reverse over forward": lambda f, c: jacrev(jacfwd(f, 1), 1)(c.x, c.w, c.b),
    "forward over reverse": lambda f, c: jacfwd(jacrev(f, 1), 1)(c.x, c.w, c.b),
    "vmap of hessian": lambda f, c: vmap(hessian(f, 1), (0, None, None))(twice(c.x), c.w, c.b),
    "vjp": lambda f, c: vjp(f, c.x, c.w, c.b)[1](torch.ones((), dtype=D)),
    "grad over a closure that needs gradients": lambda f, c: torch.autograd.grad(grad(f)(c.x, c.wg, c.b).sum(), c.wg),
    "linearize": lambda f, c: linearize(f, c.x, c.w, c.b)[1](c.x, c.w, c.b),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_torch_func(case, transform):
    same(transform(case.operated, case), transform(case.referred, case))


def test_forward_mode(case):
    def tangent(f):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(case.x, case.x), case.wg, case.b)).tangent

    def tangent_of_gradient(f):
        with forward_ad.dual_level():
            value = f(forward_ad.make_dual(case.x, case.x), case.wg, case.b)
            return forward_ad.unpack_dual(torch.autograd.grad(value, case.wg)[0]).tangent

    same(tangent(case.operated), tangent(case.referred))
    same(tangent_of_gradient(case.operated), tangent_of_gradient(case.referred))


def test_checkpointing(case):
    def through(f):
        value = torch.utils.checkpoint.checkpoint(f, case.xg, case.wg, case.b, use_reentrant=False)
        return torch.autograd.grad(value, (case.xg, case.wg))

    same(through(case.operated), torch.autograd.grad(case.referred(case.xg, case.wg, case.b), (case.xg, case.wg)))


def test_recorded_by_jit_trace(case):
    def gradients(f):
        return torch.autograd.grad(f(case.xg, case.wg, case.b) * 2, (case.xg, case.wg))

    traced = torch.jit.trace(case.operated, (case.xg, case.wg, case.b))
    same(traced(case.x, case.w, case.b), case.referred(case.x, case.w, case.b))
    same(gradients(traced), gradients(case.referred))


def test_recorded_by_symbolic_trace():
    def gradients(f, *arguments):
        leaves = [each.detach().requires_grad_() for each in arguments]
        return torch.autograd.grad(f(*leaves).square().sum(), leaves)

    x, w, b = (torch.randn(3, dtype=D) for _ in range(3))
    for operated, referred in (
        (lambda x, w, b: plain(x, w, b, 1), lambda x, w, b: plain.reference(x, w, b, 1)),
        (lambda x, w, b: cell(x, w)[1] * b, lambda x, w, b: _cell(x, w)[1] * b),
        (lambda x, w, b: mul_constant_operator(x * w + b, 2.0), lambda x, w, b: (x * w + b) * 2.0),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            same(gradients(torch.fx.symbolic_trace(operated), x, w, b), gradients(referred, x, w, b))


class TestUnsaved:
    """Tensors that a gradient formula does not read are not kept for it."""

    def test_it_may_change_and_be_freed(self):
        x, w, b = torch.randn(1, 2, 5, 4), torch.randn(4, 1, 3, 2, requires_grad=True), torch.randn(4)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each: (saved.append(each.data_ptr()), each)[1], lambda e: e
        ):
            output = convolution(x, w, b.requires_grad_(), *WINDOW)
            torchgraft.mul_constant(x.clone().requires_grad_(), 2.0)
        assert saved == [x.data_ptr(), w.data_ptr()]
        b.data.zero_()
        assert torch.autograd.grad(output.sum(), (w, b))[1].shape == b.shape

    @pytest.mark.parametrize(
        "unsaved", [("input",), ("weight",), ("input", "bias"), ("input", "weight", "bias")], ids=str
    )
    @pytest.mark.parametrize("through", ["eager", "torch.ops", "torch.func", "compile"])
    def test_any_of_them(self, unsaved, through):
        seen = []

        def gradient(needs_grad, output_grads, saved, input, weight, bias, factor):
            values = {"input": input, "weight": weight, "bias": bias}
            seen.append(tuple(name for name, value in values.items() if value is None))
            assert len(saved) == 1
            grad = output_grads[0] * factor * saved[0]
            return grad, grad, grad

        operator = Operator(
            f"composition::unsaved_{'_'.join(unsaved)}_{through.replace('.', '_')}(Tensor input, Tensor weight, "
            "Tensor bias, float factor) -> (Tensor, Tensor)",
            reference=lambda input, weight, bias, factor: ((input + weight + bias) * factor, torch.ones_like(input)),
            output=lambda input, weight, bias, factor: (torch.empty_like(input), torch.empty_like(input)),
            gradient=gradient,
            visible_outputs=1,
            unsaved=unsaved,
        )
        _kernel(operator, operator.declaration.reference)
        leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]

        def run(*tensors):
            return (operator.public(*tensors, 2.0)[0] if through == "torch.ops" else operator(*tensors, 2.0)).sum()

        if through == "torch.func":
            grads = grad(run, (0, 1, 2))(*leaves)
        else:
            function = torch.compile(run, backend="aot_eager", fullgraph=True) if through == "compile" else run
            grads = torch.autograd.grad(function(*leaves), leaves)
        if through != "compile":  # which looks at what is saved, and runs no line twice
            assert seen == [unsaved]
        assert [each.tolist() for each in grads] == [[2.0] * 3] * 3

    @pytest.mark.parametrize(
        ("unsaved", "gradient", "problem"),
        [
            (
                ("biass",),
                lambda *each: None,
                r"unsaved names \['biass'\], but its tensor arguments are \['input', 'bias'\]",
            ),
            (("factor",), lambda *each: None, r"unsaved names \['factor'\]"),
            (("bias",), None, "unsaved needs a gradient function, and gradient is None"),
        ],
    )
    def test_what_cannot_be_is_told(self, unsaved, gradient, problem):
        with pytest.raises(ValueError, match=problem):
            Operator(
                f"composition::told_{unsaved[0]}(Tensor input, Tensor bias, float factor) -> Tensor",
                reference=lambda input, bias, factor: input,
                output=lambda input, bias, factor: input,
                gradient=gradient,
                unsaved=unsaved,
            )


COMPILED = {
    "vmap": lambda f, c, compiled: compiled(vmap(f, (0, None, None)))(twice(c.x), c.w, c.b),
    "grad": lambda f, c, compiled: compiled(grad(f, (0, 1)))(c.x, c.w, c.b),
    "vmap of grad": lambda f, c, compiled: compiled(vmap(grad(f, (0, 1)), (0, None, None)))(twice(c.x), c.w, c.b),
    "jvp": lambda f, c, compiled: compiled(lambda x: jvp(lambda x: f(x, c.w, c.b), (x,), (x,)))(c.x),
}


@pytest.mark.parametrize("transform", COMPILED.values(), ids=COMPILED.keys())
def test_compiled_torch_func(case, transform):
    def compiled(function):
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    same(transform(case.operated, case, compiled), transform(case.referred, case, lambda function: function))


@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", False), ("inductor", True)], ids=["static, aot_eager", "dynamic, inductor"]
)
def test_compiled_backward(case, backend, dynamic):
    def backward(f):
        leaves = [t.detach().clone().requires_grad_() for t in (case.x, case.w, case.b)]
        f(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    compiled = torch.compile(case.operated, fullgraph=True, backend=backend, dynamic=dynamic)
    same(backward(compiled), backward(case.referred))


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [(mul_constant_operator, (torch.ones(3), 2.0)), (linear_operator, (torch.ones(2, 3), torch.ones(4, 3), None))],
    ids=["mul_constant", "linear"],
)
def test_what_is_traced_asks_pytorch_for_no_types(operator, arguments, monkeypatch):
    expected = operator(*arguments)

    def asked(of):
        raise AssertionError("what a compiler traces has asked PyTorch for the types of arguments")

    for name in ("schema_of", "parse_schema"):
        monkeypatch.setattr(pytorch, name, asked)
    compiled = torch.compile(lambda *values: operator(*values), fullgraph=True, backend="eager")
    assert torch.equal(compiled(*arguments), expected)
    with pytest.raises(Exception, match="input must be a Tensor, got list"):
        compiled([1.0], *arguments[1:])


# Inductor's own compiler takes long, and this is about PyTorch more than about us.
@pytest.mark.slow
class TestFloatsThatChange:
    """The ways past PyTorch's stale floats that docs/operators.md names, under Inductor, whose cache is at fault."""

    added = Operator(
        "composition::added(Tensor input, float amount) -> Tensor",
        reference=lambda input, amount: input + amount,
        output=lambda input, amount: torch.empty_like(input),
        kernels="reference",
    )
    added_tensor = Operator(
        "composition::added_tensor(Tensor input, Tensor amount) -> Tensor",
        reference=lambda input, amount: input + amount,
        output=lambda input, amount: torch.empty_like(input),
        kernels="reference",
    )
    shown = Operator(
        "composition::added_as_reference(Tensor input, float amount) -> Tensor",
        reference=lambda input, amount: input + amount,
        compile="reference",
    )

    def check(self, function, arguments=lambda s: (s,), **options):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, **options)
        input = torch.ones(2)
        # A value that was compiled, one that is variable from then on, and one that could be stale.
        for s in (1.0, 2.0, 4.0):
            assert compiled(input, *arguments(s)).tolist() == [2 * s + 1] * 2

    def test_both_are_arguments(self):
        self.check(lambda x, s, amount: self.added(x * s, amount), lambda s: (s, s + 1))

    def test_a_tensor_without_dimensions(self):
        self.check(lambda x, s: self.added_tensor(x * s, s + 1), lambda s: (torch.tensor(s),))

    def test_specialized(self):
        with torch._dynamo.config.patch(specialize_float=True):
            self.check(lambda x, s: self.added(x * s, s + 1))

    def test_not_dynamic(self):
        self.check(lambda x, s: self.added(x * s, s + 1), dynamic=False)

    def test_an_operator_that_compilers_see_as_its_reference(self):
        self.check(lambda x, s: self.shown(x * s, s + 1))


def test_opcheck_of_a_users_operators():
    tensors = [torch.randn(5, dtype=D, requires_grad=True) for _ in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        torch.library.opcheck(plain.public, (*tensors[:3], 1))
        torch.library.opcheck(plain.public, (*tensors[:2], None, 1))
        torch.library.opcheck(cell.public, tensors[:2])
        torch.library.opcheck(cell_grad.public, (*tensors[:4], tensors[4].detach()))


def test_dynamic_export_keeps_the_operator():
    class Module(torch.nn.Module):
        def forward(self, x, w, b):
            return convolution(x, w, b, *WINDOW)

    c = _depthwise_case()
    free = torch.export.Dim.AUTO
    # A batch of one would be taken for a constant.
    x = torch.cat([c.x, c.x])
    program = torch.export.export(Module(), (x, c.w, c.b), dynamic_shapes=({0: free, 2: free, 3: free}, None, None))
    larger = torch.randn(4, 2, 9, 8, dtype=D)
    same(program.module()(larger, c.w, c.b), depthwise_reference.depthwise_conv2d(larger, c.w, c.b, *WINDOW))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "torchgraft.depthwise_conv2d.default" in targets


def test_make_fx_of_grad_keeps_the_operators():
    from torch.fx.experimental.proxy_tensor import make_fx

    c = _depthwise_case()
    graph = make_fx(grad(c.operated, (0, 1)))(c.x, c.w, c.b)
    targets = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert {
        "torchgraft._depthwise_conv2d.default",
        "torchgraft._depthwise_conv2d_input_grad.default",
        "torchgraft._depthwise_conv2d_weight_grad.default",
    } <= targets


def test_vmap_straight_over_the_public_name():
    c = _depthwise_case()
    found = vmap(lambda x: convolution.public(x, c.w, c.b, *WINDOW))(twice(c.x))
    same(found, vmap(lambda x: depthwise_reference.depthwise_conv2d(x, c.w, c.b, *WINDOW))(twice(c.x)))


def test_vmap_of_a_kernel_stays_on_the_kernel():
    c = _depthwise_case()
    before = torchgraft.fallbacks()
    vmap(grad(c.operated, (0, 1, 2)), (0, None, None))(twice(c.x), c.w, c.b)
    assert torchgraft.fallbacks() == before


@contextlib.contextmanager
def fallback_noted(operator, reason):
    def count():
        return sum(each.calls for each in torchgraft.fallbacks() if each[0] == operator and reason in each.reason)

    before = count()
    yield
    assert count() > before


def test_what_falls_back_says_so_once():
    fresh = Operator(
        "composition::fresh(Tensor input) -> Tensor",
        reference=lambda input: input**2,
        output=lambda input: torch.empty_like(input),
    )
    _kernel(fresh, lambda input: input**2)
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(PerformanceWarning, match="no gradient formula") as noted:
        fresh(x).sum().backward()
    assert noted[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh(x).sum().backward()
    assert [each.calls for each in torchgraft.fallbacks() if each.operator == "composition::fresh"] == [2]
    with pytest.warns(PerformanceWarning, match="no vmap rule"):
        vmap(fresh.public)(torch.randn(2, 3))


def test_forward_mode_names_what_was_missing():
    c = _depthwise_case()
    with fallback_noted("torchgraft::depthwise_conv2d", "forward-mode"), warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        jvp(lambda x: c.operated(x, c.w, c.b), (c.x,), (c.x,))


def test_a_dtype_without_kernel_runs_on_the_reference():
    narrow = Operator(
        "composition::narrow(Tensor input) -> Tensor",
        reference=lambda input: input + 1,
        output=lambda input: torch.empty_like(input),
        gradient=lambda needs_grad, output_grads, saved, input: (output_grads[0],),
        kernels={"cpu": (torch.float32,)},
    )
    _kernel(narrow, lambda input: input + 100)
    assert narrow(torch.zeros(2)).tolist() == [100, 100]
    with pytest.warns(PerformanceWarning, match="no kernel for this dtype"):
        assert narrow(torch.zeros(2, dtype=D)).tolist() == [1, 1]


def test_a_device_without_kernel_runs_on_the_reference():
    lonely = Operator(
        "composition::lonely(Tensor input) -> Tensor",
        # A view: what is returned must be new memory all the same.
        reference=lambda input: input.t(),
        output=lambda input: input.new_empty(input.shape[::-1]),
    )
    x = torch.randn(2, 3)
    with pytest.warns(PerformanceWarning, match="composition has no kernels for cpu"):
        result = lonely(x)
    assert torch.equal(result, x.t())
    assert result.is_contiguous()
    assert result.data_ptr() != x.data_ptr()


def test_autocast_promotes_to_the_widest():
    wide = Operator(
        "composition::wide(Tensor left, Tensor right) -> Tensor",
        reference=lambda left, right: left + right,
        output=lambda left, right: torch.empty_like(left),
        gradient=lambda needs_grad, output_grads, saved, left, right: (output_grads[0], output_grads[0]),
        autocast="promote",
    )
    _kernel(wide, lambda left, right: left + right)
    left, right = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, requires_grad=True)
    with torch.autocast("cpu"):
        assert wide(left, right).dtype == torch.float32
        assert wide(left, left).dtype == torch.bfloat16


def test_a_mixture_of_dtypes_is_refused_unless_it_is_declared():
    def reference(input, weight, bias):
        return input * weight.to(input.dtype) + bias

    mixing = Operator(
        "composition::mixing(Tensor input, Tensor weight, Tensor bias) -> Tensor",
        reference=reference,
        output=lambda input, weight, bias: torch.empty_like(input),
        mixed=("weight",),
    )
    _kernel(mixing, reference)
    input, half = torch.randn(3), torch.randn(3, dtype=torch.float16)
    assert mixing(input, half, input).dtype == torch.float32
    mixing.explain(input, half, input)
    with pytest.raises(TypeError, match=r"bias has dtype torch.float16 and input has torch.float32"):
        mixing.explain(input, input, half)
    with pytest.raises(TypeError, match=r"weight has dtype torch.int64, expected one of float64"):
        mixing.explain(input, torch.ones(3, dtype=torch.int64), input)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("no_namespace(Tensor x) -> Tensor", "namespace::name"),
        ("composition::_hidden(Tensor x) -> Tensor", "namespace::name"),
        (
            "composition::none(int n) -> Tensor",
            "needs at least one tensor argument: the kernel is chosen by its device",
        ),
        ("composition::told(Tenso x) -> Tensor", "cannot read the schema"),
        ("composition::told(Tensor x) -> int", "result 0 is int, .*return a tensor of one element"),
        (
            "composition::told(Tensor x) -> (Tensor y, Tensor? z)",
            r"z is Optional\[Tensor\], .*a tensor without elements",
        ),
        (
            "composition::told(Tensor x) -> (Tensor[], Tensor[])",
            "at most one result can be a list of tensors: join the lists",
        ),
        ("composition::told(Tensor(a!) x) -> Tensor(a!)", "use the argument after the call"),
        ("composition::told(Tensor x) -> ()", "must have a result, or mark an argument as written to"),
        ("composition::cell(Tensor x) -> Tensor", "is already declared"),
    ],
)
def test_a_schema_that_cannot_be_served_says_why(schema, problem):
    with pytest.raises(ValueError, match=problem):
        Operator(schema, reference=lambda *a: a[0], output=lambda *a: a[0])


_sine = Operator(
    "composition::sine(Tensor input) -> (Tensor, Tensor)",
    reference=lambda input: (input.sin(), input.cos()),
    gradient=lambda needs_grad, grads, saved, input: grads[0] * saved[0],
    visible_outputs=1,
)


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
@pytest.mark.parametrize("by_name", [False, True], ids=["the operator", "torch.ops"])
@pytest.mark.parametrize(
    "way",
    [
        functionalize,
        lambda function: functionalize(grad(lambda input: function(input).square().sum())),
        lambda function: grad(lambda input: functionalize(function)(input).square().sum()),
        lambda function: functionalize(vmap(function)),
        lambda function: vmap(functionalize(function)),
        lambda function: functionalize(hessian(lambda input: function(input).square().sum())),
        lambda function: functionalize(vmap(grad(function))),
        lambda function: functionalize(lambda input: jvp(function, (input,), (input,))),
    ],
)
def test_functionalize_in_every_nesting(way, by_name):
    def in_place(function):
        def call(input):
            changed = input.clone()
            changed.view(-1)[:1].add_(1)
            return function(changed).mul_(2)

        return call

    called = (lambda input: torch.ops.composition.sine(input)[0]) if by_name else _sine
    input = torch.linspace(-1, 1, 3, dtype=D)
    assert_close(way(in_place(called))(input), way(in_place(torch.sin))(input))


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_functionalize_records_the_operator_and_its_gradient_outside():
    input = torch.linspace(-1, 1, 3, dtype=D)
    graph = make_fx(functionalize(_sine))(input).graph
    assert _sine.public in [node.target for node in graph.nodes]
    needing = input.clone().requires_grad_()
    (found,) = torch.autograd.grad(functionalize(_sine)(needing).sum(), needing, create_graph=True)
    assert_close(found, input.cos())
    assert_close(torch.autograd.grad(found.sum(), needing), (-input.sin(),))


def test_a_name_that_was_refused_is_free():
    with pytest.raises(ValueError, match="unsaved"):
        Operator("composition::refused(Tensor x) -> Tensor", reference=lambda x: 2 * x, unsaved=("y",))
    Operator("composition::refused(Tensor x) -> Tensor", reference=lambda x: 2 * x)
