"""graft_report(model): which layers of a model run on torchgraft, and why others do not."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field

import torch

from torchgraft.nn.grafting.layers import (
    is_grafted,
    is_of_interest,
    is_recurrent,
    named_functions,
    runs_on_operators,
    why_not,
)
from torchgraft.nn.grafting.measuring import Measured
from torchgraft.nn.grafting.methods import NAME


@dataclass(frozen=True)
class GraftReport:
    """Which convolutions and recurrent layers of a model run on torchgraft, by their names, and why others do not."""

    grafted: tuple[str, ...] = ()
    graftable: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    functions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    recurrent: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = self._counts()
        for name in self.grafted:
            times = f": {self.measured[name]}" if name in self.measured else ""
            if not times and name in self.recurrent:
                times = ", in calls where it pays"
            calls = f", its calls of {' and '.join(self.functions[name])}" if name in self.functions else ""
            lines.append(f"  grafted    {name or '(the model itself)'}{calls}{times}")
        lines += [f"  graftable  {name or '(the model itself)'}: graft(model) serves it" for name in self.graftable]
        names = defaultdict(list)
        for name, reason in self.left.items():
            names[reason].append(name or "(the model itself)")
        for reason, alike in names.items():
            lines.append(f"  left       {_several(alike)}: {reason}")
        return "\n".join(lines)

    def _counts(self) -> list[str]:
        """A line for convolutions, and one for recurrent layers; none for recurrent layers if there are none."""
        lines, recurrent = list[str](), frozenset(self.recurrent)
        convolutions = {*self.grafted, *self.graftable, *self.left} - recurrent
        for words, names in (("convolutions", convolutions), ("recurrent layers", recurrent)):
            if names or not (lines or recurrent):
                grafted = len(names.intersection(self.grafted))
                lines.append(f"{words} grafted: {grafted}, left: {len(names) - grafted}")
        return lines

    def to_json(self) -> str:
        """The report as one JSON object, for other programs: its fields, times in microseconds."""
        return json.dumps(asdict(self))


def _several(names: list[str]) -> str:
    """Names one layer, or the first of several and how many there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def graft_report(model: torch.nn.Module) -> GraftReport:
    """Lists the layers of a model that are grafted, those that could be, and those that are left, with the reason.

    Args:
        model: any module, before or after `graft`.

    Returns:
        A report with `grafted` and `graftable` names, `left`, reasons by name, `measured`, times by name where `graft`
        had an example, `functions`, the functions by name of each module that calls some itself, and `recurrent`, the
        names of recurrent layers among them. Printed, it has a line for each layer that is grafted or could be, and a
        line for each reason.
    """
    grafted, graftable, recurrent = list[str](), list[str](), list[str]()
    left, measured, functions = dict[str, str](), dict[str, Measured](), dict[str, tuple[str, ...]]()
    for name, module in model.named_modules():
        if not (is_of_interest(module) or NAME in vars(module)):
            continue
        if is_recurrent(module):
            recurrent.append(name)
        elif called := named_functions(module):
            functions[name] = called
        if NAME in vars(module):
            measured[name] = vars(module)[NAME]
        if runs_on_operators(module):
            left[name] = "its class is torchgraft's, and runs on torchgraft as it is"
        elif reason := why_not(module):  # A layer may have changed after it was grafted.
            left[name] = reason
        elif is_grafted(module):
            grafted.append(name)
        elif name in measured:
            left[name] = f"it gains nothing: {measured[name]}"
        else:
            graftable.append(name)
    return GraftReport(tuple(grafted), tuple(graftable), left, measured, functions, tuple(recurrent))
