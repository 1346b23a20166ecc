"""The files of a new package, as text: what `graft new` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torchgraft.authoring.kernel_files import cpp_file, triton_file
from torchgraft.authoring.operator_files import init_file, operator_file, reference_file, samples_file, test_file
from torchgraft.authoring.recurrence_files import CELL_SOURCES, recurrence
from torchgraft.authoring.stubs import Stub
from torchgraft.authoring.texts import filled
from torchgraft.authoring.wheel import torchgraft_requirement

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
        f"tests/test_{name}.py": test_file(name, found),
        f"src/{name}/__init__.py": init_file(name, found[0], ["cpu.cpp", *(["cuda.cu"] if cuda else [])], triton),
        f"src/{name}/reference.py": reference_file(found),
        f"src/{name}/operator.py": operator_file(name, found, is_complete, cuda or triton),
        f"src/{name}/samples.py": samples_file(found),
        f"src/{name}/cpu.cpp": cpp_file("cpu", name, found, is_complete),
    }
    if cuda:
        made[f"src/{name}/cuda.cu"] = cpp_file("cuda", name, found, is_complete)
    if triton:
        made[f"src/{name}/kernels.py"] = triton_file(name, found, is_complete)
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
    return {path: filled(template, values) for path, template in templates.items()}


def cell_files(name: str) -> dict[str, str]:
    """The text of each file of a package whose operator is the recurrence of a cell, by its path in the package.

    PyTorch traces the cell for its kernels, which takes a second or two.
    """
    values = {"name": name, "operator": name, "extras": "check", "triton_test": "", "triton_check": ""}
    more = {"README.md": "cell_readme.md", "AGENTS.md": "cell_agents.md"}
    return {**_around(values, more), **recurrence(name, name, name)}


def cell_operator_files(package: str, name: str) -> tuple[dict[str, str], list[str]]:
    """The text of each file of a recurrence that joins a package, and the sources of its kernels.

    Args:
        package: the name of the package.
        name: of the operator. It is a package in it, as those of `operator_files` are.
    """
    return recurrence(package, name, f"{package}.{name}"), [f"{name}/{source}" for source in CELL_SOURCES]


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
    kept[f"tests/test_{found[0].name}.py"] = _moved(test_file(name, found), name, found[0].name)
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
