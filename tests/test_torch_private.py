"""Each private PyTorch name that we lean on, called: what fails here is what a new PyTorch changed."""

import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import torchgraft
from torchgraft._private import dtensor_rules, pytorch


def test_any_autocast():
    assert not pytorch.any_autocast()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pytorch.any_autocast()


def test_jit_tracing():
    assert not pytorch.jit_tracing()
    seen = []
    torch.jit.trace(lambda x: (seen.append(pytorch.jit_tracing()), x + 1)[1], torch.ones(2), check_trace=False)
    assert seen == [True]


def test_operator_namespaces():
    assert {"aten", "prims", "torchgraft"} <= pytorch.operator_namespaces()


def test_transform_active():
    assert not pytorch.transform_active()
    seen = []
    torch.vmap(lambda x: (seen.append(pytorch.transform_active()), x)[1])(torch.ones(2))
    with forward_ad.dual_level():
        seen.append(pytorch.transform_active())
    assert seen == [True, True]


def test_halves_of_transform_active():
    assert not pytorch.functorch_active()
    assert pytorch.dual_levels._current_level == -1
    seen = []
    torch.vmap(lambda x: (seen.append(pytorch.functorch_active()), x)[1])(torch.ones(2))
    with forward_ad.dual_level():
        seen.append(pytorch.dual_levels._current_level >= 0)
    assert seen == [True, True]


def test_forward_mode_active():
    assert not pytorch.forward_mode_active()
    seen = []

    def look(x):
        seen.append(pytorch.forward_mode_active())
        return x * 2

    torch.vmap(look)(torch.ones(2))
    torch.func.grad(look)(torch.ones(()))
    assert seen == [False, False]
    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    torch.func.grad(lambda x: torch.func.jvp(look, (x,), (x,))[1])(torch.ones(()))
    with forward_ad.dual_level():
        look(torch.ones(2))
    assert seen[2:] == [True, True, True]


def test_schema_of():
    schema = pytorch.schema_of(torch.ops.aten.add.Tensor)
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha"]
    assert str(schema.arguments[0].type) == "Tensor"
    assert len(schema.returns) == 1


def test_callee_of():
    add = pytorch.callee_of(torch.ops.aten.add.Tensor)
    assert add(torch.ones(2), 1).tolist() == [2, 2]


def test_constant_when_traced():
    calls = []

    @pytorch.constant_when_traced
    def switch():
        calls.append(len(calls))
        return True

    compiled = torch.compile(lambda x: x + 1 if switch() else x, backend="eager", fullgraph=True)
    assert [compiled(torch.zeros(())).item() for _ in range(3)] == [1, 1, 1]
    assert calls == [0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_of_onednn(dtype):
    convolution = torch.nn.Conv2d(3, 4, 3, dtype=dtype)
    input = torch.randn(1, 3, 8, 8, dtype=dtype)
    with torch.no_grad(), torch.profiler.profile() as profile:
        convolution(input)
    names = {event.key for event in profile.key_averages()}
    assert ("aten::mkldnn_convolution" in names) == pytorch.is_of_onednn(dtype)


def test_has_saved_tensor_hooks():
    assert not pytorch.has_saved_tensor_hooks()
    with torch.autograd.graph.save_on_cpu():
        assert pytorch.has_saved_tensor_hooks()


def test_compilation():
    seen = []

    def backend(module, inputs):
        seen.append(pytorch.compilation())
        return module

    assert pytorch.compilation() is None
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert None not in seen
    assert seen[0] is not seen[1]


def test_rules_of_dtensor():
    """Each name of DTensor's, where one process has a mesh of one device."""
    from torch.distributed.tensor import DTensor

    assert DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache
    with pytorch.scoped_library("private", "FRAGMENT") as library:
        library.define("ruled(Tensor x) -> Tensor")
        overload = torch.ops.private.ruled.default
        dtensor_rules.register_sharding_rule(DTensor, overload, lambda schema: None, takes_lists=False)
        dtensor_rules.clear_sharding_cache(DTensor)
    spec = dtensor_rules.dtensor_spec(None, ())
    answer = dtensor_rules.output_sharding(
        spec, SimpleNamespace(op=overload, kwargs_schema={}), [spec], needs_redistribute=True
    )
    assert answer.output_spec is spec
    assert answer.needs_redistribute


def test_watch_calls():
    seen = []

    def watch(go_on, arguments, named):
        seen.append((arguments, named))
        return go_on()

    operator = torch.ops.torchgraft.mul_constant.default
    with pytorch.scoped_library("torchgraft", "FRAGMENT") as library:
        pytorch.watch_calls(library, operator, watch)
        x = torch.ones(2)
        assert operator(x, 3.0).tolist() == [3.0, 3.0]
        with torch.inference_mode():
            operator(x, constant=2.0)
    operator(x, 4.0)
    [(arguments, named), (others, again)] = seen
    assert arguments[0] is x
    assert (arguments[1:], named) == ((3.0,), {})
    assert (*others[1:], *again.values()) == (2.0,)


def test_has_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen = []
    torch.vmap(lambda x: (seen.append(pytorch.has_memory(x)), x)[1])(torch.ones(2))
    with FakeTensorMode():
        seen.append(pytorch.has_memory(torch.ones(2)))
    seen.append(pytorch.has_memory(torch.ones(2, device="meta")))
    assert seen == [False, False, False]
    assert pytorch.has_memory(torch.ones(2))
    assert pytorch.has_memory(torch.nn.Parameter(torch.ones(2)))
    assert pytorch.has_memory(torch.nn.Buffer(torch.ones(2)))


def test_without_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytorch.without_autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_scoped_library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytorch.scoped_library("aten", "IMPL") as library:
            library.impl("sin", torch.ops.aten.cos.default, "CPU")
            assert torch.sin(torch.zeros(())) == 1
    assert torch.sin(torch.zeros(())) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here")
def test_wait_on_gpu():
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event() for _ in range(2))
    before.record()
    pytorch.wait_on_gpu(0.1)
    after.record()
    assert not after.query()
    after.synchronize()
    assert before.query()


def test_kernel_of():
    kernel = pytorch.kernel_of("aten::mm", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    assert torch.equal(kernel.call_boxed(keys, torch.eye(2), torch.ones(2, 2)), torch.ones(2, 2))
    assert pytorch.kernel_of("aten::mm.dtype", "CPU") is None


def test_has_kernel():
    operator = torchgraft.Operator(
        "torch_private::kernels(Tensor input) -> Tensor", reference=lambda input: input, output=torch.empty_like
    )
    cpu = torch.device("cpu")
    # The reference, which is registered for every device, is no kernel.
    assert not pytorch.has_kernel(operator.raw, cpu)
    operator._library.impl("_kernels", torch.clone, "CPU")
    assert pytorch.has_kernel(operator.raw, cpu)
    assert not pytorch.has_kernel(operator.raw, torch.device("cuda"))


def test_dispatch_modes():
    from torch.utils.flop_counter import FlopCounterMode

    assert pytorch.dispatch_modes() == 0
    with FlopCounterMode(display=False):
        assert pytorch.dispatch_modes() == 1


def test_parse_schema():
    (argument,) = pytorch.parse_schema("private::f(Tensor(a!)[] x) -> ()").arguments
    assert (argument.name, argument.real_type.kind(), argument.alias_info.is_write) == ("x", "ListType", True)
    assert argument.real_type.getElementType().kind() == "TensorType"
    with pytest.raises(RuntimeError, match="unknown type"):
        pytorch.parse_schema("private::f(Tenso x) -> ()")


def test_undefine():
    for _ in range(2):
        library = torch.library.Library("private", "FRAGMENT")
        library.define("passing(Tensor x) -> Tensor")
        pytorch.undefine(library)


def test_boxed_kernel_of_and_override():
    with pytorch.scoped_library("private", "FRAGMENT") as library:
        library.define("doubled(Tensor x) -> Tensor")
        overload = torch.ops.private.doubled.default
        assert pytorch.boxed_kernel_of(overload, "CPU") is None
        library.impl("doubled", lambda x: 2 * x, "CPU")
        before = pytorch.boxed_kernel_of(overload, "CPU")
        pytorch.override(library, overload, lambda x: before(x) + 1, "CPU")
        assert overload(torch.ones(1)).item() == 3


def test_below_views_and_below_autograd():
    with pytorch.scoped_library("private", "FRAGMENT") as library:
        library.define("counted(Tensor(a!) x) -> ()")
        overload, seen = torch.ops.private.counted.default, []

        def passing(name, go_on):
            def kernel(keyset, *arguments, **named):
                seen.append(name)
                return go_on(overload, keyset, arguments, named)

            return kernel

        library.impl("counted", passing("autograd", pytorch.below_autograd), "Autograd", with_keyset=True)
        library.impl("counted", passing("views", pytorch.below_views), "ADInplaceOrView", with_keyset=True)
        library.impl("counted", lambda x: seen.append("kernel"), "CPU")
        overload(torch.ones(1))
        assert seen == ["autograd", "views", "kernel"]


def test_triton_called_directly_and_functional_mode():
    with pytorch.triton_called_directly():
        pass
    assert pytorch.functional_mode().__name__ == "FunctionalTensorMode"


def test_has_autograd_and_is_composite():
    for operator, has_autograd, is_composite in (
        (torch.ops.aten.gelu.default, True, False),
        (torch.ops.aten.layer_norm.default, True, True),
        (torch.ops.torchgraft._mul_constant.default, False, False),
    ):
        assert pytorch.has_autograd(operator) == has_autograd
        assert pytorch.is_composite(operator) == is_composite


def test_recorded_convolution():
    # Where the library has given both kernels; and None where nobody has.
    call = pytorch.recorded_convolution("cpu")
    input, weight = torch.randn(1, 2, 5), torch.randn(2, 1, 3)
    expected = torch.nn.functional.conv1d(input, weight, groups=2)
    torch.testing.assert_close(call(input, weight, None, (0,), (1,), (1,), 2), expected)
    if torch.version.cuda is None:
        assert pytorch.recorded_convolution("cuda") is None


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt("mine")], ids=repr)
def test_raised_by_autograd(error):
    library = torch.library.Library("raised_by_autograd", "FRAGMENT")
    name = f"of_{type(error).__name__}"
    library.define(f"{name}(Tensor x) -> Tensor")
    overload = getattr(torch.ops.raised_by_autograd, name).default

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return overload(grad)

    library.impl(name, lambda grad: pytorch.raised_by_autograd(error, grad.shape, grad.device), "CPU")
    with pytest.raises(type(error), match="mine"):
        Identity.apply(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("callees", [False, True])
def test_leave_to_python(callees):
    def inner(x):
        return x * 2

    def outer(x):
        return inner(x) + 1

    graphs = []

    def backend(module, example):
        graphs.append(str(module.graph))
        return module.forward

    def whole(x):
        return outer(x) - 3

    torch._dynamo.reset()
    pytorch.leave_to_python(outer, callees=callees)
    assert torch.compile(outer, backend=backend)(torch.ones(1)).item() == 3
    assert [("mul" in each, "add" in each) for each in graphs] == ([] if callees else [(True, False)])
    # What is compiled may contain it.
    graphs.clear()
    assert torch.compile(whole, backend=backend, fullgraph=True)(torch.ones(1)).item() == 0
    assert "add" in graphs[0]
