"""An operator declared again: who holds it calls the new one, a declaration that fails changes nothing, nothing leaks.

`load_inline` declares anew each time that a cell of a notebook runs.
"""

import gc
import os
import subprocess
import sys

import pytest
import torch

from torchgraft import Operator, load_inline

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

KERNEL = """
Tensor {name}_cpu(Tensor x) {{
  const Tensor source = to_contiguous(x);
  Tensor output = empty_as(source);
  const float* from = data_of<float>(source);
  float* to = mutable_data_of<float>(output);
  for (int64_t i = 0; i < output.numel(); ++i) to[i] = {factor} * from[i];
  return output;
}}
"""


def redefine(factor, name="times", **declared):
    """Declares an operator by a compiled kernel that multiplies by a factor."""
    return load_inline(
        f"redefined::{name}(Tensor x) -> Tensor",
        reference=lambda x: x * factor,
        cpu=KERNEL.format(name=name, factor=factor),
        **{
            "output": torch.empty_like,
            "gradient": lambda needs_grad, grads, saved, x: grads[0] * factor,
            "dtypes": (torch.float32,),
            "flops": lambda shape: int(factor),
            **declared,
        },
    )


def value_and_gradient(operator):
    x = torch.ones(2, requires_grad=True)
    result = operator(x)
    result.sum().backward()
    return result[0].item(), x.grad[0].item()


def test_every_handle_follows_however_old():
    first = redefine(2.0)
    overloads = first.public, first.raw, torch.ops.redefined.times
    compiled = torch.compile(lambda x: first(x), backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0, 2.0, 3.0, 2.0):
        assert redefine(factor) is first
        assert value_and_gradient(first) == (factor, factor)
        assert value_and_gradient(compiled) == (factor, factor)
        for overload in (*overloads, torch.ops.redefined.times):
            assert overload(torch.ones(1)).item() == factor
        assert torch.vmap(first)(torch.ones(2, 3)).unique().item() == factor


def test_what_is_left_of_an_operator_takes_nothing_of_the_next_one_of_its_name():
    def declare_one():
        return Operator("redefined::again(Tensor x) -> Tensor", reference=lambda x: x, kernels={})

    before = declare_one()
    # What waits for the garbage collector, as an object in a cycle does.
    left = before._definitions, before._library
    before.undeclare()
    after = declare_one()
    del before, left
    gc.collect()
    assert torch.ops.redefined.again.default is after.public
    assert getattr(torch.ops.redefined._again, after.declaration_word) is after.raw


def test_the_function_behind_a_call_follows_too():
    held = redefine(2.0).call
    for factor in (3.0, 2.0, 5.0):
        operator = redefine(factor)
        assert operator.call is held
        assert value_and_gradient(held) == (factor, factor)
    operator.undeclare()
    with pytest.raises(RuntimeError, match="redefined::times was undeclared"):
        held(torch.ones(1))
    for decorator in (operator.kernel("cpu"), operator.choose_kernel("cpu")):
        with pytest.raises(RuntimeError, match="redefined::times was undeclared"):
            decorator(lambda x: x)


def test_flops_follow():
    from torch.utils.flop_counter import FlopCounterMode

    for factor in (2.0, 3.0):
        operator = redefine(factor)
        with FlopCounterMode(display=False) as counter:
            operator(torch.ones(1))
        assert counter.get_total_flops() == factor


def test_a_graph_from_before_keeps_its_gradient():
    operator = redefine(2.0)
    x = torch.ones(1, requires_grad=True)
    result = operator(x)
    redefine(3.0)
    result.backward()
    assert x.grad.item() == 2.0


def test_another_schema_is_called_from_then_on_and_old_overloads_are_refused():
    operator = redefine(2.0, "changing")
    overloads = operator.public, operator.raw, torch.ops.redefined.changing
    again = load_inline(
        "redefined::changing(Tensor x, float by=5.0) -> Tensor", reference=lambda x, by: x * by, kernels={}
    )
    assert again is operator
    assert operator(torch.ones(1)).item() == torch.ops.redefined.changing(torch.ones(1)).item() == 5.0
    for overload in overloads:
        with pytest.raises(RuntimeError, match="redefined::changing was undeclared or got another schema"):
            overload(torch.ones(1))


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ({"gradient": 5}, TypeError),
        ({"shapes": "n m"}, ValueError),
        ({"unsaved": ("y",)}, ValueError),
        ({"random": ("x",)}, ValueError),
        ({"autocast": "none", "sharding": "a b"}, ValueError),
        ({"no_such_word": 1}, TypeError),
    ],
    ids=str,
)
def test_a_declaration_that_is_refused_changes_nothing(declared, error):
    operator = redefine(2.0)
    with pytest.raises(error):
        redefine(3.0, **declared)
    assert Operator.registered["redefined::times"] is operator
    assert value_and_gradient(operator) == (2.0, 2.0)


@pytest.mark.parametrize("schema", ["(Tensor x) -> Tensor", "(Tensor x, float by=5.0) -> Tensor"])
@pytest.mark.parametrize(
    "step",
    [
        "operator.registration.register",
        "kernels.signatures.expect_fitting",
        "operator.operator.make_call",
        "operator.dtensor.register",
    ],
)
def test_nor_does_one_that_pytorch_refuses(monkeypatch, schema, step):
    operator = redefine(2.0)

    @operator.kernel("cpu", name="by hand")
    def by_hand(x):
        return 2 * x

    def fail(*arguments):
        monkeypatch.undo()
        raise RuntimeError("refused")

    monkeypatch.setattr(f"torchgraft.{step}", fail)
    with pytest.raises(RuntimeError, match="refused"):
        load_inline(f"redefined::times{schema}", reference=lambda x, by=1.0: x * by, kernels={})
    assert value_and_gradient(operator) == (2.0, 2.0)
    assert torch.ops.redefined.times(torch.ones(1)).item() == 2.0
    from torchgraft.kernels import python_kernels

    assert list(python_kernels.kernels_of("redefined::times", "cpu").kernels) == ["by hand"]
    assert redefine(3.0) is operator
    assert value_and_gradient(operator) == (3.0, 3.0)


def test_nor_does_a_kernel_that_pytorch_refuses(monkeypatch):
    from torchgraft import native

    operator = redefine(2.0)
    tell = native.tell

    def refuse(name, device, library):
        if library is not None:
            monkeypatch.undo()
            raise RuntimeError("refused")
        tell(name, device, library)

    monkeypatch.setattr(native, "tell", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        redefine(3.0)
    assert value_and_gradient(operator) == (2.0, 2.0)


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.redefined.recorded(x)


class TestUndeclared:
    @pytest.fixture
    def gone(self):
        operator = redefine(2.0, "gone")
        self.overloads = operator.public, operator.raw, torch.ops.redefined.gone
        operator.undeclare()
        return operator

    @pytest.mark.parametrize(
        "call",
        [
            lambda operator, x: operator(x),
            lambda operator, x: operator(x=x),
            lambda operator, x: operator(x.requires_grad_()),
            lambda operator, x: torch.vmap(operator)(x),
            lambda operator, x: torch.func.grad(lambda x: operator(x).sum())(x),
            lambda operator, x: torch.compile(lambda x: operator(x), backend="eager")(x),
            lambda operator, x: operator.names.call_public(x),
        ],
        ids=["call", "by name", "gradient", "vmap", "torch.func", "compiled", "public"],
    )
    def test_every_call_says_so(self, gone, call):
        with pytest.raises(RuntimeError, match="redefined::gone was undeclared"):
            call(gone, torch.ones(2))

    def test_what_pytorch_calls_it_by_says_so(self, gone):
        for overload in self.overloads:
            with pytest.raises(RuntimeError, match="redefined::gone was undeclared"):
                overload(torch.ones(2))

    def test_what_was_recorded_says_so_and_follows_the_next_one_of_its_name(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        class Model(torch.nn.Module):
            def forward(self, x):
                return operator(x)

        operator, x = redefine(2.0, "recorded"), torch.ones(2)
        recorded = [
            torch.jit.trace(Model(), (x,), check_trace=False),
            torch.jit.script(Scripted()),
            make_fx(Model())(x),
            torch.export.export(Model(), (x,)).module(),
        ]
        for _ in range(3):  # torch.jit makes faster code from the second call on
            assert [each(x).tolist() for each in recorded] == [[2.0, 2.0]] * len(recorded)
        operator.undeclare()
        for each in recorded:
            with pytest.raises(RuntimeError, match="redefined::recorded was undeclared"):
                each(x)
        again = redefine(3.0, "recorded")
        assert [each(x).tolist() for each in recorded] == [[3.0, 3.0]] * len(recorded)
        again.undeclare()
        with pytest.raises(ValueError, match="autocast"):
            redefine(4.0, "recorded", autocast="no")
        for each in recorded:
            with pytest.raises(RuntimeError, match="redefined::recorded was undeclared"):
                each(x)

    def test_compilers_raise_too(self):
        """While it traces, PyTorch remembers which kernels an overload has, and calls one that is gone."""
        from torch.fx.experimental.proxy_tensor import make_fx

        operator, x = redefine(2.0, "traced"), torch.ones(2)
        overload = operator.public
        compiled = torch.compile(lambda x: overload(x), backend="eager")
        compiled(x)
        operator.undeclare()
        for call in (
            compiled,
            torch.compile(lambda x: 2 * overload(x), backend="aot_eager"),
            make_fx(overload, tracing_mode="symbolic"),
        ):
            with pytest.raises(RuntimeError, match="redefined::traced was undeclared"):
                call(x)

    def test_the_name_is_free_and_the_old_operator_stays_gone(self, gone):
        again = redefine(3.0, "gone")
        assert again is not gone
        gone.undeclare()
        assert value_and_gradient(again) == (3.0, 3.0)
        with pytest.raises(RuntimeError, match="undeclared"):
            gone(torch.ones(1))


def test_two_hundred_times_hold_and_take_no_memory():
    def megabytes():
        gc.collect()
        with open("/proc/self/statm") as sizes:
            return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    operator = redefine(2.0)
    for _ in range(2):  # the second time is measured
        before = megabytes()
        for number in range(100):
            factor = 2.0 + number % 2
            assert redefine(factor) is operator
            if number % 10 == 0:
                assert value_and_gradient(operator) == (factor, factor)
    assert megabytes() - before < 4


def test_without_numpy():
    script = """
import sys
sys.modules["numpy"] = None
import torch, torch.distributed.tensor, torchgraft
def declare(factor):
    return torchgraft.load_inline(
        "redefined::bare(Tensor x) -> Tensor", reference=lambda x: x * factor, kernels="reference", gradient="reference"
    )
operator = declare(2)
for factor in (3, 4):
    assert declare(factor) is operator
    print(operator(torch.ones(1)).item())
operator.undeclare()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3.0", "4.0"], done.stderr
