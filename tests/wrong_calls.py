"""Calls of every operator that a C++ program can call, most of them wrong, in Python and in C++."""

import torch

from torchgraft.authoring.cpp import in_cpp, is_callable
from torchgraft.checking.subject import find_subjects

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)


def _changes(value):
    """The values that may come in the place of an argument."""
    if isinstance(value, torch.Tensor):
        shape = list(value.shape)
        shapes = [
            shape[1:],
            [1, *shape],
            *(
                [*shape[:d], size, *shape[d + 1 :]]
                for d in range(len(shape))
                for size in (0, shape[d] + 1, 3 * shape[d])
            ),
        ]
        yield from (torch.ones(each, dtype=value.dtype) for each in shapes)
        yield from (value.to(dtype) for dtype in DTYPES if dtype != value.dtype)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (value + 1, 0, -1, 1000, 2**61)


def calls():
    """Each operator with arguments: as they should be, and with one of them changed."""
    for subject in find_subjects([]):
        operator = subject.operator
        if not is_callable(operator):
            continue
        right = operator.declaration.with_defaults(subject.samples.smallest.make("cpu", torch.float32))
        yield operator, right
        for place, value in enumerate(right):
            for changed in _changes(value):
                yield operator, (*right[:place], changed, *right[place + 1 :])


def in_python(operator, arguments):
    """The error of a call in Python, as tests/cpp/calls.h says it."""
    try:
        operator(*arguments)
    except (TypeError, ValueError) as error:
        return f"invalid {error}"
    except RuntimeError as error:
        return f"failed {error}".splitlines()[0]
    return "fine"


def statement(number, operator, arguments):
    """The same call as a statement of C++."""
    words = ", ".join(map(in_cpp, arguments))
    return f"attempt({number}, [] {{ {operator.qualified_name}({words}); }});"


def program():
    """All calls as a program of C++, a function for each operator: compilers take long functions slowly."""
    functions = {}
    for number, (operator, arguments) in enumerate(calls()):
        functions.setdefault(operator.name, []).append(statement(number, operator, arguments))
    bodies = "".join(
        "\n".join((f"static void {name}_calls() {{", *lines, "}", "")) for name, lines in functions.items()
    )
    main = "".join(f"  {name}_calls();\n" for name in functions)
    return f'#include "calls.h"\n\n{bodies}int main() {{\n{main}}}\n'
