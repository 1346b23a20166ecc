"""How the sliding kernels cut a depthwise convolution into blocks: both sides of each limit.

The plans are host code alone: the tests compile them into a program and ask that, on a machine without a GPU.
"""

import random
import subprocess
from dataclasses import dataclass

import pytest

from choice import build

CORRELATE, WEIGHT_GRAD = "slide_correlate_mma", "slide_weight_grad_mma"
H200 = 132, 227 << 10, 228 << 10  # multiprocessors, shared memory of a block and of a multiprocessor
T4 = 40, 64 << 10, 64 << 10


@dataclass(frozen=True)
class Call:
    """A pass over NHWC images, with the padding that keeps an odd kernel's size."""

    kernel: str
    images: tuple[int, int, int, int]
    taps: int = 7
    stride: int = 1
    dilation: int = 1
    transposed: bool = False
    device: tuple[int, int, int] = H200

    def output(self, size: int) -> int:
        padding = self.taps // 2 * self.dilation
        return (size + 2 * padding - self.dilation * (self.taps - 1) - 1) // self.stride + 1

    def line(self) -> str:
        """The line that the program reads."""
        batch, channels, *sizes = self.images
        padding = self.taps // 2 * self.dilation
        extents = [(size, self.output(size), self.taps, self.stride, padding, self.dilation) for size in sizes]
        numbers = *self.device, int(self.transposed), batch, channels, *extents[0], *extents[1]
        return " ".join([self.kernel, *map(str, numbers)])


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """`ask(calls)`: the plan of each call, or of each line that says one."""
    program = build("depthwise_conv2d", tmp_path_factory.mktemp("plans"), "slide_plans")

    def ask(calls: list[Call] | list[str]) -> list[dict[str, int]]:
        lines = "".join(f"{call.line() if isinstance(call, Call) else call}\n" for call in calls)
        done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
        plans = [dict(each.split("=") for each in line.split()) for line in done.stdout.splitlines()]
        assert len(plans) == len(calls)
        return [{name: int(number) for name, number in plan.items()} for plan in plans]

    return ask


@pytest.mark.parametrize(
    ("call", "plan"),
    [
        # Four warps of 32 pairs are as wide as a block gets with k = 7; a wider row is cut into tiles.
        (Call(CORRELATE, (128, 8, 56, 256)), {"tiles": 1, "pairs": 128, "threads": 256, "octets": 1}),
        (Call(CORRELATE, (128, 8, 56, 258)), {"tiles": 5, "pairs": 26, "threads": 64, "octets": 1}),
        # Eight images of 7 x 7 lie side by side under one warp, if there are as many.
        (Call(CORRELATE, (2, 8, 7, 7)), {"images": 2}),
        (Call(CORRELATE, (8, 8, 7, 7)), {"images": 8}),
        (Call(CORRELATE, (9, 8, 7, 7)), {"images": 8}),
        (Call(CORRELATE, (8, 8, 7, 9)), {"images": 6}),
        # Channels are cut into slices that are alike.
        (Call(CORRELATE, (128, 96, 56, 56)), {"slices": 3, "octets": 4}),
        (Call(CORRELATE, (128, 96, 56, 56), taps=3), {"slices": 2, "octets": 6, "threads": 384}),
        # Two blocks of 256 threads are resident on a multiprocessor; no range is empty.
        (Call(CORRELATE, (128, 96, 56, 56)), {"blocks": 3 * 88, "ranges": 88, "granule_rows": 1}),
        (Call(CORRELATE, (1, 8, 56, 56)), {"blocks": 56, "ranges": 56}),
        (Call(CORRELATE, (128, 96, 56, 56), device=T4), {"blocks": 3 * 13, "ranges": 13}),
        # Ranges of whole images, if these take less time.
        (Call(CORRELATE, (128, 8, 56, 512)), {"tiles": 2, "ranges": 128, "granules": 128, "granule_rows": 56}),
        # A dilation of two makes four phases, each with blocks of its own.
        (Call(CORRELATE, (4, 96, 56, 56), taps=3, dilation=2), {"phases": 4, "pairs": 14, "padding_y": 1}),
        # A block has as many groups of channels as there are, up to eight, and then an even number.
        (Call(WEIGHT_GRAD, (128, 8, 56, 56)), {"groups": 1, "slabs": 1}),
        (Call(WEIGHT_GRAD, (128, 18, 56, 56)), {"groups": 3, "slabs": 1}),
        (Call(WEIGHT_GRAD, (128, 96, 56, 56)), {"groups": 2, "slabs": 6}),
        # Rows of images that the warps of a block cannot hold are cut into tiles.
        (Call(WEIGHT_GRAD, (128, 8, 56, 192)), {"tiles": 4, "octets": 6}),
        (Call(WEIGHT_GRAD, (128, 8, 56, 193)), {"tiles": 5, "octets": 5}),
        # Between two images lie as many rows as no tap joins.
        (Call(WEIGHT_GRAD, (128, 96, 56, 56)), {"period": 59}),
        (Call(WEIGHT_GRAD, (128, 96, 56, 56), stride=2), {"period": 30}),
        (Call(WEIGHT_GRAD, (128, 96, 56, 56), taps=3), {"period": 57}),
        # Narrow images fill a warp by several streams of rows.
        (Call(WEIGHT_GRAD, (1, 96, 7, 7)), {"octets": 1, "streams": 2}),
        # A block takes no more shared memory than the device gives it; with less than any takes, there is none.
        (Call(WEIGHT_GRAD, (128, 96, 56, 56), device=(40, 20 << 10, 64 << 10)), {"groups": 2, "octets": 4}),
        (Call(WEIGHT_GRAD, (128, 96, 56, 56), device=(40, 8 << 10, 64 << 10)), {"groups": 1, "octets": 2}),
        (Call(WEIGHT_GRAD, (128, 96, 56, 56), device=(40, 2 << 10, 64 << 10)), {"threads": 0}),
    ],
    ids=str,
)
def test_a_plan_on_both_sides_of_its_limits(ask, call, plan):
    (found,) = ask([call])
    assert {name: found[name] for name in plan} == plan


@pytest.mark.parametrize(
    ("units", "rows", "threads", "rows_of_range"),
    [
        # As many ranges as threads can take at once, down to a row each.
        (1, 56, 1000, 1),
        (100, 56, 1000, 6),
        (250, 56, 1000, 14),
        # With no thread to spare, all rows; between, ranges in several turns of all threads.
        (1000, 56, 1000, 56),
        (600, 56, 1000, 19),
    ],
)
def test_rows_of_a_range_of_columns(ask, units, rows, threads, rows_of_range):
    assert ask([f"slide_columns {units} {rows} {threads}"]) == [{"rows": rows_of_range}]


@pytest.mark.parametrize(
    ("groups", "lanes", "slices", "strips"),
    [(1, 1, 1, 128), (24, 24, 1, 5), (64, 64, 1, 2), (96, 96, 1, 1), (128, 128, 1, 1), (129, 43, 3, 2)],
)
def test_lanes_of_a_block_of_columns(ask, groups, lanes, slices, strips):
    """A block has 128 threads: more groups of channels are cut into slices, fewer leave room for strips."""
    plan = {"lanes": lanes, "slices": slices, "strips": strips}
    assert ask([f"slide_columns_weight_grad {groups}"]) == [plan]


@pytest.mark.parametrize(
    ("groups", "strips", "most_blocks", "units", "plan"),
    [
        # A block has at most 256 threads and 48 KB.
        (24, 14, 512, 7168, {"lanes": 8, "strips": 14, "slices": 3, "tiles": 1, "ranges": 176}),
        (1, 127, 1, 7, {"lanes": 1, "strips": 127, "tiles": 1, "bytes": 48864}),
        # A strip more is two tiles; if only one block may share a row, there is no tile.
        (1, 128, 2, 7, {"lanes": 1, "strips": 64, "tiles": 2}),
        (1, 128, 1, 7, {"lanes": 0}),
        # No range is empty.
        (24, 14, 512, 7, {"ranges": 7}),
    ],
)
def test_a_tile_of_channels_and_columns(ask, groups, strips, most_blocks, units, plan):
    line = " ".join(str(number) for number in (*H200, groups, strips, most_blocks, units))
    (found,) = ask([f"slide_weight_grad {line}"])
    assert {name: found[name] for name in plan} == plan


def drawn(kernel: str, count: int) -> list[Call]:
    """Calls of any size, from one pixel up, for devices large and small."""
    draw = random.Random(kernel)

    def number(most: int) -> int:
        return round(most ** draw.random())

    calls = []
    for _ in range(count):
        step = draw.choice(["stride", "dilation"])
        channels = 8 * number(256) if kernel == CORRELATE else 2 * number(1024)
        calls.append(
            Call(
                kernel,
                (number(256), channels, number(400), number(400)),
                taps=draw.choice([3, 5, 7]),
                device=draw.choice([H200, T4, (108, 163 << 10, 164 << 10)]),
                **{step: draw.choice([1, 2] if step == "stride" or kernel == CORRELATE else [1])},
            )
        )
    return calls


def test_blocks_of_a_correlation_cover_it_and_fit_a_device(ask):
    calls = drawn(CORRELATE, 2000)
    for call, plan in zip(calls, ask(calls), strict=True):
        batch, channels, height, width = call.images
        columns = -(-call.output(width) // call.dilation)
        rows = -(-call.output(height) // call.dilation)
        assert 0 < plan["threads"] <= plan["most_threads"], call
        assert plan["bytes"] <= plan["most_bytes"], call
        assert channels <= 8 * plan["octets"] * plan["slices"] < channels + 8 * plan["octets"], call
        assert columns <= 2 * plan["pairs"] * plan["tiles"], call
        # The threads that copy a row reach all of its pixels, of all images side by side.
        assert plan["images"] * plan["copied"] <= plan["room"], call
        assert plan["images"] == 1 or plan["tiles"] == 1, call
        assert plan["granules"] * plan["granule_rows"] == -(-batch // plan["images"]) * rows, call
        assert 1 <= plan["ranges"] <= plan["granules"], call
        assert plan["blocks"] == plan["slices"] * plan["tiles"] * plan["phases"] * plan["ranges"], call


def test_blocks_of_a_weight_gradient_cover_it_and_fit_a_device(ask):
    calls = drawn(WEIGHT_GRAD, 2000)
    plans = [(call, plan) for call, plan in zip(calls, ask(calls), strict=True) if plan["supported"]]
    assert len(plans) > 1000
    for call, plan in plans:
        batch, channels, _, width = call.images
        octets = -(-call.output(width) // 8)
        assert 0 < plan["threads"] <= plan["most_threads"], call
        assert plan["bytes"] <= call.device[1], call
        assert channels <= 8 * plan["groups"] * plan["slabs"] < channels + 8 * plan["groups"], call
        assert octets <= plan["octets"] * plan["tiles"] < octets + plan["octets"], call
        # Every octet of every stream is some warp's.
        assert plan["streams"] * plan["octets"] * plan["groups"] * 32 <= plan["threads"] * 4, call
        # The streams of all ranges are all rows of the sequence.
        assert plan["rows"] * plan["streams"] * plan["ranges"] >= batch * plan["period"], call
