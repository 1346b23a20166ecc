"""Fake results have the layout of real results, in all sizes, so that tracing sees the truth.

Proves: on each sample, contiguous and not, fake tensors and meta tensors have the sizes, strides, dtype and device of
the real results, hidden results included. On small samples meta tensors have these also in sizes one or two larger, and
with numbers one more or one less. On small samples with symbolic sizes, no size becomes a constant if the operator
takes other values of it, and the resulting sizes and strides are right for other sizes too.

Cannot prove: anything about sizes and layouts that no sample has or leads to. Sizes 0 and 1 are constants by PyTorch's
own rule.

Mend: `output` must compute sizes, strides, dtype and device as the kernel does, from sizes alone: `input.shape[0]`, not
`int(...)`, and no `if` on a size.

Example: the fake result is contiguous, the real one is laid out as the input.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import Derived, kinds_of, resizable, resized
from torchgraft.checking.helpers.other_sizes import SizePlace, in_other_sizes, size_arguments, sizes_of
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, replaced, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_same
from torchgraft.checking.tensors.strides import in_awkward_strides, significant_strides

# How many samples are asked in other sizes and with other numbers, and the seconds of this thread for all of them.
_QUICK_CHANGED, _CHANGED = 4, 12
_QUICK_SECONDS, _SECONDS = 0.2, 2.0


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.sizes_from_data:
        case.each(_check_unknown, case.table(small=True))
        return
    case.each(_check_layout, case.table())
    case.each(_check_awkward_layouts, case.table(small=True, empty=False, count=16))
    # A GPU is not asked: a number that its kernel does not expect may end its use.
    if case.device.type == "cpu":
        _check_changed(case)
    # Sizes do not depend on the dtype.
    if case.dtype == PROPERTY.dtypes_for(case.operator)[0]:
        case.each(_check_symbolic, case.table(small=True, empty=False, count=8))


def _check_layout(call: Call) -> None:
    arguments = call.arguments
    real = call.operator.raw(*arguments)
    _expect_same_layout(call, arguments, real, seen=call.operator.raw)
    _expect_same_layout(call, arguments, call.declaration.visible(real), seen=call.operator.call)


def _check_unknown(call: Call) -> None:
    """Results whose sizes depend on data, as far as they are known without it."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real = tensors_of([call.operator.raw(*call.arguments)])
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = tensors_of([call.operator.raw(*each_tensor(mode.from_tensor, call.arguments))])
    expect_same(len(fake), len(real), "the number of results of fake tensors is wrong")
    for number, (one, other) in enumerate(zip(fake, real, strict=True), 1):
        name = f"result {number} of fake tensors"
        expect_same((one.dtype, one.device, one.dim()), (other.dtype, other.device, other.dim()), f"{name} is another")
        known = [dim for dim in range(one.dim()) if isinstance(one.shape[dim], int)]
        found, expected = ([each.shape[dim] for dim in known] for each in (one, other))
        expect_same(found, expected, f"{name} has other sizes than the real one")


def _check_awkward_layouts(call: Call) -> None:
    raw = call.operator.raw
    for name, tensor, with_other in call.tensors_in_turn():
        for kind, strided in in_awkward_strides(tensor).items():
            changed = with_other(strided)
            _expect_same_layout(call, changed, raw(*changed), seen=raw, how=f" ({name}: {kind})")


def _check_changed(case: Case) -> None:
    """Asks for the sizes of results in calls with other sizes and numbers, as a window that only some of them have."""
    try:
        samples = kinds_of(case.table(small=True, empty=False), _QUICK_CHANGED if case.quick else _CHANGED)
    except NotApplicable:
        return
    if case.declaration.lists:
        for sample in samples:
            case.each(partial(_check_changes, case), [sample])


def _check_changes(case: Case, call: Call) -> None:
    end = time.thread_time() + (_QUICK_SECONDS if case.quick else _SECONDS) / _QUICK_CHANGED
    for other, words in _with_other_numbers(call):
        # First one size after the other: they are small, and most mistakes are one off.
        for changed in (Derived(words, other, 1), *_in_next_sizes(other, words)):
            if time.thread_time() > end:
                return
            if changed.words:
                _check_one_change(changed.call, changed.words)


def _with_other_numbers(call: Call) -> Iterator[tuple[Call, str]]:
    """Yields a call, and calls with a number one more or one less, or with a flag flipped."""
    yield call, ""
    given = call.declaration.with_defaults(call.sample.arguments)
    for place, (argument, value) in enumerate(zip(call.declaration.arguments, given, strict=True)):
        for other in _next_numbers(value) if argument.kind in ("int", "SymInt", "bool") else ():
            yield _with_arguments(call, replaced(given, place, other)), f"{argument.name}={other}"


def _next_numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from (list(replaced(value, place, other)) for other in _next_numbers(each))


def _with_arguments(call: Call, arguments: Sequence[Any]) -> Call:
    return replace(call, sample=replace(call.sample, arguments=tuple(arguments)))


def _in_next_sizes(call: Call, words: str) -> Iterator[Derived]:
    sizes = resizable(call, 1)
    # Dimensions that windows slide over are the last ones.
    groups = [(place,) for place in sorted(sizes, key=lambda place: -(place.dim or 0))]
    alike = [tuple(place for place in sizes if sizes[place] == size) for size in sorted(set(sizes.values()))]
    for group in (*groups, *(each for each in alike if len(each) > 1)):
        for more in (1, 2):
            other = resized(call, {place: sizes[place] + more for place in group})
            yield replace(other, words=", ".join(filter(None, (other.words, words))))


def _check_one_change(call: Call, words: str) -> None:
    """Compares the layout of fake and of real results, if the reference and the kernel take the call."""
    try:
        call.reference(*call.arguments)
        arguments = call.arguments
        real = call.operator.raw(*arguments)
        on_meta = each_tensor(lambda tensor: tensor.to("meta"), arguments)
        meta = call.operator.raw(*on_meta)
    except Exception:
        # `bad_input` says which errors are clear.
        return
    words = words if words.startswith("with ") else f"with {words}"
    _expect_as_real(meta, real, f"of meta tensors ({words})", device=torch.device("meta"))


def _expect_same_layout(
    call: Call, arguments: Sequence[Any], real: Any, *, seen: Callable[..., Any], how: str = ""
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = seen(*each_tensor(mode.from_tensor, arguments))
    _expect_as_real(fake, real, f"of fake tensors{how}")
    on_meta = each_tensor(lambda tensor: tensor.to("meta"), arguments)
    meta = seen(*on_meta)
    # A copy to another device keeps strides where they are dense, so of others there is nothing to say.
    copied, given = ([significant_strides(tensor) for tensor in tensors_of(each)] for each in (on_meta, arguments))
    if copied == given:
        # Which layout PyTorch's own operator gives may depend on the device, which meta tensors do not name.
        knows_strides = call.declaration.strides != "reference" or call.device.type == "cpu"
        _expect_as_real(meta, real, f"of meta tensors{how}", torch.device("meta"), knows_strides=knows_strides)


def _expect_as_real(
    found: Any, real: Any, of_what: str, device: torch.device | None = None, *, knows_strides: bool = True
) -> None:
    ones, others = ([each for each in tree_leaves(values) if each is not None] for values in (found, real))
    expect_same(len(ones), len(others), f"the number of results {of_what} is wrong")
    for number, (one, other) in enumerate(zip(ones, others, strict=True), 1):
        name = f"the result {of_what}" if len(ones) == 1 else f"result {number} {of_what}"
        for aspect, said, is_so in (
            ("sizes", tuple(one.shape), tuple(other.shape)),
            ("dtype", one.dtype, other.dtype),
            ("device", one.device, device or other.device),
            ("strides", significant_strides(one), significant_strides(other)),
        ):
            if aspect != "strides" or knows_strides:
                expect_same(said, is_so, f"{name} has other {aspect} than the real one")


def _check_symbolic(call: Call) -> None:
    others = in_other_sizes(call, numbers=True, apart=True)
    traced = _Traced(call)
    for place, constant in traced.constants().items():
        name = call.declaration.arguments[place.argument].name
        where = name if place.dim is None else f"dimension {place.dim} of {name}"
        taken = {sizes_of(other, numbers=True)[place] for other in others} - {constant}
        expect(
            not taken,
            f"under symbolic shapes {where} becomes a constant, although the operator takes other "
            "sizes there: a dynamic graph would be compiled again for each",
            expected=f"any size, such as {max(taken, default=0)}",
            found=constant,
        )
    for other in others:
        traced.expect_right(other)


class _Traced:
    """A sample traced with a symbol for each of its sizes."""

    def __init__(self, call: Call) -> None:
        from torch._dynamo.source import ConstantSource
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

        # Without duck shapes, sizes that are equal by chance have symbols of their own.
        self.shapes = ShapeEnv(duck_shape=False)
        self.symbols: dict[SizePlace, Any] = {}
        self.sizes = sizes_of(call, numbers=True)
        mode = FakeTensorMode(shape_env=self.shapes)
        arguments = list(call.arguments)
        for number, value in enumerate(arguments):
            source = ConstantSource(call.declaration.arguments[number].name)
            if isinstance(value, Tensor):
                arguments[number] = self._faked(mode, value, source, number, None)
            elif isinstance(value, list):
                for place, each in enumerate(value):
                    if isinstance(each, Tensor):
                        named = ConstantSource(f"{call.declaration.arguments[number].name}_{place}")
                        value[place] = self._faked(mode, each, named, number, place)
            elif number in size_arguments(call.operator) and SizePlace(number, None) in self.sizes:
                symbol = self.shapes.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
                arguments[number] = self.shapes.create_symintnode(symbol, hint=value, source=source)
                self.symbols[SizePlace(number, None)] = symbol
        try:
            with mode:
                self.results = tensors_of([call.operator.raw(*arguments)])
        except Exception as error:
            raise Mismatch(
                f"the operator cannot be traced with symbolic sizes: {type(error).__name__}: {error}"
            ) from error

    def _faked(self, mode: Any, tensor: Tensor, source: Any, argument: int, element: int | None) -> Tensor:
        """A tensor without values, with a symbol for each of its sizes."""
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
        faked = mode.from_tensor(tensor, source=source, symbolic_context=context)
        for dim, size in enumerate(faked.shape):
            if SizePlace(argument, dim, element) in self.sizes:
                self.symbols[SizePlace(argument, dim, element)] = size.node.expr
        return faked

    def constants(self) -> dict[SizePlace, int]:
        """The sizes that tracing has fixed."""
        now = {place: self.shapes.simplify(symbol) for place, symbol in self.symbols.items()}
        return {place: int(expression) for place, expression in now.items() if expression.is_number}

    def expect_right(self, other: Call) -> None:
        """Compares a trace, read in other sizes, with the results in those sizes."""
        import sympy  # type: ignore[import-untyped]

        sizes = sizes_of(other, numbers=True)
        values = {symbol: sympy.Integer(sizes[place]) for place, symbol in self.symbols.items()}

        def read(size: int | torch.SymInt) -> int:
            return int(size.node.expr.xreplace(values)) if isinstance(size, torch.SymInt) else size

        # Where a guard does not hold it would be traced again.
        if not all(guard.expr.xreplace(values) == True for guard in self.shapes.guards):  # noqa: E712
            return
        expected = tree_leaves(other.declaration.output(*other.make("meta"))) if other.declaration.lists else []
        for number, (one, real) in enumerate(zip(self.results, expected, strict=True), 1):
            name = "the result" if len(expected) == 1 else f"result {number}"
            where = f"of symbolic sizes, read in the sizes {other.shapes}"
            expect_same(tuple(map(read, one.shape)), tuple(real.shape), f"{name} {where}, has wrong sizes")
            dims = [dim for dim, size in enumerate(real.shape) if size != 1]
            strides = tuple(read(one.stride(dim)) for dim in dims)
            expect_same(strides, tuple(real.stride(dim) for dim in dims), f"{name} {where}, has wrong strides")


# Two dtypes are checked, so that a dtype that is a constant in the fake is wrong in one of them.
PROPERTY = Property(check, dtypes=(torch.float32, torch.bfloat16), imports=COMPILER)
