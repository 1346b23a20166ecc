"""The declaration of an operator, read and checked: schema, shapes, dtypes, sharding, autocast rule."""

from torchgraft.declaration.declaration import Declaration, read
from torchgraft.declaration.dtypes import FLOATING

__all__ = ["FLOATING", "Declaration", "read"]
