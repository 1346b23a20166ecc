"""Which kernel serves a shift or the recurrence of lltm on CUDA: both sides of boundaries of their policies.

The headers are host code alone: the tests compile them into programs and ask those, on a machine without a GPU.
"""

import random
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from choice import PACKAGE, build, kernels_in

H200 = 132, 227 << 10
OLD = 40, 64 << 10


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """`program(operator)`: the path of one that is built once."""

    return cache(lambda operator: build(operator, tmp_path_factory.mktemp("choice")))


def line_of(call):
    """The line that a program reads."""
    return " ".join(str(int(each)) if isinstance(each, bool) else str(each) for each in call)


@pytest.fixture(scope="module")
def ask(program):
    """`ask(operator, *call)`: the answer for a call."""

    def ask(operator, *call):
        line = line_of(call)
        asked = subprocess.run([program(operator)], input=f"{line}\n", capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    return ask


SHIFTS = [
    ("forward", False, 4, H200, (2, 64, 300, 25, 1), "planes of planes direct"),
    # A tile holds two rows of sources; a longer row it still holds, where that does not pay.
    ("forward", False, 4, H200, (2, 64, 30, 2048, 1), "planes of planes direct"),
    ("forward", False, 4, H200, (2, 64, 30, 2049, 1), "direct of planes direct"),
    ("grads", False, 4, H200, (2, 64, 30, 1024, 1), "planes of planes direct"),
    ("grads", False, 4, H200, (2, 64, 30, 1025, 1), "direct of planes direct"),
    ("forward", False, 4, OLD, (2, 64, 30, 2049, 1), "direct of direct"),
    ("forward", False, 4, H200, (2, 64, 30, 20000, 1), "direct of direct"),
    ("forward", True, 4, H200, (2, 64, 300, 25, 1), "channels_last of channels_last direct"),
    # As many threads a row as a block has, of narrow pixels.
    ("forward", True, 4, H200, (2, 64, 300, 320, 1), "channels_last of channels_last direct"),
    ("forward", True, 4, H200, (2, 64, 300, 321, 1), "direct of direct"),
    # Double, sums, and what is transposed, whose rows of results lie apart.
    *(
        (passed, channels_last, size, H200, (2, 64, 30, 30, stride), f"{kernel} of {kernel} direct")
        for channels_last, kernel in ((False, "planes"), (True, "channels_last"))
        for passed in ("forward", "input_grad", "offset_grad", "grads")
        for size in (4, 8)
        for stride in (1, 2)
    ),
    # Shared memory that does not hold what one result needs.
    ("forward", False, 4, (132, 1 << 10), (2, 64, 30, 30, 1), "direct of direct"),
    ("forward", True, 4, (132, 1 << 14), (2, 64, 30, 30, 1), "direct of direct"),
    # Positions of 32 bits: of a row, of a plane, of tiles; of rows, of a row's elements, of groups of channels.
    ("forward", False, 4, H200, (1, 1, 1, 1 << 30, 1), "direct of direct"),
    ("forward", False, 4, H200, (1, 1, (1 << 28) - 1, 1, 1), "planes of planes direct"),
    ("forward", False, 4, H200, (1, 1, 1 << 28, 1, 1), "direct of direct"),
    ("forward", False, 4, H200, ((1 << 15) - 1, 1 << 15, 1, 8, 1), "planes of planes direct"),
    ("forward", False, 4, H200, (1 << 15, 1 << 15, 1, 8, 1), "direct of direct"),
    ("forward", True, 4, H200, (1, 8, (1 << 29) - 1, 1, 1), "channels_last of channels_last direct"),
    ("forward", True, 4, H200, (1, 8, 1 << 29, 1, 1), "direct of direct"),
    ("forward", True, 4, H200, (1, 1 << 23, 1, 64, 1), "direct of direct"),
    ("forward", True, 4, H200, ((1 << 29) - 1, 8, 1, 8, 1), "channels_last of channels_last direct"),
    ("forward", True, 4, H200, (1 << 29, 8, 1, 8, 1), "direct of direct"),
    ("forward", True, 4, H200, (1, (1 << 24) - 32, 1, 1, 1), "channels_last of channels_last direct"),
    ("forward", True, 4, H200, (1, (1 << 24) - 31, 1, 1, 1), "direct of direct"),
]


@pytest.mark.parametrize(
    ("passed", "channels_last", "bytes_of_element", "device", "sizes", "kernels"),
    SHIFTS,
)
def test_the_kernel_of_a_shift(ask, passed, channels_last, bytes_of_element, device, sizes, kernels):
    assert ask("shift", passed, channels_last, bytes_of_element, *device, *sizes) == kernels


def plans_of(program, kernel, lines):
    """How a kernel of shift cuts each of these calls, whose last number is the address of the source."""
    text = "".join(f"{kernel} {line}\n" for line in lines)
    asked = subprocess.run([program("shift"), "plans"], input=text, capture_output=True, text=True, check=True)
    return asked.stdout.splitlines()


# Calls on a GPU with 132 multiprocessors and 227 KB of shared memory a block.
ROWS_OF_THE_RING = {
    # Four blocks a multiprocessor, as long as the ring lets offsets differ by five rows; fewer for wider rows.
    "forward 1 4 132 232448 128 64 300 25 1 0": "528 blocks of 160, 264 parts, 56320 bytes; ring of 13, span 6;",
    "grads 1 4 132 232448 128 64 300 25 1 0": "528 blocks of 160, 264 parts, 53632 bytes; ring of 12, span 6;",
    "forward 1 4 132 232448 128 64 300 28 1 0": "528 blocks of 192, 264 parts, 57344 bytes; ring of 12, span 5;",
    "forward 1 4 132 232448 128 64 300 29 1 0": "396 blocks of 192, 198 parts, 72448 bytes; ring of 15, span 8;",
    # As many channels as 32 bytes hold, and more; as many threads a row as 128 bytes allow, and more.
    "forward 1 4 132 232448 2 8 30 25 1 0": "60 blocks of 64, 60 parts, 30944 bytes; ring of 30, span 536870912;",
    "forward 1 4 132 232448 2 9 30 25 1 0": "60 blocks of 160, 60 parts, 56320 bytes; ring of 13, span 6;",
    "forward 1 4 132 232448 2 64 300 80 1 0": "132 blocks of 512, 66 parts, 231936 bytes; ring of 20, span 13;",
    "forward 1 4 132 232448 2 64 300 81 1 0": "528 blocks of 160, 66 parts, 55872 bytes; ring of 19, span 12;",
    "forward 1 4 132 232448 2 64 300 320 1 0": "128 blocks of 512, 16 parts, 229696 bytes; ring of 21, span 14;",
    "forward 1 4 132 232448 2 64 300 321 1 0": "none",
    # A ring that holds all rows takes any offsets in one pass.
    "forward 1 4 132 232448 2 64 13 25 1 0": "52 blocks of 160, 26 parts, 56320 bytes; ring of 13, span 536870912;",
    "forward 1 4 132 232448 2 64 14 25 1 0": "56 blocks of 160, 28 parts, 56320 bytes; ring of 13, span 6;",
    # With a stride rows of results lie further apart in the source, and closer together in its transpose.
    "forward 1 4 132 232448 2 64 300 25 3 0": "264 blocks of 160, 132 parts, 111872 bytes; ring of 27, span 10;",
    "input_grad 1 4 132 232448 2 64 300 25 3 0": "528 blocks of 160, 264 parts, 56320 bytes; ring of 13, span 27;",
}
COPIES_OF_THE_RING = {
    "forward 1 4 132 232448 2 64 300 25 1 0": "2 groups of 32, 5 chunks; 8 and 8 pieces of 16; pitch 992 of 14080, 1",
    "forward 1 2 132 232448 2 64 300 25 1 0": "1 groups of 64, 5 chunks; 8 and 8 pieces of 16; pitch 1984 of 28160, 1",
    # The channels of a pixel, and where the source begins, limit the bytes of a copy.
    "forward 1 2 132 232448 2 72 300 25 1 0": "2 groups of 64, 5 chunks; 8 and 1 pieces of 16; pitch 1984 of 28160, 1",
    "forward 1 2 132 232448 2 68 300 25 1 0": "2 groups of 64, 5 chunks; 16 and 1 pieces of 8; pitch 1984 of 28160, 1",
    "forward 1 2 132 232448 2 66 300 25 1 0": "2 groups of 64, 5 chunks; 32 and 1 pieces of 4; pitch 1984 of 28160, 1",
    "forward 1 2 132 232448 2 65 300 25 1 0": "2 groups of 64, 5 chunks; 64 and 1 pieces of 2; pitch 1984 of 28160, 1",
    "forward 1 2 132 232448 2 64 300 25 1 8": "1 groups of 64, 5 chunks; 16 and 16 pieces of 8; pitch 1984 of 28160, 1",
    "forward 1 2 132 232448 2 64 300 25 1 2": "1 groups of 64, 5 chunks; 64 and 64 pieces of 2; pitch 1984 of 28160, 1",
    "forward 1 8 132 232448 2 63 300 25 1 0": "4 groups of 16, 5 chunks; 16 and 15 pieces of 8; pitch 496 of 7040, 1",
    # Columns of five threads, and one more; a stride moves the ring by as many slots, as far as it has them.
    "forward 1 4 132 232448 2 64 300 26 1 0": "2 groups of 32, 6 chunks; 8 and 8 pieces of 16; pitch 1024 of 13504, 1",
    "forward 1 4 132 232448 2 64 300 25 3 0": "2 groups of 32, 5 chunks; 8 and 8 pieces of 16; pitch 992 of 27968, 3",
}
PLANES = {
    "forward 0 4 132 232448 128 64 300 25 1 0": "512 blocks of 128, 256 parts, 45872 bytes; 150 rows of 151, 7",
    "grads 0 4 132 232448 128 64 300 25 1 0": "656 blocks of 128, 512 parts, 38464 bytes; 75 rows of 76, 4 a thread",
    # A tile whose sources keep 32 or 64 threads busy gets no more; a row more takes twice as many.
    "forward 0 4 132 232448 2 64 15 64 1 0": "128 blocks of 32, ",
    "forward 0 4 132 232448 2 64 16 64 1 0": "128 blocks of 64, ",
    "forward 0 4 132 232448 2 64 31 64 1 0": "128 blocks of 64, ",
    "forward 0 4 132 232448 2 64 32 64 1 0": "128 blocks of 128, ",
    "grads 0 4 132 232448 2 64 7 64 1 0": "128 blocks of 32, ",
    "grads 0 4 132 232448 2 64 8 64 1 0": "128 blocks of 64, ",
    # Double and strides always take 128.
    "forward 0 8 132 232448 2 64 8 8 1 0": "128 blocks of 128, 2 parts, 2320 bytes; 8 rows of 9, 1 a thread",
    "forward 0 4 132 232448 2 64 8 8 2 0": "128 blocks of 128, 2 parts, 1040 bytes; 4 rows of 8, 1 a thread",
    # A tile of the longest rows holds one row of results.
    "forward 0 4 132 232448 2 64 30 1366 1 0": "480 blocks of 128, 60 parts, 49424 bytes; 1 rows of 2,",
    "forward 0 4 132 232448 2 64 30 1365 1 0": "384 blocks of 128, 30 parts, 65792 bytes; 2 rows of 3,",
    # Shared memory that just holds a tile beside the 3,616 bytes that the kernel declares, and a byte less.
    "forward 0 4 132 147888 2 64 30 4000 1 0": "128 blocks of 128, 60 parts, 144272 bytes; 1 rows of 2,",
    "forward 0 4 132 147887 2 64 30 4000 1 0": "none",
}


@pytest.mark.parametrize(
    ("kernel", "plans", "place"),
    [("channels_last", ROWS_OF_THE_RING, 0), ("channels_last", COPIES_OF_THE_RING, 2), ("planes", PLANES, 0)],
    ids=["rows of the ring", "copies to the ring", "planes"],
)
def test_how_a_kernel_of_a_shift_cuts_its_work(program, kernel, plans, place):
    found = plans_of(program, kernel, plans)
    beginnings = [
        plan.split("; ", place)[-1][: len(expected)] for plan, expected in zip(found, plans.values(), strict=True)
    ]
    assert dict(zip(plans, beginnings, strict=True)) == plans


def test_a_name_of_a_kernel_of_a_shift_is_its_path(program):
    done = subprocess.run([program("shift"), "names"], capture_output=True, text=True, check=True)
    kernels = kernels_in(PACKAGE / "operators/shift/cuda")
    assert {name: [f"{name}.cu"] for name in done.stdout.split()} == {
        name: [str(path) for path in kernels[name]] for name in kernels.keys() - {"direct_sums", "add_parts"}
    }


FLOAT, TF32, HALF, BFLOAT16, DOUBLE = (4, 0, 0), (4, 0, 1), (2, 0, 1), (2, 1, 1), (8, 0, 0)


RECURRENCES = (
    (FLOAT, 900, 16, 32, "few_units_forward_32", "few_units_backward_32"),
    (FLOAT, 900, 16, 33, "few_units_forward_64", "few_units_backward_64"),
    (FLOAT, 900, 16, 64, "few_units_forward_64", "few_units_backward_64"),
    (FLOAT, 900, 44, 96, "on_chip_forward_block_96", "on_chip_backward_cluster_8x32"),
    (FLOAT, 900, 45, 96, "on_chip_forward_block_96", "on_chip_backward_block_96"),
    (FLOAT, 900, 33, 128, "on_chip_forward_cluster_4x64", "on_chip_backward_cluster_8x32"),
    (FLOAT, 900, 34, 128, "on_chip_forward_cluster_4x64", "on_chip_backward_cluster_4x64"),
    (FLOAT, 900, 66, 128, "on_chip_forward_cluster_4x64", "on_chip_backward_cluster_4x64"),
    (FLOAT, 900, 67, 128, "on_chip_forward_block_128", "on_chip_backward_block_128"),
    (FLOAT, 900, 16, 256, "on_chip_forward_cluster_8x32", "on_chip_backward_cluster_8x32"),
    (FLOAT, 900, 17, 256, "on_chip_forward_cluster_4x64", "on_chip_backward_cluster_4x64"),
    (FLOAT, 900, 32, 257, "on_chip_forward_cluster_16x32", "on_chip_backward_cluster_16x32"),
    (FLOAT, 900, 64, 528, "grid_forward_4", "grid_backward_4"),
    (FLOAT, 900, 64, 529, "elementwise_forward", "elementwise_backward"),
    (FLOAT, 900, 94, 1024, "grid_forward_8", "elementwise_backward"),
    (FLOAT, 900, 97, 1024, "elementwise_forward", "elementwise_backward"),
    (FLOAT, 800, 32, 128, "on_chip_forward_block_128", "on_chip_backward_block_128"),
    (FLOAT, 800, 32, 129, "grid_forward_2", "grid_backward_2"),
    (FLOAT, 800, 32, 160, "grid_forward_2", "grid_backward_2"),
    (FLOAT, 800, 4, 129, "grid_forward_2", "grid_backward_1"),
    (FLOAT, 750, 4, 64, "few_units_forward_64", "few_units_backward_64"),
    (FLOAT, 750, 64, 128, "grid_forward_2", "grid_backward_2"),
    (FLOAT, 750, 66, 64, "few_units_forward_64", "few_units_backward_64"),
    (FLOAT, 750, 66, 65, "grid_forward_1", "grid_backward_1"),
    (FLOAT, 750, 66, 128, "grid_forward_1", "grid_backward_2"),
    (FLOAT, 750, 32, 400, "grid_forward_4", "grid_backward_8"),
    (DOUBLE, 900, 32, 64, "elementwise_forward", "elementwise_backward"),
    (HALF, 900, 132, 32, "few_units_forward_32", "few_units_backward_32"),
    (HALF, 900, 133, 32, "few_units_forward_32", "few_units_backward_32"),
    (HALF, 900, 3969, 32, "few_units_forward_32", "few_units_backward_32"),
    (HALF, 900, 132, 64, "few_units_forward_64", "few_units_backward_64"),
    (HALF, 900, 133, 64, "few_units_forward_64", "few_units_backward_64"),
    (HALF, 900, 1320, 64, "few_units_forward_64", "few_units_backward_64"),
    (HALF, 900, 132, 128, "on_chip_forward_block_128", "on_chip_backward_block_128"),
    (HALF, 900, 133, 128, "on_chip_mma_forward_block_128", "on_chip_mma_backward_cluster_4x32"),
    (HALF, 900, 265, 128, "on_chip_mma_forward_block_128", "on_chip_backward_block_128"),
    (HALF, 900, 33, 200, "on_chip_mma_forward_cluster_4x64_one_row", "on_chip_backward_cluster_4x64"),
    (HALF, 900, 34, 200, "on_chip_mma_forward_cluster_4x64_one_row", "on_chip_mma_backward_cluster_8x32"),
    (HALF, 900, 72, 200, "on_chip_mma_forward_cluster_4x64_one_row", "on_chip_mma_backward_cluster_8x32"),
    (HALF, 900, 73, 200, "on_chip_mma_forward_cluster_4x64_one_row", "on_chip_mma_backward_cluster_2x128"),
    (HALF, 900, 132, 200, "on_chip_mma_forward_cluster_4x64_one_row", "on_chip_mma_backward_cluster_2x128"),
    (HALF, 900, 133, 200, "on_chip_mma_forward_cluster_2x128", "on_chip_mma_backward_cluster_8x32"),
    (HALF, 900, 145, 200, "on_chip_mma_forward_cluster_2x128", "on_chip_mma_backward_cluster_2x128"),
    (HALF, 900, 8, 512, "on_chip_mma_forward_cluster_8x64_one_row", "on_chip_backward_cluster_16x32"),
    (HALF, 900, 9, 512, "on_chip_mma_forward_cluster_8x64_one_row", "on_chip_mma_backward_cluster_8x64"),
    (HALF, 900, 64, 512, "on_chip_mma_forward_cluster_8x64_one_row", "on_chip_mma_backward_cluster_8x64"),
    (HALF, 900, 65, 512, "on_chip_mma_forward_cluster_8x64", "on_chip_mma_backward_cluster_8x64"),
    (HALF, 900, 384, 512, "on_chip_mma_forward_cluster_8x64", "on_chip_mma_backward_cluster_8x64"),
    (HALF, 900, 385, 512, "steps_forward", "on_chip_mma_backward_cluster_8x64"),
    (HALF, 900, 513, 512, "steps_forward", "steps_backward"),
    (BFLOAT16, 900, 132, 32, "few_units_forward_32", "few_units_backward_32"),
    (BFLOAT16, 900, 133, 32, "few_units_forward_32", "few_units_backward_32"),
    (BFLOAT16, 900, 8, 512, "on_chip_forward_cluster_16x32", "on_chip_backward_cluster_16x32"),
    (TF32, 900, 18, 200, "on_chip_forward_cluster_8x32", "on_chip_backward_cluster_8x32"),
    (TF32, 900, 19, 200, "on_chip_mma_forward_cluster_4x64_one_row", "on_chip_backward_cluster_4x64"),
    (HALF, 900, 4, 768, "on_chip_mma_forward_grid_32x32", "grid_backward_8"),
    (HALF, 900, 5, 768, "on_chip_mma_forward_grid_32x32", "on_chip_mma_backward_grid_32x32"),
    (HALF, 900, 160, 768, "on_chip_mma_forward_grid_32x32", "on_chip_mma_backward_grid_32x32"),
    (HALF, 900, 161, 768, "steps_forward", "steps_backward_in_parts"),
    (HALF, 900, 8, 1040, "grid_forward_8", "grid_backward_8"),
    (HALF, 900, 9, 1040, "steps_forward", "grid_backward_8"),
    (HALF, 900, 16, 1040, "steps_forward", "grid_backward_8"),
    (HALF, 900, 17, 1040, "steps_forward", "steps_backward_in_parts"),
    (HALF, 900, 64, 1032, "steps_forward", "grid_backward_8"),
    (HALF, 900, 64, 1040, "steps_forward", "steps_backward_in_parts"),
    (HALF, 800, 32, 512, "on_chip_mma_forward_grid_16x32", "on_chip_mma_backward_grid_16x32"),
    (TF32, 800, 32, 512, "on_chip_mma_forward_grid_16x32", "on_chip_mma_backward_grid_16x32"),
    (HALF, 750, 32, 512, "grid_forward_4", "grid_backward_8"),
    (HALF, 750, 32, 513, "steps_forward", "steps_backward"),
    (BFLOAT16, 750, 32, 513, "steps_forward", "grid_backward_4"),
    (TF32, 750, 32, 513, "grid_forward_4", "grid_backward_4"),
    (HALF, 900, 1056, 8, "few_units_forward_32", "few_units_backward_32"),
    (HALF, 900, 16384, 8, "few_units_forward_32", "few_units_backward_32"),
    (HALF, 900, 131072, 8, "elementwise_forward", "elementwise_backward"),
    (HALF, 900, 131072, 64, "steps_forward", "steps_backward"),
    (HALF, 900, 131072, 128, "steps_forward", "steps_backward"),
    (TF32, 900, 131072, 8, "elementwise_forward", "elementwise_backward"),
    (BFLOAT16, 900, 131072, 15, "elementwise_forward", "elementwise_backward"),
    (BFLOAT16, 900, 131072, 64, "steps_forward", "steps_backward"),
)


@pytest.mark.parametrize(("dtype", "architecture", "batch", "units", "forward", "backward"), RECURRENCES)
def test_the_kernel_of_a_recurrence(ask, dtype, architecture, batch, units, forward, backward):
    found = [ask("lltm", way, *dtype, architecture, *H200, True, 100, batch, units) for way in ("forward", "backward")]
    assert found == [forward, backward]


def test_the_kernel_of_a_recurrence_has_the_least_predicted_time_of_those_that_support_it(program):
    draw = random.Random(0)
    problems = [
        (
            draw.choice(("forward", "backward")),
            draw.choice((FLOAT, TF32, HALF, BFLOAT16, DOUBLE)),
            draw.choice((750, 800, 900)),
        )
        for _ in range(500)
    ]
    lines = [
        " ".join(
            map(
                str,
                (
                    way,
                    *dtype,
                    architecture,
                    *H200,
                    1,
                    100,
                    int(2 ** draw.uniform(0, 14)),
                    int(2 ** draw.uniform(0, 12)),
                ),
            )
        )
        for way, dtype, architecture in problems
    ]
    asked = [program("lltm"), "times"]
    done = subprocess.run(asked, input="\n".join(lines), capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines)
    for line, answer in zip(lines, answers, strict=True):
        chosen, *words = answer.split()
        times = dict(zip(words[::3], map(float, words[1::3]), strict=True))
        assert set(words[2::3]) == {"1"}, line
        assert all(time > 0 for time in times.values()), line
        assert times[chosen] == min(times.values()), line


@pytest.mark.parametrize(
    ("dtype", "device", "steps", "batch", "units", "kernel", "is_supported"),
    [
        # Indices within a step, and steps, have 32 bits.
        (HALF, H200, 10, (1 << 16) - 1, 128, "on_chip_mma_forward_block_128", True),
        (HALF, H200, 10, 1 << 16, 128, "on_chip_mma_forward_block_128", False),
        (FLOAT, H200, (1 << 31) - 4, 16, 96, "on_chip_forward_block_96", True),
        (FLOAT, H200, (1 << 31) - 3, 16, 96, "on_chip_forward_block_96", False),
        (FLOAT, H200, (1 << 31) - 3, 16, 64, "few_units_forward_64", True),
        (FLOAT, H200, (1 << 31) - 2, 16, 64, "few_units_forward_64", False),
        (FLOAT, H200, 10, (1 << 16) - 1, 64, "few_units_forward_64", True),
        (FLOAT, H200, 10, 1 << 16, 64, "few_units_forward_64", False),
        # A block holds its units of h, all rows, in shared memory, and its own of the weight.
        (FLOAT, (132, 64 << 10), 10, 16, 96, "on_chip_forward_block_96", True),
        (FLOAT, (132, 16 << 10), 10, 16, 96, "on_chip_forward_block_96", False),
        (FLOAT, (132, 16 << 10), 10, 16, 64, "grid_forward_1", True),
        (FLOAT, (132, 1 << 8), 10, 16, 64, "grid_forward_1", False),
        (FLOAT, (1 << 20, 227 << 20), 10, 1, (1 << 16) - 1, "grid_forward_1", True),
        (FLOAT, (1 << 20, 227 << 20), 10, 1, 1 << 16, "grid_forward_1", False),
        (FLOAT, (1 << 20, 227 << 20), 10, (1 << 16) - 1, 1, "grid_forward_1", True),
        (FLOAT, (1 << 20, 227 << 20), 10, 1 << 16, 1, "grid_forward_1", False),
        # A group of blocks needs room at once.
        (FLOAT, (9, 227 << 10), 10, 16, 257, "on_chip_forward_cluster_16x32", True),
        (FLOAT, (8, 227 << 10), 10, 16, 257, "on_chip_forward_cluster_16x32", False),
    ],
)
def test_the_limits_of_a_recurrence(program, dtype, device, steps, batch, units, kernel, is_supported):
    line = " ".join(map(str, ("forward", *dtype, 900, *device, 1, steps, batch, units)))
    done = subprocess.run([program("lltm"), "times"], input=line, capture_output=True, text=True, check=True)
    assert (kernel in done.stdout.split()[1::3]) == is_supported


@pytest.mark.parametrize(
    ("dtype", "way", "units", "is_supported"),
    [
        (BFLOAT16, "backward", 15, False),
        (BFLOAT16, "backward", 16, True),
        (BFLOAT16, "forward", 1, True),
        (HALF, "backward", 1, True),
        (TF32, "backward", 1, True),
    ],
)
def test_gradients_of_few_units_are_not_in_parts_of_bfloat16(program, dtype, way, units, is_supported):
    line = " ".join(map(str, (way, *dtype, 900, *H200, 1, 100, 1 << 14, units)))
    done = subprocess.run([program("lltm"), "times"], input=line, capture_output=True, text=True, check=True)
    on_tensor_cores = [name for name in done.stdout.split()[1::3] if name.startswith(("steps", "on_chip_mma"))]
    assert bool(on_tensor_cores) == is_supported


def test_blocks_that_wait_for_each_other_need_a_device_that_starts_them_together(ask):
    for units, kernel in ((128, "on_chip_forward_block_128"), (129, "elementwise_forward")):
        assert ask("lltm", "forward", *FLOAT, 900, *H200, False, 10, 16, units) == kernel
    assert ask("lltm", "forward", *HALF, 800, *H200, False, 10, 16, 512) == "steps_forward"


CELLS = [
    # So many multiply-adds on 132 multiprocessors.
    ("cell", (85, 512, 512), 4, "cell_forward"),
    ("cell", (86, 512, 512), 4, "elementwise_forward"),
    ("cell", (0, 512, 512), 4, "elementwise_forward"),
    ("cell", (16, 512, 512), 2, "elementwise_forward"),
    ("cell", ((1 << 19) - 1, 1, 1), 4, "cell_forward"),
    ("cell", (1 << 19, 1, 1), 4, "elementwise_forward"),
    ("cell_grads", (16, 512, 512), 8, "products_plain"),
    ("cell_grads", (85, 512, 512), 4, "products_together"),
    ("cell_grads", (342, 512, 512), 2, "products_halves"),
    ("cell_grads", (342, 512, 512), 4, "products_plain"),
    # So many steps of 64 through the depth, the more the more tiles there are.
    ("grads", (704, 8, 8), 4, "products_together"),
    ("grads", (705, 8, 8), 4, "products_plain"),
    ("grads", (1216, 8, 8), 2, "products_together"),
    ("grads", (1217, 8, 8), 2, "products_plain"),
    ("grads", (64, 92896, 8), 4, "products_together"),
    ("grads", (64, 92897, 8), 4, "products_plain"),
    ("grads", (8, 8, 8), 8, "products_plain"),
    ("grads", (94, 512, 512), 2, "products_plain"),
    ("grads", (95, 512, 512), 2, "products_halves"),
    ("grads", (95, 512, 512), 4, "products_plain"),
    # Grids have room for so many rows, features and units.
    ("cell_grads", ((1 << 19) - 1, 1, 1), 4, "products_together"),
    ("cell_grads", (1 << 19, 1, 1), 4, "products_plain"),
    ("cell_grads", (1, (1 << 19) - 1, 1), 4, "products_together"),
    ("cell_grads", (1, 1 << 19, 1), 4, "products_plain"),
    ("cell_grads", (0, 1, (1 << 19) - 1), 4, "products_together"),
    ("cell_grads", (0, 1, 1 << 19), 4, "products_plain"),
]


@pytest.mark.parametrize(
    ("asked", "sizes", "bytes_of_element", "kernel"),
    CELLS,
)
def test_the_kernel_of_a_cell_and_of_gradients(ask, asked, sizes, bytes_of_element, kernel):
    assert ask("lltm", asked, *sizes, bytes_of_element, 132) == kernel


DEEP_PRODUCTS = [
    (128, 128, 2048, "products_at_once"),
    (128, 128, 2049, "products_in_parts"),
    (0, 128, 2049, "products_at_once"),
    (128, 0, 2049, "products_at_once"),
    (128, 128, 64, "products_at_once"),
    (1408, 1536, 2049, "products_in_parts"),
    (1409, 1536, 2049, "products_at_once"),
]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "kernel"),
    DEEP_PRODUCTS,
)
def test_a_deep_product_with_fewer_tiles_than_multiprocessors_is_made_in_parts(ask, rows, columns, depth, kernel):
    assert ask("lltm", "product", rows, columns, depth, 132) == kernel


@pytest.mark.parametrize(
    ("operator", "header", "asked"),
    [
        ("shift", "policy.h", [(passed, *rest, *device, *sizes) for passed, *rest, device, sizes, _ in SHIFTS]),
        (
            "lltm",
            "policy.h",
            [(asked, *sizes, element_bytes, 132) for asked, sizes, element_bytes, _ in CELLS],
        ),
        ("lltm", "supports.h", [("product", *sizes, 132) for *sizes, _ in DEEP_PRODUCTS]),
    ],
)
def test_every_threshold_decides_on_both_sides(program, operator, header, asked):
    text = (PACKAGE / f"operators/{operator}/cuda/{header}").read_text()
    thresholds = set(re.findall(r"^TORCHGRAFT_THRESHOLD\((\w+),", text, re.MULTILINE))
    lines = "".join(f"{line_of(call)}\n" for call in asked)
    done = subprocess.run([program(operator), "thresholds"], input=lines, capture_output=True, text=True, check=True)
    decided = set()
    for line in done.stdout.splitlines():
        answer, *rest = line.split("\t")
        decided |= {
            (name, side)
            for name, side, otherwise in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
            if otherwise != answer
        }
    assert thresholds
    assert decided >= {(name, side) for name in thresholds for side in ("below", "above")}


def names(program, kind):
    done = subprocess.run([program("lltm"), kind], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_every_kernel_of_a_recurrence_is_asked(program):
    assert names(program, "recurrences") == {
        kernel for *_, forward, backward in RECURRENCES for kernel in (forward, backward)
    }


def test_a_kernel_of_lltm_has_the_name_of_its_path(program):
    """Its folder and its file, and behind them the shape that a rule chooses, or what a helper is for."""
    folder = PACKAGE / "operators/lltm/cuda"
    kernels: dict[str, set[str]] = {_stem(path.relative_to(folder)): set() for path in folder.rglob("*.cu*")}
    for kernel, (path,) in kernels_in(folder).items():
        kernels[_stem(path)].add(kernel)
        assert f"{kernel}_".startswith(f"{_stem(path)}_")
    # What multiplies by kernels of PyTorch's or cuBLAS has none of that name.
    without = {"products_at_once", "products_halves", "products_in_parts", "products_plain"}
    for rule in names(program, "recurrences") | names(program, "others"):
        path = max((path for path in kernels if f"{rule}_".startswith(f"{path}_")), key=len, default=None)
        assert path is not None, rule
        assert (path in kernels[path]) != (path in without), rule


def _stem(path: Path) -> str:
    return "_".join(path.with_suffix("").parts)
