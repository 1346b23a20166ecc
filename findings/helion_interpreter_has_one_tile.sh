#!/bin/sh
# Helion 1.5.1: with HELION_INTERPRET=1 a tile is as long as its dimension, whatever block sizes a kernel is given.
#
# Call: a kernel with `config=helion.Config(block_sizes=[2, 16])` that sums rows of 40 columns in a loop over tiles of
# columns, and by mistake keeps the sum of the last tile only; with HELION_INTERPRET=1, Helion's reference mode.
#
# Expected: tiles of 2 rows and 16 columns, as the configuration says; the result is then the sum of the last 8 columns.
#
# What happens: there is one tile of all rows and columns, and the result is right. An index past the end is changed to
# that of the last element, too, so that a kernel that reads past the end shows nothing either.
#
# Why it matters: the mode is the one way to run a kernel without a GPU. What is wrong at the border of a tile, which is
# where kernels are wrong, passes there.
#
# What to do: run the kernel on a GPU before you believe it. `graft check` says which kernels ran in this mode only.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 helion==1.5.1 triton==3.7.1 packaging==26.4

cat > "$folder/example.py" <<'EOF'
from importlib.metadata import version

import helion
import helion.language as hl
import torch

seen = []


@helion.kernel(config=helion.Config(block_sizes=[2, 16]))
def sum_of_the_last_tile(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.size()
    sums = torch.empty([rows], dtype=x.dtype, device=x.device)
    for row in hl.tile(rows):
        for column in hl.tile(columns):
            seen.append(((row.begin, row.end), (column.begin, column.end)))
            sums[row] = x[row, column].sum(-1)
    return sums


@helion.kernel(config=helion.Config(block_sizes=[4]))
def next_element(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    for place in hl.tile(x.size(0)):
        found[place] = x[place.index + 1]
    return found


print("helion", version("helion"), "torch", torch.__version__)
sums = sum_of_the_last_tile(torch.ones(3, 40))
print("tiles:", seen)
print("sums:", sums.tolist(), "where tiles of 16 columns would give 8.0")
assert seen == [((0, 3), (0, 40))] and sums.tolist() == [40.0] * 3, "the behaviour has changed"
found = next_element(torch.arange(4.0))
print("the elements behind those of [0, 1, 2, 3]:", found.tolist())
assert found.tolist() == [1.0, 2.0, 3.0, 3.0], "the behaviour has changed"
EOF
HELION_INTERPRET=1 "$folder/venv/bin/python" "$folder/example.py"
