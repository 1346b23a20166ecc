"""lltm: the Long-Long-Term-Memory unit, one step of it or a whole sequence."""

from torchgraft.operators.lltm.operator import lltm, lltm_cell

__all__ = ["lltm", "lltm_cell"]
