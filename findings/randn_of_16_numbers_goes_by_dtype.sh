#!/bin/sh
# PyTorch 2.13.0: on a CPU, torch.randn gives the same numbers in float32 and in float64 for fewer than 16 elements, and
# unrelated ones for 16 and more. Those of torch.rand are unrelated from the first on.
#
# Call: `torch.randn(count, generator=torch.Generator().manual_seed(3), dtype=...)` in float64, float32, float16 and
# bfloat16, for counts around 16.
#
# Expected: whether one seed gives one sequence of numbers, rounded to the dtype, does not depend on how many are drawn.
#
# What happens: 15 numbers in float32 are those of float64, rounded. Of 16 numbers none is: they are as unrelated as
# those of two seeds. float16 and bfloat16 have the numbers of float32, rounded, but for the last 16 where how many are
# drawn is no multiple of 16.
#
# Why it matters: noise in float32 that is compared with the same seed's in float64, as a definition of a random operator
# is in a test, agrees for the small tensors of the test, and for no large one.
#
# What to do: draw in one dtype, and convert: `torch.randn(..., dtype=torch.float32).to(dtype)`.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'END'
import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def drawn(function, count, dtype):
    return function(count, generator=torch.Generator().manual_seed(3), dtype=dtype)


def alike(function, count, dtype):
    exact = drawn(function, count, torch.float64)
    return int(torch.isclose(drawn(function, count, dtype).double(), exact, rtol=0.02, atol=0.01).sum())


for count in (15, 16, 1000):
    normal, even = ([alike(function, count, dtype) for dtype in DTYPES] for function in (torch.randn, torch.rand))
    print(f"torch {torch.__version__}: of {count} numbers those of float64: randn {normal}, rand {even}")
    changed = "the behaviour has changed"
    if count < 16:
        assert normal == [count] * 3, changed
    else:
        assert max(normal) < count / 4, changed
    assert max(even) < count / 2, changed

halves, singles = (drawn(torch.randn, 1000, dtype).float() for dtype in (torch.float16, torch.float32))
apart = ((halves - singles).abs() > 0.05).nonzero().flatten().tolist()
print(f"of 1000 numbers in float16 those that float32 does not have: {apart[0]} to {apart[-1]}")
assert apart[0] >= 1000 - 16, changed
END
"$folder/venv/bin/python" "$folder/example.py"
