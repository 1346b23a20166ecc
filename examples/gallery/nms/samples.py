"""Inputs for nms: none, one and many boxes, equal scores, equal boxes, and overlaps at the threshold."""

import importlib
import importlib.util
from collections.abc import Callable
from random import Random
from typing import Any

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _boxes(random: Random, count: int, size: float = 10.0) -> tuple[float, ...]:
    """Corners of boxes, one box after the other."""
    values: list[float] = []
    for _ in range(count):
        x, y = random.uniform(0, size), random.uniform(0, size)
        values += (x, y, x + random.uniform(0.5, 6), y + random.uniform(0.5, 6))
    return tuple(values)


def _sample(name: str, count: int, iou_threshold: float, size: float = 10.0) -> Sample:
    values = _boxes(Random(count), count, size) or None
    return Sample(name, (Drawn((count, 4), values=values), Drawn((count,)), iou_threshold))


def _draw(random: Random) -> Sample:
    count = random.randint(0, 12)
    boxes = Drawn((count, 4), values=_boxes(random, count) or None)
    return Sample(f"drawn {count}", (boxes, Drawn((count,)), random.choice((0.0, 0.3, 0.5, 0.9))))


_EQUAL = (0.0, 0.0, 2.0, 1.0)
_HALVES = (0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 1.0, 5.0, 5.0, 6.0, 6.0)

_TABLE = (
    _sample("no box", 0, 0.5),
    _sample("one box", 1, 0.5),
    _sample("two boxes", 2, 0.5),
    _sample("nine boxes", 9, 0.3),
    _sample("forty boxes", 40, 0.5),
    _sample("a threshold of zero", 17, 0.0),
    _sample("a threshold of one", 17, 1.0),
    _sample("five hundred boxes", 513, 0.4, 40.0),
    Sample("equal boxes", (Drawn((5, 4), values=_EQUAL), Drawn((5,)), 0.9)),
    Sample("equal boxes and a threshold of one", (Drawn((5, 4), values=_EQUAL), Drawn((5,)), 1.0)),
    Sample("overlaps at the threshold", (Drawn((6, 4), values=_HALVES), Drawn((6,)), 0.5)),
    Sample("equal scores", (Drawn((8, 4), values=_boxes(Random(1), 8)), Drawn((8,), values=(0.5,)), 0.2)),
    Sample("boxes without an area", (Drawn((3, 4), values=(1.0, 1.0, 1.0, 1.0)), Drawn((3,)), 0.5)),
    # More than a thread's share.
    _sample("many boxes", 2100, 0.5, 200.0),
)

_BENCHMARKS = (
    Benchmark(_sample("1000 boxes", 1000, 0.5, 100.0), "boxes", quick=True),
    Benchmark(_sample("4000 boxes", 4000, 0.5, 200.0), "boxes"),
)


def _rivals() -> dict[str, Callable[..., Any]]:
    """Torchvision's own, where it is installed."""
    if importlib.util.find_spec("torchvision") is None:
        return {}
    return {"torchvision": importlib.import_module("torchvision.ops").nms}


samples = {"nms": Samples(_TABLE, _draw, benchmarks=_BENCHMARKS, rivals=_rivals())}
