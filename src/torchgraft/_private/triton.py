"""The private names of Triton's interpreter that torchgraft depends on, and nothing else.

The interpreter keeps bfloat16 and float8 as whole numbers. It cuts off what does not fit where a GPU rounds to the
nearest, and takes some conversions of those whole numbers for conversions of what they stand for. Here PyTorch converts
instead, so that a kernel gives under the interpreter what it gives on a GPU.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


@functools.cache
def round_as_gpus_do() -> None:
    """Has the interpreter convert to and from bfloat16 and float8 as PyTorch does, which rounds to the nearest."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    language = importlib.import_module("triton.language")
    numpy = importlib.import_module("numpy")
    builder = interpreter.InterpreterBuilder
    # By Triton's dtype: PyTorch's, and the whole numbers of its size.
    coded = {
        language.bfloat16: (torch.bfloat16, torch.uint16),
        language.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
        language.float8e5: (torch.float8_e5m2, torch.uint8),
    }

    def converted(handle: Any, target: Any) -> Any:
        """A handle of the interpreter's in another dtype."""
        values = torch.from_numpy(numpy.array(handle.data))
        if handle.dtype.scalar in coded:
            values = values.view(coded[handle.dtype.scalar][0]).to(torch.float32)
        if target in coded:
            dtype, codes = coded[target]
            data = values.to(dtype).view(codes).numpy()
        else:
            data = values.numpy().astype(interpreter._get_np_dtype(target))
        return interpreter.TensorHandle(data, target)

    def is_coded(handle: Any, target: Any) -> bool:
        return handle.dtype.scalar != target and (handle.dtype.scalar in coded or target in coded)

    cast, round_to = builder.cast_impl, builder.create_fp_to_fp
    to_nearest = interpreter._ir.ROUNDING_MODE.RTNE

    def cast_impl(self: Any, handle: Any, target: Any) -> Any:
        if is_coded(handle, target.scalar):
            return converted(handle, target.scalar)
        return cast(self, handle, target)

    def create_fp_to_fp(self: Any, handle: Any, target: Any, rounding: Any) -> Any:
        if is_coded(handle, target.scalar) and rounding in (None, to_nearest):
            return converted(handle, target.scalar)
        return round_to(self, handle, target, rounding)

    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp
