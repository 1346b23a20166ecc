"""SwiGLU's activation of two tensors, with kernels in CuTe DSL."""

from importlib.util import find_spec
from pathlib import Path

from swiglu.operator import swiglu as swiglu
from swiglu.operator import swiglu_backward as swiglu_backward

_HAS_LIBRARY = Path(__file__).with_name("lib").is_dir() and find_spec("tvm_ffi") is not None

# Without CuTe DSL, and without a library that it compiled, the reference answers.
if find_spec("cutlass") is not None or _HAS_LIBRARY:
    from swiglu import kernels as kernels
