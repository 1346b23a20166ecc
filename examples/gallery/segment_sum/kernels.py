"""The kernels of segment_sum: functions of a library that tvm-ffi has compiled, which fill tensors that they get.

A library that somebody else compiled is loaded with `tvm_ffi.load_module(path)`.
"""

from pathlib import Path

import tvm_ffi.cpp

from segment_sum.operator import segment_sum, segment_sum_backward

_module = tvm_ffi.cpp.load("segment_sum", sources=[str(Path(__file__).with_name("segment_sum.cpp"))])

segment_sum.kernel("cpu", name="segment_sum", language="tvm-ffi", fills=True)(_module.segment_sum)
segment_sum_backward.kernel("cpu", name="segment_sum_backward", language="tvm-ffi", fills=True)(
    _module.segment_sum_backward
)
