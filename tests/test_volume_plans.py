"""How the CUDA kernels of depthwise_conv3d are chosen, and cut volumes into blocks: both sides of each limit.

The plans are host code alone: the tests compile them into a program and ask that, on a machine without a GPU.
"""

import random
import subprocess
from dataclasses import dataclass, replace

import pytest

from choice import build

SHARED_BYTES = 48 << 10


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """`ask(lines)`: what the program says of each line."""
    program = build("depthwise_conv3d", tmp_path_factory.mktemp("plans"), "volume_plans")

    def ask(lines: list[str]) -> list[dict[str, str]]:
        done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
        found = [dict(each.split("=") for each in line.split()) for line in done.stdout.splitlines()]
        assert len(found) == len(lines)
        return found

    return ask


@dataclass(frozen=True)
class Call:
    """A pass over volumes of 8 x 16 x 24 voxels, the same in each direction but for their lengths."""

    kernel: tuple[int, int, int] = (3, 3, 3)
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: int | tuple[int, int, int] = 1
    dilation: int = 1
    size: tuple[int, int, int] = (8, 16, 24)
    transposed: bool = False
    channels_last: bool = False
    element_bytes: int = 2
    batch: int = 2048
    multiplier: int = 1

    def line(self) -> str:
        """The line that the program reads."""
        padding = self.padding if isinstance(self.padding, tuple) else (self.padding,) * 3
        numbers = [int(self.transposed), int(self.channels_last), self.element_bytes, self.batch, 4, self.multiplier]
        for size, kernel, stride, side in zip(self.size, self.kernel, self.stride, padding, strict=True):
            output = (size + 2 * side - self.dilation * (kernel - 1) - 1) // stride + 1
            numbers += [size, output, kernel, stride, side, self.dilation]
        return " ".join(["kernel", *map(str, numbers)])


SWEEP = ("sweep_correlate", "sweep_weight_grad")
LAST = ("channels_last_correlate", "channels_last_weight_grad")
PHASES = ("phases_input_grad", "channels_last_phases_input_grad")
RUNS = ("runs_correlate", "runs_weight_grad")
GATHER = ("gather_volumes", "gather_volumes_weight_grad")


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        (Call(), SWEEP),
        (Call(element_bytes=4), SWEEP),
        (Call(element_bytes=8), GATHER),
        (Call(dilation=2), GATHER),
        (Call(kernel=(3, 3, 1)), RUNS),
        (Call(kernel=(4, 4, 4)), RUNS),
        (Call(kernel=(5, 1, 1), padding=(2, 0, 0)), SWEEP),
        (Call(stride=(1, 2, 2)), SWEEP),
        (Call(stride=(2, 1, 1)), RUNS),
        # A padding that is as large as the kernel has windows over nothing.
        (Call(padding=2), SWEEP),
        (Call(padding=3), RUNS),
        # An input gradient with a stride begins at the phase that the padding which keeps sizes has.
        (Call(stride=(2, 2, 2), transposed=True), SWEEP),
        (Call(stride=(2, 2, 2), padding=0, transposed=True), (PHASES[0], SWEEP[1])),
        (Call(stride=(2, 2, 2), padding=0, transposed=True, channels_last=True), (PHASES[1], LAST[1])),
        (Call(stride=(2, 2, 2), padding=0), SWEEP),
        (Call(stride=(2, 2, 2), padding=(0, 1, 1), transposed=True), SWEEP),
        (Call(multiplier=2), SWEEP),
        (Call(multiplier=2, transposed=True), (GATHER[0], SWEEP[1])),
        # Phases take any padding, kernels of up to seven taps, and a stride of 2 across a plane.
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), padding=0, transposed=True), (PHASES[0], RUNS[1])),
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), padding=0), RUNS),
        (Call(kernel=(7, 7, 7), stride=(1, 1, 2), padding=9, transposed=True), (PHASES[0], RUNS[1])),
        (Call(kernel=(7, 7, 7), stride=(1, 2, 1), element_bytes=4, transposed=True), (PHASES[0], RUNS[1])),
        (Call(kernel=(8, 7, 7), stride=(2, 2, 2), transposed=True), GATHER),
        (Call(kernel=(7, 7, 8), stride=(2, 2, 2), transposed=True), GATHER),
        (Call(kernel=(2, 2, 2), stride=(2, 1, 1), transposed=True), (GATHER[0], RUNS[1])),
        (Call(kernel=(2, 2, 2), stride=(3, 2, 2), transposed=True), GATHER),
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), element_bytes=8, transposed=True), GATHER),
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), dilation=2, transposed=True), GATHER),
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), multiplier=2, transposed=True), GATHER),
        (
            Call(kernel=(2, 2, 2), stride=(2, 2, 2), padding=0, size=(1023, 1024, 1024), batch=7, transposed=True),
            (PHASES[0], RUNS[1]),
        ),
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), padding=0, size=(1024, 1024, 1024), transposed=True), GATHER),
        # Runs take the same kernels with any strides of 1 and 2. An input gradient of stride 1 is a forward pass.
        (Call(kernel=(7, 1, 7), stride=(1, 2, 1), element_bytes=4), RUNS),
        (Call(kernel=(4, 4, 4), transposed=True), RUNS),
        (Call(kernel=(8, 1, 1)), GATHER),
        (Call(kernel=(1, 8, 1)), GATHER),
        (Call(kernel=(1, 1, 8)), GATHER),
        (Call(kernel=(4, 4, 4), stride=(1, 1, 3)), GATHER),
        (Call(kernel=(4, 4, 4), multiplier=2), GATHER),
        # A weight gradient numbers the runs of all images.
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), padding=0, size=(512, 1024, 1024), batch=15), RUNS),
        (Call(kernel=(2, 2, 2), stride=(2, 2, 2), padding=0, size=(512, 1024, 1024), batch=16), (RUNS[0], GATHER[1])),
        # Small volumes are not swept, where anything but gathering takes them.
        (Call(batch=50), RUNS),
        (Call(batch=51), SWEEP),
        (Call(batch=50, transposed=True), RUNS),
        (Call(batch=51, transposed=True), SWEEP),
        (Call(batch=2, stride=(2, 2, 2), transposed=True), (PHASES[0], RUNS[1])),
        (Call(batch=2, multiplier=2), SWEEP),
        (Call(batch=2, channels_last=True), LAST),
        # A volume of 2**30 voxels is beyond what sweeps index.
        (Call(size=(1023, 1024, 1024)), SWEEP),
        (Call(size=(1024, 1024, 1024)), GATHER),
        (Call(channels_last=True), LAST),
        (Call(channels_last=True, element_bytes=4, stride=(1, 2, 2)), LAST),
    ],
    ids=str,
)
def test_the_kernel_of_a_call(ask, call, kernels):
    (found,) = ask([call.line()])
    assert (found["correlation"], found["weight_grad"]) == kernels


@pytest.mark.parametrize(
    ("call", "fits"),
    [
        (Call(size=(1023, 1024, 1024)), "1"),
        (Call(size=(1024, 1024, 1024)), "0"),
        (Call(kernel=(1, 1, 1), padding=(2**30 - 1, 0, 0), size=(2, 2, 2), stride=(2**29, 1, 1)), "0"),
        (Call(kernel=(1, 1, 1), padding=(2**29, 0, 0), size=(2, 2, 2), stride=(2**28, 1, 1)), "0"),
        (Call(kernel=(1, 1, 1), padding=(2**28, 0, 0), size=(2, 2, 2), stride=(2**27, 1, 1)), "1"),
    ],
    ids=str,
)
def test_which_calls_32_bits_hold(ask, call, fits):
    (found,) = ask([replace(call, padding=call.padding).line()])
    assert found["fits_32"] == fits


@pytest.mark.parametrize(
    ("columns", "element_bytes", "alignment", "piece"),
    [(56, 2, 16, 16), (28, 2, 16, 8), (14, 2, 16, 4), (7, 2, 16, 2), (56, 2, 4, 4), (56, 2, 1, 2), (7, 4, 16, 4)],
)
def test_the_piece_in_which_rows_are_copied(ask, columns, element_bytes, alignment, piece):
    (found,) = ask([f"piece {columns} {element_bytes} {alignment}"])
    assert int(found["piece"]) == piece


def test_tiles_hold_all_results_and_fit_shared_memory(ask):
    random_ = random.Random(3)
    calls = []
    for _ in range(400):
        rows, columns = random_.choice([1, 7, 40, 300]), random_.choice([1, 7, 56, 129, 1000])
        taps, stride = random_.choice([(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
        most_threads = random_.choice([32, 64, 256])
        calls.append((rows, columns, random_.randint(1, 40), random_.choice([2, 4]), taps, stride, most_threads, 4))
    found = ask([f"tile {' '.join(map(str, call))}" for call in calls])
    for (rows, columns, volumes, element_bytes, *_, most_threads, _), line in zip(calls, found, strict=True):
        tile = {name: int(number) for name, number in line.items()}
        assert tile["wide"] * tile["units"] * 4 >= columns
        assert tile["high"] * tile["groups"] * 4 >= rows
        assert (tile["wide"] - 1) * tile["units"] * 4 < columns
        assert (tile["high"] - 1) * tile["groups"] * 4 < rows
        assert tile["units"] * tile["groups"] * tile["packs"] <= tile["threads"] <= max(most_threads, 32)
        assert tile["threads"] % 32 == 0
        assert tile["bytes"] <= SHARED_BYTES
        assert 1 <= tile["packs"] <= min(volumes, 16)
        vector = 16 // element_bytes
        assert tile["pitch"] % vector == 0
        # The last thread's piece ends within the row, wherever in a vector the tile begins.
        assert vector - 1 + (tile["units"] - 1) * tile["step"] + tile["sources"] <= tile["pitch"]
        if tile["wide"] > 1:
            assert tile["units"] * tile["step"] % vector == 0


@pytest.mark.parametrize(
    ("call", "planes"),
    [
        # Blocks enough for the device sweep all of depth at once.
        ((16, 132 * 8, 2, 132, 4, 8), 16),
        # A single tile is cut as long as that makes each block's work less.
        ((64, 1, 0, 132, 4, 8), 1),
        ((64, 1, 2, 132, 4, 8), 1),
        ((5, 1, 4, 132, 4, 8), 1),
        ((1, 7, 2, 132, 4, 8), 1),
    ],
)
def test_how_depth_is_cut(ask, call, planes):
    (found,) = ask([f"stretch {' '.join(map(str, call))}"])
    assert int(found["planes"]) == planes
