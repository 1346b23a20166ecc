"""Memory that is not there: what a call says where an argument's was freed."""

import pytest
import torch
from torch import Tensor

import torchgraft
from torchgraft import Operator
from torchgraft.checking.subject import subject_of

on_cuda = (
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here"),
)
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=on_cuda)]


def freed(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("device", DEVICES)
def test_torch_ops_names_the_argument_whose_memory_was_freed(device):
    asked = 0
    for operator in [each for each in Operator.registered.values() if each.namespace == "torchgraft"]:
        if operator.kernels == "reference":
            continue
        sample = next(each for each in subject_of(operator).samples.table if not each.is_empty)
        arguments = sample.make(device, torch.float32)
        for place, argument in enumerate(operator.arguments):
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
