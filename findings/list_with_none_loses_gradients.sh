#!/bin/sh
# PyTorch 2.13.0: a custom operator with a list of optional tensors has no gradient if the list holds a None.
#
# Call: torch.library.custom_op on a function of `list[Optional[Tensor]]` (the schema says `Tensor?[]`), with a formula
# from register_autograd that returns a list with a gradient or None for each place.
#
# Expected: tensors of the list get their gradients, whether or not another place is None.
#
# What happens: with a None anywhere in the list the result does not require a gradient. The formula is not called. A sum
# with another loss trains the other part only, without an error. If another argument is a tensor that requires a
# gradient, the formula is called, and what it returns for the list is refused.
#
# Why it matters: optional tensors in lists are how operators take masks or biases of some layers only.
#
# What to do: pass a tensor without elements in place of None, and return zeros or None for it; or one argument
# `Optional[Tensor]` for each.
#
# Lists of optional tensors as results have a similar fault: https://github.com/pytorch/pytorch/pull/187434
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"

cat > "$folder/example.py" <<'EOF'
from typing import Optional

import torch


@torch.library.custom_op("finding::total", mutates_args=())
def total(tensors: list[Optional[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([tensor.sum() for tensor in tensors if tensor is not None]).sum()


def setup_context(ctx, inputs, output):
    ctx.shapes = [None if tensor is None else tensor.shape for tensor in inputs[0]]


total.register_autograd(
    lambda ctx, grad: [None if shape is None else grad.expand(shape) for shape in ctx.shapes],
    setup_context=setup_context,
)
print("torch", torch.__version__, torch.ops.finding.total.default._schema)
empty = torch.empty(0)
for name, other, right in (("two tensors", torch.ones(1), True), ("a None", None, False), ("an empty tensor", empty, True)):
    x, beside = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    result = total([x, other])
    (result + beside.sum()).backward()
    print(f"{name}: requires_grad={result.requires_grad}, gradient of the tensor in the list: {x.grad}")
    assert result.requires_grad == (x.grad is not None) == right, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
