"""The stopwatch: what it counts, what it does not, and how sure it is."""

import itertools
import random
import time

import pytest
import torch

from torchgraft.benchmarking.roofs import Roofs, measure_roofs
from torchgraft.benchmarking.timing import LEAST_ROUNDS, Stopwatch, ratio_of, summarise

CPU = torch.device("cpu")


def test_what_a_call_takes_is_what_is_measured():
    timing = Stopwatch(CPU, seconds=0.1).time({"sleep": lambda: time.sleep(0.005)})["sleep"]
    assert 0.005 <= timing.time.median < 0.008
    assert len(timing.rounds) >= LEAST_ROUNDS
    assert not timing.warm


def test_contenders_are_timed_in_turn():
    order = []
    Stopwatch(CPU, seconds=0.03).time(
        {name: lambda name=name: (order.append(name), time.sleep(0.004)) for name in "ab"}
    )
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes >= LEAST_ROUNDS


def test_the_same_against_itself_is_noise_in_nineteen_of_twenty_runs():
    generator = random.Random(0)

    def rounds() -> list[float]:
        return [generator.lognormvariate(0, 0.1) for _ in range(15)]

    inside = sum(ratio_of(rounds(), rounds()).is_noise for _ in range(2000))
    # An interval that holds in 96.5 of 100, and no wider than it must be.
    assert 0.95 <= inside / 2000 <= 0.985


def test_a_difference_beyond_noise_is_seen():
    generator = random.Random(0)
    slow, quick = ([length * generator.lognormvariate(0, 0.02) for _ in range(15)] for length in (1.1, 1.0))
    ratio = ratio_of(slow, quick)
    assert not ratio.is_noise
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.median == pytest.approx(1.1, rel=0.03)


def test_quartiles():
    time = summarise([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (time.low, time.median, time.high) == (2.0, 3.0, 4.0)
    assert time.spread == pytest.approx(1 / 3)


ROOFS = Roofs({1000: 1e9, 10_000: 4e9, 100_000: 2e9}, {"float32": 1e12}, {"float32": 5e11, "bfloat16": 1e13}, 1e-6)


@pytest.mark.parametrize(
    ("moved", "operations", "dtype", "floor", "bound"),
    [
        (100_000, 1000, "float32", 100_000 / 4e9, "memory"),
        (1000, 10**9, "float32", 1e-3, "compute"),
        (1000, 10**9, "bfloat16", 1e-4, "compute"),
        (100, 100, "float32", 1e-6, "launch"),
        (10**6, 0, "float32", 10**6 / 2e9, "memory"),
    ],
)
def test_the_floor_is_the_highest_of_the_bounds(moved, operations, dtype, floor, bound):
    found, what = ROOFS.floor(moved, operations, dtype)
    assert what == bound
    assert found == pytest.approx(floor)


def test_roofs_of_this_machine_are_measured():
    roofs = measure_roofs(CPU, dtypes=(torch.float32,), seconds=0.01)
    assert all(0 < rate < 10**13 for rate in roofs.bandwidth.values())
    # How much, depends on what else the machine does; that there is a figure, and of what order, does not.
    assert 10**8 < roofs.multiply_add["float32"] < 10**14
    assert 10**8 < roofs.matrix["float32"] < 10**14
    assert 0 < roofs.launch < 1e-3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestOnCuda:
    """Events on the current stream, a flushed cache, and no launch in between."""

    @pytest.fixture
    def stopwatch(self):
        return Stopwatch(torch.device("cuda"), seconds=0.05)

    def test_a_kernel_that_nobody_waits_for_is_timed(self, stopwatch):
        cycles = 2_000_000
        timing = stopwatch.time({"sleep": lambda: torch.cuda._sleep(cycles)})["sleep"]
        # No card runs at more than 2.5 GHz or less than half a GHz.
        assert cycles / 2.5e9 < timing.time.median < cycles / 0.5e9
        assert timing.host < timing.time.median / 2

    def test_work_on_another_stream_is_not_timed(self, stopwatch):
        other = torch.cuda.Stream()
        x = torch.zeros(1, device="cuda")

        def call():
            with torch.cuda.stream(other):
                torch.cuda._sleep(2_000_000)
            x.zero_()

        timing = stopwatch.time({"elsewhere": call})["elsewhere"]
        torch.cuda.synchronize()
        assert timing.time.median < 2_000_000 / 2.5e9 / 2

    def test_the_host_is_not_timed(self, stopwatch):
        x = torch.zeros(1, device="cuda")

        def call():
            time.sleep(0.0005)
            x.zero_()

        timing = stopwatch.time({"slow host": call})["slow host"]
        assert timing.time.median < 0.0001
        assert timing.host >= 0.0005

    def test_the_cache_is_cold_and_warm_is_apart(self, stopwatch):
        # Eight million bytes: within a second-level cache, several times what a launch costs.
        x = torch.randn(2_000_000, device="cuda")
        y = torch.empty_like(x)
        timing = stopwatch.time({"copy": lambda: y.copy_(x)})["copy"]
        assert timing.time.median > 1.1 * summarise(timing.warm).median

    def test_the_same_kernel_against_itself_is_noise(self, stopwatch):
        x = torch.randn(2**24, device="cuda")

        def call():
            return x * 2

        inside = 0
        for _ in range(20):
            timings = stopwatch.time({"one": call, "other": call})
            ratio = ratio_of(timings["one"].rounds, timings["other"].rounds)
            inside += ratio.is_noise or abs(ratio.median - 1) < 0.002
        assert inside >= 18

    def test_roofs(self):
        roofs = measure_roofs(torch.device("cuda"), dtypes=(torch.float32, torch.bfloat16), seconds=0.02)
        sizes = sorted(roofs.bandwidth)
        assert roofs.bandwidth[sizes[-1]] > roofs.bandwidth[sizes[0]]
        assert roofs.matrix["bfloat16"] > roofs.multiply_add["float32"] > 10**12
        assert 1e-6 < roofs.launch < 1e-4
