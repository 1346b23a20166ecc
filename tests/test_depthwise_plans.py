"""How kernels of depthwise convolutions cut a pass into blocks and tiles: both sides of every limit of their plans.

Plans are host code alone: the tests compile their headers into a program and ask that, on a machine without a GPU.
"""

import subprocess
from dataclasses import replace

import pytest

from choice import build
from choice.depthwise import Call

PAIRS = ("kernel", "stride", "dilation", "padding", "padding_behind")


def fields(given):
    """Fields of a Call: one number stands for rows and columns."""
    return {name: (each, each) if name in PAIRS and isinstance(each, int) else each for name, each in given.items()}


def make(**given):
    return Call(**fields(given))


def with_fields(call, **given):
    return replace(call, **fields(given))


BATCH = make(element_bytes=2, images=(64, 1024, 8, 8), kernel=13)
LARGE = make(element_bytes=2, images=(64, 128, 56, 56), kernel=17)
SMALL = make(element_bytes=2, images=(128, 96, 56, 56), kernel=7)
NCHW = make(element_bytes=2, images=(128, 96, 56, 56), kernel=7, question="weight_grad")
WIDE = with_fields(NCHW, images=(64, 128, 56, 56), kernel=31)
NHWC = make(element_bytes=2, layout="NHWC", images=(128, 96, 56, 56), kernel=7, question="weight_grad")


def same_size(*kernel):
    return {"kernel": kernel, "padding": tuple(size // 2 for size in kernel)}


# A kernel, with the taps of a warp where there is a choice; then a call, and what its plan holds; then changes to the
# call, and what the plan holds then.
PLANS = {
    "batch: channels of a block": (
        "bands_batch",
        (BATCH, "channels=8 images=16 chunks=4 blocks=512 fits=1"),
        ({"images": (64, 1024, 8, 9)}, "channels=1 images=64 chunks=1"),
        ({"images": (64, 6, 8, 8)}, "channels=6 blocks=4"),
        ({"shared_bytes": 159 << 10}, "channels=8 fits=1"),
        ({"shared_bytes": 158 << 10}, "channels=7 fits=1"),
        ({"shared_bytes": 84 << 10}, "channels=2 fits=1"),
        ({"shared_bytes": 83 << 10}, "channels=1 images=32"),
        # One channel of sixteen images does not leave room for four blocks, but for one.
        ({"shared_bytes": 64 << 10}, "channels=1 images=16 fits=0"),
    ),
    "batch: chunks": (
        "bands_batch",
        (with_fields(BATCH, images=(16, 512, 14, 14)), "images=16 chunks=1"),
        ({"images": (17, 512, 14, 14)}, "images=32 chunks=1"),
        # Two blocks a multiprocessor.
        ({"images": (64, 264, 14, 14)}, "images=64 chunks=1"),
        ({"images": (64, 263, 14, 14)}, "images=32 chunks=2"),
        ({"images": (1024, 1, 14, 14)}, "images=16 chunks=64 blocks=64"),
        # As many images as leave room for two blocks.
        ({"images": (64, 512, 28, 28)}, "images=32 chunks=2 fits=1"),
    ),
    "batch: pieces": (
        "bands_batch",
        (with_fields(BATCH, images=(64, 16, 9, 16)), "piece=8 vector=8"),
        ({"alignment": 8}, "piece=4 vector=1"),
        ({"alignment": 4}, "piece=2"),
        ({"alignment": 2}, "piece=1"),
        ({"images": (64, 16, 9, 12)}, "piece=4"),
        ({"images": (64, 16, 9, 14)}, "piece=2"),
        ({"images": (64, 16, 9, 7)}, "piece=1 vector=8"),
        # What a block owns, and what lies between its images, are whole vectors.
        ({"images": (64, 16, 9, 15)}, "piece=1 vector=1"),
        ({"images": (64, 12, 9, 7)}, "piece=1 vector=1"),
        # The sources of an input gradient are what the forward pass returns.
        ({"images": (64, 16, 9, 15), "question": "input_grad", "padding": (6, 5)}, "piece=1"),
        ({"images": (64, 16, 9, 16), "question": "input_grad", "padding": (6, 5)}, "piece=2"),
    ),
    "large: octets": (
        "bands_large",
        (LARGE, "octets=3"),
        ({"kernel": 18}, "octets=5"),
        ({"kernel": 33}, "octets=5"),
        ({"kernel": 34}, "octets=8"),
        ({"kernel": 17, "stride": 2}, "octets=2"),
        ({"kernel": 19, "stride": 2}, "octets=3"),
    ),
    "large: images of a round": (
        "bands_large",
        # Eight warps of eight units, each a pair of rows.
        (with_fields(LARGE, images=(64, 128, 16, 16)), "images=8 rounds=1 chunks=8"),
        ({"images": (64, 128, 17, 17)}, "images=7 chunks=10"),
        ({"images": (3, 128, 16, 16)}, "images=3 chunks=1"),
        ({"images": (64, 128, 128, 16)}, "images=1"),
        # Two blocks of so many images fit a multiprocessor.
        ({"images": (64, 128, 32, 152)}, "images=4 two_fit=1"),
        ({"images": (64, 128, 32, 160)}, "images=3 two_fit=1"),
        ({"images": (64, 128, 32, 400)}, "images=1 two_fit=1"),
    ),
    "large: rounds of a block": (
        "bands_large",
        # Eight blocks a multiprocessor.
        (with_fields(LARGE, images=(33, 128, 40, 40)), "images=3 rounds=1 chunks=11"),
        ({"images": (48, 128, 40, 40)}, "images=3 rounds=1 chunks=16"),
        ({"images": (51, 128, 40, 40)}, "images=3 rounds=2 chunks=9"),
        ({"images": (51, 128, 40, 40), "multiprocessors": 264}, "images=3 rounds=1 chunks=17"),
    ),
    "small: taps and pairs of rows": (
        "bands_small",
        (SMALL, "taps=7 pairs=7"),
        (same_size(5, 5), "taps=5"),
        (same_size(6, 5), "taps=7"),
        (same_size(3, 7), "taps=3"),
        # Bands of fourteen rows or of eight, whichever leaves less idle.
        ({"images": (128, 96, 14, 56)}, "pairs=7"),
        ({"images": (128, 96, 16, 56)}, "pairs=4"),
        ({"images": (128, 96, 8, 56)}, "pairs=4"),
        ({"images": (128, 96, 9, 56)}, "pairs=7"),
    ),
    "small: tiles": (
        "bands_small",
        (SMALL, "images=1 bands=4 blocks=7 padded=8 tiles_x=1 tiles_y=1 stages=1 whole_rows=1"),
        # As many images as fill eight units.
        ({"images": (128, 96, 7, 7)}, "images=8 blocks=1 stages=2"),
        ({"images": (3, 96, 7, 7)}, "images=3"),
        ({"images": (128, 96, 14, 14)}, "images=4 blocks=2"),
        ({"images": (128, 96, 8, 17)}, "images=2 blocks=3 padded=4"),
        # Rows of at most 24 blocks of columns.
        ({"images": (128, 96, 32, 192)}, "blocks=24 tiles_x=1 whole_rows=1"),
        ({"images": (128, 96, 32, 193)}, "blocks=16 tiles_x=2 whole_rows=0"),
        # As many bands as fit a stage of 5 K elements: 5 of 14 rows and 6 more, of 64 columns.
        ({"images": (128, 96, 70, 56)}, "bands=5 tiles_y=1"),
        ({"images": (128, 96, 84, 56)}, "bands=3 tiles_y=2"),
        # Two stages of up to 2 K elements.
        ({"images": (128, 96, 28, 48)}, "bands=2 stages=2"),
        ({"images": (128, 96, 28, 56)}, "bands=2 stages=1"),
    ),
    "small: units": (
        "bands_small",
        (SMALL, "source_unit=4 result_unit=8 lead=4"),
        ({"images": (128, 96, 56, 52)}, "source_unit=4 result_unit=4"),
        ({"images": (128, 96, 56, 54)}, "source_unit=2 result_unit=2 lead=4"),
        ({"images": (128, 96, 56, 55)}, "source_unit=1 result_unit=1 lead=3"),
        ({"alignment": 4}, "source_unit=2"),
        ({"alignment": 2}, "source_unit=1"),
        # The columns of a product hold the windows of eight results, shifted by up to two columns.
        ({"padding": (3, 2)}, "source_unit=4 lead=4"),
        ({"padding": (3, 1)}, "source_unit=2 lead=2"),
    ),
    "diagonals NCHW: taps": (
        "diagonals_nchw_8x5",
        (WIDE, "row_groups=4 row_blocks=1 splits=1 column_blocks=1 columns=31 shift=1 input_unit=8 threads=128"),
        ({"kernel": 7}, "row_groups=1 splits=4 threads=128"),
        ({"kernel": 9}, "row_groups=2 splits=2 threads=128"),
        ({"kernel": 17}, "row_groups=3 splits=1 threads=96"),
        # Eight rows a warp, four warps a block.
        (same_size(32, 31), "row_groups=4 row_blocks=1"),
        (same_size(33, 31), "row_groups=3 row_blocks=2"),
        # Five octets hold the windows of 33 columns, and three whole octets of columns wherever they begin.
        ({"kernel": 33}, "column_blocks=1 columns=33 shift=0"),
        ({"kernel": 35}, "column_blocks=2 columns=24"),
        ({"kernel": 47}, "column_blocks=2 columns=24"),
        ({"kernel": 49}, "column_blocks=3 columns=24"),
    ),
    "diagonals NCHW: copies": (
        "diagonals_nchw_7x2",
        (with_fields(WIDE, **same_size(7, 7)), "input_unit=4 grad_unit=8 shift=1 places=0"),
        # Two octets hold the windows of nine columns.
        (same_size(7, 9), "input_unit=4 shift=0"),
        (same_size(7, 5), "input_unit=4 shift=2"),
        ({"kernel": (7, 5), "padding": (3, 4)}, "input_unit=8 shift=4"),
        ({"kernel": (7, 6), "padding": (3, 1), "padding_behind": (3, 4)}, "input_unit=4 grad_unit=8 shift=3"),
        ({"kernel": (7, 7), "padding": (3, 1), "padding_behind": (3, 5)}, "input_unit=2 shift=1"),
        ({"images": (64, 128, 56, 60)}, "input_unit=4 grad_unit=4"),
        ({"images": (64, 128, 56, 55)}, "input_unit=1 grad_unit=1 shift=0"),
        ({"alignment": 4}, "input_unit=2 grad_unit=2"),
        # Pixels of phases lie apart.
        ({"kernel": 13, "stride": 2, "padding": 6}, "input_unit=1 grad_unit=4"),
        ({"kernel": 7, "dilation": 2, "padding": 6}, "input_unit=1 grad_unit=1"),
    ),
    "diagonals NCHW: tiles": (
        "diagonals_nchw_7x2",
        (NCHW, "channels=1 planes=1 bands=1 strips=1 tiles=128"),
        # As many planes as fill slices best: eight of a segment each, or four of two.
        ({"images": (128, 96, 7, 7)}, "channels=4 planes=8 places=1 tiles=16 splits=1"),
        ({"images": (2, 96, 7, 7)}, "channels=4 planes=2 tiles=1"),
        ({"images": (128, 3, 7, 7)}, "channels=3 threads=96"),
        # Planes of up to 512 pixels are small.
        ({"images": (128, 96, 16, 32)}, "channels=4"),
        ({"images": (128, 96, 16, 33)}, "channels=1"),
        ({"images": (128, 96, 14, 14), **same_size(9, 9)}, "channels=1 row_groups=2"),
        # A stage of up to 30 KB holds whole planes of 119 rows of 56 columns; a band has up to eight segments.
        ({"images": (128, 96, 119, 56)}, "bands=1 strips=1"),
        ({"images": (128, 96, 120, 56)}, "bands=3 strips=1"),
        ({"images": (128, 96, 112, 112)}, "bands=2 strips=1 tiles=256"),
        ({"images": (128, 96, 113, 112)}, "bands=3 strips=1 tiles=384"),
        ({"images": (128, 96, 56, 800)}, "bands=1 strips=7 tiles=896"),
    ),
    "diagonals NCHW: chunks": (
        "diagonals_nchw_7x2",
        # Five blocks a multiprocessor, and twice as many where a tile has several channels.
        (NCHW, "most_chunks=6"),
        ({"multiprocessors": 144}, "most_chunks=7"),
        ({"images": (128, 96, 14, 14)}, "channels=4 most_chunks=43"),
        ({"images": (128, 1024, 56, 56)}, "most_chunks=1"),
        # A partial sum for sixteen elements at most.
        ({"images": (128, 96, 7, 7)}, "most_chunks=16"),
    ),
    "diagonals NHWC: rows": (
        "diagonals_nhwc_7",
        (NHWC, "slabs=6 planes=1 bands=1 segments=8 fits=1"),
        ({"images": (128, 96, 57, 56)}, "planes=1 bands=2 segments=5"),
        ({"images": (128, 96, 14, 14)}, "planes=4 bands=1 segments=2"),
        ({"images": (128, 96, 15, 14)}, "planes=2 bands=1 segments=3"),
        ({"images": (128, 96, 7, 7)}, "planes=8 segments=1 fits=1"),
        ({"images": (3, 96, 7, 7)}, "planes=3"),
        ({"images": (128, 96, 7, 7), "shared_bytes": 64 << 10}, "planes=6 fits=1"),
        ({"images": (128, 96, 7, 7), "shared_bytes": 63 << 10}, "planes=5 fits=1"),
        ({"images": (128, 16, 7, 7)}, "slabs=1"),
        ({"images": (128, 17, 7, 7)}, "slabs=2"),
    ),
    "diagonals NHWC: strips": (
        "diagonals_nhwc_7",
        # Two blocks a multiprocessor share the slabs.
        (NHWC, "strips=1 tiles=128 most_chunks=44"),
        ({"images": (4, 16, 112, 600)}, "bands=2 strips=25 tiles=200 most_chunks=264"),
        ({"images": (1, 768, 28, 512)}, "strips=5 tiles=5 most_chunks=5"),
    ),
}


def rows():
    """Each kernel, a call, and what its plan holds."""
    for name, (kernel, (call, held), *changes) in PLANS.items():
        yield name, kernel, call, held
        for change, changed in changes:
            yield name, kernel, with_fields(call, **change), changed


ROWS = list(rows())


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """The plan of each row, as a dict of texts."""
    program = build("depthwise_conv2d", tmp_path_factory.mktemp("plans"), "depthwise_conv2d_plans")
    asked = "".join(f"{kernel} {call.line()}\n" for _, kernel, call, _ in ROWS)
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    found = [dict(each.split("=") for each in line.split()) for line in done.stdout.splitlines()]
    return {(kernel, call): plan for (_, kernel, call, _), plan in zip(ROWS, found, strict=True)}


@pytest.mark.parametrize(("kernel", "call", "held"), [pytest.param(*row[1:], id=f"{row[0]}: {row[2]}") for row in ROWS])
def test_the_plan(kernel, call, held, plans):
    expected = dict(each.split("=") for each in held.split())
    plan = plans[kernel, call]
    assert {name: plan[name] for name in expected} == expected
