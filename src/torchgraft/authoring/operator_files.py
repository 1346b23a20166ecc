"""The files of a new operator that are written in Python, as text: its declaration, its reference and its samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchgraft.authoring import in_python, sizes, stubs
from torchgraft.authoring.stubs import Stub
from torchgraft.authoring.texts import filled, loading, module_text


def called(stub: Stub) -> str:
    """The name of the Operator in Python."""
    return f"{stub.name}_operator"


def import_of(name: str, found: Sequence[Stub]) -> str:
    """The line that imports the Operators of a package."""
    return f"from {name}.operator import {', '.join(sorted(map(called, found)))}"


def test_file(name: str, found: Sequence[Stub]) -> str:
    """The test of a package."""
    operators = [called(stub) for stub in found]
    return module_text(
        "Every property of every operator of the package, as `graft check` asks them.",
        "\n" + in_python.joined(f"test_{name} = make_test(", [*operators, "quick=True"], ")\n"),
        [import_of(name, found)],
    )


def init_file(name: str, stub: Stub, sources: Sequence[str], triton: bool) -> str:
    """The `__init__.py` of a package: it loads the kernels, and has the function that users call."""
    body = loading(name, sources)
    if triton:
        body += f"""
# Without Triton the other kernels answer.
if find_spec("triton") is not None:
    from {name} import kernels as kernels
"""
    annotation = in_python.result_annotation(stub)
    body += f"""

{in_python.joined(f"def {stub.name}(", in_python.parameters(stub, defaults=True), f") -> {annotation}:")}
    \"\"\"{stub.summary[0].upper()}{stub.summary[1:]}

    Args:
{in_python.described(stub)}
"""
    if stub.copies:
        body += f"""
    Returns:
        {stub.formula or _returned(stub)}.
"""
    returned = "return " if stub.copies else ""
    refusal = "" if stub.words is None else "\n        ValueError: a tensor has another shape."
    body += f"""
    Raises:
        TypeError: an argument is of another type than its own, or a tensor of another dtype.{refusal}
    \"\"\"
    {in_python.joined(f"{returned}{called(stub)}(", in_python.values(stub), ")", 4)}
"""
    return module_text(f"{stub.name}: {stub.summary}", body, [import_of(name, [stub])])


def _returned(stub: Stub) -> str:
    """The results of a new operator, in words."""
    copied = ", ".join(copy.argument for copy in stub.copies if not copy.zero)
    zeros = "zeros" * any(copy.zero for copy in stub.copies)
    text = " and ".join(filter(None, (f"a copy of {copied}" if copied else "", zeros)))
    return text[0].upper() + text[1:]


_ZEROS = '''

def _zeros(tensor: Tensor, *sizes: int) -> Tensor:
    """Zeros that have a gradient: the sum of no elements of a tensor is zero."""
    return tensor.new_zeros(sizes) + tensor.flatten()[:0].sum()
'''


def reference_file(found: Sequence[Stub]) -> str:
    """The references of operators."""
    functions = [_ZEROS] if any(copy.depends_on for stub in found for copy in stub.copies) else []
    for stub in found:
        annotation = in_python.result_annotation(stub, written=True)
        comment = "" if stub.formula else "    # Write here, in differentiable PyTorch, what the operator computes.\n"
        functions.append(
            f"""

{in_python.joined(f"def {stub.name}(", in_python.parameters(stub), f") -> {annotation}:")}
    \"\"\"{stub.summary[0].upper()}{stub.summary[1:]}\"\"\"
{comment}    return {in_python.reference_body(stub)}
"""
        )
    return module_text(f"What {found[0].name} means: its kernels are compared with this.", "".join(functions))


def operator_file(name: str, found: Sequence[Stub], is_complete: bool, on_gpu: bool) -> str:
    """The declarations of operators."""
    first, *others = found
    body = ""
    # That of the gradient first, as the other one calls it.
    for stub in (*others, first):
        has_formula = stub is first and (is_complete or bool(others))
        is_backward_of_square = is_complete and stub is not first
        by_reference = "" if has_formula else _gradient_by_reference(stub)
        schema = in_python.quoted(stub.schema, 4)
        if by_reference.endswith("_SCHEMA)"):
            is_long = "\n" in schema or len(schema) + len("_SCHEMA = ") > 120
            body += f"\n_SCHEMA = {f'({chr(10)}    {schema}{chr(10)})' if is_long else schema}\n"
            schema = "_SCHEMA"
        declared = [schema, f"reference=reference.{stub.name}"]
        if stub.words is not None:
            declared.append(f'shapes="{stub.words}"')
        elif is_backward_of_square:
            declared.append('shapes="..., ... -> ..."')
        elif stub.copies:
            declared.append(f"output=_{stub.name}_output")
            annotation = in_python.result_annotation(stub)
            body += f"""

{in_python.joined(f"def _{stub.name}_output(", in_python.parameters(stub), f") -> {annotation}:")}
    return {in_python.output_body(stub)}
"""
        if has_formula:
            declared.append(f"gradient=_{stub.name}_gradient")
            if len(stub.copies) > 1:
                declared.append("materialize_grads=True")
            body += _gradient(stub, others[0] if others else None)
        elif by_reference:
            declared.append(f"gradient={by_reference}")
        elif stub.copies:
            names = [f'"{argument.name}"' for argument in stub.tensors]
            declared.append(in_python.joined("not_differentiable=[", names, "]", 4))
        if zero := [f'"{copy.argument}_grad"' for copy in stub.copies if copy.zero and not copy.depends_on]:
            declared.append(in_python.joined("not_differentiable=[", zero, "]", 4))
        declared += [_dtypes(stub), *([] if on_gpu else ['kernels={"cpu": FLOATING}'])]
        lines = "".join(f"    {line},\n" for line in declared)
        if seeds := [f'"{each.name}"' for each in stub.arguments if stubs.is_seed(each)]:
            named = f"({', '.join(seeds)}{',' if len(seeds) == 1 else ''})"
            lines += f"    # Add `random={named}` as soon as the results follow from it.\n"
        body += "\n" * (2 if body else 1) + f"{called(stub)} = Operator(\n{lines})\n"
    summary = f"The declaration of {first.name}: what PyTorch must know about it, and nothing about how it is computed."
    return module_text(summary, body, [f"from {name} import reference"])


def _dtypes(stub: Stub) -> str:
    """The dtypes of a declaration, in Python."""
    if not stub.integers:
        return "dtypes=FLOATING"
    tensors = [each.name for each in stub.arguments if each.holds_tensors]
    pairs = [f'"{each}": {"(torch.int64,)" if each in stub.integers else "FLOATING"}' for each in tensors]
    return in_python.joined("dtypes={", pairs, "}", 4)


def _gradient_by_reference(stub: Stub) -> str:
    """The gradient that PyTorch makes of a reference, in Python; empty where nothing has one.

    What is written to is not kept, so that a reference cannot be called again.
    """
    if not stub.copies or stub.mutated:
        return ""
    tensors = [argument for argument in stub.arguments if argument.holds_tensors]
    is_plain = stub.arguments[: len(tensors)] == tuple(tensors) and not any(
        argument.keyword_only or (argument.holds_tensors and argument.is_list) for argument in stub.arguments
    )
    return f"gradient_by_reference(reference.{stub.name}, {len(tensors) if is_plain else '_SCHEMA'})"


def _gradient(stub: Stub, backward: Stub | None) -> str:
    """The function that is a gradient formula."""
    tensors = [argument for argument in stub.arguments if argument.holds_tensors]
    taken = [f"{each}: Sequence[{kind}]" for each, kind in _GRADIENT_TAKES] + in_python.parameters(stub)
    returned = f"tuple[{', '.join(['Tensor'] * len(tensors))}]"
    if backward is None:
        body = "    return (2 * factor * input * output_grads[0],)\n"
    else:
        taken_over = ["output_grads[0]" if len(stub.copies) == 1 else "*output_grads", *in_python.values(stub)]
        call = in_python.joined(f"{called(backward)}(", taken_over, ")", 4)
        body = f"    return ({call},)\n"
        if stub.integers:
            returned = "tuple[Tensor | None, ...]"
            of_each = ["None" if each.name in stub.integers else f"{each.name}_grad" for each in tensors]
            made = [each for each in of_each if each != "None"]
            call = in_python.joined(f"{', '.join(made)} = {called(backward)}(", taken_over, ")", 4)
            body = f"    {call}\n    {in_python.joined('return (', of_each, ')', 4)}\n"
        elif len(tensors) > 1:
            returned = "tuple[Tensor | None, ...]"
            body = f"    grads = {call}\n    return {_NEEDED}\n"
    return f"""

{in_python.joined(f"def _{stub.name}_gradient(", taken, f") -> {returned}:")}
{body}"""


_NEEDED = "tuple(grad if needed else None for grad, needed in zip(grads, needs_grad, strict=False))"
_GRADIENT_TAKES = (("needs_grad", "bool"), ("output_grads", "Tensor"), ("saved", "Tensor"))


# Above the function that makes the arguments.
_OF_BORDERS = """\
# {named}: {rises}, from any number to any other. For borders from 0 to a length, with empty sequences and padding, make
# the samples by `packed_samples` and `draw_packed` of torchgraft.sampling, with `packed.cu_seqlens(torch.int64)`: its
# offsets are int32 otherwise, which the declaration and the kernel do not take.
"""
_OF_INDICES = """\
# {named}: drawn from 0 to 1 until you say below which size each must stay, as in `high=max(groups, 1)`. Where that size
# may be 0, draw no index.
"""


def samples_file(found: Sequence[Stub]) -> str:
    """The samples of operators."""
    words = found[0].words
    taken = ["shape: tuple[int, ...]"] if words is None else sizes.parameters(words)
    functions: list[str] = []
    entries = []
    rising = stubs.rising_of(found[0])
    indices = [each for each in found[0].integers if each not in rising]

    def add_function(name: str, values: Sequence[str]) -> None:
        made = in_python.joined("return (", values, ",)" if len(values) == 1 else ")", 4)
        functions.append(f"{in_python.joined(f'def _{name}(', taken, ') -> tuple[Any, ...]:')}\n    {made}\n")

    for stub in found:
        add_function(stub.name, in_python.sample_values(stub))
        if rising and stub is found[0]:
            named = " and ".join(rising)
            rises = "rises" if len(rising) == 1 else "rise"
            functions[-1] = _OF_BORDERS.format(named=named, rises=rises) + functions[-1]
        if indices and stub is found[0]:
            functions[-1] = _OF_INDICES.format(named=" and ".join(indices)) + functions[-1]
        more = []
        if any(argument.optional or argument.optional_elements for argument in stub.arguments):
            without = in_python.sample_values(stub, without_optional=True)
            if words is None:
                arguments = in_python.joined("(", without, ",)" if len(without) == 1 else ")", 12).replace(
                    "shape", "(5,)"
                )
            else:
                add_function(f"{stub.name}_without", without)
                arguments = f"_{stub.name}_without({sizes.smallest(words)})"
            more = [in_python.joined("Sample(", ['"with None where it may be"', arguments], ")", 8)]
        entry = in_python.joined(f'"{stub.name}": _samples(', [f"_{stub.name}", *more], "),", 4)
        entries.append(f"    {entry}\n")
    body = "\n\n".join(functions)
    values = {
        "operator": found[0].name,
        "torch_import": "import torch\n" if re.search(r"\btorch\.", body) else "",
        "functions": body,
        "samples": "".join(entries) + "}",
    }
    if words is None:
        values["rows"] = "".join(f'    "{name}": {shape},\n' for name, shape in sizes.ANY_SHAPES)
        return filled("samples.py", values)
    (name, measured), drawn = sizes.benchmark(words), sizes.drawn(words)
    values |= {
        "names": ", ".join(words.names),
        "rows": "".join(f'    "{name}": {row},\n' for name, row in sizes.rows(words)),
        "drawn": in_python.joined("sizes = (", drawn, ",)" if len(drawn) == 1 else ")", 4),
        "measured": f'"{name}", arguments({measured})',
    }
    return filled("samples_of_sizes.py", values)
