"""PyTorch's switches that trade precision for speed, off."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def equal_precision() -> Iterator[None]:
    """A scope in which PyTorch is as fast as it can be at the precision of the dtype: best algorithm, no tf32."""
    convolution, product = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolution.benchmark, convolution.allow_tf32, product.allow_tf32
    convolution.benchmark, convolution.allow_tf32, product.allow_tf32 = True, False, False
    try:
        yield
    finally:
        convolution.benchmark, convolution.allow_tf32, product.allow_tf32 = before
