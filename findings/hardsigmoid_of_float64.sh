#!/bin/sh
# PyTorch 2.13.0: the gradient of hardsigmoid in float64 has the digits of float32.
#
# Call: torch.nn.functional.hardsigmoid of a float64 tensor on a CPU, and its gradient at 0.7, beside those of hardswish
# and of the same function written as `(x / 6 + 0.5).clamp(0, 1)`.
#
# Expected: 1/6 to sixteen digits. The other two have them.
#
# What happens: the gradient is 0.16666667163372..., 1/6 as a float32 holds it, off by 3e-8. The values of the forward
# pass are right, so comparing those alone does not show it.
#
# Why it matters: a derivation that is compared with autograd in float64, to tell a wrong formula from a rounding, seems
# wrong by a hundred million roundings wherever a hardsigmoid is part of it. MobileNetV3 has one in each block.
#
# What to do: write the formula where digits matter.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch
import torch.nn.functional as F

print("torch", torch.__version__)
for name, function, exact in (
    ("hardsigmoid", F.hardsigmoid, 1 / 6),
    ("hardswish", F.hardswish, 0.5 + 0.7 / 3),
    ("the formula", lambda x: (x / 6 + 0.5).clamp(0, 1), 1 / 6),
):
    at = 0.7
    x = torch.tensor([at], dtype=torch.float64, requires_grad=True)
    [gradient] = torch.autograd.grad(function(x).sum(), x)
    error = abs(gradient.item() / exact - 1)
    print(f"{name}: {gradient.item():.17g}, exact {exact:.17g}, relative error {error:.1e}")
    assert (error > 1e-9) == (name == "hardsigmoid"), "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
