#!/bin/sh
# PyTorch 2.13.0: a float argument that is computed from another number stays at an old value in compiled code.
#
# Call: torch.compile of `op(x * s, s + 1.0)`, where s is a Python float and `op(Tensor x, float amount)` comes from
# torch.library.custom_op.
#
# Expected: the result for the s of each call.
#
# What happens: from the second value of s on, the compiler treats s as a variable. It makes a graph input of the product
# with x, and writes `s + 1.0` into the code as a constant. It compiles again for each new s, but the key of the cache of
# AOTAutograd does not contain that constant. The cache returns the code of the first such value, without an error. Another
# process that shares the cache on disk gets that code too, at its first variable s.
#
# This needs three things: Inductor, which uses the cache; a float that is an expression of s, as s itself is right; and a
# tensor that is computed with s in the same graph.
#
# Why it matters: a schedule of a loss, a temperature or an epsilon stays at an old value, and nothing says so.
#
# What to do, each run below: pass both numbers as arguments (compute `s + 1.0` outside); or pass a tensor without
# dimensions, which is also compiled once only; or set torch._dynamo.config.specialize_float = True; or call
# torch.compile(..., dynamic=False); or set TORCHINDUCTOR_AUTOGRAD_CACHE=0. `float(s + 1.0)` inside does not help.
#
# Known in public, for PyTorch's own operators: https://github.com/pytorch/pytorch/issues/197889
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"

cat > "$folder/example.py" <<'EOF'
import sys

import torch


@torch.library.custom_op("finding::add", mutates_args=())
def add(x: torch.Tensor, amount: float) -> torch.Tensor:
    return x + amount


@add.register_fake
def _(x, amount):
    return torch.empty_like(x)


@torch.library.custom_op("finding::add_tensor", mutates_args=())
def add_tensor(x: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    return x + amount


@add_tensor.register_fake
def _(x, amount):
    return torch.empty_like(x)


def results(function, arguments=lambda s: (s,), values=(1.0, 2.0, 3.0, 5.0), **options):
    torch.compiler.reset()
    compiled = torch.compile(function, **options)
    return [compiled(torch.ones(1), *arguments(s)).item() for s in values]


def stale(x, s):
    return add(x * s, s + 1.0)


right = [2 * s + 1 for s in (1.0, 2.0, 3.0, 5.0)]
print("torch", torch.__version__)
if sys.argv[1:] == ["second process"]:
    found = results(stale, values=(7.0, 9.0))
    print("x * s + (s + 1) in a second process for s = 7, 9:", found, "right would be", [15.0, 19.0])
    sys.exit(found != [15.0, 12.0])

found = results(stale)
print("x * s + (s + 1) for s = 1, 2, 3, 5:              ", found, "right would be", right)
assert found == [3.0, 5.0, 6.0, 8.0], "the behaviour has changed"
found = results(lambda x, s: add(x * s, float(s + 1.0)))
print("with float(...) around it:                       ", found)
assert found == [3.0, 5.0, 6.0, 8.0], "the behaviour has changed"

cures = {
    "both numbers passed": lambda: results(lambda x, s, t: add(x * s, t), lambda s: (s, s + 1.0)),
    "a tensor without dimensions": lambda: results(
        lambda x, s: add_tensor(x * s, s + 1.0), lambda s: (torch.tensor(s),)
    ),
    "dynamic=False": lambda: results(stale, dynamic=False),
    "backend='aot_eager'": lambda: results(stale, backend="aot_eager"),
}
for name, cure in cures.items():
    print(f"{name + ':':49}", cure())
    assert cure() == right, "the cure no longer helps"
with torch._dynamo.config.patch(specialize_float=True):
    print(f"{'specialize_float=True:':49}", results(stale))
    assert results(stale) == right, "the cure no longer helps"
EOF
"$folder/venv/bin/python" "$folder/example.py"
"$folder/venv/bin/python" "$folder/example.py" "second process"
echo "without the cache of AOTAutograd the second process is right:"
! TORCHINDUCTOR_AUTOGRAD_CACHE=0 "$folder/venv/bin/python" "$folder/example.py" "second process"
