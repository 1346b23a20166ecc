"""Roofs: the bandwidth and the operations a second of a device, measured, which no kernel exceeds."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchgraft import native
from torchgraft.benchmarking.timing import Stopwatch
from torchgraft.kernels.precision import tf32_permitted

# Chains of multiply-adds in registers; the kernels are in multiply_adds.cpp and multiply_adds.cu.
_LIBRARY = torch.library.Library("torchgraft", "FRAGMENT")
_LIBRARY.define("multiply_adds(Tensor like, int steps) -> Tensor")

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Bytes that a copy reads and writes, together.
_COPY_BYTES = {
    "cpu": tuple(2**power for power in range(14, 29, 2)),
    "cuda": tuple(2**power for power in range(18, 34, 2)),
}
_MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
_PROBE_STEPS = {"cpu": 4096, "cuda": 16384}


@dataclass(frozen=True)
class Roofs:
    """The most that a device was seen to do.

    Attributes:
        bandwidth: bytes a second that a copy moves, read and written, by the bytes that it moves.
        multiply_add: floating-point operations a second of multiply-adds in registers, by dtype.
        matrix: floating-point operations a second of a large matrix product, by dtype, on a GPU of tf32 too.
        launch: seconds that the least of all kernels takes.
    """

    bandwidth: dict[int, float]
    multiply_add: dict[str, float]
    matrix: dict[str, float]
    launch: float

    def bandwidth_at(self, moved: int) -> float:
        """Bytes a second for so many bytes: the best of the measured amounts on either side.

        The better of the two, as a kernel that moves somewhat more or less may do as well.
        """
        sizes = sorted(self.bandwidth)
        place = bisect.bisect_left(sizes, moved)
        return max(self.bandwidth[size] for size in sizes[max(0, place - 1) : place + 1])

    def peak(self, dtype: str) -> float:
        """Floating-point operations a second: of matrix products or of multiply-adds, whichever is more."""
        return max(self.multiply_add.get(dtype, 0.0), self.matrix.get(dtype, 0.0))

    def floor(self, moved: int, operations: int, dtype: str) -> tuple[float, str]:
        """The least seconds for so many bytes and operations, and what bounds them: memory, compute or launch."""
        bounds = {
            "memory": moved / self.bandwidth_at(moved),
            "compute": operations / self.peak(dtype) if self.peak(dtype) else 0.0,
            "launch": self.launch,
        }
        bound = max(bounds, key=lambda name: bounds[name])
        return bounds[bound], bound


def measure_roofs(device: torch.device, dtypes: tuple[torch.dtype, ...] = _DTYPES, seconds: float = 0.1) -> Roofs:
    """Measures what a device can do, with PyTorch's copy and matrix product and a kernel of multiply-adds."""
    stopwatch = Stopwatch(device, seconds)
    bandwidth = {}
    for moved in _COPY_BYTES[device.type]:
        source = torch.empty(moved // 2, dtype=torch.uint8, device=device).random_(0, 255)
        target = torch.empty_like(source)
        bandwidth[moved] = moved / _best(stopwatch, partial(target.copy_, source))
    size = _MATRIX_SIZE[device.type]
    matrix, multiply_add = {}, {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        # Without tf32, as kernels in float32 do without it unless they are told to.
        matrix[name] = 2 * size**3 / _best(stopwatch, partial(torch.matmul, left, right))
        if dtype in (torch.float64, torch.float32) and native.has_kernels("torchgraft", device.type):
            multiply_add[name] = _multiply_add_peak(stopwatch, dtype)
        if dtype == torch.float32 and device.type == "cuda":
            with tf32_permitted():
                matrix["tf32"] = 2 * size**3 / _best(stopwatch, partial(torch.matmul, left, right))
    one = torch.zeros(1, device=device)
    launch = _best(stopwatch, one.zero_)
    return Roofs(bandwidth, multiply_add, matrix, launch)


def _multiply_add_peak(stopwatch: Stopwatch, dtype: torch.dtype) -> float:
    device = stopwatch.device
    steps = _PROBE_STEPS[device.type]
    like = torch.ones((), dtype=dtype, device=device)
    # Each element of the result is the last of a chain of so many steps, two operations each.
    operations = 2 * steps * torch.ops.torchgraft.multiply_adds(like, steps).numel()
    return operations / _best(stopwatch, lambda: torch.ops.torchgraft.multiply_adds(like, steps))


def _best(stopwatch: Stopwatch, call: Callable[[], Any]) -> float:
    """The least seconds of all rounds: a roof is what was reached once."""
    return min(stopwatch.time({"call": call})["call"].rounds)
