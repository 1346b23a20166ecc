"""Matrices written with rows and columns exchanged, with a kernel in Gluon."""

from importlib.util import find_spec

from transposed.operator import transposed as transposed

# Without Triton, which Gluon is a part of, the reference answers.
if find_spec("triton") is not None:
    from transposed import kernels as kernels
