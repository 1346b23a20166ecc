"""`graft bench --explain --device-like`: the kernels that would be chosen on a GPU which is not here."""

import json
import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import golden
import torchgraft
from choice import PACKAGE
from documents import read_document
from torchgraft.benchmarking import drawn, predicting
from torchgraft.benchmarking.predicting import Gpu, gpu_like, kernels_today
from torchgraft.benchmarking.results import report_from_dict
from torchgraft.benchmarking.suite import Wanted
from torchgraft.benchmarking.summary import as_markdown
from torchgraft.checking.subject import find_subjects
from torchgraft.cli import app

H200 = Gpu(90, 132)
RESULTS = PACKAGE.parents[1] / "benchmarks/results/h200/bench.json"
DTYPES = {2: torch.float16, 4: torch.float32, 8: torch.float64}


def explained(*arguments):
    """The answer of the command as JSON: the kernels by sample, dtype, layout and pass."""
    done = CliRunner().invoke(app, ["bench", *arguments, "--explain", "--json", "-"])
    assert done.exit_code == 0, done.output
    rows = read_document("bench-device-like", done.stdout)["rows"]
    return {(row["sample"], row["dtype"], row["layout"], row["direction"]): row["kernels"] for row in rows}


def test_the_command_names_the_kernels_of_both_passes():
    found = explained("depthwise_conv2d", "--quick", "--pass", "forward,backward", "--device-like", "9.0x132")
    of = {key[1:]: kernels for key, kernels in found.items() if "k7" in key[0]}
    assert of["float32", "contiguous", "forward"] == ["strips_correlate"]
    assert of["bfloat16", "contiguous", "forward"] == ["bands_small"]
    assert of["bfloat16", "channels_last", "forward"] == ["slide_correlate_mma"]
    assert of["bfloat16", "channels_last", "backward"] == ["slide_correlate_mma", "diagonals_nhwc"]


def test_a_device_without_tensor_cores_of_halves_has_other_kernels():
    found = explained("depthwise_conv2d", "--quick", "--dtype", "bfloat16", "--device-like", "7.5x40")
    assert found
    assert not {kernel for kernels in found.values() for kernel in kernels if kernel.startswith(("bands", "diagonals"))}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("9.0", "as 9.0x132; got '9.0'"),
        ("9.0x0", "as 9.0x132"),
        ("90x132", "as 9.0x132"),
        ("H200", "as 9.0x132"),
        ("6.1x20", "compute capability 6.1 is not known; choose from 7.5, 8.0"),
    ],
)
def test_a_device_that_is_none_is_refused(text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        gpu_like(text)
    done = CliRunner().invoke(app, ["bench", "depthwise_conv2d", "--explain", "--device-like", text])
    assert done.exit_code == 2


def test_rows_of_a_seed_are_those_that_a_gpu_draws(monkeypatch):
    found = explained(*("depthwise_conv2d", "--draw", "4", "--seed", "7", "--device-like", "9.0x132"))
    # Such a GPU need not be here for its rows to be drawn, but for them to be planned, which captures graphs.
    monkeypatch.setattr(drawn, "Capturing", lambda device: None)
    monkeypatch.setattr(drawn, "_memory_of", lambda device: 141 * 10**9)
    wanted = Wanted(torch.device("cuda"), directions=())
    planned = drawn.plan_drawn(find_subjects(["depthwise_conv2d"]), wanted, 4, 7, named=True)
    assert set(found) == {each.key[2:] for each in planned}
    assert {key[3] for key in found} == {"forward", "input_grad", "weight_grad"}
    assert all(found.values())


def test_a_captured_call_has_the_kernel_of_the_row_of_its_sizes(tmp_path):
    # Sizes of no row: 9 channels of images of 111 x 37.
    images, weight = torch.randn(2, 9, 111, 37), torch.randn(9, 1, 5, 5)
    with torchgraft.capture(torchgraft.depthwise_conv2d, tmp_path, values=False):
        torchgraft.depthwise_conv2d(images, weight, padding=2)
    options = ("--pass", "forward,backward", "--replay", str(tmp_path), "--device-like", "9.0x132")
    found = explained("depthwise_conv2d", *options)
    assert {key[1:] for key in found} == {("float32", "contiguous", each) for each in ("forward", "backward")}
    ask = predicting._asking(H200)
    on_meta = images.to("meta"), weight.to("meta"), None, *(1, 1, 2, 2, 2, 2, 1, 1)
    assert [kernels for key, kernels in found.items() if key[3] == "forward"] == [ask("depthwise_conv2d", on_meta)]


@pytest.mark.parametrize("others", [["--draw", "3", "--suite", "networks"], ["--draw", "3", "--replay", "calls"]])
def test_rows_of_their_own_are_not_selected(others):
    arguments = ["bench", "depthwise_conv2d", "--explain", "--device-like", "9.0x132", *others]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "has rows of its own: leave out" in " ".join(done.output.split())


@pytest.mark.parametrize("others", [[], ["--explain", "--draw", "3", "--measured"], ["--explain", "--device", "cpu"]])
def test_nothing_is_timed_for_a_device_that_is_not_here(others):
    done = CliRunner().invoke(app, ["bench", "depthwise_conv2d", "--device-like", "9.0x132", *others])
    assert done.exit_code != 0
    assert "add --explain, and leave out" in " ".join(done.output.split())


def test_devices_have_the_memory_that_the_emulator_gives_them():
    rows = re.findall(
        r"\{(\d+), (\d+) << 10, \d+, (\d+) << 10,", (PACKAGE / "emulation/emulator/device.cpp").read_text()
    )
    assert {int(each[0]): (int(each[1]), int(each[2])) for each in rows} == predicting._SHARED_KIB


def test_problems_of_the_golden_file_have_the_same_kernel():
    """For images in NCHW, which are brought into no other layout."""
    ask = predicting._asking(H200)
    asked = 0
    for call, kernel in (line for section in golden.read().values() for line in section):
        here = replace(call, alignment=16, tensor_cores=True, shared_bytes=227 << 10, multiprocessors=132)
        is_asked = call.layout == "NCHW" and call.question in ("forward", "input_grad", "weight_grad")
        if call != here or not is_asked or not call.is_possible:
            continue
        batch, channels, rows, columns = call.images
        dtype = DTYPES[call.element_bytes]
        images = torch.empty(call.images, dtype=dtype, device="meta")
        results = torch.empty(batch, channels * call.multiplier, *call.outputs, dtype=dtype, device="meta")
        weight = torch.empty(channels * call.multiplier, 1, *call.kernel, dtype=dtype, device="meta")
        front, behind = call.paddings
        window = (*call.stride, *front, *behind, *call.dilation)
        name, arguments = {
            "forward": ("depthwise_conv2d", (images, weight, None, *window)),
            "input_grad": ("depthwise_conv2d_input_grad", (results, weight, channels, rows, columns, False, *window)),
            "weight_grad": ("depthwise_conv2d_weight_grad", (results, images, *call.kernel, *window, None, False)),
        }[call.question]
        assert ask(name, arguments) == [kernel], call
        asked += 1
    assert asked > 300


@pytest.fixture(scope="module")
def measured():
    return report_from_dict(json.loads(RESULTS.read_text()))


@pytest.fixture(scope="module")
def today(measured):
    return kernels_today(measured)


def test_rows_that_do_not_say_their_kernel_have_one_today(measured, today):
    chosen_among = ("depthwise_conv2d", "shift", "lltm")
    rows = [row for row in measured.rows if row.operator.startswith(chosen_among) and row.time and not row.chosen]
    missing = [row.key for row in rows if not today.get(row.key)]
    # Products of cells are PyTorch's, in float64 and in half types.
    assert not [key for key in missing if not key[0].startswith("lltm_cell")]


def test_the_file_of_every_kernel_is_found_by_its_name(today):
    for key, kernels in today.items():
        folder = PACKAGE / "operators" / re.match(r"depthwise_conv2d|shift|lltm|\w+", key[0])[0] / "cuda"
        stems = {"_".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.cu*")}
        for kernel in kernels:
            # Shapes of a kernel and its types are behind its path; kernels of one file have the name of its folder.
            assert any(
                f"{kernel}_".startswith(f"{stem}_") or f"{stem}_".startswith(f"{kernel}_") for stem in stems
            ) or any(
                kernel.startswith(f"{room.name}_") and (room / f"{room.name}.cuh").is_file()
                for room in folder.iterdir()
            )


def test_the_tables_say_which_kernel_ran_and_which_would_run_today(measured, today):
    row = next(row for row in measured.rows if row.operator == "depthwise_conv2d")
    ran = replace(row, chosen=("some_kernel",))
    other = next(each for each in measured.rows if each.suite == row.suite and each.key != row.key)
    text = as_markdown(replace(measured, rows=(ran, other)), today)
    assert "| kernel | kernel today |" in text
    [line] = [line for line in text.splitlines() if "some_kernel" in line]
    assert line.endswith("| some_kernel |  |")
    assert f"| {', '.join(today[other.key])} |" in text
    assert "kernel today" not in as_markdown(replace(measured, rows=(ran,)))
    assert "| kernel |" not in as_markdown(replace(measured, rows=(row,)))


def test_a_row_keeps_the_kernels_that_were_chosen(measured):
    row = replace(measured.rows[0], chosen=("bands_small", "strips_weight_grad"))
    report = replace(measured, rows=(row,))
    assert report_from_dict(json.loads(report.as_json())).rows == (row,)
