#!/bin/sh
# PyTorch 2.13.0: a torch.autograd.Function that returns one tensor twice gets all gradients at its last place.
#
# Call: forward returns `(y, y)`, the caller uses the first result only.
#
# Expected: backward gets the gradient of the first result, and zeros for the second; or an error, as the two results are
# one object and cannot be told apart.
#
# What happens: backward gets zeros for the first result, and the sum of both gradients for the second, without an error.
# A formula that treats its results differently then gives a wrong gradient.
#
# Why it matters: a kernel that skips work returns the same tensor for two results, for example a running mean and the
# mean of the first step. The gradient is wrong at that step alone.
#
# What to do: return `y, y.clone()`, or `y.view_as(y)` for the second.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"

cat > "$folder/example.py" <<'EOF'
import torch


def gradient_of_first(copy):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 1
            return y, copy(y)

        @staticmethod
        def backward(ctx, first, second):
            print("    backward gets", first.item(), "and", second.item())
            return first + 10 * second

    x = torch.ones(1, requires_grad=True)
    first, second = Twice.apply(x)
    return torch.autograd.grad(first, x)[0].item()


print("torch", torch.__version__)
cases = {"the same tensor": lambda y: y, "a clone": torch.clone, "a view": lambda y: y.view_as(y)}
for name, copy in cases.items():
    found = gradient_of_first(copy)
    print(f"{name}: the gradient of the first result is {found}, right is 1.0")
    assert found == (10.0 if name == "the same tensor" else 1.0), "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
