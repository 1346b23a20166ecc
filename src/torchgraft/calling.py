"""Questions about who takes part in a call beside its function: compilers, transforms, `torch.jit.trace`."""

import torch

from torchgraft._private import pytorch


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` records what is called; sizes that are passed as numbers stay in its graph."""
    return not torch.compiler.is_compiling() and pytorch.jit_tracing()


def may_write_results() -> bool:
    """Whether a result that a function has just computed may be written to in place, which saves memory.

    Not while a compiler records, which decides about memory itself, nor in transforms of functions such as vmap: a
    result may lack a dimension there that what is written has.
    """
    return not (torch.compiler.is_compiling() or pytorch.transform_active())
