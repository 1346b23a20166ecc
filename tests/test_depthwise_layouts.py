"""A grafted layer gives literally the strides of torch.nn.Conv2d, also those of dimensions of one element."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgraft
from torchgraft import graft
from torchgraft._private.pytorch import is_of_onednn
from torchgraft.checking import find_devices
from torchgraft.checking.tensors.strides import in_ambiguous_strides
from torchgraft.operator import FLOATING
from torchgraft.operators.depthwise_conv2d.operator import convolution

each_device = pytest.mark.parametrize("device", find_devices())


def as_function(layer: nn.Module) -> Callable[..., Tensor]:
    """A layer as a function of its parameters and its input."""
    return lambda parameters, input: torch.func.functional_call(layer, parameters, (input,))


@dataclass(frozen=True)
class Drawn:
    """A layer with an input and an incoming gradient, and which of input, weight and bias need gradients."""

    layer: nn.Conv2d
    input: Tensor
    output_grad: Tensor
    needed: tuple[bool, bool, bool]

    def __str__(self) -> str:
        shown = {"input": self.input, "weight": self.layer.weight, "output_grad": self.output_grad}
        tensors = (f"{name} {tuple(each.shape)} {each.stride()}" for name, each in shown.items())
        return f"{self.layer} {self.input.dtype}: {', '.join(tensors)}, needed {self.needed}"

    def strides(self, layer: nn.Module, call: Callable[..., Tensor] | None = None) -> list[Any]:
        """The strides of the output and of all gradients."""
        tensors = [self.input.detach(), *(each.detach() for each in layer.parameters())]
        leaves = [each.requires_grad_(needed) for each, needed in zip(tensors, self.needed, strict=False)]
        names = [name for name, _ in layer.named_parameters()]
        arguments = dict(zip(names, leaves[1:], strict=True))
        output = (call or as_function(layer))(arguments, leaves[0])
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = torch.autograd.grad(output, wanted, self.output_grad) if wanted else ()
        return [each.stride() for each in (output, *gradients)]


def draw(random: Random, device: str, dtype: torch.dtype, *, least_batch: int = 0) -> Drawn:
    """Any layer that graft serves, often with one tap, one pixel or one image; its input in any strides."""
    channels, kernel = random.choice((2, 3, 8, 32)), (random.choice((1, 1, 2, 3, 5)), random.choice((1, 1, 2, 3, 5)))
    stride = random.choice((1, 1, 1, 2, (1, 2)))
    # In dtypes of two bytes that the processor multiplies, PyTorch 2.13 reads memory that is not there for some kernels
    # of one tap along a dilated dimension.
    gaps = random.choice(((1, 1), (1, 1), (1, 1), (2, 2), (2, 1)))
    dilation = tuple(gap if taps > 1 else 1 for gap, taps in zip(gaps, kernel, strict=True))
    padding = random.choice((0, 1, 2, (0, 1), (2, 1), *(("same",) * 3 if stride == 1 else ())))
    layer = nn.Conv2d(
        channels,
        channels * random.choice((1, 1, 1, 2, 3)),
        kernel,
        stride,
        padding,
        dilation,
        groups=channels,
        bias=random.random() < 0.5,
        padding_mode="zeros" if padding == "same" or random.random() < 0.8 else "circular",
    )
    size = (random.choice((1, 1, 2, 5, 8)), random.choice((1, 1, 2, 5, 8)))
    batch = random.choice((0, 1, 1, 1, 2, 3, 16))
    images = torch.ones(max(batch, least_batch), channels, *size, device=device, dtype=dtype)
    try:
        output = layer(images.float().cpu())
    except RuntimeError:
        return draw(random, device, dtype, least_batch=least_batch)
    layer.to(device, dtype)
    layer.weight.data = in_ambiguous_strides(layer.weight.data, random)
    input = in_ambiguous_strides(images, random)
    output_grad = in_ambiguous_strides(torch.ones_like(output, device=device, dtype=dtype), random)
    if batch == 1 and random.random() < 0.3:
        input, output_grad = input[0], output_grad[0]
    return Drawn(layer, input, output_grad, tuple(random.random() < 0.7 for _ in range(3)))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_strides_of_output_and_gradients(dtype, device):
    random = Random(str(dtype))
    for _ in range(200):
        drawn = draw(random, device, dtype)
        expected = drawn.strides(drawn.layer)
        assert drawn.strides(graft(drawn.layer)) == expected, str(drawn)


def by_vjp(function: Callable[..., Tensor], drawn: Drawn, tensors: list[Tensor]) -> list[Any]:
    """The strides of the output and of all gradients, by torch.func."""
    output, vjp = torch.func.vjp(function, *tensors)
    return [each.stride() for each in (output, *vjp(drawn.output_grad))]


# What compiles takes a second a call: each way gets a few calls, always the same.
WAYS: dict[str, tuple[int, Callable[..., Callable[..., Tensor]]]] = {
    "aot_eager": (6, lambda function: torch.compile(function, backend="aot_eager", dynamic=False)),
    "aot_eager of any sizes": (6, lambda function: torch.compile(function, backend="aot_eager", dynamic=True)),
    "inductor": (4, lambda function: torch.compile(function, dynamic=False)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
@pytest.mark.parametrize("way", WAYS)
def test_strides_of_what_is_compiled(way, device):
    count, compiled_by = WAYS[way]
    random = Random(way)
    for _ in range(count):
        drawn = draw(random, device, random.choice(FLOATING))
        expected = drawn.strides(drawn.layer)
        torch.compiler.reset()
        compiled = compiled_by(as_function(graft(drawn.layer)))
        assert drawn.strides(drawn.layer, compiled) == expected, str(drawn)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
def test_strides_by_other_ways(device):
    random = Random("other ways")
    for _ in range(100):
        drawn = draw(random, device, random.choice(FLOATING))
        layer, images, others = drawn.layer, drawn.input, list(drawn.layer.parameters())
        names = [name for name, _ in layer.named_parameters()]
        tensors = [each.detach() for each in (images, *others)]

        def function(input: Tensor, *parameters: Tensor) -> Tensor:
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (input,))  # noqa: B023

        expected, output = by_vjp(function, drawn, tensors), layer(images).stride()
        graft(layer)
        assert by_vjp(function, drawn, tensors) == expected, str(drawn)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = function(*map(mode.from_tensor, tensors))
        assert fake.stride() == output, str(drawn)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_strides_under_autocast(dtype, device):
    random = Random(f"autocast {dtype}")
    for _ in range(150):
        drawn = draw(random, device, torch.float32)
        with torch.autocast(device, dtype):
            expected = drawn.strides(drawn.layer)
            assert drawn.strides(graft(drawn.layer)) == expected, str(drawn)


def test_strides_of_an_exported_program():
    random = Random("exported")
    for _ in range(3):
        drawn = draw(random, "cpu", torch.float32, least_batch=1)
        expected = drawn.layer(drawn.input).stride()
        program = torch.export.export(graft(drawn.layer), (drawn.input,))
        assert program.module()(drawn.input).stride() == expected, str(drawn)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_strides_of_what_is_traced():
    """A traced layer runs three times: PyTorch optimizes the recorded code after the first calls."""
    random = Random("traced")
    for _ in range(60):
        drawn = draw(random, "cpu", random.choice(FLOATING), least_batch=1)

        def strides(layer: nn.Module) -> list[Any]:
            with torch.no_grad():
                traced = torch.jit.trace(layer, (drawn.input,), check_trace=False)  # noqa: B023
            leaves = [drawn.input.detach().requires_grad_(), *traced.parameters()]  # noqa: B023
            found = []
            for _ in range(3):
                output = traced(leaves[0])
                found += [output, *torch.autograd.grad(output, leaves, drawn.output_grad)]  # noqa: B023
            return [each.stride() for each in found]

        expected = strides(drawn.layer)
        assert strides(graft(drawn.layer)) == expected, str(drawn)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize("batch", [(), (1,), (3,)], ids=str)
def test_a_traced_layer_refuses_other_channels(groups, multiplier, batch):
    layer = torchgraft.nn.DepthwiseConv2d(groups, 3, channel_multiplier=multiplier)
    traced = torch.jit.trace(layer, (torch.randn(*batch, groups, 6, 6),), check_trace=False)
    for channels in (1, 2, 3, 4, 8):
        images = torch.randn(*batch, channels, 7, 5)
        if channels == groups:
            torch.testing.assert_close(traced(images), layer(images))
        else:
            with pytest.raises(RuntimeError, match=rf"\[{groups}\] don't multiply up"):
                traced(images)
            with pytest.raises(ValueError, match=f"input must have {groups} channels"):
                torch.jit.trace(layer, (images,), check_trace=False)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_strides_of_second_derivatives():
    """All but the weight's: docs/depthwise_conv2d.md says where its second derivative differs."""
    random = Random("second derivatives")
    for _ in range(200):
        dtype = random.choice(FLOATING)
        drawn = draw(random, "cpu", dtype, least_batch=1)
        of_input = in_ambiguous_strides(torch.ones_like(drawn.input), random)
        of_weight = in_ambiguous_strides(torch.ones_like(drawn.layer.weight.data), random)
        # On a processor without AVX-512 PyTorch computes halves otherwise, and cuts what it padded on one side alone.
        if drawn.layer.padding == "same" and dtype.itemsize == 2 and not is_of_onednn(dtype):
            continue

        def strides(layer: nn.Module) -> list[Any]:
            input, output_grad = (each.detach().requires_grad_() for each in (drawn.input, drawn.output_grad))  # noqa: B023
            leaves = input, layer.weight
            input_grad, weight_grad = torch.autograd.grad(layer(input), leaves, output_grad, create_graph=True)
            found = [
                *torch.autograd.grad(input_grad, [output_grad], of_input, retain_graph=True),  # noqa: B023
                *torch.autograd.grad(weight_grad, [output_grad, input], of_weight),  # noqa: B023
            ]
            return [each.stride() for each in found]

        expected = strides(drawn.layer)
        assert strides(graft(drawn.layer)) == expected, str(drawn)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_strides_of_a_batch_of_images_under_vmap():
    random = Random("vmap")
    for _ in range(150):
        # In bfloat16, PyTorch 2.13 may read memory that is not there for dilated kernels with one tap in a row.
        drawn = draw(random, "cpu", random.choice((torch.float32, torch.float64, torch.float16)), least_batch=1)
        if drawn.layer.padding == "same":
            continue
        batch = in_ambiguous_strides(torch.stack([drawn.input, drawn.input]), random)
        expected = torch.vmap(drawn.layer)(batch).stride()
        assert torch.vmap(graft(drawn.layer))(batch).stride() == expected, (str(drawn), batch.stride())


def test_the_layout_of_the_weight_alone():
    layer = nn.Conv2d(8, 8, 3, groups=8).to(memory_format=torch.channels_last)
    assert graft(layer)(torch.randn(2, 8, 6, 6)).stride() == (128, 1, 32, 8)


@each_device
def test_fake_results_lie_where_real_ones_do(device):
    """The rule in C++ and its twin in Python, on calls that no layer makes: other dtypes, paddings and one channel."""
    random = Random("twins")
    for _ in range(400):
        dtype, channels, kernel = random.choice(FLOATING), random.choice((1, 1, 2, 7)), random.choice((1, 1, 2, 3))
        weight_dtype = dtype if random.random() < 0.5 else random.choice(FLOATING)
        padding, gaps = random.choices((0, 1, 2), k=4), random.choices((1, 1, 2), k=4)
        size = [random.choice((1, 2, 6)) for _ in range(2)]
        if min(size) + min(padding[0] + padding[2], padding[1] + padding[3]) < 2 * (kernel - 1) + 1:
            continue
        images = torch.ones(random.choice((0, 1, 2, 16)), channels, *size, device=device, dtype=dtype)
        kernels = torch.ones(channels * random.choice((1, 2)), 1, kernel, kernel, device=device, dtype=weight_dtype)
        tensors = [in_ambiguous_strides(each, random) for each in (images, kernels)]
        real = convolution.raw(*tensors, None, *gaps[:2], *padding, *gaps[2:])
        with torch._subclasses.FakeTensorMode() as mode:
            fake = convolution.raw(*map(mode.from_tensor, tensors), None, *gaps[:2], *padding, *gaps[2:])
        shown = [(tuple(each.shape), each.stride(), each.dtype) for each in tensors]
        assert fake.stride() == real.stride(), (shown, padding, gaps)


@pytest.mark.filterwarnings("error")
def test_distributed_training_is_told_of_no_strides(process_group):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8)).to(memory_format=torch.channels_last)
    parallel = nn.parallel.DistributedDataParallel(graft(model))
    for layout in (torch.contiguous_format, torch.channels_last):
        parallel(torch.randn(2, 3, 6, 6).to(memory_format=layout)).sum().backward()
