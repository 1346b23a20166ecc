"""Host time of calling one of our layers, beside the layer of PyTorch that it replaces.

Both layers have the same sizes, so small that a kernel takes no time. On a GPU calls return before kernels end, and
what is timed is the host's part: here kernels end sooner than the host makes the next call.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.benchmark import Timer

from torchgraft.benchmarking.table import Table
from torchgraft.sampling import ReplacedLayer

# How a layer is called; the name of each is the head of its column.
NO_GRAD, FORWARD, BACKWARD, AUTOCAST = MODES = ("no grad", "forward", "forward + backward", "the same under autocast")

# Ours may cost this many times what PyTorch's costs.
LAYER_GOAL = 1.0


class Costs(NamedTuple):
    """Microseconds of a call of our layer, and of the layer that it replaces."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times what the other costs ours costs."""
        return self.ours / self.theirs

    @property
    def reached(self) -> bool:
        """Whether ours costs no more, to the two digits that are shown."""
        return round(self.ratio, 2) <= LAYER_GOAL

    def __str__(self) -> str:
        return f"{self.ours:.1f} / {self.theirs:.1f} = {self.ratio:.2f} {'✓' if self.reached else '✗'}"


@dataclass(frozen=True)
class LayerOverhead:
    """The cost of a layer of ours and of the layer that it replaces, by the names of `MODES`."""

    name: str
    replaced: str
    costs: Mapping[str, Costs]

    def as_dict(self) -> dict[str, Any]:
        """The figures, for a machine to read."""
        costs = {mode: each._asdict() | {"ratio": each.ratio} for mode, each in self.costs.items()}
        return {"name": self.name, "replaced": self.replaced, "costs": costs}


def layers_table(layers: Sequence[LayerOverhead], environment: object) -> Table:
    """The figures of all layers, for a person to read."""
    rows = [[each.name, each.replaced, *map(str, each.costs.values())] for each in layers]
    notes = [
        f"Each cell: our layer / the layer that it replaces = their ratio, at most {LAYER_GOAL:.0f}. Both layers have "
        "weights of the same sizes and get the same input, whose gradient is computed too. Under autocast the input is "
        "bfloat16 and the weights are float32.",
        str(environment),
    ]
    return Table("What a layer costs the host, in microseconds", ["", "replaces", *MODES], rows, notes)


def layer_timers(pairs: Sequence[ReplacedLayer], device: torch.device) -> dict[tuple[str, str], Timer]:
    """A timer for each layer and mode: the keys are `ours` or `theirs` with the name, and the mode."""
    timers = {}
    for pair in pairs:
        for side, make in (("ours", pair.ours), ("theirs", pair.theirs)):
            for mode in MODES:
                timers[f"{side} {pair.name}", mode] = _make_timer(make, pair.input_size, mode, device)
    return timers


def layers_from(pairs: Sequence[ReplacedLayer], costs: Mapping[tuple[str, str], float]) -> tuple[LayerOverhead, ...]:
    """The times that the timers of `layer_timers` measured."""
    return tuple(
        LayerOverhead(
            pair.name,
            pair.replaced,
            {mode: Costs(costs[f"ours {pair.name}", mode], costs[f"theirs {pair.name}", mode]) for mode in MODES},
        )
        for pair in pairs
    )


def _make_timer(make: Callable[..., nn.Module], input_size: Sequence[int], mode: str, device: torch.device) -> Timer:
    layer = make(device=device)
    dtype = torch.bfloat16 if mode == AUTOCAST else torch.float32
    input = torch.randn(input_size, device=device, dtype=dtype).requires_grad_(mode != NO_GRAD)
    variables: dict[str, Any] = {"layer": layer, "input": input}
    if mode == NO_GRAD:
        return Timer("with no_grad(): layer(input)", globals={**variables, "no_grad": torch.no_grad})
    if mode == FORWARD:
        return Timer("layer(input)", globals=variables)
    scope = partial(torch.autocast, device.type, dtype) if mode == AUTOCAST else nullcontext
    with scope():
        output = _first(layer(input))
    variables |= {
        "grad": torch.autograd.grad,
        "scope": scope,
        "inputs": (input, *layer.parameters()),
        "output_grad": torch.ones_like(output),
        "first": _first,
    }
    call = "grad(first(output), inputs, output_grad)"
    if mode == AUTOCAST:
        return Timer(f"with scope(): output = layer(input)\n{call}", globals=variables)
    return Timer(f"output = layer(input)\n{call}", globals=variables)


def _first(results: Any) -> Any:
    """The first result, as most models use no other of a recurrent layer."""
    return results[0] if isinstance(results, tuple) else results
