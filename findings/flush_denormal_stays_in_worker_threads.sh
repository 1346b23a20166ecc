#!/bin/sh
# PyTorch 2.13.0: torch.set_flush_denormal(False) leaves threads of PyTorch's pool flushing subnormal numbers to zero.
#
# Call: `torch.set_flush_denormal(True)`, a large product, `torch.set_flush_denormal(False)`; then a product of a million
# numbers whose results are all subnormal. With two threads; once in a process whose first parallel operator ran while
# the mode was on, and once in one where an operator ran in parallel before.
#
# Expected: all elements of one tensor are treated alike, and after False none is flushed.
#
# What happens: the mode belongs to the thread that sets it, and a new thread has the mode of the one that starts it. If
# PyTorch's pool starts while the mode is on, its threads keep it for ever: half of the elements are zero, the other half
# are not. If the pool was there before, its threads never flush, also while the mode is on.
#
# Why it matters: the same line of a program gives other numbers for elements that another thread happens to compute, and
# a test of small numbers fails or not by what the process ran before.
#
# What to do: run something in parallel on all threads before the mode is switched on for a while; set it before the
# first operator if it is to hold everywhere.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'END'
import sys

import torch

torch.set_num_threads(2)
small = torch.tensor(1e-30).expand(1_000_000)
if sys.argv[1] == "there":
    torch.ones(1_000_000)
assert torch.set_flush_denormal(True)
during = (small * 1e-10 == 0).float().mean().item()
torch.set_flush_denormal(False)
after = (small * 1e-10 == 0).float().mean().item()
print(f"torch {torch.__version__}, pool {sys.argv[1]} before: flushed while on {during:.0%}, after it was off {after:.0%}")
expected = {"there": (0.5, 0.0), "not there": (1.0, 0.5)}
assert (during, after) == expected[sys.argv[1]], "the behaviour has changed"
END
"$folder/venv/bin/python" "$folder/example.py" "there"
"$folder/venv/bin/python" "$folder/example.py" "not there"
