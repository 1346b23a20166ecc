"""Plans of grafted convolutions: a call goes straight to a kernel, unless anything that decides has changed since."""

import contextlib
import copy
import io
import pickle

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from grafts import calls_of
from torchgraft import graft, ungraft
from torchgraft.capturing.watching import watching
from torchgraft.kernels import measured_choice
from torchgraft.nn.grafting.methods import ConvForward
from torchgraft.operators.depthwise_conv2d.operator import convolution

measured = measured_choice.call

RECORDED = "MpsConvolutionBackward0"

pytestmark = pytest.mark.skipif("cpu" not in convolution.names.recorders, reason="the CPU library is not loaded")


@pytest.fixture
def full_looks(monkeypatch):
    """Counts the calls that do not follow a plan."""
    seen = []
    look_in_full = ConvForward._look_in_full

    def counted(self, input, weight, bias):
        seen.append(self)
        return look_in_full(self, input, weight, bias)

    monkeypatch.setattr(ConvForward, "_look_in_full", counted)
    return seen


def images_of(*size, dtype=torch.float32):
    return torch.randn(size or (2, 4, 6, 5), generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def layers(kind=nn.Conv2d, size=(), dtype=torch.float32, **options):
    """Three layers of the same values: one that has a plan, one that was never called, and one that is not grafted."""
    made = []
    for grafts in (graft, graft, ungraft):
        torch.manual_seed(0)
        made.append(grafts(kind(4, 8, 3, **{"padding": 1, "groups": 4, "dtype": dtype, **options})))
    made[0](images_of(*size, dtype=dtype))
    assert plan_of(made[0]) is not None
    return made


def with_plan(*arguments, **options):
    return layers(*arguments, **options)[0]


def plan_of(layer):
    return getattr(vars(layer).get("_conv_forward"), "_plan", None)


def forget_plan(layer):
    if plan_of(layer) is not None:
        vars(layer)["_conv_forward"]._plan = None


def results(layer, images):
    """The output, all gradients, and the name of what recorded them."""
    images = images.detach().requires_grad_(images.requires_grad)
    layer.zero_grad()
    output = layer(images)
    found = [output]
    if output.requires_grad:
        output.backward(output.detach().cos())
        found += [images.grad, *(parameter.grad for parameter in layer.parameters())]
    return [each if each is None else each.detach() for each in found], type(output.grad_fn).__name__


def expect_as_others(planned, fresh, plain, images):
    """Compares a layer with one that is not grafted, if given, and in all bits and strides with one without a plan."""
    forget_plan(fresh)
    (found, recorder), (expected, expected_recorder) = results(planned, images), results(fresh, images)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True)
    assert recorder == expected_recorder
    if plain is None:
        return
    lowest = max((each.dtype for each in found if each is not None), key=lambda dtype: torch.finfo(dtype).eps)
    tolerance = 32 * torch.finfo(lowest).eps
    torch.testing.assert_close(found, results(plain, images)[0], rtol=tolerance, atol=tolerance, check_stride=True)


@contextlib.contextmanager
def autocast_of_a_gpu():
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


SIZES = {nn.Conv1d: (2, 4, 7), nn.Conv2d: (2, 4, 6, 5), nn.Conv3d: (2, 4, 5, 4, 3)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 2, "dilation": 2}], ids=["plain", "strided"])
@pytest.mark.parametrize("mode", ["recorded", "no_grad", "inference", "frozen"])
def test_a_plan_computes_as_a_full_look_and_is_followed(kind, bias, options, mode, full_looks):
    layer, fresh, plain = layers(kind, SIZES[kind], torch.float64, bias=bias, **options)
    scopes = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    images = images_of(*SIZES[kind], dtype=torch.float64)
    if mode == "frozen":
        for each in (layer, fresh, plain):
            each.requires_grad_(False)
    full_looks.clear()
    with scopes.get(mode, contextlib.nullcontext)():
        found = layer(images)
        assert not full_looks
        assert (type(found.grad_fn).__name__ == RECORDED) == (mode in ("recorded", "frozen"))
        expect_as_others(layer, fresh, plain, images)


@pytest.mark.parametrize("which", ["input", "weight", "bias", "none"])
def test_gradients_are_recorded_as_soon_as_one_is_needed(which, full_looks):
    layer, fresh, plain = layers()
    images = images_of().requires_grad_(which == "input")
    for each in (layer, fresh, plain):
        each.weight.requires_grad_(which == "weight")
        each.bias.requires_grad_(which == "bias")
    full_looks.clear()
    assert layer(images).requires_grad == (which != "none")
    assert not full_looks
    expect_as_others(layer, fresh, plain, images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_autocast_that_begins_and_ends_after_the_plan(dtype, weight_dtype, lower):
    layer, fresh, _ = layers(dtype=weight_dtype)

    def same(images):
        expect_as_others(layer, fresh, None, images)
        return layer(images).dtype

    images, own = images_of(dtype=dtype), images_of(dtype=weight_dtype)
    with torch.autocast("cpu", lower):
        for _ in range(2):
            assert same(images) is (dtype if dtype is torch.float64 else lower)
            with torch.autocast("cpu", enabled=False):
                assert same(own) is weight_dtype
            with autocast_of_a_gpu(), torch.no_grad():
                same(images)
        # A weight of another dtype than when the plan was made is cast.
        for each in (layer, fresh):
            each.to(torch.bfloat16 if weight_dtype is torch.float32 else torch.float32)
        same(images)
        for each in (layer, fresh):
            each.to(weight_dtype)
    for scope in (contextlib.nullcontext, autocast_of_a_gpu):
        with scope():
            assert same(own) is weight_dtype


def test_a_plan_is_followed_under_autocast(full_looks):
    layer, fresh, plain = layers()
    full_looks.clear()
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.bfloat16, torch.float32):
            assert layer(images_of(dtype=dtype)).dtype is torch.bfloat16
        assert not full_looks
        images = images_of(dtype=torch.bfloat16)
        expect_as_others(layer, fresh, None, images)
        tolerance = 4 * torch.finfo(torch.bfloat16).eps
        torch.testing.assert_close(layer(images), plain(images), rtol=tolerance, atol=tolerance)


def _parametrize(layer):
    class Twice(nn.Module):
        def forward(self, value):
            return 2 * value

    parametrize.register_parametrization(layer, "weight", Twice())


def _remove_parametrization(layer):
    _parametrize(layer)
    layer(images_of())
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def _scale(module, arguments, result):
    return 3 * result


CHANGES = {
    "a new weight": lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(8, 1, 3, 3))),
    "a larger weight": lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(8, 1, 5, 3))),
    "values in place": lambda layer: layer.weight.data.mul_(2),
    "other data": lambda layer: setattr(layer.weight, "data", torch.randn(8, 1, 3, 3)),
    "a weight in channels_last": lambda layer: layer.to(memory_format=torch.channels_last),
    "no bias": lambda layer: setattr(layer, "bias", None),
    "another dtype": lambda layer: layer.double(),
    "stride": lambda layer: setattr(layer, "stride", (2, 1)),
    "padding": lambda layer: setattr(layer, "padding", (1, 2)),
    "padding in a word": lambda layer: setattr(layer, "padding", "same"),
    "dilation": lambda layer: setattr(layer, "dilation", (1, 2)),
    "one number": lambda layer: setattr(layer, "stride", 2),
    "padding mode": lambda layer: (
        setattr(layer, "padding_mode", "circular"),
        setattr(layer, "_reversed_padding_repeated_twice", [1, 1, 1, 1]),
    ),
    "groups": lambda layer: (
        setattr(layer, "groups", 2),
        setattr(layer, "weight", nn.Parameter(torch.randn(8, 2, 3, 3))),
    ),
    "in_channels": lambda layer: setattr(layer, "in_channels", 8),
    "a parametrization": _parametrize,
    "a parametrization that is gone": _remove_parametrization,
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "weight_norm by a hook": nn.utils.weight_norm,
    "spectral_norm": lambda layer: nn.utils.parametrizations.spectral_norm(layer).eval(),
    "pruning": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    "a hook": lambda layer: layer.register_forward_hook(_scale),
    "a hook in front": lambda layer: layer.register_forward_pre_hook(lambda module, arguments: (2 * arguments[0],)),
    "a hook of gradients": lambda layer: layer.register_full_backward_hook(lambda module, into, out: (2 * into[0],)),
    "a hook of a tensor": lambda layer: layer.weight.register_hook(lambda gradient: 2 * gradient),
    "forward of the layer": lambda layer: setattr(
        layer, "forward", lambda input: 2 * type(layer).forward(layer, input)
    ),
    "nothing": lambda layer: None,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:Using padding='same'")
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_changes_after_its_plan(change):
    same = layers()
    for layer in same:
        torch.manual_seed(1)
        CHANGES[change](layer)
    for _ in range(3):
        expect_as_others(*same, images_of(dtype=same[0].weight.dtype))


@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("value", [(1.0, 1.0), (True, True), (1,), (1, 1, 1), "same", (0, 0), (-1, -1), None])
def test_numbers_that_equal_those_of_the_plan_are_refused_as_without_one(name, value):
    layer, fresh, _ = layers()
    for each in (layer, fresh):
        setattr(each, name, value)
    for _ in range(2):
        found, expected = (_outcome(each, images_of()) for each in (layer, fresh))
        assert found == expected


def _outcome(layer, *arguments):
    """The result of a call, in bytes, or its error."""
    try:
        return layer(*arguments).detach().numpy().tobytes()
    except Exception as error:
        return type(error), str(error)


INPUTS = {
    "no batch": lambda: images_of(4, 6, 5),
    "no batch, and as many rows as channels": lambda: images_of(4, 4, 5),
    "fewer channels": lambda: images_of(2, 3, 6, 5),
    "more channels": lambda: images_of(2, 8, 6, 5),
    "two dimensions": lambda: images_of(4, 5),
    "five dimensions": lambda: images_of(1, 2, 4, 6, 5),
    "no image": lambda: images_of(0, 4, 6, 5),
    "no pixel": lambda: images_of(2, 4, 0, 5),
    "int32": lambda: images_of().to(torch.int32),
    "complex": lambda: images_of().to(torch.complex64),
    "float64": lambda: images_of().double(),
    "float16": lambda: images_of().half(),
    "meta": lambda: images_of().to("meta"),
    "sparse": lambda: images_of().to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(4, 6, 5)]),
    "none": lambda: None,
    "a number": lambda: 3.0,
    "a list": lambda: [1, 2],
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore::torchgraft.kernels.fallback.PerformanceWarning")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kernel_size", [3, 9])
def test_other_inputs_end_as_without_a_plan(name, grad, kernel_size):
    images = INPUTS[name]()
    layer = graft(nn.Conv2d(4, 4, kernel_size, padding=(3, 4), groups=4))
    layer(images_of())
    fresh = graft(nn.Conv2d(4, 4, kernel_size, padding=(3, 4), groups=4))
    fresh.load_state_dict(layer.state_dict())
    with torch.set_grad_enabled(grad):
        found, expected = _outcome(layer, images), _outcome(fresh, images)
    assert found == expected


def test_a_layer_on_the_device_meta_after_its_plan():
    layer, fresh, plain = (each.to("meta") for each in layers())
    found, expected = layer(images_of().to("meta")), fresh(images_of().to("meta"))
    assert found.shape == plain(images_of().to("meta")).shape
    assert type(found.grad_fn) is type(expected.grad_fn)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_layer_that_moves_after_its_plan(full_looks):
    layer, fresh, plain = layers()
    for device in ("cuda", "cpu", "cuda"):
        for each in (layer, fresh, plain):
            each.to(device)
        images = images_of().detach().to(device).requires_grad_()
        expect_as_others(layer, fresh, plain, images)
        full_looks.clear()
        with torch.autocast(device, torch.bfloat16):
            assert layer(images).dtype is torch.bfloat16
        with torch.no_grad():
            layer(images)
        assert not full_looks
        with pytest.raises(ValueError, match="must be on the same device"):
            layer(images.cpu() if device == "cuda" else images.cuda())


def test_a_weight_of_integers_after_a_plan():
    layer, fresh, _ = layers(bias=False)
    for each in (layer, fresh):
        each.weight = nn.Parameter(torch.ones(8, 1, 3, 3, dtype=torch.int32), requires_grad=False)
    for images in (images_of(), images_of().to(torch.int32)):
        assert _outcome(layer, images) == _outcome(fresh, images)


@pytest.mark.parametrize("bias_dtype", [torch.float64, torch.bfloat16])
def test_a_bias_of_another_dtype_after_a_plan(bias_dtype):
    layer, fresh, _ = layers()
    for each in (layer, fresh):
        each.bias = nn.Parameter(each.bias.detach().to(bias_dtype))
    expect_as_others(layer, fresh, None, images_of())


def test_an_input_too_small_is_explained():
    layer = graft(nn.Conv2d(4, 4, 3, groups=4))
    layer(images_of())
    for scope in (contextlib.nullcontext, torch.no_grad):
        with scope(), pytest.raises(ValueError, match="depthwise_conv2d: the kernel spans 3 x 3 pixels and the padded"):
            layer(images_of(1, 4, 2, 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layouts_after_a_plan_of_the_other(layout):
    same = layers()
    for images in (images_of().detach().to(memory_format=layout), images_of().detach().transpose(2, 3)):
        expect_as_others(*same, images.requires_grad_())


def test_a_method_that_a_class_gets_after_the_plan(monkeypatch):
    class Own(nn.Conv2d):
        pass

    same = layers(Own)
    theirs = nn.Conv2d._conv_forward
    for kind in (Own, nn.Conv2d):
        with monkeypatch.context() as context:
            context.setattr(kind, "_conv_forward", lambda self, *arguments: 2 * theirs(self, *arguments))
            expect_as_others(*same, images_of())
    expect_as_others(*same, images_of())


@pytest.mark.parametrize("owner", [F, torch])
def test_a_function_of_pytorchs_that_is_replaced_after_the_plan(owner, monkeypatch):
    layer, function, seen = with_plan(), torch.conv2d, []
    expected = layer(images_of())
    monkeypatch.setattr(owner, "conv2d", lambda *arguments: (seen.append(1), function(*arguments))[1])
    torch.testing.assert_close(layer(images_of()), expected)
    assert bool(seen) == (owner is F)
    monkeypatch.undo()
    seen.clear()
    torch.testing.assert_close(layer(images_of()), expected, rtol=0, atol=0)
    assert not seen


def test_a_plan_does_not_outlive_the_graft(full_looks):
    layer = with_plan()
    ungraft(layer)
    assert not calls_of(lambda: layer(images_of()))
    graft(layer)
    full_looks.clear()
    layer(images_of())
    assert len(full_looks) == 1


@pytest.mark.parametrize("make", [copy.deepcopy, copy.copy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_have_plans_of_their_own(make):
    layer, fresh, plain = layers()
    other = make(layer)
    torch.testing.assert_close(other(images_of()), layer(images_of()), rtol=0, atol=0)
    del layer
    for each in (other, fresh, plain):
        each.stride = (2, 2)
    for _ in range(2):
        expect_as_others(other, fresh, plain, images_of())
    torch.save(other, io.BytesIO())


def test_a_compiler_sees_no_plan():
    layer = with_plan()
    seen = []

    def backend(graph, inputs):
        seen.append([str(node.target) for node in graph.graph.nodes])
        return graph

    torch.compiler.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for scope in (contextlib.nullcontext, contextlib.nullcontext, torch.no_grad):
        before = len(seen)
        with scope():
            torch.testing.assert_close(compiled(images_of()), layer(images_of()), rtol=0, atol=0)
            forget_plan(layer)
            compiled(images_of())
            layer(images_of())
            compiled(images_of())
        assert len(seen) <= before + 1
    assert len(seen) == 2


@pytest.mark.parametrize("strict", [True, False])
def test_an_export_after_a_plan(strict):
    layer = with_plan()
    program = torch.export.export(layer, (images_of().detach(),), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["torchgraft.depthwise_conv2d.default"]
    torch.testing.assert_close(program.module()(images_of()), layer(images_of()), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::torchgraft.kernels.fallback.PerformanceWarning")
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize", "dual_level", "functional_call"])
def test_transforms_after_a_plan(transform, full_looks):
    (layer, _, plain), images = layers(dtype=torch.float64), images_of(3, 2, 4, 6, 5, dtype=torch.float64).detach()

    def run(layer):
        if transform == "vmap":
            return torch.vmap(layer)(images)
        if transform == "grad":
            return torch.func.grad(lambda image: layer(image).cos().sum())(images[0])
        if transform == "jvp":
            return torch.func.jvp(layer, (images[0],), (images[1],))
        if transform == "functionalize":
            return torch.func.functionalize(layer)(images[0])
        if transform == "functional_call":
            return torch.func.functional_call(layer, {"weight": 2 * layer.weight}, (images[0],))
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(layer(forward_ad.make_dual(images[0], images[1]))))

    full_looks.clear()
    found = run(layer)
    assert bool(full_looks) == (transform != "functional_call")
    torch.testing.assert_close(found, run(plain))


class Named(torch.Tensor):
    """A subclass that notes the functions that are called on it."""

    seen: list[object] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("which", ["input", "weight", "bias"])
@pytest.mark.parametrize("make", [lambda each: each.detach().as_subclass(Named), lambda each: TwoTensor(each, each)])
def test_subclasses_of_tensor_after_a_plan(which, make, full_looks):
    layer, fresh, _ = layers()
    images = images_of().detach()
    if which == "input":
        images = make(images)
    else:
        for each in (layer, fresh):
            vars(each)["_parameters"][which] = make(getattr(each, which).detach())
    full_looks.clear()
    found, expected = layer(images), fresh(images)
    assert full_looks == [layer._conv_forward, fresh._conv_forward]
    assert type(found) is type(expected)
    torch.testing.assert_close(getattr(found, "a", found), getattr(expected, "a", expected), rtol=0, atol=0)


def test_a_fake_tensor_after_a_plan():
    layer = with_plan()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(images_of())).shape == (2, 8, 6, 5)


def test_modes_after_a_plan_see_the_operators():
    layer = with_plan()
    assert calls_of(lambda: layer(images_of())) == ["depthwise_conv2d"]
    with FlopCounterMode(display=False) as counter:
        layer(images_of()).sum().backward()
    assert [str(name) for name in counter.get_flop_counts()["Global"]] == [
        "torchgraft.depthwise_conv2d",
        "torchgraft.depthwise_conv2d_input_grad",
        "torchgraft.depthwise_conv2d_weight_grad",
    ]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_after_a_plan_takes_other_sizes():
    layer = with_plan().eval()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            traced = torch.jit.trace(layer, images_of().detach())
            assert "torchgraft::depthwise_conv2d" in str(traced.inlined_graph)
            torch.testing.assert_close(traced(images_of(3, 4, 8, 9)), layer(images_of(3, 4, 8, 9)))
    with pytest.raises(Exception, match=r"channels|multiply"):
        traced(images_of(2, 2, 6, 5))


def test_a_symbolic_trace_after_a_plan():
    class Everything(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return False

    layer, other = with_plan(), copy.deepcopy(with_plan())
    graphs = [str(Everything().trace(each)) for each in (layer, graft(ungraft(other)))]
    assert graphs[0] == graphs[1]


def test_who_watches_after_a_plan_sees_the_call(full_looks):
    layer, seen = with_plan(), []
    for scope in (contextlib.nullcontext, torch.no_grad):
        with watching(convolution, lambda call: seen.append(call.operator)), scope():
            layer(images_of())
            layer(images_of())
        assert seen == [convolution] * 2
        seen.clear()
        layer(images_of())
        full_looks.clear()
        assert (type(layer(images_of()).grad_fn).__name__) == RECORDED
        assert not full_looks
        assert not seen


def test_recorders_that_are_withdrawn_after_a_plan(monkeypatch):
    layer, fresh, plain = layers()
    monkeypatch.delitem(convolution.names.recorders, "cpu")
    for _ in range(2):
        assert type(layer(images_of()).grad_fn).__name__ != RECORDED
    expect_as_others(layer, fresh, plain, images_of())
    monkeypatch.undo()
    layer(images_of())
    assert type(layer(images_of()).grad_fn).__name__ == RECORDED


@pytest.mark.parametrize("switch", ["deterministic", "benchmark"])
def test_switches_after_a_plan(switch):
    same = layers()
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(switch == "deterministic")
        torch.backends.cudnn.benchmark = switch == "benchmark"
        expect_as_others(*same, images_of())
        with torch.no_grad():
            expect_as_others(*same, images_of())
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def test_a_call_that_may_be_measured_after_a_plan(monkeypatch):
    layer, timed = with_plan(), []
    monkeypatch.setattr(measured_choice, "call", lambda *arguments: (timed.append(1), measured(*arguments))[1])
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with torch.no_grad():
        layer(images_of())
    assert timed == [1]


def test_second_derivatives_after_a_plan():
    layer = with_plan(dtype=torch.float64)
    parameters = [images_of(dtype=torch.float64), *layer.parameters()]

    def call(images, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (images,))

    assert type(call(*parameters).grad_fn).__name__ == RECORDED
    assert torch.autograd.gradcheck(call, parameters)
    assert torch.autograd.gradgradcheck(call, parameters)


def test_hooks_of_saved_tensors_run_once_and_their_errors_pass():
    layer, packed = with_plan(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (packed.append(1), tensor)[1], lambda tensor: tensor):
        layer(images_of())
    assert len(packed) == 2

    class MineError(Exception):
        pass

    def refuse(tensor):
        packed.append(1)
        raise MineError

    packed.clear()
    with torch.autograd.graph.saved_tensors_hooks(refuse, lambda tensor: tensor), pytest.raises(MineError):
        layer(images_of())
    assert len(packed) == 1


def test_a_checkpoint_after_a_plan():
    layer = with_plan()
    (_, *expected), _ = results(layer, images_of())
    images = images_of()
    layer.zero_grad()
    output = checkpoint(layer, images, use_reentrant=False)
    output.backward(output.detach().cos())
    torch.testing.assert_close([images.grad, layer.weight.grad, layer.bias.grad], expected, rtol=0, atol=0)
