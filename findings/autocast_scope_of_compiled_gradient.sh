#!/bin/sh
# PyTorch 2.13.0: torch.compile fails on a backward pass that switches autocast off and then reads a gradient's strides.
#
# Call: a torch.autograd.Function whose backward reads `grad.stride()` inside `torch.autocast("cpu", enabled=False)`,
# called under autocast within what torch.compile compiles; the backend does not matter.
#
# Expected: it compiles, as the same Function does if backward reads a stride before the scope as well.
#
# What happens: an AssertionError says that the state of autocast changed during tracing and asks for a report. The
# strides of a gradient are not known when backward is first traced. Reading one makes the compiler begin again, and the
# scope that it was in is never left.
#
# Why it matters: a backward pass that is written for autocast switches it off, since the forward pass has chosen the
# dtypes, and a kernel that is chosen by layout reads strides. The message names neither.
#
# What to do: read a stride of each incoming gradient before the scope. torchgraft's operators do.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        return 2 * input

    @staticmethod
    def backward(ctx, grad):
        if asks_before:
            grad.stride()
        with torch.autocast("cpu", enabled=False):
            # A kernel chooses by the layout of what it gets.
            return 2 * grad if grad.stride()[-1] == 1 else 2 * grad.contiguous()


def function(input):
    with torch.autocast("cpu", torch.bfloat16):
        return Doubled.apply(input)


print("torch", torch.__version__)
for asks_before in (True, False):
    torch._dynamo.reset()
    input = torch.ones(2, 3, requires_grad=True)
    try:
        torch.compile(function, backend="eager")(input).sum().backward()
        outcome = f"gradient {input.grad[0, 0].item():g}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    print("strides are read", "before and in the scope:" if asks_before else "in the scope alone:", outcome)
    assert ("AssertionError" in outcome) != asks_before, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
