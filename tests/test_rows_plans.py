"""How depthwise_conv2d's kernels of rows cut their work, for sequences in (B, C, L).

The plans are host code alone: a program asks them without a GPU.
"""

import math
import os
import subprocess
from random import Random

import pytest

from choice import HERE, PACKAGE

KIB = 1024


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """`ask(kind, *numbers)`: the answer of tests/choice/rows.cpp, as numbers by name."""
    program = tmp_path_factory.mktemp("rows") / "rows"
    folders = [f"-I{PACKAGE / 'include'}", f"-I{PACKAGE / 'operators/depthwise_conv2d'}"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", *folders]
    subprocess.run([*compiler, str(HERE / "rows.cpp"), "-o", str(program)], check=True)

    def ask(kind, *numbers):
        line = " ".join(str(each) for each in (kind, *numbers))
        done = subprocess.run([program], input=line, capture_output=True, text=True, check=True)
        return {name: int(number) for name, _, number in (pair.partition("=") for pair in done.stdout.split())}

    return ask


def test_a_long_row_is_cut_into_equal_parts_and_short_rows_share_a_block(ask):
    """A chunk is eight results; rows whose length is no multiple of a vector have one more, partial at both ends."""
    assert ask("window", 8, 4096, 2048, 3, 1, 1, 1, 2)["segments"] == 2
    assert ask("window", 256, 1024, 48, 7, 1, 3, 1, 2)["chunks"] == 6
    assert ask("window", 256, 1024, 49, 7, 1, 3, 1, 2)["chunks"] == 7


@pytest.mark.parametrize(
    ("length", "kernel", "own"), [(400, 24, 16), (400, 23, 8), (399, 24, 8), (5000, 256, 16), (49, 256, 8)]
)
def test_many_taps_of_long_rows_are_walked_by_threads_with_sixteen_results(ask, length, kernel, own):
    padding = (kernel - 1) // 2
    # An even kernel shortens the row by one.
    assert ask("window", 64, 64, length + 1 - kernel % 2, kernel, 1, padding, 1, 2)["own"] == own


@pytest.mark.parametrize("kind", ["window", "spread", "gathers", "weight_grad"])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_every_row_is_covered_by_its_tiles_and_tiles_fit_a_block(ask, kind, element_bytes):
    random = Random(kind)
    for _ in range(60):
        stride = 1 if kind == "window" else random.randint(1, 8)
        dilation = 1 if kind in ("window", "gathers") else random.choice((1, 1, 2, 64))
        kernel, length = random.choice((1, 3, 8, 9, 31, 128, 256)), random.choice((1, 7, 49, 500, 2049, 16000))
        padding = dilation * (kernel - 1)
        outputs = (length + padding - 1) // stride + 1 if stride > 1 else length + padding
        sizes = 16, 40, length, kernel, stride, padding, dilation, element_bytes
        plan = ask(kind, *sizes)
        results = length if kind == "gathers" else outputs
        if kind == "window":
            assert plan["segments"] * plan["chunks"] * plan["own"] >= results, sizes
            assert plan["rows"] * plan["chunks"] <= plan["threads"] <= 256, sizes
            assert plan["pitch"] >= plan["chunks"] * plan["own"] + kernel - 1, sizes
        elif kind == "weight_grad":
            assert plan["segments"] * plan["outputs"] >= results, sizes
            assert plan["taps"] * plan["groups"] >= kernel, sizes
            assert plan["groups"] * plan["lanes"] <= 512, sizes
            assert plan["tiles"] == plan["segments"] * -(-16 // plan["rows"]), sizes
        else:
            assert plan["segments"] * plan["results"] >= results, sizes
            assert plan["lanes"] * plan["rows"] <= 256, sizes
        # A tile that is larger than the share of a block is one row, which supports.h looks at.
        assert plan["bytes"] <= 24 * KIB or plan.get("rows") == 1, sizes


@pytest.mark.parametrize(("length", "lanes", "rows"), [(8, 4, 64), (16, 4, 64), (17, 8, 32), (1024, 256, 1)])
def test_short_rows_with_a_dilation_share_warps(ask, length, lanes, rows):
    """Lanes have four results each, so that few of them compute what is not there."""
    plan = ask("spread", 64, 512, length, 3, 1, 2, 2, 2)
    assert (plan["lanes"], plan["rows"]) == (lanes, rows)


@pytest.mark.parametrize("kind", ["nhwc", "nhwc_gathers"])
def test_units_of_rows_in_nhwc_hold_every_result_once_and_their_weights_fit(ask, kind):
    random = Random(kind)
    for _ in range(60):
        stride, dilation = random.choice((1, 1, 2, 3, 8, 1024)), random.choice((1, 1, 2, 6, 8192))
        kernel, length = random.choice((1, 3, 8, 9, 31, 128, 256)), random.choice((1, 7, 49, 500, 2049, 16000))
        channels, padding = random.choice((1, 4, 95, 128, 132, 2048)), dilation * (kernel - 1)
        outputs = (length + padding - 1) // stride + 1 if stride > 1 else length + padding
        sizes = 2, channels, length, kernel, stride, padding, dilation, 2
        plan = ask(kind, *sizes)
        results = length if kind == "nhwc_gathers" else outputs
        # From a result to the next that shares its sources, and from tap to tap of those that they share.
        shrunk = dilation // math.gcd(stride, dilation)
        steps = (shrunk, shrunk * stride) if kind == "nhwc" else (shrunk * stride, shrunk)
        assert (plan["step"], plan["sources"], plan["taps"]) == (*steps, stride // math.gcd(stride, dilation)), sizes
        for own in (4, 8):
            held = plan[f"groups{own}"] * own * plan["step"]
            assert plan[f"classes{own}"] == min(results, plan["step"]), sizes
            assert held >= results > held - own * plan["step"], sizes
        assert plan["lanes"] <= plan["most"], sizes
        assert plan["lanes"] * plan["channel_groups"] * 4 >= channels, sizes
        assert plan["bytes"] <= 48 * KIB, sizes


def test_a_weight_gradient_of_rows_in_nhwc_has_every_tap_and_every_result(ask):
    random = Random("nhwc_weight_grad")
    for _ in range(60):
        stride, dilation = random.choice((1, 1, 2, 5, 8)), random.choice((1, 1, 2, 6, 32))
        kernel, length = random.choice((1, 2, 3, 8, 9, 31, 48, 256)), random.choice((1, 7, 49, 500, 2049, 16000))
        channels, padding = random.choice((1, 4, 6, 95, 128, 2048)), dilation * (kernel - 1)
        outputs = (length + padding - 1) // stride + 1
        sizes = random.choice((1, 3, 32)), channels, length, kernel, stride, padding, dilation, 2
        plan = ask("nhwc_weight_grad", *sizes)
        slots = 256 // plan["lanes"]
        assert plan["owned"] in (2, 3, 4, 6, 8), sizes
        assert plan["owned"] * (plan["groups"] // plan["runs"]) * plan["runs"] >= kernel, sizes
        assert plan["group_blocks"] * plan["groups_of_block"] >= plan["groups"], sizes
        assert 1 <= plan["groups_of_block"] <= slots, sizes
        assert plan["stretches"] * plan["stretch"] * plan["step"] >= outputs, sizes
        assert plan["units"] == sizes[0] * plan["classes"] * plan["stretches"], sizes
        assert plan["chunks"] * plan["units_of_chunk"] >= plan["units"], sizes
        assert (plan["chunks"] - 1) * plan["units_of_chunk"] < plan["units"], sizes
        assert 1 <= plan["chunks"] <= plan["most_chunks"], sizes
        assert 4 * plan["owned"] * slots * plan["lanes"] * plan["own"] <= 32 * KIB, sizes


@pytest.mark.parametrize(
    ("kernel", "stride", "one"), [(4, 2, 1), (8, 2, 1), (9, 2, 0), (16, 4, 1), (16, 8, 1), (17, 8, 0), (3, 1, 0)]
)
def test_few_taps_with_a_stride_are_walked_one_result_at_a_time(ask, kernel, stride, one):
    assert ask("nhwc", 8, 64, 500, kernel, stride, kernel, 1, 2)["one"] == one
    assert ask("nhwc_gathers", 8, 64, 500, kernel, stride, kernel, 1, 2)["one"] == 0
