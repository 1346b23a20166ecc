"""The use of Helion. Nothing here imports it: a kernel in Helion has done so."""

import importlib
import sys
from typing import Any


def run_in_reference_mode(kernel: Any) -> None:
    """Has Helion run a kernel in Python from now on, on any device, if it is one of Helion's.

    HELION_INTERPRET=1 does the same for kernels that are declared while it is set.
    """
    helion = sys.modules.get("helion")
    if helion is not None and isinstance(kernel, helion.Kernel):
        kernel.settings.ref_mode = importlib.import_module("helion.runtime.ref_mode").RefMode.EAGER
