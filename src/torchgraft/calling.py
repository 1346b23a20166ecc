"""Tells whether a compiler, a transform of torch.func or `torch.jit.trace` takes part in a call."""

import torch

from torchgraft._private import pytorch


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` records the call. Sizes that are passed as numbers become constants of its graph."""
    return not torch.compiler.is_compiling() and pytorch.jit_tracing()


def may_write_results() -> bool:
    """Whether a function may write in place to a result that it has just computed, which saves memory.

    False while a compiler traces, because it manages memory itself. False in transforms such as vmap, because the
    values that are written may have a batch dimension that the result lacks.
    """
    return not (torch.compiler.is_compiling() or pytorch.transform_active())
