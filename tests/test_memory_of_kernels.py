"""Memory that is not there: what a call says where none is left, and where an argument's was freed."""

import pytest
import torch
from torch import Tensor

import torchgraft
from planted import kernels
from torchgraft import Operator, native
from torchgraft.checking.properties.memory import _heap_bytes
from torchgraft.checking.subject import subject_of

on_cuda = (
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here"),
)
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=on_cuda)]
SAYS = {
    "cpu": r"can't allocate memory: you tried to allocate \d{13,} bytes",
    "cuda": "CUDA out of memory. Tried to alloc",
}
# Terabytes, which an offer of memory on credit does not reach either.
MANY = 10**6


def huge_depthwise(device):
    return torchgraft.depthwise_conv2d(
        torch.ones(1, 2, 4, 4, device=device), torch.ones(2, 1, 3, 3, device=device), padding=MANY
    )


def huge_shift(device):
    offsets = torch.ones(64, device=device)
    grad = torch.ones(1, 1, 1, 1, device=device).expand(1, 64, 1, MANY)
    return torchgraft.shift_input_grad(grad, offsets, offsets, height=MANY, stride=MANY)


def huge_lltm(device):
    one = torch.ones(1, 1, device=device)
    arguments = [one.expand(MANY, MANY, 1), *[one.expand(MANY, 1)] * 2, *[one.expand(3, 1)] * 2]
    return torchgraft.lltm(*arguments)


def huge_copy(device):
    return torchgraft.mul_constant(torch.ones(1, device=device).expand(MANY, 2 * MANY), 2.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", [huge_depthwise, huge_shift, huge_lltm, huge_copy], ids=lambda call: call.__name__)
def test_what_runs_out_of_memory_says_so_as_pytorch_does(call, device, capfd):
    with pytest.raises(torch.OutOfMemoryError, match=SAYS[device]):
        call(device)
    # No stack trace.
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("device", DEVICES)
def test_torch_ops_says_so_too(device, capfd):
    input, weight = torch.ones(1, 2, 4, 4, device=device), torch.ones(2, 1, 3, 3, device=device)
    with pytest.raises(RuntimeError, match=SAYS[device]):
        torch.ops.torchgraft.depthwise_conv2d(input, weight, None, 1, 1, MANY, MANY, MANY, MANY, 1, 1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_records_a_gradient_says_so(device):
    input = torch.ones(1, 2, 4, 4, device=device, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError, match=SAYS[device]):
        torchgraft.depthwise_conv2d(input, torch.ones(2, 1, 3, 3, device=device), padding=MANY)


@pytest.mark.parametrize(
    "error", [RuntimeError("lltm: sizes"), torch.OutOfMemoryError("out of memory"), ValueError("")]
)
def test_no_other_error_is_taken_for_it(error):
    from torchgraft.declaration.bad_arguments import out_of_memory

    assert out_of_memory(error) is None


def test_memory_without_a_trace_is_pytorchs(capfd):
    """The function by which PyTorch before 2.13 is asked for memory, on this one, which has a function of that name."""
    kernels.load()
    like = torch.ones(3, dtype=torch.bfloat16)
    found = torch.ops.planted.empty_quietly(like, 5)
    assert (found.shape, found.stride(), found.dtype) == ((5, 2), (2, 1), torch.bfloat16)
    assert found.untyped_storage().nbytes() == 20
    found.zero_().untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="you tried to allocate 40000000000000 bytes"):
        torch.ops.planted.empty_quietly(like, 10**13)
    assert capfd.readouterr().err == ""


def test_a_kernel_takes_any_kind_of_argument_and_keeps_nothing():
    kernels.load()
    like, tensors = torch.ones(3, dtype=torch.float64), [torch.ones(2), torch.ones(2, 3)]

    def call(text="mean", other=None):
        return torch.ops.planted.takes_any_kind(like, tensors, [None, like, None], [4, 5, 6], text, other)

    assert call().tolist() == [8, 1, 15, 4, 1, -1]
    # Longer than what std::string holds without memory of its own; and with a zero inside.
    assert call("no mean " * 20, "a\0b").tolist() == [8, 1, 15, 160, 0, 3]

    def growth(calls=2000):
        before = _heap_bytes()
        for _ in range(calls):
            call("no mean " * 20, "another")
        return (_heap_bytes() - before) / calls

    growth()
    assert min(growth() for _ in range(3)) < 1


def freed(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("device", DEVICES)
def test_torch_ops_names_the_argument_whose_memory_was_freed(device):
    asked = 0
    for operator in [each for each in Operator.registered.values() if each.namespace == "torchgraft"]:
        if operator.name not in native.signatures("torchgraft", device):
            continue
        sample = next(each for each in subject_of(operator).samples.table if not each.is_empty)
        arguments = sample.make(device, torch.float32)
        for place, argument in enumerate(operator.declaration.arguments):
            if isinstance(arguments[place], Tensor):
                wrong = (*arguments[:place], freed(arguments[place]), *arguments[place + 1 :])
                with pytest.raises(RuntimeError, match=rf"\b{argument.name} needs a storage of \d+ bytes"):
                    operator.raw(*wrong)
                asked += 1
    assert asked > 30


def test_fake_and_meta_tensors_are_not_asked_for_memory():
    input, weight = torch.ones(1, 2, 4, 4, device="meta"), torch.ones(2, 1, 3, 3, device="meta")
    assert torchgraft.depthwise_conv2d(input, weight).shape == (1, 2, 2, 2)
    with torch._subclasses.FakeTensorMode():
        input, weight = torch.ones(1, 2, 4, 4), torch.ones(2, 1, 3, 3)
        assert torchgraft.depthwise_conv2d(input, weight).shape == (1, 2, 2, 2)
