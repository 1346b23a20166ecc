#!/bin/sh
# PyTorch 2.13.0: forward mode through an operator of torch.library.custom_op gives tangents of zero.
#
# Call: torch.func.jvp, torch.func.jacfwd or torch.autograd.forward_ad over an operator with a formula from
# register_autograd.
#
# Expected: the tangent, or an error, as no rule for forward mode was registered. torch.func.grad over the same operator
# is an error, and so is forward mode over a torch.autograd.Function without `jvp`.
#
# What happens: without an error, torch.func.jvp gives zero, and with forward_ad.dual_level() the result has no tangent,
# which means zero. What the same expression adds beside the operator has its tangent, so a sum is partly right. Reverse
# mode, which jacrev uses, is an error; only torch.autograd is right.
#
# Why it matters: Jacobians of physics models, Hessian-vector products and Laplacians are computed with forward mode. One
# operator of a package inside makes them wrong, and nothing says so.
#
# What to do: give forward mode a composition of PyTorch's operators, as `composed` below does with torch.library.impl for
# the key CompositeImplicitAutograd, or write a Function with `jvp` around the operator.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch
from torch import Tensor
from torch.autograd import forward_ad


@torch.library.custom_op("finding::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


cube.register_autograd(
    lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.saved_tensors[0] ** 2


torch.library.define("finding::composed", "(Tensor x) -> Tensor")
torch.library.impl("finding::composed", "CompositeImplicitAutograd", lambda x: x * x * x)


def told(function):
    try:
        return function()
    except RuntimeError as error:
        return type(error).__name__


print("torch", torch.__version__)
x, ones = torch.tensor([1.0, 2.0]), torch.ones(2)
right = [3.0, 12.0]

leaf = x.clone().requires_grad_()
found = {
    "torch.autograd": torch.autograd.grad(cube(leaf).sum(), leaf)[0].tolist(),
    "torch.func.jvp": torch.func.jvp(cube, (x,), (ones,))[1].tolist(),
    "torch.func.jacfwd": torch.func.jacfwd(cube)(x).diag().tolist(),
    "torch.func.jvp of cube(x) + x": torch.func.jvp(lambda x: cube(x) + x, (x,), (ones,))[1].tolist(),
    "torch.func.grad": told(lambda: torch.func.grad(lambda x: cube(x).sum())(x)),
    "torch.func.jvp of a Function without jvp": told(lambda: torch.func.jvp(Cube.apply, (x,), (ones,))),
    "torch.func.jvp of a composition": torch.func.jvp(torch.ops.finding.composed, (x,), (ones,))[1].tolist(),
}
with forward_ad.dual_level():
    found["forward_ad"] = forward_ad.unpack_dual(cube(forward_ad.make_dual(x, ones))).tangent
for name, each in found.items():
    print(f"{name}: {each}")
assert found == {
    "torch.autograd": right,
    "torch.func.jvp": [0.0, 0.0],
    "torch.func.jacfwd": [0.0, 0.0],
    "torch.func.jvp of cube(x) + x": [1.0, 1.0],
    "torch.func.grad": "RuntimeError",
    "torch.func.jvp of a Function without jvp": "NotImplementedError",
    "torch.func.jvp of a composition": right,
    "forward_ad": None,
}, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
