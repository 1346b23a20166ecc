"""Texts that several files of a new package are made from: templates, and modules with the imports that they need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from torchgraft.authoring import in_python

_TEMPLATES = Path(__file__).parent / "templates"


def filled(template: str, values: dict[str, str]) -> str:
    """The text of a template with its values."""
    return Template((_TEMPLATES / f"{template}.template").read_text()).substitute(values)


def loading(namespace: str, sources: Sequence[str]) -> str:
    """The lines that load the kernels of a package."""
    paths = [f'Path(__file__).with_name("{source}")' for source in sources]
    return f"""
# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
{in_python.joined(f'building.load("{namespace}", [', paths, "])")}
"""


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


def module_text(summary: str, body: str, own: Sequence[str] = ()) -> str:
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
