"""torch.export takes the operator, with fixed and with dynamic sizes, and saved programs give the same results.

Proves: on a few small samples the exported program, strict and non-strict, gives the results of the reference, also
after it is saved and loaded. The program calls the operator by its public name, unless the declaration shows the
reference to compilers. A program that is exported with dynamic sizes takes other sizes.

Cannot prove: that a program runs where torchgraft is not imported: the operator does not exist there.

Mend: see `fake` and `compile`; a constant in `output` where a size of an argument is meant shows first with dynamic
sizes.

Example: `output` returns input.new_empty(3, 4) where it should return input.new_empty(*input.shape).
"""

import io
from collections.abc import Sequence

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import expect_served, export, fresh_compiler
from torchgraft.checking.helpers.other_sizes import in_other_sizes
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.tensors.compare import expect


def check(case: Case) -> None:
    """See the module."""
    samples = case.table(small=True, empty=False, count=3)
    case.each(_check_fixed_sizes, samples)
    case.each(_check_open_sizes, samples)


def _check_fixed_sizes(call: Call) -> None:
    with fresh_compiler():
        for strict in (False, True):
            how = "strictly" if strict else "not strictly"
            program = export(call, strict=strict)
            if call.declaration.compile == "kernel":
                called = {node.target for node in program.graph.nodes if node.op == "call_function"}
                name = call.operator.public.name()
                # An operator that writes to its arguments is called by a function of PyTorch that copies them.
                is_called = call.operator.public in called or call.declaration.mutates
                expect(is_called, f"the program exported {how} does not call {name}")
            _expect_taken([call], program, f"the program exported {how}")


def _check_open_sizes(call: Call) -> None:
    with fresh_compiler():
        program = export(call, open_sizes=True)
        # PyTorch fixes sizes of 0 and 1, those that a result has too, and takes none of these where it had others.
        others = [other for other in in_other_sizes(call, numbers=False)[-1:] if not _opens_a_result(call, other)]
        _expect_taken([call, *others], program, "the program exported with open sizes")


def _opens_a_result(call: Call, other: Call) -> bool:
    """Whether a size of a result is 0 or 1 in one of two calls, and another size in the other."""
    if not call.declaration.lists:
        return False
    pairs = zip(*(tree_leaves(each.declaration.output(*each.make("meta"))) for each in (call, other)), strict=True)
    sizes = [pair for one, two in pairs for pair in zip(one.shape, two.shape, strict=True)]
    return any(min(size, changed) < 2 and size != changed for size, changed in sizes)


def _expect_taken(calls: Sequence[Call], program: torch.export.ExportedProgram, name: str) -> None:
    """Expects right results from a program, and from the same program saved and loaded."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    for call in calls:
        expect_served(call, program.module(), name)
        expect_served(call, loaded.module(), f"{name}, saved and loaded,")


PROPERTY = Property(check, imports=COMPILER)
