"""Sums of segments of rows, with kernels that tvm-ffi compiles and calls."""

from importlib.util import find_spec

from segment_sum.operator import segment_sum as segment_sum
from segment_sum.operator import segment_sum_backward as segment_sum_backward

# Without tvm-ffi the reference answers.
if find_spec("tvm_ffi") is not None:
    from segment_sum import kernels as kernels
