"""The softmax of rows, with kernels in TileLang."""

from importlib.util import find_spec

from softmax.operator import softmax as softmax
from softmax.operator import softmax_backward as softmax_backward

# Without TileLang the reference answers.
if find_spec("tilelang") is not None:
    from softmax import kernels as kernels
