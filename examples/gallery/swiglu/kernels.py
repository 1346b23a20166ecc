"""The kernels of swiglu: programs of CuTe DSL, compiled at the first call, or loaded from a library that was.

Each program is compiled at its first call, in less than a second; where CuTe DSL is not installed, `lib/swiglu.so`
has all of them, and tvm-ffi is enough. A tensor whose size or address does not allow vectors of 16 bytes is handled
one element a thread.
"""

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swiglu.operator import swiglu, swiglu_backward

LIBRARY = Path(__file__).with_name("lib") / "swiglu.so"
_VECTOR_BYTES = 16


@functools.cache
def _program(name: str, dtype: torch.dtype, width: int) -> Any:
    if find_spec("cutlass") is not None:
        from swiglu.programs import compiled

        return compiled(name, dtype, width)
    import tvm_ffi

    return tvm_ffi.load_module(str(LIBRARY))[f"{name}_{str(dtype).removeprefix('torch.')}_{width}"]


def _code(name: str, dtype: torch.dtype) -> bytes:
    if find_spec("cutlass") is None:
        return LIBRARY.read_bytes()
    from swiglu.programs import code

    return code(name, dtype)


def _run(name: str, *tensors: Tensor) -> None:
    """Runs a program on contiguous tensors of one size."""
    width = _VECTOR_BYTES // tensors[0].dtype.itemsize
    if tensors[0].numel() % width or any(tensor.data_ptr() % _VECTOR_BYTES for tensor in tensors):
        width = 1
    _program(name, tensors[0].dtype, width)(*(tensor.view(-1, width) for tensor in tensors))


@swiglu.kernel("cuda", language="CuTe DSL", fills=True, compile=lambda gate, up: _code("forward", gate.dtype))
def vectors(gate: Tensor, up: Tensor, output: Tensor) -> None:
    """Computes `silu(gate) * up`."""
    _run("forward", gate, up, output)


@swiglu_backward.kernel(
    "cuda", language="CuTe DSL", fills=True, compile=lambda grad, gate, up: _code("backward", gate.dtype)
)
def vectors_backward(output_grad: Tensor, gate: Tensor, up: Tensor, gate_grad: Tensor, up_grad: Tensor) -> None:
    """Computes the gradients of both."""
    _run("backward", output_grad, gate, up, gate_grad, up_grad)
