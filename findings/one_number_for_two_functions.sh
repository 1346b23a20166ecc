#!/bin/sh
# PyTorch 2.13.0: a float that two torch.autograd.Functions get cannot be compiled, unless it was computed with before.
#
# Call: torch.compile of `Scale.apply(Scale.apply(x, s), s)`, where s is a Python float of the caller and x needs a
# gradient.
#
# Expected: compiled code that takes s as an input, as for `x * s * s`.
#
# What happens: the first call works, as s is a constant in its code. At the second s the compiler takes it for a
# variable, and fails inside: an AssertionError about lift_tracked_freevar_to_input. The float becomes a value of the
# graph where it is first used; that is inside the first Function, whose graph is another one. `Scale.apply(x, s) * s` fails
# in another way, that an argument does not belong to this graph. Integers work.
#
# Why it matters: the same temperature, epsilon or slope goes through all layers of a model. It trains until the number
# changes.
#
# What to do, each run below: compute with the float before its first Function, if only `s * 1.0`; or pass a tensor
# without dimensions; or set torch._dynamo.config.specialize_float = True, which compiles for each new s.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        return x * s

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.s, None


def twice(x, s):
    return Scale.apply(Scale.apply(x, s), s)


def trains(function, values=(1.5, 2.5, 3.5), make=lambda s: s):
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager")
    told = []
    for s in values:
        x = torch.ones(1, requires_grad=True)
        try:
            compiled(x, make(s)).sum().backward()
            told.append(x.grad.item() == s * s)
        except Exception as error:
            told.append(type(error).__name__)
    return told


print("torch", torch.__version__)
fails = [True, "AssertionError", "AssertionError"]
fails_inside = [True, "InternalTorchDynamoError", "InternalTorchDynamoError"]
works = [True] * 3
cases = {
    "two Functions": (trains(twice), fails),
    "a Function, then a product": (trains(lambda x, s: Scale.apply(x, s) * s), fails_inside),
    "a product, then a Function": (trains(lambda x, s: Scale.apply(x * s, s)), works),
    "computed with before": (trains(lambda x, s: twice(x, s * 1.0)), works),
    "an integer": (trains(twice, values=(2, 3, 5)), works),
    "a tensor": (trains(twice, make=torch.tensor), works),
}
with torch._dynamo.config.patch(specialize_float=True):
    cases["specialize_float"] = (trains(twice), works)
for name, (found, expected) in cases.items():
    print(f"{name}: {found}")
    assert found == expected, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
