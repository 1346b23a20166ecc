#!/bin/sh
# PyTorch 2.13.0: the first call of a compiled function computes x.conj() * y in a custom operator as x * y.
#
# Call: an operator of torch.library.custom_op whose kernel uses a lazy conjugate or a lazy negative, as x.conj() * y or
# x.conj().imag + 1, inside torch.compile with the backends aot_eager and inductor.
#
# Expected: the same value at each call, as in eager mode and with the backend eager.
#
# What happens: the first call after a compilation gives x * y, and all later calls give conj(x) * y, without a warning.
# Any TorchDispatchMode has the same effect in eager mode: under FlopCounterMode, every call of the operator is wrong,
# while the same expression outside of an operator is right. PyTorch calls an operator below a mode with the dispatch
# keys Conjugate, Negative and ZeroTensor excluded, because these have been resolved in its arguments; a kernel in Python
# that makes a lazy conjugate of its own then finds nobody who computes it. AOTAutograd runs the first call of what it
# made under a mode that looks whether results of custom operators alias their inputs. Functions that read the bit
# themselves, such as clone and matmul, are right.
#
# Why it matters: compiled signal processing, quantum and Fourier models train their first step on a wrong value, and a
# test that compares the second call with eager mode passes.
#
# What to do: write x.conj_physical() in kernels, or x.conj().resolve_conj() before anything else.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


@torch.library.custom_op("finding::product", mutates_args=())
def product(x: Tensor, y: Tensor) -> Tensor:
    return (x.conj() * y).resolve_conj()


@torch.library.custom_op("finding::physical", mutates_args=())
def physical(x: Tensor, y: Tensor) -> Tensor:
    return x.conj_physical() * y


@torch.library.custom_op("finding::imaginary", mutates_args=())
def imaginary(x: Tensor, y: Tensor) -> Tensor:
    return x.conj().imag + y.real


product.register_fake(lambda x, y: torch.empty_like(x))
physical.register_fake(lambda x, y: torch.empty_like(x))
imaginary.register_fake(lambda x, y: torch.empty_like(x.real))

print("torch", torch.__version__)
x, y = torch.tensor([1 + 2j]), torch.tensor([3 - 1j])
found = {}
for operator in (product, physical, imaginary):
    name = operator._name
    found[name, "eager mode"] = [operator(x, y).item()]
    for backend in ("eager", "aot_eager", "inductor"):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, y: operator(x, y), backend=backend, fullgraph=True)
        found[name, backend] = [compiled(x, y).item() for _ in range(3)]
    with FlopCounterMode(display=False):
        found[name, "FlopCounterMode"] = [operator(x, y).item() for _ in range(2)]
with FlopCounterMode(display=False):
    found["no operator", "FlopCounterMode"] = [(x.conj() * y).item()]
for (name, way), values in found.items():
    print(f"{name}, {way}: {values}")

right, wrong = 1 - 7j, 5 + 5j
assert found == {
    ("product", "eager mode"): [right],
    ("product", "eager"): [right] * 3,
    ("product", "aot_eager"): [wrong, right, right],
    ("product", "inductor"): [wrong, right, right],
    ("product", "FlopCounterMode"): [wrong, wrong],
    ("physical", "eager mode"): [right],
    ("physical", "eager"): [right] * 3,
    ("physical", "aot_eager"): [right] * 3,
    ("physical", "inductor"): [right] * 3,
    ("physical", "FlopCounterMode"): [right, right],
    ("imaginary", "eager mode"): [1.0],
    ("imaginary", "eager"): [1.0] * 3,
    ("imaginary", "aot_eager"): [5.0, 1.0, 1.0],
    ("imaginary", "inductor"): [5.0, 1.0, 1.0],
    ("imaginary", "FlopCounterMode"): [5.0, 5.0],
    ("no operator", "FlopCounterMode"): [right],
}, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
