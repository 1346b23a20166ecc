"""Dropout whose mask follows from a seed, and is computed again for the gradient."""

from importlib.util import find_spec

from seeded_dropout.operator import seeded_dropout as seeded_dropout

# Without Triton the reference answers.
if find_spec("triton") is not None:
    from seeded_dropout import kernels as kernels
