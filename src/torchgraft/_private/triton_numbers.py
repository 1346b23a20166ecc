"""Numbers in Triton's interpreter: the codes that it keeps, and what a GPU computes with them.

`torchgraft._private.triton` puts these into the interpreter.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Values:
    """Numbers between the codes that the interpreter keeps and what NumPy can compute with."""

    def __init__(self, interpreter: Any) -> None:
        self.interpreter = interpreter
        self.numpy = importlib.import_module("numpy")
        self.language = language = importlib.import_module("triton.language")
        # By Triton's dtype: PyTorch's, and the whole numbers of its size.
        self._coded = {
            language.bfloat16: (torch.bfloat16, torch.uint16),
            language.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
            language.float8e5: (torch.float8_e5m2, torch.uint8),
        }

    def is_coded(self, dtype: Any) -> bool:
        """Whether the interpreter keeps numbers of a dtype as whole numbers."""
        return dtype in self._coded

    def of(self, handle: Any) -> Any:
        """The numbers that a handle stands for; those of a coded dtype as float32, which holds each of them."""
        if not self.is_coded(handle.dtype.scalar):
            return handle.data
        codes = torch.from_numpy(self.numpy.array(handle.data))
        return codes.view(self._coded[handle.dtype.scalar][0]).to(torch.float32).numpy()

    def handle(self, numbers: Any, dtype: Any) -> Any:
        """A handle of numbers, which are rounded once, to the nearest."""
        if dtype not in self._coded:
            numbers = self.numpy.asarray(numbers).astype(self.interpreter._get_np_dtype(dtype), copy=False)
            return self.interpreter.TensorHandle(numbers, dtype)
        rounded, codes = self._coded[dtype]
        tensor = torch.from_numpy(self._in_float32(self.numpy.asarray(numbers)))
        if codes is torch.uint8:
            # The conversions of PTX saturate, infinity included; NaN stays.
            limit = torch.finfo(rounded).max
            tensor = tensor.clamp(-limit, limit)
        return self.interpreter.TensorHandle(tensor.to(rounded).view(codes).numpy(), dtype)

    def _in_float32(self, numbers: Any) -> Any:
        """Numbers in float32, so that rounding them again gives what rounding them at once would give."""
        numpy = self.numpy
        if numbers.dtype in (numpy.float16, numpy.float32, numpy.bool_):
            return numpy.array(numbers, dtype=numpy.float32)
        exact = numbers.astype(numpy.float64)
        near = numpy.array(exact, dtype=numpy.float32)
        # Where bits are lost, the last one is set that is kept: the number then lies on neither side of a tie.
        lost = (near != exact) & numpy.isfinite(near)
        codes = near.view(numpy.uint32)
        codes -= lost & (numpy.abs(near) > numpy.abs(exact))
        codes |= lost
        return near


def repair_arithmetic(builder: Any, values: Values) -> None:
    """Has operations compute with numbers, and not with their codes."""
    numpy, language, interpreter = values.numpy, values.language, values.interpreter
    compares = (numpy.less, numpy.less_equal, numpy.greater, numpy.greater_equal, numpy.equal, numpy.not_equal)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        found = operation(values.of(left), values.of(right))
        return values.handle(found, language.int1 if operation in compares else left.dtype.scalar)

    def unary_op(self: Any, argument: Any, operation: Any) -> Any:
        return values.handle(operation(values.of(argument)), argument.dtype.scalar)

    def create_clampf(self: Any, argument: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        each, least, most = map(values.of, (argument, low, high))
        found = numpy.fmin(numpy.fmax(each, least), most)
        if propagate_nans == interpreter._ir.PROPAGATE_NAN.ALL:
            found = numpy.where(numpy.isnan(each), each, found)
        return values.handle(found, argument.dtype.scalar)

    def create_fma(self: Any, left: Any, right: Any, other: Any) -> Any:
        # A product of two numbers in float32 has no more bits than float64 holds.
        x, y, z = (each.astype(numpy.float64) for each in map(values.of, (left, right, other)))
        return values.handle(x * y + z, other.dtype.scalar)

    def create_dot(self: Any, left: Any, right: Any, start: Any, input_precision: Any, *more: Any) -> Any:
        factors = [values.of(left), values.of(right)]
        if input_precision == interpreter._ir.INPUT_PRECISION.TF32:
            # Tensor cores ignore the last 13 bits.
            factors = [_cut_off(each) if each.dtype == numpy.float32 else each for each in factors]
        sums = numpy.matmul(*factors, dtype=numpy.promote_types(start.data.dtype, factors[0].dtype))
        return values.handle(sums + values.of(start), start.dtype.scalar)

    def _cut_off(numbers: Any) -> Any:
        return (numpy.ascontiguousarray(numbers).view(numpy.uint32) & 0xFFFFE000).view(numpy.float32)

    atomic = builder.create_atomic_rmw

    def create_atomic_rmw(self: Any, operation: Any, pointer: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        is_sum = operation == interpreter._ir.ATOMIC_OP.FADD
        if not (is_sum and values.is_coded(value.dtype.scalar)):
            return atomic(self, operation, pointer, value, mask, sem, scope)
        places, added, inside = numpy.broadcast_arrays(pointer.data, value.data, mask.data)
        before = numpy.zeros_like(added)
        memory, dtype = interpreter._interpreter, value.dtype.scalar
        for each in map(tuple, numpy.argwhere(inside)):
            place, yes = places[each].reshape(1), numpy.ones(1, dtype=bool)
            old = memory.load(place, yes, numpy.zeros(1, added.dtype), added.dtype)
            one = (interpreter.TensorHandle(codes, dtype) for codes in (old, added[each].reshape(1)))
            memory.store(place, self.create_fadd(*one).data, yes)
            before[each] = old[0]
        return interpreter.TensorHandle(before, dtype)

    # These drop NaN, as max.f32 and min.f32 do.
    builder.create_maxnumf = lambda self, left, right: self.binary_op(left, right, numpy.fmax)
    builder.create_minnumf = lambda self, left, right: self.binary_op(left, right, numpy.fmin)
    builder.get_bf16 = lambda self, value: values.handle([value], language.bfloat16)
    for function in (binary_op, unary_op, create_clampf, create_fma, create_dot, create_atomic_rmw):
        setattr(builder, function.__name__, function)


def repair_conversions(builder: Any, values: Values) -> None:
    """Has conversions round to the nearest."""
    interpreter = values.interpreter
    cast, round_to = builder.cast_impl, builder.create_fp_to_fp
    to_nearest = interpreter._ir.ROUNDING_MODE.RTNE

    def is_coded(handle: Any, target: Any) -> bool:
        return handle.dtype.scalar != target and any(map(values.is_coded, (handle.dtype.scalar, target)))

    def cast_impl(self: Any, handle: Any, target: Any) -> Any:
        if is_coded(handle, target.scalar):
            return values.handle(values.of(handle), target.scalar)
        return cast(self, handle, target)

    def create_fp_to_fp(self: Any, handle: Any, target: Any, rounding: Any) -> Any:
        if is_coded(handle, target.scalar) and rounding in (None, to_nearest):
            return values.handle(values.of(handle), target.scalar)
        return round_to(self, handle, target, rounding)

    load = builder.create_tensor_pointer_load

    def create_tensor_pointer_load(self: Any, pointer: Any, checked: Any, padding: Any, *more: Any) -> Any:
        dtype = pointer.base.get_element_ty()
        if padding != interpreter._ir.PADDING_OPTION.PAD_NAN or not values.is_coded(dtype):
            return load(self, pointer, checked, padding, *more)
        places, inside = pointer.materialize_pointers(checked)
        other = values.handle(values.numpy.full(places.data.shape, float("nan")), dtype)
        return self.create_masked_load(places, interpreter.TensorHandle(inside, values.language.int1), other, *more)

    builder.create_tensor_pointer_load = create_tensor_pointer_load
    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp


def repair_reductions(interpreter: Any, values: Values) -> None:
    """Has reductions combine halves, as the threads of a GPU do, and round what they combine."""
    numpy = values.numpy
    standard = importlib.import_module("triton.language.standard")
    greatest = {standard._elementwise_max: numpy.fmax, standard._elementwise_min: numpy.fmin}

    def combine(self: Any, left: Sequence[Any], right: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
        """Combines two halves by the author's function."""
        found = self.combine_fn(*map(self.to_tensor, left, dtypes), *map(self.to_tensor, right, dtypes))
        together = found if isinstance(found, tuple) else (found,)
        # Functions of Triton's may return bfloat16 as float32.
        return [values.handle(values.of(each.handle), dtype).data for each, dtype in zip(together, dtypes, strict=True)]

    def reduced(self: Any, arrays: Sequence[Any], dtypes: Sequence[Any], axis: int) -> list[Any]:
        """Reduces arrays along a dimension, which then has one element."""
        ufunc = greatest.get(self.combine_fn)
        if ufunc is not None and not values.is_coded(dtypes[0]):
            return [ufunc.reduce(arrays[0], axis=axis, keepdims=True)]
        is_wide = dtypes[0].is_int() or dtypes[0].primitive_bitwidth >= 32
        if self.combine_fn == standard._sum_combine and is_wide:
            dtype = arrays[0].dtype
            return [numpy.sum(arrays[0], axis=axis, keepdims=True, dtype=dtype)]
        arrays = list(arrays)
        while (size := arrays[0].shape[axis]) > 1:
            halves = [numpy.split(each, [size // 2], axis=axis) for each in arrays]
            arrays = combine(self, [left for left, _ in halves], [right for _, right in halves], dtypes)
        return arrays

    def reduce(self: Any, given: Sequence[Any]) -> list[Any]:
        dtypes = [each.dtype for each in given]
        arrays = [each.handle.data for each in given]
        rank, axis = arrays[0].ndim, self.axis
        if axis is None:
            arrays, axis = [each.reshape(-1) for each in arrays], 0
        found = reduced(self, arrays, dtypes, axis)
        if not self.keep_dims:
            found = [each.squeeze(axis) for each in found]
        elif self.axis is None:
            found = [each.reshape((1,) * rank) for each in found]
        # An array without dimensions is a scalar of a kernel's.
        return [
            self.to_tensor(each if each.ndim else each.item(), dtype) for each, dtype in zip(found, dtypes, strict=True)
        ]

    def scan(self: Any, given: Sequence[Any]) -> list[Any]:
        dtypes = [each.dtype for each in given]
        arrays = [numpy.moveaxis(each.handle.data, self.axis, 0) for each in given]
        step = 1
        while step < arrays[0].shape[0]:
            later = combine(self, [each[:-step] for each in arrays], [each[step:] for each in arrays], dtypes)
            arrays = [numpy.concatenate([each[:step], new]) for each, new in zip(arrays, later, strict=True)]
            step *= 2
        found = (numpy.moveaxis(each, 0, self.axis) for each in arrays)
        return [self.to_tensor(each, dtype) for each, dtype in zip(found, dtypes, strict=True)]

    def coded_scan(uncoded: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda self, given: scan(self, [given]) if values.is_coded(given.dtype) else uncoded(self, given)

    interpreter.ReduceOps.apply_impl = reduce
    scans = interpreter.ScanOps
    scans.generic_scan, scans.cumsum, scans.cumprod = scan, coded_scan(scans.cumsum), coded_scan(scans.cumprod)
