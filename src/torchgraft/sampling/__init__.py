"""Samples: the inputs on which an operator is checked and measured."""

from torchgraft.sampling.packed import Packed, draw_packed, packed_samples
from torchgraft.sampling.samples import (
    Benchmark,
    Budget,
    Distribution,
    Drawn,
    Large,
    ModuleSample,
    ReplacedLayer,
    Sample,
    Samples,
    SizedRandom,
    any_size,
    draw_at_border,
    log_uniform,
    movable,
    rounded,
)

__all__ = [
    "Benchmark",
    "Budget",
    "Distribution",
    "Drawn",
    "Large",
    "ModuleSample",
    "Packed",
    "ReplacedLayer",
    "Sample",
    "Samples",
    "SizedRandom",
    "any_size",
    "draw_at_border",
    "draw_packed",
    "log_uniform",
    "movable",
    "packed_samples",
    "rounded",
]
