"""The files of a new package, as text: what `graft new` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from torchgraft.authoring import sizes, stubs
from torchgraft.authoring.stubs import Stub
from torchgraft.authoring.wheel import torchgraft_requirement
from torchgraft.recurrence.kernels import Kernels

_TEMPLATES = Path(__file__).parent / "templates"


_EMULATED = "graft check src/{name} --device cuda --emulate --quick   # ten properties of CUDA C++, without a GPU\n"


def files(name: str, found: Sequence[Stub], *, is_complete: bool, cuda: bool, triton: bool) -> dict[str, str]:
    """The text of each file, by its path in the package."""
    rows = {"cuda.cu": ("the kernel in CUDA C++", cuda), "kernels.py": ("the kernel in Triton", triton)}
    values = {
        "name": name,
        "operator": found[0].name,
        "summary": found[0].summary,
        "extras": "check,triton" if triton else "check",
        "triton_test": f"\t@$(GRAFT) check src/{name} --every-kernel --property value\n" if triton else "",
        "triton_check": f"\n\t@$(GRAFT) check src/{name} --every-kernel" if triton else "",
        "emulated": _EMULATED.format(name=name) if cuda else "",
        "kernel_rows": "".join(
            f"| [src/{name}/{file}](src/{name}/{file}) | {what} |\n" for file, (what, wanted) in rows.items() if wanted
        ),
    }
    made = _around(values, {"README.md": "README.md", "AGENTS.md": "AGENTS.md"})
    made |= {
        f"tests/test_{name}.py": _test(name, found),
        f"src/{name}/__init__.py": _init(name, found[0], ["cpu.cpp", *(["cuda.cu"] if cuda else [])], triton),
        f"src/{name}/reference.py": _references(found),
        f"src/{name}/operator.py": _declarations(name, found, is_complete, cuda or triton),
        f"src/{name}/samples.py": _samples(found),
        f"src/{name}/cpu.cpp": _source("cpu", name, found, is_complete),
    }
    if cuda:
        made[f"src/{name}/cuda.cu"] = _source("cuda", name, found, is_complete)
    if triton:
        made[f"src/{name}/kernels.py"] = _triton(name, found, is_complete)
    return made


def _around(values: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """The files of a package that are not in Python or C++, by their paths.

    Args:
        values: what stands in the templates.
        more: the templates of those that differ by kind of package.
    """
    templates = {
        "pyproject.toml": "pyproject.toml",
        "Makefile": "Makefile",
        ".gitignore": "gitignore",
        ".clang-format": "clang-format",
        ".github/workflows/ci.yml": "ci.yml",
        ".github/workflows/publish.yml": "publish.yml",
        **more,
    }
    values = {**values, "torchgraft": torchgraft_requirement()}
    return {path: _filled(template, values) for path, template in templates.items()}


def cell_files(name: str) -> dict[str, str]:
    """The text of each file of a package whose operator is the recurrence of a cell, by its path in the package.

    PyTorch traces the cell for its kernels, which takes a second or two.
    """
    values = {"name": name, "operator": name, "extras": "check", "triton_test": "", "triton_check": ""}
    more = {"README.md": "cell_readme.md", "AGENTS.md": "cell_agents.md"}
    return {**_around(values, more), **_recurrence(name, name, name)}


def cell_operator_files(package: str, name: str) -> tuple[dict[str, str], list[str]]:
    """The text of each file of a recurrence that joins a package, and the sources of its kernels.

    Args:
        package: the name of the package.
        name: of the operator. It is a package in it, as those of `operator_files` are.
    """
    return _recurrence(package, name, f"{package}.{name}"), [f"{name}/{source}" for source in _CELL_SOURCES]


_CELL_SOURCES = ("cpu.cpp", "cuda.cu")


def _recurrence(package: str, name: str, module: str) -> dict[str, str]:
    """The files of the recurrence of a cell, in Python and C++.

    Args:
        package: whose operator it is.
        name: of the operator.
        module: in which it is declared: that of the package, which loads the kernels, or one below it.
    """
    folder = f"src/{module.replace('.', '/')}"
    cell = _filled("cell.py", {"name": name, "package": package, "folder": folder})
    declared = ["NAME", "CELL", 'kernels={"cpu": FLOATING, "cuda": FLOATING}']
    init = f"""
# `help({name}.__call__)` describes how it is called.
{stubs.joined(f"{name} = Recurrence(", declared, ")")}
"""
    if module == package:
        init += f"""
# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
{_loading(package, _CELL_SOURCES)}
"""
    made: dict[str, Any] = {}
    # The kernels are those of the file as it stands there.
    exec(compile(cell, f"{folder}/cell.py", "exec"), made)
    return {
        f"tests/test_{name}.py": _cell_test(name, module, folder),
        f"{folder}/__init__.py": _module(
            f"{name}: the recurrent network of the cell in cell.py.", init, [f"from {module}.cell import CELL, NAME"]
        ),
        f"{folder}/cell.py": cell,
        **{f"{folder}/{file}": text for file, text in Kernels(made["NAME"], made["CELL"]).sources.items()},
    }


def _cell_test(name: str, module: str, folder: str) -> str:
    return _module(
        "The kernels are those of the cell, and hold every property, as `graft check` asks them.",
        f'''
_ROOT, _FOLDER = Path(__file__).parents[1], "{folder}"

{stubs.joined(f"test_{name} = make_test(", [f"{name}.operator", f"{name}.gradients", "quick=True"], ")")}


def test_the_kernels_are_those_of_the_cell(tmp_path: Path) -> None:
    """After an edit of the cell they are written again."""
    Recurrence.write_kernels(NAME, CELL, tmp_path)
    for written in tmp_path.iterdir():
        is_current = (_ROOT / _FOLDER / written.name).read_text() == written.read_text()
        assert is_current, f"{{written.name}} is not that of the cell: run `python {{_FOLDER}}/cell.py`"
''',
        [f"from {module} import {name}", f"from {module}.cell import CELL, NAME"],
    )


def _loading(namespace: str, sources: Sequence[str]) -> str:
    """The call that loads the kernels of a package."""
    return stubs.joined(
        f'building.load("{namespace}", [', [f'Path(__file__).with_name("{source}")' for source in sources], "])"
    )


def operator_files(
    name: str, found: Sequence[Stub], *, is_complete: bool, cuda: bool, triton: bool
) -> tuple[dict[str, str], list[str]]:
    """The text of each file of an operator that joins a package, by its path there, and the sources of its kernels.

    Args:
        name: of the package. The operator is a package in it, with the same files as the first one has.
        found: the operator, and that of its gradient if it is wanted.
        is_complete: whether it is the operator that is complete.
        cuda: whether there is a kernel in CUDA C++.
        triton: whether there is one in Triton.
    """
    folder = f"src/{name}/{found[0].name}"
    made = files(name, found, is_complete=is_complete, cuda=cuda, triton=triton)
    own = {path: text for path, text in made.items() if path.startswith(f"src/{name}/")}
    kept = {path.replace(f"src/{name}", folder, 1): _moved(text, name, found[0].name) for path, text in own.items()}
    # The package loads the kernels of all its operators.
    init = f"{folder}/__init__.py"
    kept[init] = _LOADED.sub("", kept[init]).replace(_PATHLIB, "").replace(_BUILDING, "")
    kept[init] = re.sub(r"\n{3,}(?=from |import )", "\n\n", kept[init])
    kept[f"tests/test_{found[0].name}.py"] = _moved(_test(name, found), name, found[0].name)
    sources = [Path(path).name for path in own if path.endswith((".cpp", ".cu"))]
    return kept, [f"{found[0].name}/{source}" for source in sources]


_BUILDING, _PATHLIB = "from torchgraft import building\n", "from pathlib import Path\n"
_LOADED = re.compile(r"\n# In an installed wheel .*?\nbuilding\.load\(.*?\]\)\n", re.DOTALL)


def _moved(text: str, name: str, operator: str) -> str:
    """A file of a package as it is in a package of an operator below it."""
    text = re.sub(
        rf"^( *from) {name}(\.operator|) import ", rf"\1 {name}.{operator}\2 import ", text, flags=re.MULTILINE
    )
    return text.replace(f"def test_{name}", f"def test_{operator}").replace(f"test_{name} = ", f"test_{operator} = ")


def with_sources(init: str, sources: Sequence[str]) -> str | None:
    """The `__init__.py` of a package that loads more sources of kernels; None if it names none in a list."""
    found = re.search(r"building\.load\(\s*\"\w+\",\s*\[(?P<sources>[^\]]*)\]", init)
    if found is None:
        return None
    before = [each.strip() for each in re.split(r",\s*(?![^()]*\))", found["sources"]) if each.strip()]
    added = [f'Path(__file__).parent / "{source}"' for source in sources]
    lines = "".join(f"\n        {each}," for each in [*before, *added])
    namespace = re.search(r"\"\w+\"", found[0])
    assert namespace is not None
    text = f"building.load(\n    {namespace[0]},\n    [{lines}\n    ],\n"
    end = init[found.end() :].lstrip(", \n")
    return init[: found.start()] + text + end


def with_import(init: str, package: str, operator: str) -> str:
    """The `__init__.py` of a package that also offers an operator of a package below it."""
    lines = init.splitlines()
    own = [number for number, line in enumerate(lines) if line.startswith(f"from {package}.")]
    place = own[0] if own else next(n for n, line in enumerate(lines) if line.startswith("building.load("))
    imports = [f"from {package}.{operator} import {operator} as {operator}"]
    while own and len(lines) > place and lines[place].startswith(f"from {package}.") and not lines[place].endswith("("):
        imports.append(lines.pop(place))
    return "\n".join([*lines[:place], *sorted(imports), *lines[place:], ""])


def _filled(template: str, values: dict[str, str]) -> str:
    return Template((_TEMPLATES / f"{template}.template").read_text()).substitute(values)


# What a text in Python imports where it says something, in the order that formatters want.
_STANDARD_IMPORTS = (
    (r"\bSequence\[", "from collections.abc import Sequence"),
    (r"\bfind_spec\(", "from importlib.util import find_spec"),
    (r"\bPath\(", "from pathlib import Path"),
)
_OTHER_IMPORTS = (
    (r"\btorch\.", "import torch"),
    (r"\btriton\.", "import triton"),
    (r"\btl\.", "import triton.language as tl"),
    (r"\bTensor\b", "from torch import Tensor"),
    (r"\A(?!.*\bRecurrence\b).*\bbuilding\.", "from torchgraft import building"),
    (r"\bRecurrence\b.*\bbuilding\.", "from torchgraft import Recurrence, building"),
    (r"\bRecurrence\b(?!.*\bbuilding\.)", "from torchgraft import Recurrence"),
    (r"gradient_by_reference\(", "from torchgraft import Operator, gradient_by_reference"),
    (r"\A(?!.*gradient_by_reference\().* Operator\(", "from torchgraft import Operator"),
    (r"\bwrap_triton\(", "from torchgraft import wrap_triton"),
    (r"\bmake_test\(", "from torchgraft.checking import make_test"),
    (r"\bFLOATING\b", "from torchgraft.operator import FLOATING"),
)


def _module(summary: str, body: str, own: Sequence[str] = ()) -> str:
    """A file in Python: a docstring, the imports that the body needs, and the body.

    Args:
        summary: the docstring.
        body: begins with as many empty lines as it wants above it.
        own: what is imported of the package itself.
    """
    # A schema that is text uses no names.
    code = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'", "", body)
    groups = [
        [line for pattern, line in imports if re.search(pattern, code, re.DOTALL)]
        for imports in (_STANDARD_IMPORTS, _OTHER_IMPORTS)
    ]
    blocks = ["\n".join(lines) for lines in (*groups, own) if lines]
    return "\n\n".join([f'"""{summary}"""', *blocks]) + f"\n{body}"


def _called(stub: Stub) -> str:
    """The name of the Operator in Python."""
    return f"{stub.name}_operator"


def _import_of(name: str, found: Sequence[Stub]) -> str:
    return f"from {name}.operator import {', '.join(sorted(map(_called, found)))}"


def _test(name: str, found: Sequence[Stub]) -> str:
    operators = [_called(stub) for stub in found]
    return _module(
        "Every property of every operator of the package, as `graft check` asks them.",
        "\n" + stubs.joined(f"test_{name} = make_test(", [*operators, "quick=True"], ")\n"),
        [_import_of(name, found)],
    )


def _init(name: str, stub: Stub, sources: Sequence[str], triton: bool) -> str:
    body = f"""
# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
{_loading(name, sources)}
"""
    if triton:
        body += f"""
# Without Triton the other kernels answer.
if find_spec("triton") is not None:
    from {name} import kernels as kernels
"""
    body += f"""

{stubs.joined(f"def {stub.name}(", stubs.parameters(stub, defaults=True), f") -> {stubs.result_annotation(stub)}:")}
    \"\"\"{stub.summary[0].upper()}{stub.summary[1:]}

    Args:
{stubs.described(stub)}
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
    {stubs.joined(f"{returned}{_called(stub)}(", stubs.values(stub), ")", 4)}
"""
    return _module(f"{stub.name}: {stub.summary}", body, [_import_of(name, [stub])])


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


def _references(found: Sequence[Stub]) -> str:
    functions = [_ZEROS] if any(copy.depends_on for stub in found for copy in stub.copies) else []
    for stub in found:
        annotation = stubs.result_annotation(stub, written=True)
        comment = "" if stub.formula else "    # Write here, in differentiable PyTorch, what the operator computes.\n"
        functions.append(
            f"""

{stubs.joined(f"def {stub.name}(", stubs.parameters(stub), f") -> {annotation}:")}
    \"\"\"{stub.summary[0].upper()}{stub.summary[1:]}\"\"\"
{comment}    return {stubs.reference_body(stub)}
"""
        )
    return _module(f"What {found[0].name} means: its kernels are compared with this.", "".join(functions))


def _declarations(name: str, found: Sequence[Stub], is_complete: bool, on_gpu: bool) -> str:
    first, *others = found
    body = ""
    # That of the gradient first, as the other one calls it.
    for stub in (*others, first):
        has_formula = stub is first and (is_complete or bool(others))
        is_backward_of_square = is_complete and stub is not first
        by_reference = "" if has_formula else _gradient_by_reference(stub)
        schema = stubs.quoted(stub.schema, 4)
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
            body += f"""

{stubs.joined(f"def _{stub.name}_output(", stubs.parameters(stub), f") -> {stubs.result_annotation(stub)}:")}
    return {stubs.output_body(stub)}
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
            declared.append(stubs.joined("not_differentiable=[", names, "]", 4))
        if zero := [f'"{copy.argument}_grad"' for copy in stub.copies if copy.zero and not copy.depends_on]:
            declared.append(stubs.joined("not_differentiable=[", zero, "]", 4))
        declared += [_dtypes(stub), *([] if on_gpu else ['kernels={"cpu": FLOATING}'])]
        lines = "".join(f"    {line},\n" for line in declared)
        if seeds := [f'"{each.name}"' for each in stub.arguments if stubs.is_seed(each)]:
            named = f"({', '.join(seeds)}{',' if len(seeds) == 1 else ''})"
            lines += f"    # Add `random={named}` as soon as the results follow from it.\n"
        body += "\n" * (2 if body else 1) + f"{_called(stub)} = Operator(\n{lines})\n"
    summary = f"The declaration of {first.name}: what PyTorch must know about it, and nothing about how it is computed."
    return _module(summary, body, [f"from {name} import reference"])


def _dtypes(stub: Stub) -> str:
    """The dtypes of a declaration, in Python."""
    if not stub.integers:
        return "dtypes=FLOATING"
    tensors = [each.name for each in stub.arguments if each.holds_tensors]
    pairs = [f'"{each}": {"(torch.int64,)" if each in stub.integers else "FLOATING"}' for each in tensors]
    return stubs.joined("dtypes={", pairs, "}", 4)


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
    taken = [f"{each}: Sequence[{kind}]" for each, kind in _GRADIENT_TAKES] + stubs.parameters(stub)
    returned = f"tuple[{', '.join(['Tensor'] * len(tensors))}]"
    if backward is None:
        body = "    return (2 * factor * input * output_grads[0],)\n"
    else:
        taken_over = ["output_grads[0]" if len(stub.copies) == 1 else "*output_grads", *stubs.values(stub)]
        call = stubs.joined(f"{_called(backward)}(", taken_over, ")", 4)
        body = f"    return ({call},)\n"
        if stub.integers:
            returned = "tuple[Tensor | None, ...]"
            of_each = ["None" if each.name in stub.integers else f"{each.name}_grad" for each in tensors]
            made = [each for each in of_each if each != "None"]
            call = stubs.joined(f"{', '.join(made)} = {_called(backward)}(", taken_over, ")", 4)
            body = f"    {call}\n    {stubs.joined('return (', of_each, ')', 4)}\n"
        elif len(tensors) > 1:
            returned = "tuple[Tensor | None, ...]"
            body = f"    grads = {call}\n    return {_NEEDED}\n"
    return f"""

{stubs.joined(f"def _{stub.name}_gradient(", taken, f") -> {returned}:")}
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


def _samples(found: Sequence[Stub]) -> str:
    words = found[0].words
    taken = ["shape: tuple[int, ...]"] if words is None else sizes.parameters(words)
    functions: list[str] = []
    entries = []
    rising = stubs.rising_of(found[0])
    indices = [each for each in found[0].integers if each not in rising]

    def add_function(name: str, values: Sequence[str]) -> None:
        made = stubs.joined("return (", values, ",)" if len(values) == 1 else ")", 4)
        functions.append(f"{stubs.joined(f'def _{name}(', taken, ') -> tuple[Any, ...]:')}\n    {made}\n")

    for stub in found:
        add_function(stub.name, stubs.sample_values(stub))
        if rising and stub is found[0]:
            named = " and ".join(rising)
            rises = "rises" if len(rising) == 1 else "rise"
            functions[-1] = _OF_BORDERS.format(named=named, rises=rises) + functions[-1]
        if indices and stub is found[0]:
            functions[-1] = _OF_INDICES.format(named=" and ".join(indices)) + functions[-1]
        more = []
        if any(argument.optional or argument.optional_elements for argument in stub.arguments):
            without = stubs.sample_values(stub, without_optional=True)
            if words is None:
                arguments = stubs.joined("(", without, ",)" if len(without) == 1 else ")", 12).replace("shape", "(5,)")
            else:
                add_function(f"{stub.name}_without", without)
                arguments = f"_{stub.name}_without({sizes.smallest(words)})"
            more = [stubs.joined("Sample(", ['"with None where it may be"', arguments], ")", 8)]
        entry = stubs.joined(f'"{stub.name}": _samples(', [f"_{stub.name}", *more], "),", 4)
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
        return _filled("samples.py", values)
    (name, measured), drawn = sizes.benchmark(words), sizes.drawn(words)
    values |= {
        "names": ", ".join(words.names),
        "rows": "".join(f'    "{name}": {row},\n' for name, row in sizes.rows(words)),
        "drawn": stubs.joined("sizes = (", drawn, ",)" if len(drawn) == 1 else ")", 4),
        "measured": f'"{name}", arguments({measured})',
    }
    return _filled("samples_of_sizes.py", values)


# The headers of what a text in C++ uses.
_HEADERS = (
    ("torch::stable::zero_(", "torch/csrc/stable/ops.h"),
    ("check_alike(", "torchgraft/arguments.h"),
    ("check_dim(", "torchgraft/checks.h"),
    ("TORCHGRAFT_CHECK(", "torchgraft/checks.h"),
    ("same_device(", "torchgraft/checks.h"),
    ("parallel_for(", "torchgraft/cpu.h"),
    ("check_elements<", "torchgraft/data.h"),
    ("dispatch_floating(", "torchgraft/dispatch.h"),
    ("empty_contiguous(", "torchgraft/empty.h"),
    ("empty_as(", "torchgraft/layout.h"),
    ("ceil_divide<", "torchgraft/numbers.h"),
    ("", "torchgraft/registration.h"),
    ("Text ", "torchgraft/text.h"),
    ("Text>", "torchgraft/text.h"),
    ("Launch ", "torchgraft/cuda.cuh"),
)
_OTHER_HEADERS = (
    ("std::optional<", "optional"),
    ("std::tuple<", "tuple"),
    ("std::vector<", "vector"),
)


def _to_dense(found: Sequence[Stub]) -> str:
    """The function that brings a tensor into the layout of a result, which is contiguous if shapes are declared."""
    return "to_dense" if found[0].words is None else "to_contiguous"


def _source(device: str, name: str, found: Sequence[Stub], is_complete: bool) -> str:
    """The kernels in C++ for a kind of device."""
    suffix = "cpp" if device == "cpu" else "cu"
    values = {"name": name, "operator": found[0].name, "to_dense": _to_dense(found)}
    if is_complete:
        parts = [f"square.{suffix}", f"square_backward.{suffix}"][: len(found)]
        text = "".join(_filled(part, values) for part in parts)
    else:
        used = stubs.helpers_of(found)
        helpers = {
            "copied": f"helper_copied.{suffix}",
            "copied_list": "helper_copied_list",
            "zeros": "helper_zeros",
            "zeros_of": "helper_zeros_of",
            "set_to_zero": "helper_set_to_zero",
        }
        text = "".join(_filled(part, values) for helper, part in helpers.items() if helper in used)
        text += "\n\n".join(stubs.host_function(stub, device) for stub in found) + "\n"
    blocks = []
    for headers in (_HEADERS, _OTHER_HEADERS):
        included = dict.fromkeys(f"#include <{header}>\n" for word, header in headers if word in text)
        blocks += ["\n" + "".join(included)] if included else []
    leads = {"cpu": "one pass through memory, on all threads.", "cuda": "a thread owns one element."}
    return _filled(
        f"{device}.{suffix}",
        {
            "name": name,
            "operator": found[0].name,
            "lead": leads[device] if is_complete else found[0].summary,
            "includes": "".join(blocks),
            "functions": text,
            "registrations": "\n".join(
                f"TORCHGRAFT_KERNEL({name}, {device.upper()}, {stub.name}, {stub.name}_{device})" for stub in found
            ),
        },
    )


def _triton(name: str, found: Sequence[Stub], is_complete: bool) -> str:
    """The kernels in Triton."""
    values = {"name": name, "operator": found[0].name}
    if is_complete:
        parts = ["square.py", "square_backward.py"][: len(found)]
        text = "\n" + "".join(_filled(part, values) for part in parts)
    else:
        helper = "helper_copied.py" if found[0].words is None else "helper_copied_contiguous.py"
        text = "\n" + _filled(helper, values) if "copied" in stubs.helpers_of(found) else ""
        for stub in found:
            signature = stubs.joined(
                f"def {stub.name}_blocks(", stubs.parameters(stub), f") -> {stubs.result_annotation(stub)}:"
            )
            body = "".join(f"    {line}\n" for line in "\n".join(stubs.triton_body(stub)).splitlines())
            text += f"""

@{_called(stub)}.kernel("cuda", triton=True)
{signature}
    \"\"\"One program for each block of elements.\"\"\"
{body}"""
    block = "\n_BLOCK = 1024\n" if "_BLOCK" in text else ""
    summary = (
        f"Kernels of {found[0].name} in Triton: a program owns a block of elements, and reads and writes each once."
    )
    return _module(summary, f"{block}{text}", [_import_of(name, found)])
