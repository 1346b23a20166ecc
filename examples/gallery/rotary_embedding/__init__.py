"""Rotary position embedding of queries and keys."""

from importlib.util import find_spec

from rotary_embedding.operator import rotary_embedding as rotary_embedding

# Without Triton the reference answers.
if find_spec("triton") is not None:
    from rotary_embedding import kernels as kernels
