#!/bin/sh
# PyTorch 2.13.0: a compiled gradient uses the value that a buffer has after the call, where the function used a copy of
# the value before.
#
# Call: a function that copies a buffer, changes the buffer in place without a gradient, and multiplies by the copy; then
# backward. A running average that scales the activations it was updated with is of this kind. torch.compile with the
# backends aot_eager and inductor.
#
# Expected: the gradient of eager mode, 2 * 3 = 6: `before` is a clone, which nothing changes.
#
# What happens: the compiled function gives the right value, and the gradient 2 * 4 = 8, without a warning. The backward
# graph does not keep `before`: it computes it again from the buffer, which holds the new value by then. The update is
# under no_grad, so autograd's version counters, which find such a change in eager mode, see nothing. It makes no
# difference whether the copy is clone() or total * 1, inside or outside of no_grad, and whether the buffer is changed by
# copy_(), by add_() or by writing a detached tensor. The backend eager, which only traces, is right.
#
# Why it matters: values, losses of the first step and all tests of forward passes agree; only training differs.
#
# What to do: pass the old value out of the compiled function and back in, or change the buffer outside of it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch


def by_clone(x, total):
    before = total.clone()
    with torch.no_grad():
        total.add_(x)
    return x * 2 * before


def by_product(x, total):
    before = total * 1
    with torch.no_grad():
        total.copy_(before + x)
    return x * 2 * before


def by_detached(x, total):
    before = total.clone()
    total.copy_((before + x).detach())
    return x * 2 * before


def updated_outside(x, total):
    return x * 2 * total.clone()


print("torch", torch.__version__)
found = {}
for function in (by_clone, by_product, by_detached, updated_outside):
    for backend in ("none", "eager", "aot_eager", "inductor"):
        torch._dynamo.reset()
        called = function if backend == "none" else torch.compile(function, backend=backend, fullgraph=True)
        x, total = torch.tensor([1.0], requires_grad=True), torch.tensor([3.0])
        value = called(x, total)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        found[function.__name__, backend] = value.item(), gradient.item()
for (name, backend), (value, gradient) in found.items():
    print(f"{name}, backend {backend}: value {value}, gradient {gradient}")

right, wrong = (6.0, 6.0), (6.0, 8.0)
expected = {}
for name in ("by_clone", "by_product", "by_detached"):
    expected |= {(name, "none"): right, (name, "eager"): right, (name, "aot_eager"): wrong, (name, "inductor"): wrong}
expected |= {("updated_outside", backend): right for backend in ("none", "eager", "aot_eager", "inductor")}
assert found == expected, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
