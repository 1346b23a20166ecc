"""Real inputs: calls of operators in a running model, written to a folder, or compared with their references.

`writing` has `capture`, and `comparing` has `shadow`; `watching` says which calls they see. `folder` reads what was
written, and `samples` makes samples of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchgraft.capturing.comparing import DifferenceError, Shadow, shadow
    from torchgraft.capturing.folder import CapturedFileError
    from torchgraft.capturing.writing import Capture, capture

__all__ = ["Capture", "CapturedFileError", "DifferenceError", "Shadow", "capture", "shadow"]

_MODULES = {
    "Capture": "writing",
    "CapturedFileError": "folder",
    "DifferenceError": "comparing",
    "Shadow": "comparing",
    "capture": "writing",
    "shadow": "comparing",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: checks read captured calls, and `shadow` is made of what checks are made of."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
