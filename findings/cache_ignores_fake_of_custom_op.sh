#!/bin/sh
# PyTorch 2.13.0: after the dtype of a custom operator's result was corrected, compiled code still reads it as the old one.
#
# Call: a program registers an operator with torch.library.custom_op, whose result is int32, and runs it under
# torch.compile. A later version of the program has the operator return float32, with a fake function that says so.
#
# Expected: the later program compiles again, as what it compiles has changed.
#
# What happens: the caches of Inductor and AOTAutograd find the code of the first program, as their keys hold the name of
# the operator and nothing of what its fake function gives. That code reads the bits of floats as integers. There is no
# error. A change of strides is noticed: the code asserts sizes and strides, but not dtypes. Both dtypes here have four
# bytes, so nothing is read outside of the result.
#
# Why it matters: one edits an operator and its fake function, runs the script again, and gets wrong numbers.
#
# What to do: change the name of the operator, empty the folder TORCHINDUCTOR_CACHE_DIR, or set
# TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 while operators change.
#
# Known in public: https://github.com/pytorch/pytorch/issues/160472
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"

cat > "$folder/example.py" <<'EOF'
import sys

import torch

dtype = getattr(torch, sys.argv[1])


@torch.library.custom_op("finding::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return (2 * x).to(dtype)


@double.register_fake
def _(x):
    return torch.empty_like(x, dtype=dtype)


x = torch.tensor([0.5, 1.0, 1.5])
expected = double(x) + 0.5
found = torch.compile(lambda x: double(x) + 0.5)(x)
print("torch", torch.__version__, dtype, "compiled:", found.tolist(), "eager:", expected.tolist())
sys.exit(not torch.equal(found, expected))
EOF
"$folder/venv/bin/python" "$folder/example.py" int32
if "$folder/venv/bin/python" "$folder/example.py" float32; then
    echo "the behaviour has changed"
    exit 1
fi
echo "without caches:"
TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 "$folder/venv/bin/python" "$folder/example.py" float32
