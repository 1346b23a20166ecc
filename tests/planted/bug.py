"""The description of a planted bug."""

from __future__ import annotations

from dataclasses import dataclass

from torchgraft import Operator


@dataclass(frozen=True)
class Bug:
    """An operator that is wrong in one way.

    Attributes:
        operator: the operator.
        wrong: what is wrong, in words.
        caught_by: the property that is meant to catch it.
        devices: the kinds of device on which it is wrong.
        harms: whether it may take the process with it, or leave it unfit for others.
        by_chance: whether it depends on threads or on stray memory if opcheck sees it, which is not tried then.
    """

    operator: Operator
    wrong: str
    caught_by: str
    devices: tuple[str, ...] = ("cpu",)
    harms: bool = False
    by_chance: bool = False

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self.operator.name
