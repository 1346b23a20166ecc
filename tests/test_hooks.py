"""No exception of a caller's own is caught on the way through an operator, and nothing is computed twice for it.

Checkpointing that recomputes stops by an exception from a hook of saved tensors; hooks and modes of users raise too.
"""

import copy
import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import torchgraft
from torchgraft import Operator

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

numbers = itertools.count()


class _OwnError(Exception):
    """An exception of a caller's."""


class _OwnValueError(ValueError):
    """One of a kind that operators raise too."""


class _OwnInterrupt(BaseException):
    """One that is no Exception, as KeyboardInterrupt."""


def cube():
    return Operator(
        f"hooks::cube_{next(numbers)}(Tensor x) -> Tensor",
        reference=lambda x: x**3,
        gradient=lambda needs_grad, grads, saved, x: 3 * x**2 * grads[0],
    )


def readme():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 7, padding=3, groups=32))


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pointwise, self.depthwise = torch.nn.Conv2d(3, 3, 1), torch.nn.Conv2d(3, 3, 3, padding=1, groups=3)

    def forward(self, x):
        return x + self.depthwise(self.pointwise(x))


class EndsInLinear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.last = torch.nn.Conv2d(3, 3, 1), torchgraft.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.before(x))


class EndsInOperator(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.last = torch.nn.Conv2d(3, 3, 1), cube()

    def forward(self, x):
        return self.last(self.before(x))


def gradients(model, x, through):
    model.zero_grad()
    x = x.clone().requires_grad_()
    through(model, x).float().pow(2).sum().backward()
    return [x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.float64, False), (torch.bfloat16, False), (torch.float32, True)],
    ids=str,
)
@pytest.mark.parametrize("make", [readme, Residual, EndsInLinear, EndsInOperator])
def test_checkpointing(make, dtype, autocast, layout, reentrant, early_stop):
    model = torchgraft.graft(make()).to(dtype).to(memory_format=layout)
    x = torch.randn(2, 3, 8, 8, dtype=dtype).to(memory_format=layout)

    def checkpointed(model, x):
        return checkpoint(model, x, use_reentrant=reentrant)

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), set_checkpoint_early_stop(early_stop):
        found, expected = gradients(model, x, checkpointed), gradients(model, x, lambda model, x: model(x))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_selective_checkpointing():
    model = torchgraft.graft(readme())
    seen = []

    def policy(context, operator, *arguments, **named):
        seen.append(str(operator))
        save = "depthwise" in str(operator)
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    def through(model, x):
        return checkpoint(
            model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
        )

    x = torch.randn(1, 3, 8, 8)
    for one, other in zip(gradients(model, x, through), gradients(model, x, lambda m, x: m(x)), strict=True):
        torch.testing.assert_close(one, other)
    assert any("depthwise" in each for each in seen)


def test_offloading():
    model, x = torchgraft.graft(readme()), torch.randn(1, 3, 8, 8)

    def through(model, x):
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    for one, other in zip(gradients(model, x, through), gradients(model, x, lambda m, x: m(x)), strict=True):
        torch.testing.assert_close(one, other)


CALLS = {
    "depthwise_conv2d": lambda: torchgraft.nn.DepthwiseConv2d(4, 3),
    "linear": lambda: torchgraft.nn.Linear(8, 4),
    "lltm": lambda: lambda x: torchgraft.nn.LLTM(8, 4)(x[0])[0],
    "shift": lambda: torchgraft.nn.Shift(4),
    "an operator": cube,
}


@pytest.mark.parametrize("error", [_OwnError, _OwnValueError])
@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS.keys())
class TestWhatACallerRaises:
    def test_from_a_hook_that_packs(self, make, error):
        calls = []

        def pack(tensor):
            calls.append(tensor)
            raise error

        function, x = make(), torch.randn(1, 4, 8, 8, requires_grad=True)
        with pytest.raises(error), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(x)
        assert len(calls) == 1

    def test_from_a_hook_that_unpacks(self, make, error):
        def unpack(tensor):
            raise error

        x = torch.randn(1, 4, 8, 8, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            result = make()(x)
        with pytest.raises(error):
            result.sum().backward()

    @pytest.mark.parametrize("needs_grad", [False, True])
    def test_from_a_mode_that_sees_each_operator(self, make, error, needs_grad):
        class Raises(TorchDispatchMode):
            calls = 0

            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                self.calls += 1
                raise error

        function, x = make(), torch.randn(1, 4, 8, 8, requires_grad=needs_grad)
        with pytest.raises(error), Raises() as mode:
            function(x)
        assert mode.calls == 1


class TestGradientsThatAreRecorded:
    """A backward pass with create_graph=True saves tensors too, and modes see what it calls."""

    def layers(self):
        own = torch.nn.Conv2d(4, 8, 3, groups=4, dtype=torch.float64)
        return own, torchgraft.graft(torch.nn.Sequential(copy.deepcopy(own)))[0]

    @pytest.mark.parametrize("early_stop", [True, False])
    @pytest.mark.parametrize("outside", [False, True], ids=["within", "of a result from outside"])
    def test_in_a_checkpoint(self, early_stop, outside):
        x = torch.randn(2, 4, 6, 6, dtype=torch.float64, requires_grad=True)
        found = []
        for layer in self.layers():
            result = layer(x) if outside else None

            def force(x, layer=layer, result=result):
                y = layer(x) if result is None else result
                return torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)[0].tanh()

            with set_checkpoint_early_stop(early_stop):
                y = checkpoint(force, x, use_reentrant=False)
                found.append(torch.autograd.grad(y.pow(2).sum(), (x, layer.weight)))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("error", [_OwnError, _OwnValueError, _OwnInterrupt, KeyboardInterrupt, RuntimeError])
    @pytest.mark.parametrize("wanted", [(0,), (1,), (2, 0), (0, 1, 2)])
    def test_a_hook_that_packs_raises(self, error, wanted):
        calls = []

        def pack(tensor):
            calls.append(tensor)
            raise error("mine")

        x = torch.randn(1, 4, 8, 8, dtype=torch.float64, requires_grad=True)
        counts = []
        for layer in self.layers():
            leaves = [(x, layer.weight, layer.bias)[place] for place in wanted]
            y = layer(x).sum()
            with pytest.raises(error, match=r"^mine$"), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                torch.autograd.grad(y, leaves, create_graph=True)
            counts.append(len(calls))
            calls.clear()
        assert counts[0] == counts[1] == 1

    @pytest.mark.parametrize("error", [_OwnError, _OwnValueError, _OwnInterrupt])
    @pytest.mark.parametrize("create_graph", [False, True])
    def test_a_mode_raises_once(self, error, create_graph):
        class RaisesAtOne(TorchDispatchMode):
            calls = 0

            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                if "conv" in str(function):
                    self.calls += 1
                    raise error("mine")
                return function(*arguments, **(named or {}))

        x = torch.randn(1, 4, 8, 8, dtype=torch.float64, requires_grad=True)
        for layer in self.layers():
            y = layer(x).sum()
            with pytest.raises(error, match=r"^mine$"), RaisesAtOne() as mode:
                torch.autograd.grad(y, x, create_graph=create_graph)
            assert mode.calls == 1

    def test_offloaded_they_are_differentiated_again(self):
        x = torch.randn(2, 4, 6, 6, dtype=torch.float64, requires_grad=True)
        found = []
        for layer in self.layers():
            y = layer(x).pow(3).sum()
            with torch.autograd.graph.save_on_cpu():
                grads = torch.autograd.grad(y, (x, layer.weight, layer.bias), create_graph=True)
            found.append((*grads, *torch.autograd.grad(sum(each.pow(2).sum() for each in grads), (x, layer.weight))))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("error", [_OwnError, _OwnValueError, RuntimeError])
def test_from_a_formula_and_from_a_reference(error):
    def fail(*arguments):
        calls.append(arguments)
        raise error("mine")

    calls = []
    by_formula = Operator(f"hooks::fails_{next(numbers)}(Tensor x) -> Tensor", reference=lambda x: x * 1, gradient=fail)
    result = by_formula(torch.ones(1, requires_grad=True))
    with pytest.raises(error, match="mine"):
        result.sum().backward()
    by_reference = Operator(
        f"hooks::fails_{next(numbers)}(Tensor x) -> Tensor", reference=fail, output=torch.empty_like
    )
    with pytest.raises(error, match="mine"):
        by_reference(torch.ones(1))
    assert len(calls) == 2


@pytest.mark.parametrize("gradient", ["reference", None, "formula"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_is_first_compiled_under_hooks_trains_and_forbids_nothing_later(gradient, backend):
    """TorchDynamo cannot trace torch.func under hooks of saved tensors, and from then on PyTorch refuses all hooks."""
    operator = Operator(
        f"hooks::sine_{next(numbers)}(Tensor x) -> Tensor",
        reference=torch.sin,
        gradient=(lambda needs_grad, grads, saved, x: grads[0] * x.cos()) if gradient == "formula" else gradient,
        kernels={},
    )

    def on_cpu(function, x):
        with torch.autograd.graph.save_on_cpu():
            return function(x)

    x = torch.randn(3, requires_grad=True)
    for through in (lambda function, x: checkpoint(function, x, use_reentrant=False), on_cpu):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: 2 * operator(x), backend=backend)
        (grad,) = torch.autograd.grad(through(compiled, x).sum(), x)
        torch.testing.assert_close(grad, 2 * x.cos())
        on_cpu(torch.sin, x).sum().backward()


def _exponential(x):
    return torch.exp(2 * x), torch.exp(2 * x)


WITHOUT_KERNELS_OF_GRADIENTS = {
    "no formula": lambda name: Operator(f"{name}(Tensor x) -> Tensor", reference=torch.sin, kernels={}),
    "the reference": lambda name: Operator(
        f"{name}(Tensor x) -> Tensor", reference=torch.sin, gradient="reference", kernels={}
    ),
    "a reference that writes to what it made": lambda name: Operator(
        f"{name}(Tensor x) -> Tensor", reference=lambda x: (x * 3).mul_(x).sin_(), gradient="reference", kernels={}
    ),
    "a formula that reads a hidden result": lambda name: Operator(
        f"{name}(Tensor x) -> (Tensor, Tensor)",
        reference=_exponential,
        gradient=lambda needs_grad, grads, saved, x: 2 * grads[0] * saved[0],
        visible_outputs=1,
        kernels={},
    ),
    "a list, and indices": lambda name: _first_of_list(
        Operator(
            f"{name}(Tensor[] x) -> (Tensor, Tensor)",
            reference=lambda x: (x[0] * torch.sin(x[1]), x[0].argsort()),
            gradient="reference",
            kernels={},
        )
    ),
}


def _first_of_list(operator):
    return lambda x: operator([x, x * x])[0]


def _gradient_of(operator, x, **named):
    return torch.autograd.grad(operator(x).pow(2).sum(), x, **named)[0]


@pytest.mark.parametrize("kind", WITHOUT_KERNELS_OF_GRADIENTS)
class TestGradientsThatAreTakenUnderHooks:
    """PyTorch's functions that differentiate functions do not work there; autograd does."""

    @pytest.fixture
    def operator(self, kind):
        return WITHOUT_KERNELS_OF_GRADIENTS[kind](f"hooks::differentiated_{next(numbers)}")

    @pytest.fixture
    def x(self):
        return torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def test_a_backward_pass(self, operator, x):
        expected, packed = _gradient_of(operator, x), []
        with torch.autograd.graph.save_on_cpu():
            torch.testing.assert_close(_gradient_of(operator, x), expected)
        result = operator(x).pow(2).sum()
        with torch.autograd.graph.saved_tensors_hooks(packed.append, lambda tensor: tensor):
            torch.testing.assert_close(torch.autograd.grad(result, x)[0], expected)
        assert packed == [], "a backward pass saves nothing, if no gradient of it is recorded"

    def test_a_gradient_of_a_gradient(self, operator, x):
        expected = torch.autograd.grad(_gradient_of(operator, x, create_graph=True).sum(), x)[0]
        with torch.autograd.graph.save_on_cpu():
            found = torch.autograd.grad(_gradient_of(operator, x, create_graph=True).sum(), x)[0]
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("early_stop", [True, False])
    def test_a_gradient_inside_a_checkpoint(self, operator, x, early_stop):
        expected = torch.autograd.grad(_gradient_of(operator, x, create_graph=True).sum(), x)[0]
        with set_checkpoint_early_stop(early_stop):
            inside = checkpoint(lambda x: _gradient_of(operator, x, create_graph=True), x, use_reentrant=False)
            torch.testing.assert_close(torch.autograd.grad(inside.sum(), x)[0], expected)
