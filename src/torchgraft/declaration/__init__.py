"""What an author says about an operator: its schema, shapes, dtypes, sharding and autocast rule, read and checked."""

from torchgraft.declaration.declaration import Declaration, read
from torchgraft.declaration.dtypes import FLOATING

__all__ = ["FLOATING", "Declaration", "read"]
