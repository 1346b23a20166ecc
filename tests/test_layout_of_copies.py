"""The result of an elementwise kernel for a tensor that is not dense has the strides that PyTorch's own has."""

import random

import torch

import torchgraft


def draw(numbers: random.Random) -> torch.Tensor:
    """A view of any kind: permuted, narrowed, with steps, expanded, with dimensions of one."""
    dim = numbers.randint(0, 5)
    view = torch.randn([numbers.randint(1, 4) for _ in range(dim)]).permute(numbers.sample(range(dim), dim))
    for d in range(dim):
        change = numbers.randrange(6)
        if change < 2:
            view = view.narrow(d, 0, 1)
        if change == 1:
            view = view.expand([-1] * d + [numbers.randint(1, 3)] + [-1] * (dim - d - 1))
        if change == 2:
            view = view[(slice(None),) * d + (slice(None, None, 2),)]
    return view.unsqueeze(numbers.randint(0, dim)) if numbers.random() < 0.3 else view


def test_a_copy_lies_as_that_of_empty_like():
    numbers = random.Random(0)
    for _ in range(2000):
        view = draw(numbers)
        found = torchgraft.mul_constant(view, 2.0)
        assert torch.equal(found, 2 * view)
        assert found.stride() == torch.empty_like(view).stride(), (view.shape, view.stride())
