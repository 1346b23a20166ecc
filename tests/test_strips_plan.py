"""How depthwise_conv2d's kernels of strips cut their work: both sides of each limit.

The plan is host code alone: a program asks it without a GPU.
"""

import os
import subprocess

import pytest

from choice import HERE, PACKAGE


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """`ask(kind, *numbers)`: the answer of tests/choice/strips.cpp, as numbers."""
    program = tmp_path_factory.mktemp("strips") / "strips"
    folders = [f"-I{PACKAGE / 'include'}", f"-I{PACKAGE / 'operators/depthwise_conv2d'}"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", *folders]
    subprocess.run([*compiler, str(HERE / "strips.cpp"), "-o", str(program)], check=True)

    def ask(kind, *numbers):
        line = " ".join(str(each) for each in (kind, *numbers))
        done = subprocess.run([program], input=line, capture_output=True, text=True, check=True)
        return tuple(int(each) for each in done.stdout.split())

    return ask


@pytest.mark.parametrize(
    ("rows", "kernel", "warps_of_stretch", "expected"),
    [
        # As many stretches as keep a GPU of 132 multiprocessors busy, of four rows at least.
        (112, 3, 1, 4),
        (112, 3, 58, 4),
        (112, 3, 59, 5),
        (3, 3, 1, 3),
        (7, 3, 1, 7),
        (8, 3, 1, 4),
        # For many warps as well, if the rows that two stretches read are few beside those of one.
        (112, 3, 2815, 16),
        (112, 3, 2816, 19),
        (112, 7, 2815, 56),
        (112, 3, 16895, 56),
        (112, 3, 16896, 112),
        (15, 3, 2000, 15),
        (32, 3, 2000, 16),
    ],
)
def test_rows_are_cut_into_stretches(ask, rows, kernel, warps_of_stretch, expected):
    assert ask("rows", rows, kernel, warps_of_stretch, 132) == (expected,)


@pytest.mark.parametrize(
    ("rows", "channels", "strips", "strips_of_warp", "most_chunks", "expected"),
    [
        # One chunk, as long as a warp has 24 rows.
        (24, 64, 4, 1, 100, (24, 1, 1)),
        (25, 64, 4, 1, 100, (5, 5, 5)),
        (24, 64, 8, 2, 100, (24, 1, 1)),
        # Few strips of one chunk are cut into stretches for its four warps.
        (24, 64, 1, 1, 100, (6, 4, 1)),
        (112, 64, 128, 1, 1000, (112, 1, 32)),
        # No more chunks than there is room for, nor than sixteen blocks a multiprocessor need.
        (112, 64, 128, 1, 10, (112, 1, 10)),
        (112, 2111, 128, 1, 1000, (112, 1, 2)),
        (112, 2112, 128, 1, 1000, (112, 1, 1)),
    ],
)
def test_strips_are_shared_out_to_chunks(ask, rows, channels, strips, strips_of_warp, most_chunks, expected):
    found = ask("weight_grad", rows, channels, strips, strips_of_warp, most_chunks, 132)
    assert found == expected
