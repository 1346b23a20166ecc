"""The kernels of segment_sum: functions of libraries that tvm-ffi has compiled, which fill tensors that they get.

A library that somebody else compiled is loaded with `tvm_ffi.load_module(path)`.
"""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import tvm_ffi.cpp
from tvm_ffi.libinfo import include_paths

from segment_sum.operator import segment_sum, segment_sum_backward

_HERE = Path(__file__).parent


@functools.cache
def _module(source: str) -> Any:
    return tvm_ffi.cpp.load("segment_sum", sources=[str(_HERE / source)])


@functools.cache
def _code() -> bytes:
    """Compiles the kernels for an H100 or H200, also where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "segment_sum.cubin")
        options = ["-cubin", "-arch=sm_90", "-std=c++17", *(f"-I{path}" for path in include_paths())]
        subprocess.run(["nvcc", *options, "-o", str(made), str(_HERE / "segment_sum.cu")], check=True)
        return made.read_bytes()


for operator in (segment_sum, segment_sum_backward):
    name = operator.name
    declared = functools.partial(operator.kernel, name=name, language="tvm-ffi", fills=True)
    declared("cpu")(getattr(_module("segment_sum.cpp"), name))
    if shutil.which("nvcc") is not None:
        declared("cuda", compile=lambda *tensors: _code())(
            lambda *arguments, name=name: getattr(_module("segment_sum.cu"), name)(*arguments)
        )
