"""Quantizes each row to float8 with a scale of its own."""

from importlib.util import find_spec

from quantize_fp8.operator import quantize_fp8 as quantize_fp8

# Without Triton the reference answers.
if find_spec("triton") is not None:
    from quantize_fp8 import kernels as kernels
