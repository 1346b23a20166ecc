#!/bin/sh
# PyTorch 2.13.0: after one error in torch.compile, hooks of saved tensors are refused in the whole process.
#
# Call: a torch.autograd.Function whose backward calls torch.func.vjp, compiled, and first called inside
# torch.utils.checkpoint (non-reentrant), torch.autograd.graph.save_on_cpu or saved_tensors_hooks.
#
# Expected: it compiles, as the hooks have nothing to do with torch.func in a backward pass that has not begun; or an
# error, after which the process is as before.
#
# What happens: TorchDynamo traces backward ahead of time, while the hooks of the caller are active, and fails as
# torch.func and hooks exclude each other. In doing so it forbids hooks, and does not allow them again. From then on every
# use of hooks is a RuntimeError, in code that compiles nothing: save_on_cpu, activation checkpointing, pack hooks.
#
# Why it matters: a caller that goes on without the compiler after an error, by torch._dynamo.config.suppress_errors (run
# below) or by itself, cannot checkpoint any more, and the message names torch.func, which it never called.
#
# What to do, each run below: compile before, by one call outside the hooks; or write backward without torch.func.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import subprocess
import sys

import torch
from torch.utils.checkpoint import checkpoint


def make(backward_of):
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return backward_of(ctx.saved_tensors[0], grad)

    return torch.compile(lambda x: Sine.apply(x) * 2, backend="aot_eager")


def by_vjp(x, grad):
    return torch.func.vjp(torch.sin, x)[1](grad)[0]


def by_hand(x, grad):
    return grad * x.cos()


def told(function):
    try:
        function().sum().backward()
        return "works"
    except Exception as error:
        return type(error).__name__


def plain():
    with torch.autograd.graph.save_on_cpu():
        return x.sin()


def hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each):
        return make(by_vjp)(x)


x = torch.ones(3, requires_grad=True)
if len(sys.argv) > 1:
    case = sys.argv[1]
    compiled = make(by_hand if case == "by hand" else by_vjp)
    torch._dynamo.config.suppress_errors = case == "errors suppressed"
    if case == "compiled before":
        compiled(x)
    first = told(hooks if case == "hooks" else lambda: checkpoint(compiled, x, use_reentrant=False))
    print(f"{first}, then plain hooks: {told(plain)}")
    sys.exit()

print("torch", torch.__version__)
expected = {
    "checkpoint": "InternalTorchDynamoError, then plain hooks: RuntimeError",
    "hooks": "InternalTorchDynamoError, then plain hooks: RuntimeError",
    "errors suppressed": "works, then plain hooks: RuntimeError",
    "compiled before": "works, then plain hooks: works",
    "by hand": "works, then plain hooks: works",
}
for name, right in expected.items():
    # Each in a process of its own, as what is forbidden stays so.
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    print(f"{name}: {done.stdout.strip()}")
    assert done.stdout.strip() == right, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
