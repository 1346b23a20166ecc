"""The programs of swiglu in CuTe DSL, forward and gradients, and how they are compiled.

A thread owns a vector of each tensor, which it reads and writes at once. Arithmetic is in float32, and in float64 for
float64. A compiled function serves all sizes; tvm-ffi calls it, and gives it PyTorch's current stream.

    cd examples/gallery; python -m swiglu.programs swiglu/lib

compiles all of them into a library, which runs where CuTe DSL is not installed.
"""

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.runtime import find_runtime_libraries

_THREADS = 256
# A vector is one element, or so many bytes.
VECTOR_BYTES = 16
_DTYPES = {
    torch.float32: (cutlass.Float32, cutlass.Float32),
    torch.bfloat16: (cutlass.BFloat16, cutlass.Float32),
    torch.float16: (cutlass.Float16, cutlass.Float32),
    torch.float64: (cutlass.Float64, cutlass.Float64),
}


@cute.kernel
def _forward_kernel(gate: cute.Tensor, up: cute.Tensor, output: cute.Tensor, wide: cutlass.Constexpr) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    place = cutlass.Int64(block) * _THREADS + thread
    if place < gate.shape[0]:
        g = gate[place, None].load().to(wide)
        result = g / (1 + cute.math.exp(-g)) * up[place, None].load().to(wide)
        output[place, None].store(result.to(output.element_type))


@cute.jit
def _forward(
    gate: cute.Tensor, up: cute.Tensor, output: cute.Tensor, stream: cuda.CUstream, wide: cutlass.Constexpr
) -> None:
    blocks = cute.ceil_div(gate.shape[0], _THREADS)
    _forward_kernel(gate, up, output, wide).launch(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream)


@cute.kernel
def _backward_kernel(
    output_grad: cute.Tensor,
    gate: cute.Tensor,
    up: cute.Tensor,
    gate_grad: cute.Tensor,
    up_grad: cute.Tensor,
    wide: cutlass.Constexpr,
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    place = cutlass.Int64(block) * _THREADS + thread
    if place < gate.shape[0]:
        g = gate[place, None].load().to(wide)
        grad = output_grad[place, None].load().to(wide)
        sigmoid = 1 / (1 + cute.math.exp(-g))
        slope = sigmoid * (1 + g * (1 - sigmoid))
        gate_grad[place, None].store((grad * up[place, None].load().to(wide) * slope).to(gate_grad.element_type))
        up_grad[place, None].store((grad * (g * sigmoid)).to(up_grad.element_type))


@cute.jit
def _backward(
    output_grad: cute.Tensor,
    gate: cute.Tensor,
    up: cute.Tensor,
    gate_grad: cute.Tensor,
    up_grad: cute.Tensor,
    stream: cuda.CUstream,
    wide: cutlass.Constexpr,
) -> None:
    blocks = cute.ceil_div(gate.shape[0], _THREADS)
    _backward_kernel(output_grad, gate, up, gate_grad, up_grad, wide).launch(
        grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream
    )


# By name: the program, and how many tensors it takes.
_PROGRAMS = {"forward": (_forward, 3), "backward": (_backward, 5)}


def _compile(name: str, dtype: torch.dtype, width: int, options: str = "") -> Any:
    """Compiles a program for tensors (vectors, width), with any number of vectors."""
    function, tensors = _PROGRAMS[name]
    kept, wide = _DTYPES[dtype]
    shape = cute.sym_int(), width
    fakes = [
        make_fake_compact_tensor(kept, shape, stride_order=(1, 0), assumed_align=width * dtype.itemsize)
        for _ in range(tensors)
    ]
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(function, *fakes, stream, wide, options=f"--enable-tvm-ffi {options}".strip())


compiled = functools.cache(_compile)


def symbol(name: str, dtype: torch.dtype, width: int) -> str:
    """The name of a compiled program in a library."""
    return f"{name}_{str(dtype).removeprefix('torch.')}_{width}"


@functools.cache
def code(name: str, dtype: torch.dtype) -> bytes:
    """Compiles a program for an H100 or H200, also where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        # Without the architecture it would be that of the GPU, and sm_100a where there is none.
        options = f"--gpu-arch sm_90a --keep-cubin --dump-dir {folder}"
        widths = (1, VECTOR_BYTES // dtype.itemsize)
        return b"".join(_compile(name, dtype, width, options).artifacts.CUBIN for width in widths)


def export(folder: Path) -> None:
    """Compiles all programs for an H100 or H200 into a library in a folder, with the runtime of CuTe DSL beside it."""
    folder.mkdir(exist_ok=True)
    runtime = [Path(each) for each in find_runtime_libraries(enable_tvm_ffi=True)]
    with tempfile.TemporaryDirectory() as made:
        for name in _PROGRAMS:
            for dtype in _DTYPES:
                for width in (1, VECTOR_BYTES // dtype.itemsize):
                    named = symbol(name, dtype, width)
                    _compile(name, dtype, width, "--gpu-arch sm_90a").export_to_c(f"{made}/{named}.o", named)
        command = [
            "c++",
            "-shared",
            "-o",
            str(folder / "swiglu.so"),
            *map(str, Path(made).glob("*.o")),
            "-Wl,-rpath,$ORIGIN",
        ]
        subprocess.run([*command, *map(str, runtime)], check=True)
    for library in runtime:
        if "tvm_ffi" not in library.name:
            shutil.copy(library, folder)


if __name__ == "__main__":
    export(Path(sys.argv[1]))
