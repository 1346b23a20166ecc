"""kept_backward: factor * input * input, of every element."""

from pathlib import Path

from torch import Tensor
from torchgraft import building

from kept_backward.operator import kept_backward_operator

# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
building.load("kept_backward", [Path(__file__).with_name("cpu.cpp")])


def kept_backward(input: Tensor, factor: float) -> Tensor:
    """Factor * input * input, of every element.

    Args:
        input: a tensor of any shape, float64, float32, float16 or bfloat16.
        factor: a number.

    Returns:
        factor * input * input.

    Raises:
        TypeError: an argument is of another type than its own, or a tensor of another dtype.
    """
    return kept_backward_operator(input, factor)
