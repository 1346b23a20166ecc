#!/bin/sh
# TileLang 0.1.15: for the target 'c', two tensors that are declared with one dynamic size may have different ones.
#
# Call: a kernel of `A: T.Tensor((M, N), ...)` and `B: T.Tensor((M, N), ...)`, where M and N are `T.dynamic`, with an A
# of 5 x 3 elements and a B of 3 x 5.
#
# Expected: an error, as the same program raises when it is compiled for CUDA, whose host code compares the sizes of B
# with those of A; and as it raises for 'c' if M and N are numbers.
#
# What happens: M and N are those of A, B is not looked at, and is written as if it were 5 x 3: the values are in the
# wrong rows. (A B with fewer elements than A would be written past its end.)
#
# Why it matters: 'c' is the target on which a program can be tried without a GPU. What it accepts there it refuses on a
# GPU, and what is wrong there gives no sign.
#
# What to do: compare the sizes before the call. torchgraft's `shapes` does so for operators.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 tilelang==0.1.15 apache-tvm-ffi==0.1.12
export TILELANG_CACHE_DIR="$folder/cache"

cat > "$folder/example.py" <<'EOF'
import tilelang
import tilelang.language as T
import torch


def doubling(rows, columns):
    @T.prim_func
    def program(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads=128) as row:
            for c in T.serial(columns):
                B[row, c] = 2 * A[row, c]

    return tilelang.compile(program, target="c")


print("tilelang", tilelang.__version__, "torch", torch.__version__)
a, b = torch.arange(15.0).view(5, 3), torch.zeros(3, 5)
try:
    doubling(5, 3)(a, b)
    print("sizes that are numbers: accepted")
    raise SystemExit("the behaviour has changed")
except ValueError as error:
    print("sizes that are numbers:", error)
doubling(T.dynamic("M"), T.dynamic("N"))(a, b)
print("dynamic sizes: accepted, the first row of B is", b[0].tolist())
assert torch.equal(b.flatten(), 2 * a.flatten()), "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
