"""The files of a recurrence of a cell, as text."""

from __future__ import annotations

from typing import Any

from torchgraft.authoring import in_python
from torchgraft.authoring.texts import filled, loading, module_text
from torchgraft.recurrence.kernels import Kernels

CELL_SOURCES = ("cpu.cpp", "cuda.cu")


def recurrence(package: str, name: str, module: str) -> dict[str, str]:
    """The files of the recurrence of a cell, in Python and C++.

    Args:
        package: whose operator it is.
        name: of the operator.
        module: in which it is declared: that of the package, which loads the kernels, or one below it.
    """
    folder = f"src/{module.replace('.', '/')}"
    cell = filled("cell.py", {"name": name, "package": package, "folder": folder})
    declared = ["NAME", "CELL", 'kernels={"cpu": FLOATING, "cuda": FLOATING}']
    init = f"""
# `help({name}.__call__)` describes how it is called.
{in_python.joined(f"{name} = Recurrence(", declared, ")")}
"""
    if module == package:
        init += loading(package, CELL_SOURCES)
    made: dict[str, Any] = {}
    # The kernels are those of the file as it stands there.
    exec(compile(cell, f"{folder}/cell.py", "exec"), made)
    return {
        f"tests/test_{name}.py": _cell_test(name, module, folder),
        f"{folder}/__init__.py": module_text(
            f"{name}: the recurrent network of the cell in cell.py.", init, [f"from {module}.cell import CELL, NAME"]
        ),
        f"{folder}/cell.py": cell,
        **{f"{folder}/{file}": text for file, text in Kernels(made["NAME"], made["CELL"]).sources.items()},
    }


def _cell_test(name: str, module: str, folder: str) -> str:
    return module_text(
        "The kernels are those of the cell, and hold every property, as `graft check` asks them.",
        f'''
_ROOT, _FOLDER = Path(__file__).parents[1], "{folder}"

{in_python.joined(f"test_{name} = make_test(", [f"{name}.operator", f"{name}.gradients", "quick=True"], ")")}


def test_the_kernels_are_those_of_the_cell(tmp_path: Path) -> None:
    """After an edit of the cell they are written again."""
    Recurrence.write_kernels(NAME, CELL, tmp_path)
    for written in tmp_path.iterdir():
        is_current = (_ROOT / _FOLDER / written.name).read_text() == written.read_text()
        assert is_current, f"{{written.name}} is not that of the cell: run `python {{_FOLDER}}/cell.py`"
''',
        [f"from {module} import {name}", f"from {module}.cell import CELL, NAME"],
    )
