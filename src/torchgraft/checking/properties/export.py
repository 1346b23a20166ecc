"""torch.export takes it, in fixed sizes and in open ones, and gives the same after saving and loading.

Proves: on a few small samples the program that is exported, strictly and not, gives the results of the reference, saved
and loaded too; it calls the operator by its public name, unless compilers are to see the reference; and one that is
exported with sizes left open takes other sizes.

Cannot prove: that a program runs where torchgraft is not imported: there its operator does not exist.
"""

from __future__ import annotations

import io

import torch

from torchgraft.checking.case import Call, Case, tensors_of
from torchgraft.checking.comparing import Mismatch, expect
from torchgraft.checking.compiling import export, fresh_compiler, in_short
from torchgraft.checking.other_sizes import in_other_sizes
from torchgraft.checking.property import COMPILER, Property


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
            if call.operator.compile == "kernel":
                called = {node.target for node in program.graph.nodes if node.op == "call_function"}
                name = call.operator.public.name()
                expect(call.operator.public in called, f"the program exported {how} does not call {name}")
            _expect_right(call, program, f"exported {how}")
            _expect_right(call, _saved_and_loaded(program), f"exported {how}, saved and loaded")


def _check_open_sizes(call: Call) -> None:
    with fresh_compiler():
        program = export(call, open_sizes=True)
        loaded = _saved_and_loaded(program)
        for other in [call, *in_other_sizes(call, numbers=False)[-1:]]:
            _expect_right(other, program, "exported with open sizes")
            _expect_right(other, loaded, "exported with open sizes, saved and loaded")


def _expect_right(call: Call, program: torch.export.ExportedProgram, how: str) -> None:
    tensors = tensors_of(call.arguments)
    try:
        found = program.module()(*tensors)
    except (AssertionError, RuntimeError) as error:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise Mismatch(f"the program {how} does not take the sizes {shapes}: {in_short(error)}") from error
    call.expect_close(found, call.expected(), what=f"the result of the program {how}")


def _saved_and_loaded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


PROPERTY = Property(check, imports=COMPILER)
