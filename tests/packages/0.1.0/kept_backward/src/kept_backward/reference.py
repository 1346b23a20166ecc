"""What kept_backward means: its kernels are compared with this."""

from torch import Tensor


def kept_backward(input: Tensor, factor: float) -> Tensor:
    """Factor * input * input, of every element."""
    return factor * input * input


def kept_backward_backward(output_grad: Tensor, input: Tensor, factor: float) -> Tensor:
    """The gradient of kept_backward."""
    return 2 * factor * input * output_grad
