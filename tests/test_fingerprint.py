"""What makes two declarations different for the caches of compilers."""

import collections
import contextlib
import decimal
import functools
import os
import subprocess
import sys

import pytest
import torch

from torchgraft import Operator
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
    assert len(words) == 3  # the module `sizes_of_mine` itself is the same in both


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


def test_our_operators_have_the_same_words_in_another_process(threads):
    threads(1)
    for operator in _ours().values():
        operator._name_for_caches()
    words = {name: operator.declaration_word for name, operator in _ours().items()}
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch\ntorch.set_num_threads(1)\nimport torchgraft\n"
            "for name, each in torchgraft.Operator.registered.items():\n"
            "    print(name, each.declaration_word)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert dict(line.split() for line in said.splitlines()) == words


def _ours():
    return {name: each for name, each in Operator.registered.items() if name.startswith("torchgraft::")}
