"""The differences between two declarations that caches of compilers must see."""

import abc
import collections
import contextlib
import copy
import copyreg
import dataclasses
import decimal
import enum
import functools
import importlib
import io
import json
import math
import operator
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import types
import typing
import warnings
from pathlib import Path

import pytest
import torch

from torchgraft import Operator, wrap_triton
from torchgraft.operator.cache_names import _OWN
from torchgraft.operator.fingerprint import fingerprint

scale = 2


def scaled(size):
    return scale * size


def make(constant, default=1):
    def function(x, by=default):
        return x.new_empty(constant * by)

    return function


def named(x):
    return x.new_empty(scaled(x.numel()))


class Sizes:
    def __init__(self, size):
        self.size = size

    def __call__(self, x):
        return x.new_empty(self.size)


def test_equal_code_and_values_have_one_word():
    assert fingerprint(make(3)) == fingerprint(make(3))
    assert fingerprint(Sizes(3)) == fingerprint(Sizes(3))
    assert fingerprint({"a": [1.0, torch.float32]}) == fingerprint({"a": [1.0, torch.float32]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (make(3), make(4)),
        (make(3), make(3, default=2)),
        (lambda x: x.new_empty(3), lambda x: x.new_empty(4)),
        (lambda x: x.new_empty(3), lambda x: x.new_zeros(3)),
        (lambda x: [x.new_empty(n) for n in (1, 2)], lambda x: [x.new_empty(n) for n in (1, 3)]),
        (functools.partial(make(3), by=1), functools.partial(make(3), by=2)),
        (Sizes(3), Sizes(4)),
        (Sizes(3).__call__, Sizes(4).__call__),
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        (torch.float32, torch.float64),
        ((1, (2, 3)), ((1, 2), 3)),
        ({1, 2}, {1, 3}),
        (len, sum),
        (torch.empty_like, torch.zeros_like),
    ],
)
def test_any_difference_gives_another(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_a_global_that_a_function_reads_counts(monkeypatch):
    before = fingerprint(named)
    monkeypatch.setitem(globals(), "scale", 3)
    assert fingerprint(named) != before


def test_a_function_of_a_module_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    words = set()
    for factor in (2, 3):
        for name in ("sizes_of_mine", "helpers_of_mine"):
            sys.modules.pop(name, None)
        (tmp_path / "helpers_of_mine.py").write_text(f"def times(n):\n    return {factor} * n\n")
        (tmp_path / "sizes_of_mine.py").write_text(
            "import helpers_of_mine\ndef size(n):\n    return helpers_of_mine.times(n)\n"
        )
        sys.dont_write_bytecode = True
        import sizes_of_mine

        words.add(fingerprint(lambda x, module=sizes_of_mine: module))
        words.add(fingerprint(sizes_of_mine.size))
    assert len(words) == 4  # whoever gets the module `sizes_of_mine` may call what it holds


def test_what_cannot_be_described_has_a_new_word_each_time():
    unknown = torch.Generator()
    assert fingerprint(lambda: unknown) != fingerprint(lambda: unknown)


def test_nor_can_code_that_looks_elsewhere():
    def imports(x):
        from helpers_of_nobody import size

        return x.new_empty(size)

    def reads_globals(x):
        return x.new_empty(globals()["scale"])

    for function in (imports, reads_globals):
        assert fingerprint(function) != fingerprint(function)


def test_a_decorator_that_copies_names_of_a_library_hides_nothing():
    def named_as_pytorch(by):
        return functools.wraps(torch.nn.functional.relu)(lambda x: x.new_empty(by))

    assert fingerprint(named_as_pytorch(2)) != fingerprint(named_as_pytorch(3))


def test_subclasses_of_built_in_types_count():
    def sizes(by):
        class Sizes(tuple):
            def first(self):
                return by

        return Sizes((1, 2))

    assert fingerprint(sizes(2)) != fingerprint(sizes(3))


def test_what_an_instance_or_its_classes_hold_in_other_ways_counts():
    class Slots:
        __slots__ = ("size",)

        def __init__(self, size):
            self.size = size

    class Inherits(Slots):
        pass

    def of_class(size):
        return type("OfClass", (), {"__size__": size})()

    def of_metaclass(size):
        return type("Meta", (type,), {"size": size})("OfMeta", (), {})

    def with_attribute(size):
        def output(x):
            return x.new_empty(output.size)

        output.size = size
        return output

    for make_one in (Slots, Inherits, of_class, of_metaclass, with_attribute):
        assert fingerprint(make_one(2)) == fingerprint(make_one(2))
        assert fingerprint(make_one(2)) != fingerprint(make_one(3))


def test_what_is_set_in_a_module_later_counts_however_it_is_reached(tmp_path, monkeypatch):
    (tmp_path / "settings_of_mine.py").write_text("size = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import settings_of_mine as settings

    def by_default(x, where=settings):
        return x.new_empty(where.size)

    def by_name(x, *, where=settings):
        return x.new_empty(where.size)

    functions = [by_default, by_name, lambda x: x.new_empty(settings.size), lambda x: x.new_empty([settings][0].size)]
    for function in functions:
        words = set()
        for size in (2, 3):
            monkeypatch.setattr(settings, "size", size)
            words.add(fingerprint(function))
        assert len(words) == 2, function
    listed = [settings]
    for function in (lambda x: listed[0].size, lambda x: getattr(settings, x)):
        assert fingerprint(function) != fingerprint(function)


def with_attribute(value, size):
    value.size = size
    return value


def caught_late(x):
    size = 3
    named(x)
    try:
        scaled(x)
    except KeyError:
        size = 5
    return size


def caught_early(x):
    size = 3
    try:
        named(x)
        scaled(x)
    except KeyError:
        size = 5
    return size


class Dict(dict):
    pass


class Integer(int):
    pass


class Claims:
    def __init__(self, size):
        self.size, self.declaration_word = size, "the same"


@pytest.mark.parametrize(
    "make_one",
    [
        lambda size: with_attribute(Dict(a=1), size),
        lambda size: Dict(a=size),
        lambda size: with_attribute(Integer(7), size),
        lambda size: Integer(size),
        lambda size: with_attribute(functools.partial(len), size),
        lambda size: with_attribute(functools.lru_cache(lambda x: x), size),
        lambda size: collections.defaultdict(lambda: size),
        lambda size: collections.deque([size]),
        lambda size: type("Queue", (collections.deque,), {})([size]),
        lambda size: decimal.Decimal(size),
        Claims,
    ],
)
def test_a_value_counts_wherever_an_object_keeps_it(make_one):
    assert fingerprint(make_one(2)) != fingerprint(make_one(3))


def test_where_an_error_is_caught_counts():
    assert fingerprint(caught_late.__code__) != fingerprint(caught_early.__code__)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_settings_of_pytorch_count(threads):
    def output(x):
        return x.new_empty(torch.get_num_threads())

    words = set()
    for count in (1, 3):
        threads(count)
        words.add(fingerprint(output))
    assert len(words) == 2


@pytest.mark.parametrize(
    "decorator",
    [
        torch.no_grad(),
        torch.no_grad,
        contextlib.contextmanager,
        functools.singledispatch,
    ],
    ids=["no_grad()", "no_grad", "contextmanager", "singledispatch"],
)
def test_what_a_decorator_of_a_library_holds_counts(decorator):
    def decorated(size):
        return decorator(lambda x: x.new_empty(size))

    assert fingerprint(decorated(2)) != fingerprint(decorated(3))


@pytest.mark.parametrize("name", ["getenv", "environ", "argv"])
def test_what_a_process_is_given_cannot_be_described(name):
    hidden = getattr(os if hasattr(os, name) else sys, name)
    assert fingerprint(lambda: hidden) != fingerprint(lambda: hidden)


def test_cycles_end():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    ring = [even]
    ring.append(ring)
    assert fingerprint(ring).startswith("declared_")


class TestOrdinaryDeclarations:
    """Each function below makes an `output` from a size: the same word for the same size, in every process."""

    @staticmethod
    def enum_property(size):
        class Kind(enum.Enum):
            A = "a"

            @getattr(enum, "property", types.DynamicClassAttribute)
            def size(self):
                return size

        kind = Kind.A
        return lambda x: x.new_empty(kind.size)

    @staticmethod
    def dynamic_class_attribute(size):
        class Kind(enum.Enum):
            A = "a"

            @types.DynamicClassAttribute
            def size(self):
                return size

        kind = Kind.A
        return lambda x: x.new_empty(kind.size)

    @staticmethod
    def flag(size):
        flags = enum.Flag("Flags", {"A": 1, "B": 2 * size})
        return lambda x: x.new_empty(flags.B.value)

    @staticmethod
    def made_dataclass(size):
        sizes = dataclasses.make_dataclass("Sizes", [("size", int, size)])
        return lambda x: x.new_empty(sizes.size)

    @staticmethod
    def made_dataclass_with_method(size):
        sizes = dataclasses.make_dataclass("Sizes", [], namespace={"make": lambda self, x: x.new_empty(size)})()
        return lambda x: sizes.make(x)

    @staticmethod
    def frozen_dataclass(size):
        @dataclasses.dataclass(frozen=True, slots=True)
        class Sizes:
            by_name: dict = dataclasses.field(default_factory=lambda: {"size": [size]})

        return lambda x: x.new_empty(Sizes().by_name["size"])

    @staticmethod
    def new_class(size):
        sizes = types.new_class("Sizes", (), {}, lambda members: members.update(size=size))
        return lambda x: x.new_empty(sizes.size)

    @staticmethod
    def class_made_by_type(size):
        sizes = type("Size", (), {"__module__": "torch", "size": size})
        return lambda x: x.new_empty(sizes.size)

    @staticmethod
    def named_tuple(size):
        sizes = collections.namedtuple("Sizes", "size", defaults=(size,))
        return lambda x: x.new_empty(sizes().size)

    @staticmethod
    def typed_named_tuple(size):
        class Sizes(typing.NamedTuple):
            first: int

        sizes = Sizes(size)
        return lambda x: x.new_empty(sizes.first)

    @staticmethod
    def name_of_a_function(size):
        def kind():
            pass

        kind.__name__ = f"size_{size}"
        return lambda x: x.new_empty(int(kind.__name__.removeprefix("size_")))

    @staticmethod
    def default_by_name(size):
        def output(x, *, size=size):
            return x.new_empty(size)

        return output

    @staticmethod
    def known_instances(size):
        class Layout:
            known = set()  # noqa: RUF012

            def __init__(self, size):
                self.size = size
                Layout.known.add(self)

        layout = Layout(size)
        Layout(11), Layout(12)
        return lambda x: x.new_empty(layout.size)

    @staticmethod
    def sets(size):
        known = {"a", "b", "c", f"{size}", (size, "d"), frozenset(("e", "f", size))}
        return lambda x: x.new_empty(len(known))

    @staticmethod
    def nested_wrappers(size):
        def wrapped(function):
            return lambda x: function(x)

        output = lambda x: x.new_empty(size)  # noqa: E731
        for _ in range(300):
            output = wrapped(output)
        return output

    @staticmethod
    def linked_list(size):
        first = None
        for number in range(400):
            first = types.SimpleNamespace(number=number + size, next=first)
        return lambda x: x.new_empty(first.number)

    @staticmethod
    def deep_tuple(size):
        deep = (size,)
        for _ in range(3000):
            deep = (deep,)
        return lambda x: x.new_empty(deep)

    @staticmethod
    def circle(size):
        circle = {"size": size}
        circle["circle"] = [circle]
        return lambda x: x.new_empty(circle["size"])

    @staticmethod
    def huge_number(size):
        number = 10**5000 + size
        return lambda x: x.new_empty(number % 10)

    @staticmethod
    def tables(size):
        by_name, limits = types.MappingProxyType({"a": size}), torch.finfo(torch.float32)
        shape, part, settings = torch.Size((1, size)), slice(1, size), types.SimpleNamespace(size=size)
        return lambda x: x.new_empty(by_name["a"], shape, limits.max, part, settings.size)

    @staticmethod
    def text_behind_its_own_words(size):
        class Text(str):
            def __str__(self):
                return "text"

        text = Text(size)
        return lambda x: x.new_empty(len(text))

    @staticmethod
    def list_behind_its_own_iterator(size):
        class Sizes(list):
            def __iter__(self):
                return iter(())

        class Numbers(set):
            def __iter__(self):
                return iter(())

        sizes, numbers = Sizes([size]), Numbers([1, size])
        return lambda x: x.new_empty(sizes[0], len(numbers))

    @staticmethod
    def attributes_behind_a_property(size):
        class Sizes:
            __dict__ = property(lambda self: {})

            def __init__(self):
                self.size = size

        sizes = Sizes()
        return lambda x: x.new_empty(sizes.size)

    @staticmethod
    def order_of_a_dict(size):
        sizes = collections.OrderedDict(a=1, b=2)
        if size > 2:
            sizes.move_to_end("a")
        return lambda x: x.new_empty(next(iter(sizes.values())))

    @staticmethod
    def name_that_is_built_in(size):
        return eval("lambda x: x.new_empty(size)", {"__builtins__": {"size": size}})

    @staticmethod
    def argument_named_as_what_cannot_be_described(size):
        def output(input, id, hash):
            return input.new_empty(size, id, hash)

        return output

    @staticmethod
    def attributes_set_by_name(size):
        class Settings:
            def __init__(self, **named):
                self.__dict__.update(named)

            def __getattr__(self, name):
                return others[name]

        others = {"size": size}
        settings = Settings(a=1)
        return lambda x: x.new_empty(settings.size)

    @staticmethod
    def getter(size):
        get = operator.attrgetter(f"size_{size}")
        return lambda x: x.new_empty(get(x))

    @staticmethod
    def lock(size):
        class Sizes:
            def __init__(self):
                self.lock, self.size = threading.RLock(), size

        sizes = Sizes()
        return lambda x: x.new_empty(sizes.size)

    @staticmethod
    def cached_property(size):
        class Sizes:
            @functools.cached_property
            def size(self):
                return size

        sizes = Sizes()
        return lambda x: x.new_empty(sizes.size)

    @staticmethod
    def private_slot(size):
        class Sizes:
            __slots__ = ("__size",)

            def __init__(self):
                self.__size = size

            def get(self):
                return self.__size

        sizes = Sizes()
        return lambda x: x.new_empty(sizes.get())

    @staticmethod
    def inherited(size):
        class Base(abc.ABC):
            @abc.abstractmethod
            def size(self):
                return size

        class Sizes(Base):
            def size(self):
                return super().size() + 1

        sizes = Sizes()
        return lambda x: x.new_empty(sizes.size())

    @staticmethod
    def generic(size):
        class Sizes(typing.Generic[typing.TypeVar("T")]):
            first = size

        return lambda x: x.new_empty(Sizes.first)

    @staticmethod
    def layer(size):
        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.size = size

            def forward(self, x):
                return x.new_empty(self.size)

        return Layer()

    @staticmethod
    def imports_inside(size):
        def output(x):
            import math

            from torch.nn import functional

            return functional.pad(x, (math.ceil(size),))

        return output

    @staticmethod
    def functions_of_pytorch(size):
        def output(x):
            with torch.no_grad():
                wide = torch.ops.aten.expand.default(x, (size,)).to(torch.promote_types(x.dtype, torch.float32))
            return torch.nn.functional.pad(torch.einsum("i,i->i", wide, wide), (1, 1))

        return output


ORDINARY = {name: each for name, each in vars(TestOrdinaryDeclarations).items() if isinstance(each, staticmethod)}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_declaration_has_one_word_and_another_one_has_another(name):
    make_output = getattr(TestOrdinaryDeclarations, name)
    assert fingerprint(make_output(2)) == fingerprint(make_output(2))
    assert fingerprint(make_output(2)) != fingerprint(make_output(3))


def test_what_compilers_put_into_modules_while_they_compile_does_not_count():
    make_output = TestOrdinaryDeclarations.layer
    before = fingerprint(make_output(2))
    layer = torch.nn.Linear(2, 2)
    torch.compile(layer, backend="eager")(torch.ones(2))
    assert torch.nn.Module.__init__.__code__.co_filename.endswith("mutation_guard.py")
    assert fingerprint(make_output(2)) == before


def test_what_python_puts_into_classes_whose_instances_are_copied_does_not_count(monkeypatch):
    class Counts:
        size = 2

    counts = Counts()
    monkeypatch.delattr(torch.Tensor, "__slotnames__", raising=False)
    outputs = (lambda x: x), (lambda x: x.new_empty(counts.size))
    before = [fingerprint(output) for output in outputs]
    copy.copy(counts)
    torch.save(torch.ones(2), io.BytesIO())
    assert "__slotnames__" in vars(torch.Tensor)
    assert "__slotnames__" in vars(Counts)
    assert [fingerprint(output) for output in outputs] == before


class TestWhatIsPutIntoLibraries:
    """Each function below changes a library or a registry by a size and makes an `output` that depends on it."""

    @staticmethod
    def function_that_copies_all_names(size, patch):
        @functools.wraps(torch.nn.functional.pad)
        def pad(x):
            return x.new_empty(size)

        patch.setattr(torch.nn.functional, "pad", pad)
        return lambda x: torch.nn.functional.pad(x)

    @staticmethod
    def function_in_python_over_one_in_c(size, patch):
        ceil = functools.wraps(math.ceil)(lambda number: size)
        patch.setattr(math, "ceil", ceil)
        return lambda x: x.new_empty(math.ceil(0.5))

    @staticmethod
    def function_in_a_decorator_of_a_library(size, patch):
        wrapped = functools.wraps(torch.nn.functional.pad)(lambda x: x.new_empty(size))
        patch.setattr(torch.nn.functional, "pad", torch.no_grad()(wrapped))
        return lambda x: torch.nn.functional.pad(x)

    @staticmethod
    def function_that_another_one_calls(size, patch):
        softmax = functools.partial(torch.nn.functional.softmax, dim=size)
        patch.setattr(torch.nn.functional, "softmax", softmax)
        return lambda x: torch.nn.functional.gumbel_softmax(x)

    @staticmethod
    def code(size, patch):
        code = eval(f"lambda x, inplace=False: x.new_empty({size})").__code__
        patch.setattr(torch.nn.functional.relu6, "__code__", code)
        return lambda x: torch.nn.functional.relu6(x)

    @staticmethod
    def defaults(size, patch):
        patch.setattr(torch.nn.functional.pad, "__defaults__", ("constant", size))
        return lambda x: torch.nn.functional.pad(x, (1, 1))

    @staticmethod
    def attribute_of_a_function(size, patch):
        patch.setattr(torch.nn.functional.relu6, "size", size, raising=False)
        return lambda x: x.new_empty(torch.nn.functional.relu6.size)

    @staticmethod
    def module_that_is_passed_on(size, patch):
        patch.setattr(math, "sizes", [size], raising=False)
        return lambda x, module=math: x.new_empty(module.sizes[0])

    @staticmethod
    def name_that_is_put_together(size, patch):
        patch.setattr(torch.nn.functional, "size_of_mine", size, raising=False)
        name = "size_"
        return lambda x: x.new_empty(getattr(torch.nn.functional, name + "of_mine"))

    @staticmethod
    def alias_in_a_module(size, patch):
        patch.setattr(torch.nn.functional, "relu6", torch.nn.functional.selu if size == 2 else torch.nn.functional.elu)
        name = "relu"
        return lambda x: getattr(torch.nn.functional, name + "6")(x)

    @staticmethod
    def values_in_a_module_and_a_class(size, patch):
        sizes = types.SimpleNamespace(size=size, pattern=re.compile("a" * size))
        patch.setattr(torch.nn.functional, "of_mine", sizes, raising=False)
        patch.setattr(torch.nn.Module, "of_mine", sizes, raising=False)

        class Layer(torch.nn.Module):
            def forward(self, x):
                return x.new_empty(self.of_mine.size, getattr(torch.nn.functional, "of_" + "mine").size)

        return Layer()

    @staticmethod
    def pattern_of_tensors(size, patch):
        patch.setattr(torch.Tensor, "pattern", re.compile("a" * size), raising=False)
        return lambda x: x.new_empty(len(x.pattern.pattern))

    @staticmethod
    def method_of_tensors(size, patch):
        patch.setattr(torch.Tensor, "split", functools.wraps(torch.Tensor.split)(lambda self: self.new_empty(size)))
        return lambda x: x.split()

    @staticmethod
    def alias_in_tensors(size, patch):
        patch.setattr(torch.Tensor, "wide", torch.Tensor.float if size == 2 else torch.Tensor.double, raising=False)
        return lambda x: x.wide()

    @staticmethod
    def property_of_tensors(size, patch):
        patch.setattr(torch.Tensor, "size_of_mine", property(lambda self: size), raising=False)
        return lambda x: x.new_empty(x.size_of_mine)

    @staticmethod
    def operator_of_tensors(size, patch):
        patch.setattr(torch.Tensor, "__add__", lambda self, other: self.new_empty(size))
        return lambda x: x + 1

    @staticmethod
    def attribute_of_modules(size, patch):
        patch.setattr(torch.nn.Module, "size_of_mine", size, raising=False)

        class Layer(torch.nn.Module):
            def forward(self, x):
                return x.new_empty(self.size_of_mine)

        return Layer()

    @staticmethod
    def hook_of_all_modules(size, patch):
        class Layer(torch.nn.Module):
            def forward(self, x):
                return x

        hooks = torch.nn.modules.module._global_forward_hooks
        patch.setitem(hooks, 0, lambda module, arguments, result: result.new_empty(size))
        return Layer()

    @staticmethod
    def class_that_copies_all_names(size, patch):
        counter = type("Counter", (collections.Counter,), {"size": size})
        patch.setattr(collections, "Counter", functools.update_wrapper(counter, collections.Counter, updated=()))
        return lambda x: x.new_empty(collections.Counter.size)

    @staticmethod
    def method_of_a_class(size, patch):
        patch.setattr(collections.Counter, "__missing__", lambda self, key: size)
        return lambda x: x.new_empty(collections.Counter()["a"])

    @staticmethod
    def registered_with_an_abstract_class(size, patch):
        base = abc.ABCMeta("Base", (), {})
        inherits, other = abc.ABCMeta("Inherits", (base,), {}), type("Other", (), {})()
        if size == 2:
            inherits.register(type(other))
        return lambda x: x.new_empty(1 + isinstance(other, base))

    @staticmethod
    def registered_with_an_abstract_class_of_python(size, patch):
        other = type("Other", (), {})
        # Python has no way to take it back: this is asked of 3 last.
        if size == 3:
            collections.abc.Sequence.register(other)
        return lambda x: x.new_empty(1 + isinstance(other(), collections.abc.Sequence))

    @staticmethod
    def attributes_of_a_protocol(size, patch):
        members = {"__annotations__": {f"size_{size}": int}}
        protocol = types.new_class("Sized", (typing.Protocol,), {}, lambda names: names.update(members))
        protocol, other = typing.runtime_checkable(protocol), types.SimpleNamespace(size_2=1)
        return lambda x: x.new_empty(1 + isinstance(other, protocol))

    @staticmethod
    def order_in_a_pattern(size, patch):
        class Sizes:
            __match_args__ = ("two", "three") if size == 2 else ("three", "two")
            two, three = 2, 3

        def output(x):
            match Sizes():
                case Sizes(first, _):
                    return x.new_empty(first)

        return output

    @staticmethod
    def module_of_a_class(size, patch):
        kind = type("Kind", (), {"__module__": f"sizes_{size}"})
        return lambda x: x.new_empty(len(str(kind)))


def _filled_cache(size, patch):
    values = [size]
    cached = functools.lru_cache(lambda: values[0])
    cached()
    values.clear()
    return lambda x: x.new_empty(cached())


def _changed_in_a_cache(size, patch):
    cached = functools.cache(types.SimpleNamespace)
    cached().size = size
    return lambda x: x.new_empty(cached().size)


def _fields_of_a_dataclass(size, patch):
    fields = ["two", "three"][: size - 1]
    kind = dataclasses.make_dataclass("Sizes", fields, init=False, repr=False, eq=False)
    kind.two, kind.three = 2, 3
    return lambda x: x.new_empty(len(dataclasses.asdict(kind())))


def _way_to_copy(size, patch):
    class Sizes:
        pass

    patch.setitem(copyreg.dispatch_table, Sizes, lambda sizes: (types.SimpleNamespace, (), {"size": size}))
    return lambda x: x.new_empty(copy.copy(Sizes()).size)


def _leaves_of_a_class(size, patch):
    class Sizes:
        pass

    torch.utils._pytree.register_pytree_node(Sizes, lambda sizes: ([size], None), lambda leaves, context: Sizes())
    return lambda x: x.new_empty(torch.utils._pytree.tree_leaves(Sizes()))


def _documented(size):
    return type("Documented", (), {"__doc__": f"{size}"})


def _getter_of_a_hidden_attribute(size, patch):
    get, kind = operator.attrgetter("__doc__"), _documented(size)
    return lambda x: x.new_empty(int(get(kind)))


def _method_by_name(size, patch):
    call, kind = operator.methodcaller("__subclasses__"), _documented(size)
    return lambda x: x.new_empty(len(call(kind)))


def _hidden_attribute_in_a_format(size, patch):
    text, kind = "{.__doc__}", _documented(size)
    return lambda x: x.new_empty(int(text.format(kind)))


def _hidden_attribute_in_a_list(size, patch):
    names, kind = ["__doc__"], _documented(size)
    return lambda x: x.new_empty([int(getattr(kind, name)) for name in names])


def _line_of_code(size, patch):
    code = named.__code__.replace(co_firstlineno=size)
    return lambda x: x.new_empty(code.co_firstlineno)


CHANGES = {name: each for name, each in vars(TestWhatIsPutIntoLibraries).items() if isinstance(each, staticmethod)}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_put_into_a_library_or_registry_counts(name):
    words = []
    for size in (2, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            words.append(fingerprint(getattr(TestWhatIsPutIntoLibraries, name)(size, patch)))
    one, same, other = words
    assert one == same != other


@pytest.mark.parametrize(
    "change",
    [
        _filled_cache,
        _changed_in_a_cache,
        _fields_of_a_dataclass,
        _way_to_copy,
        _leaves_of_a_class,
        _getter_of_a_hidden_attribute,
        _method_by_name,
        _hidden_attribute_in_a_format,
        _hidden_attribute_in_a_list,
        _line_of_code,
    ],
)
def test_what_does_not_show_what_it_follows_from_cannot_be_described(change):
    with pytest.MonkeyPatch.context() as patch:
        output = change(2, patch)
        assert fingerprint(output) != fingerprint(output)


def _words():
    """The words of what does not depend on a process, by name."""
    for each in _ours().values():
        each._name_for_caches()
    words = {name: each.declaration_word for name, each in _ours().items()}
    return words | {name: fingerprint(getattr(TestOrdinaryDeclarations, name)(2)) for name in ORDINARY}


def test_words_are_the_same_in_another_process(threads):
    threads(1)
    program = (
        f"import json, sys, torch; torch.set_num_threads(1); sys.path.append({os.path.dirname(__file__)!r})\n"
        "import test_fingerprint; print(json.dumps(test_fingerprint._words()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert json.loads(said) == _words()


def _ours():
    return {name: each for name, each in Operator.registered.items() if name.startswith("torchgraft::")}


@pytest.mark.parametrize(
    "output",
    [
        lambda x: os.environb[b"SIZE"],
        lambda x: os.path.expandvars("$SIZE"),
        lambda x: os.cpu_count(),
        lambda x: os.sched_getaffinity(0),
        lambda x: socket.gethostname(),
        lambda x: time.time(),
        lambda x: random.random(),
        lambda x: json.load(open("sizes.json")),  # noqa: SIM115
        lambda x: Path("sizes.json").read_text(),
        lambda x: io.open("sizes.json"),  # noqa: UP020, SIM115
        lambda x: sys.getrecursionlimit(),
        lambda x: sys.modules["sizes"],
        lambda x: id(x),
        lambda x: hash("size"),
        lambda x: input(),
        lambda x: (lambda module: module.backends.mkldnn.enabled)(torch),
        lambda x: [torch][0].backends,
        lambda x: vars(torch),
        lambda x: torch.cuda.device_count(),
        lambda x: torch.distributed.get_world_size(),
        lambda x: torch.initial_seed(),
        lambda x: Sizes.__subclasses__(),
        lambda x: named.__annotations__,
        lambda x: getattr(named, "__globals__")["scale"],  # noqa: B009
        lambda x: (y for y in x).gi_frame.f_globals["scale"],
        lambda x: typing.get_type_hints(named),
        lambda x: dataclasses.fields(x)[0].metadata,
        functools.partial(os.environ.get, "SIZE"),
        (size for size in (2, 3)),
        iter([2]),
        {"size": 2}.values(),
        zip([2], [3], strict=True),
        open,
        Path("sizes.json").read_text,
    ],
)
def test_what_follows_from_more_than_code_cannot_be_described(output):
    assert fingerprint(output) != fingerprint(output)


def test_switches_of_pytorch_count_by_value(monkeypatch):
    def output(x):
        return x.new_empty(1 + torch.backends.mkldnn.enabled)

    words = {fingerprint(output), fingerprint(output)}
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", not torch.backends.mkldnn.enabled)
    words.add(fingerprint(output))
    assert len(words) == 2


def test_what_is_scripted_cannot_be_described():
    scripted = _scripted()
    for output in (scripted, lambda x: scripted(x)):
        assert fingerprint(output) != fingerprint(output)


def _scripted():
    # PyTorch says that scripting is deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(named_in_script)


def named_in_script(x):
    return x + 1


def test_operators_of_others_cannot_be_described():
    with torch.library._scoped_library("fingerprinted", "FRAGMENT") as library:
        library.define("alloc(Tensor x) -> Tensor")
        handle = torch.ops.fingerprinted.alloc
        for output in (handle, handle.default, lambda x: handle(x), lambda x: torch.ops.fingerprinted.alloc(x)):
            assert fingerprint(output) != fingerprint(output)


class TestOperatorsInOutputs:
    @staticmethod
    def words(*sizes, through):
        """Words of an operator whose output calls another one, with the size that this one reads later."""
        words = []
        for size in sizes:
            world = {"size": None}
            inner = Operator(
                "fingerprinted::inner(Tensor x) -> Tensor",
                reference=lambda x: x,
                output=eval("lambda x: x.new_empty(size)", world),
                kernels={},
            )
            outer = Operator(
                "fingerprinted::outer(Tensor x) -> Tensor",
                reference=lambda x: x,
                output=(lambda x, inner=inner: inner(x))
                if through == "Operator"
                else (lambda x: torch.ops.fingerprinted.inner(x)),
                kernels={},
                gradient="reference",
            )
            try:
                world["size"] = size
                outer._name_for_caches()
                words.append(outer.declaration_word)
            finally:
                outer.undeclare()
                inner.undeclare()
        return words

    @pytest.mark.parametrize("through", ["Operator", "torch.ops"])
    def test_count_by_what_they_mean_now(self, through):
        one, same, other = self.words(2, 2, 3, through=through)
        assert one == same != other

    @pytest.mark.parametrize("where", ["in a class that inherits", "in the object", "in the class"])
    def test_count_by_what_a_user_keeps_in_them(self, where, monkeypatch):
        class Sized(Operator):
            def __init__(self, size):
                self.size = size
                super().__init__(
                    "fingerprinted::kept(Tensor x) -> Tensor",
                    reference=self.reference_of_mine,
                    output=self.output_of_mine,
                    gradient="reference",
                    kernels={},
                )

            def reference_of_mine(self, x):
                return x.repeat(self.size)

            def output_of_mine(self, x):
                return x.new_empty(self.size)

        def declare(size):
            if where == "in a class that inherits":
                return Sized(size)
            declared = Operator(
                "fingerprinted::kept(Tensor x) -> Tensor",
                reference=lambda x: x.repeat(declared.size),
                output=lambda x: x.new_empty(declared.size),
                gradient="reference",
                kernels={},
            )
            monkeypatch.setattr(declared if where == "in the object" else Operator, "size", size, raising=False)
            return declared

        words = []
        for size in (2, 2, 3):
            declared = declare(size)
            declared._name_for_caches()
            words.append(declared.declaration_word)
            declared.undeclare()
        one, same, other = words
        assert one == same != other


def test_an_operator_knows_its_own_attributes():
    for each in _ours().values():
        assert vars(each).keys() == _OWN


def test_the_argument_that_results_take_their_dtype_from_counts():
    words = set()
    for dtypes in ({"a": (torch.int64,), "b": (torch.float32,)}, None):
        operator = Operator(
            "fingerprinted::primary(Tensor a, Tensor b) -> Tensor",
            reference=lambda a, b: a * b,
            shapes="n, n -> n",
            dtypes=dtypes,
            gradient="reference",
            kernels="reference",
        )
        words.add((operator.declaration.primary, operator.declaration_word))
        operator.undeclare()
    assert len({primary for primary, _ in words}) == len({word for _, word in words}) == 2


def test_what_may_be_cut_over_devices_counts():
    """PyTorch keeps graphs of DTensors too, with the placements of all results."""

    def word(sharding):
        operator = Operator(
            "fingerprinted::cut(Tensor x) -> Tensor",
            reference=lambda x: x * 2,
            shapes="n m -> n m",
            gradient="reference",
            kernels="reference",
            sharding=sharding,
        )
        operator.undeclare()
        return operator.declaration_word

    assert word("N M -> N M") == word("N M -> N M") != word("N _ -> N _")


def test_kernels_in_triton_count():
    triton = pytest.importorskip("triton")

    def copies(x, size, block):
        return x, size, block

    def word(size, warps=4, even=1):
        jitted = triton.jit(copies)
        by_rule = triton.heuristics({"block": lambda arguments: arguments["size"] % even})(jitted)
        tuned = triton.autotune(configs=[triton.Config({}, num_warps=warps)], key=["size"])(by_rule)
        return fingerprint(lambda x: wrap_triton(tuned)[(1,)](x, size))

    assert word(2) == word(2)
    assert len({word(2), word(3), word(2, warps=8), word(2, even=3)}) == 4


class TestModules:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, monkeypatch):
        self.folder = tmp_path
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def words(self, *texts, size="size()"):
        """The words of an output that calls a module of a user's, with these texts of its file in turn."""
        for text in texts:
            (self.folder / "sched.py").write_text(text)
            with pytest.MonkeyPatch.context() as patch:
                patch.delitem(sys.modules, "sched", raising=False)
                importlib.invalidate_caches()
                import sched

                assert str(self.folder) in sched.__file__
                yield fingerprint(eval(f"lambda x: x.new_empty(sched.{size})", {"sched": sched}))
                del sys.modules["sched"]

    def test_a_file_with_the_name_of_a_library_is_the_users(self):
        one, same, other = self.words(*(f"def size():\n    return {size}\n" for size in (2, 2, 3)))
        assert one == same != other

    def test_attributes_that_a_module_computes_cannot_be_described(self):
        text = "values = {'size': 2}\ndef __getattr__(name):\n    return values[name]\n"
        one, same = self.words(text, text, size="size")
        assert one != same

    def test_two_that_import_each_other(self):
        (self.folder / "circle_one.py").write_text("import circle_two\ndef size(x):\n    return circle_two.by(x)\n")
        (self.folder / "circle_two.py").write_text("import circle_one\ndef by(x):\n    return circle_one and 2\n")
        import circle_one

        assert fingerprint(lambda x: circle_one.size(x)) != fingerprint(lambda x: circle_one.size(x))
        (self.folder / "circle_four.py").write_text("import circle_three\ndef by(x):\n    return circle_three.at\n")
        (self.folder / "circle_three.py").write_text(
            "import circle_four\nat = 1\ndef size(x):\n    return circle_four.by(x)\n"
        )
        import circle_three

        words = set()
        for circle_three.at in (2, 2, 3):
            words.add(fingerprint(circle_three.size))
        assert len(words) == 2


def test_what_a_user_adds_to_tensors_counts(monkeypatch):
    words = set()
    for size in (2, 2, 3):
        monkeypatch.setattr(torch.Tensor, "in_my_layout", lambda self, size=size: self.new_empty(size), raising=False)
        words.add(fingerprint(lambda x: x.in_my_layout()))
    assert len(words) == 2


def test_what_a_user_puts_into_a_library_counts(monkeypatch):
    words = set()
    for size in (2, 2, 3):
        monkeypatch.setattr(torch.nn.functional, "pad", lambda x, size=size: x.new_empty(size))
        words.add(fingerprint(lambda x: torch.nn.functional.pad(x)))
    assert len(words) == 2


def test_a_name_that_a_class_was_given_later_counts():
    def block(number):
        class Block:
            pass

        Block.__name__ = f"Block{number}"
        return Block

    words = {
        fingerprint((lambda kind: lambda x: x.new_empty(int(kind.__name__[5:])))(block(size))) for size in (2, 2, 3)
    }
    assert len(words) == 2


def test_a_layout_that_follows_from_backends_cannot_be_described():
    def output(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    assert fingerprint(output) != fingerprint(output)


def test_operators_that_are_looked_up_by_name_cannot_be_described():
    def output(x):
        return Operator.registered["torchgraft::linear"].reference(x, x)

    assert fingerprint(output) != fingerprint(output)


def test_too_much_to_describe_is_no_error():
    many = [[number] for number in range(20_000)]
    sets = frozenset((1, 2))
    for number in range(40):
        sets = frozenset((sets, number))
    for value in (many, sets):
        assert fingerprint(value).startswith("declared_")


def test_an_error_of_what_is_described_is_no_error_of_a_declaration():
    class Refuses(type):
        def __hash__(cls):
            raise RuntimeError("no hash")

    value = Refuses("Refused", (), {})()
    assert fingerprint(value) != fingerprint(value)
