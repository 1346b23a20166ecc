"""SwiGLU's activation: one half of each row, gated by the SiLU of the other."""

from importlib.util import find_spec

from silu_and_mul.operator import silu_and_mul as silu_and_mul
from silu_and_mul.operator import silu_and_mul_backward as silu_and_mul_backward

# Without Triton the reference answers.
if find_spec("triton") is not None:
    from silu_and_mul import kernels as kernels
