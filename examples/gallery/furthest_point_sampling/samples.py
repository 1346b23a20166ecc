"""Inputs for furthest_point_sampling: one point and many, none chosen and all, equal points, and several clouds."""

from random import Random

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _sample(name: str, batch: int, points: int, count: int) -> Sample:
    return Sample(name, (Drawn((batch, points, 3)), count))


def _draw(random: Random) -> Sample:
    points = random.randint(0, 12)
    return _sample(f"drawn {points}", random.randint(0, 3), points, random.randint(0, points))


# A corner, the one beside it, and the center of a square: distances that are equal.
_SQUARE = (0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0.5, 0.5, 0)

_TABLE = (
    _sample("one point", 1, 1, 1),
    _sample("no point of one", 1, 1, 0),
    _sample("no points", 2, 0, 0),
    _sample("no clouds", 0, 5, 2),
    _sample("three of seven points", 2, 7, 3),
    _sample("all of seven points", 1, 7, 7),
    _sample("as many points as a vector has, and one more", 1, 17, 9),
    _sample("five clouds", 5, 33, 8),
    Sample("equal points", (Drawn((1, 6, 3), values=(1.0, 2.0, 3.0)), 4)),
    Sample("equal distances", (Drawn((1, 5, 3), values=_SQUARE), 5)),
    _sample("a thousand points", 2, 1000, 40),
)

_BENCHMARKS = (
    Benchmark(_sample("8 clouds of 1024 points", 8, 1024, 512), "clouds", quick=True),
    Benchmark(_sample("8 clouds of 4096 points", 8, 4096, 1024), "clouds"),
)

samples = {"furthest_point_sampling": Samples(_TABLE, _draw, benchmarks=_BENCHMARKS)}
