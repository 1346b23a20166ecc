"""Which kernel computes a depthwise convolution on CUDA: the golden file tests/choice/depthwise_conv2d.txt.

The policy is host code alone: the tests compile it into a program and ask that, on a machine without a GPU. golden.py
says how the file is made; if a test fails, run it, and read the difference.
"""

import itertools
import re
import subprocess
from dataclasses import replace

import pytest

import golden
from choice import PACKAGE, build, kernels_in
from choice.depthwise import Call

FOLDER = PACKAGE / "operators/depthwise_conv2d"
SECTIONS = golden.read()
THRESHOLDS = golden.thresholds()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return build("depthwise_conv2d", tmp_path_factory.mktemp("choice"))


@pytest.fixture(scope="module")
def program(path):
    return golden.Program(path)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_problem_has_its_kernel(program, section):
    expected = dict(SECTIONS[section])
    found = dict(zip(expected, program.ask(expected), strict=True))
    assert {str(call): found[call].answer for call in expected} == {str(call): expected[call] for call in expected}


def test_the_file_is_current(program):
    assert golden.write_text(program) == golden.GOLDEN.read_text(), "run `python tests/golden.py`"


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_every_threshold_decides_on_both_sides(program, threshold):
    pair = [call for call, _ in SECTIONS[f"threshold {threshold}"]]
    assert golden.is_pair(program, threshold, pair)


def test_every_number_that_the_policy_compares_with_has_a_name():
    """Zero, for remainders, and a stride of one are plain."""
    text = re.sub(r"//.*", "", (FOLDER / "cuda/policy.h").read_text())
    compared = re.findall(r"(?:[<>]=?|[=!]=)\s*(\d+)\b|(?<!% )\b(\d+)\s*(?:[<>]=?|[=!]=)", text)
    assert {one or other for one, other in compared} <= {"0", "1"}


def test_every_kernel_is_asked(table):
    asked = {answer for section in SECTIONS.values() for call, answer in section if ":" not in call.question}
    assert {kernel for _, kernel, _, _ in table} == asked - {"NCHW", "as given", "whole eights"}


@pytest.mark.parametrize(
    "text", ["forward float32 NCHW 1,2,3x4", "forward int8 NCHW 1,2,3x4,k3", "forward half CHWN 1,2,3x4,k3"]
)
def test_a_line_that_is_no_problem_says_how_to_write_one(text):
    with pytest.raises(ValueError, match="write one as `forward float32 NCHW"):
        Call.parse(text)


def test_lines_are_read_as_they_are_written():
    for call, _ in itertools.chain.from_iterable(SECTIONS.values()):
        assert Call.parse(str(call)) == call


# Each is one more than positions of 32 bits, or that many planes, allow; those that are about planes have small ones.
LIMIT = 1 << 29
TOO_LARGE = [
    (Call(images=(2, 8, LIMIT, 3)), False),
    (Call(images=(2, 8, 3, LIMIT)), False),
    (Call(images=(1, 8, LIMIT - 1, 1), stride=(2, 2)), False),
    (Call(images=(1, 8, 9, 9), padding=(LIMIT, LIMIT)), False),
    (Call(images=(1, 8, 9, 9), dilation=(LIMIT // 2, LIMIT // 2), padding=(LIMIT // 2, LIMIT // 2)), False),
    (Call(images=(LIMIT, 1, 9, 9)), True),
    (Call(images=(1, LIMIT, 9, 9)), True),
    (Call(images=(1 << 15, 1 << 15, 9, 9)), True),
]


@pytest.mark.parametrize(("call", "are_planes_small"), TOO_LARGE)
def test_positions_beyond_32_bits_are_left_to_the_kernels_for_anything(program, call, are_planes_small):
    alternatives = itertools.product(
        ("forward", "input_grad", "weight_grad"), ("NCHW", "NHWC"), (2, 4, 8), (3, 7, 9), (1, 2), (True, False)
    )
    calls = [
        replace(
            call,
            question=question,
            layout=layout,
            element_bytes=element_bytes,
            kernel=(kernel, kernel),
            multiplier=multiplier,
            tensor_cores=tensor_cores,
        )
        for question, layout, element_bytes, kernel, multiplier, tensor_cores in alternatives
    ]
    for each, found in zip(calls, program.ask(calls), strict=True):
        # Products on diagonals count images and channels each by itself, and positions within a plane.
        on_diagonals = are_planes_small and found.answer in ("diagonals_nchw", "diagonals_nhwc")
        anything = "gather_weight_grad_any" if each.question == "weight_grad" else "gather_any"
        assert found.answer == anything or (on_diagonals and each.question == "weight_grad"), each


@pytest.fixture(scope="module")
def table(path):
    """Passes, kernel, regime and reason of each rule."""
    done = subprocess.run([path, "tables"], capture_output=True, text=True, check=True)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def test_names_are_those_of_the_kernels(table):
    """`graft bench --explain` prints the names of kernels; one that no rule names cannot run."""
    kernels = kernels_in(FOLDER / "cuda").keys()
    # Columns are four results of a thread of the same kernel.
    assert {kernel for _, kernel, _, _ in table} - {"gather_columns"} == kernels - {"sum_chunks"}


def test_a_name_is_a_path(table):
    """The room of a kernel, which is a technique, and its file there, or the room's own."""
    for _, kernel, _, _ in table:
        places = [(room, kernel.removeprefix(f"{room.name}_")) for room in FOLDER.glob("cuda/*/") if room.is_dir()]
        assert any(
            name != kernel and (list(room.glob(f"{name}*.cu")) or (room / f"{room.name}.cuh").is_file())
            for room, name in places
        ), kernel


def test_every_launcher_is_in_the_folder_of_its_kernel():
    rows = re.findall(r"^  ROW\((\w+), (\w+),", (FOLDER / "cuda/kernel_table.h").read_text(), re.MULTILINE)
    assert len(rows) == 33
    for kernel, launcher in rows:
        definition = re.compile(rf"void {launcher}\([^;]*?\) \{{")
        [path] = [path for path in FOLDER.glob("cuda/*/*.cu*") if definition.search(path.read_text())]
        assert launcher == f"launch_{kernel}"
        assert kernel.startswith(f"{path.parent.name}_")
