#!/bin/sh
# PyTorch 2.13.0: compiled, a second autograd.Function made by the same factory gives the results of the first.
#
# Call: `make(k)` returns a subclass of torch.autograd.Function that has setup_context and reads k from its closure. A
# module holds `make(k).apply`. torch.compile runs two such modules, on a tensor that requires a gradient.
#
# Expected: x * k and the gradient k, for the k of each module. TorchDynamo compiles again if what a function closes over
# has changed: it does so for plain functions, and for a Function whose forward takes ctx.
#
# What happens: the second module gives the value and the gradient of the first one's k, without an error. With
# torch.no_grad, and with a Function without setup_context, results are right.
#
# Why it matters: a factory is the usual way to give a Function a constant or a kernel. torch.func needs setup_context.
# All layers of a model then compute what its first layer computes.
#
# What to do: pass what differs as an argument of apply, as is done at the end below; or give each module a forward of its
# own, so that each is compiled separately.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"

cat > "$folder/example.py" <<'EOF'
import torch


def make(k):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad * k

    return Scale


def make_without_setup_context(k):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * k

        @staticmethod
        def backward(ctx, grad):
            return grad * k

    return Scale


class ScaleBy(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.k, None


class Layer(torch.nn.Module):
    def __init__(self, apply, *arguments):
        super().__init__()
        self.apply_function, self.arguments = apply, arguments

    def forward(self, x):
        return self.apply_function(x, *self.arguments)


def values_and_gradients(layers, backend):
    torch.compiler.reset()
    pairs = []
    for layer in layers:
        x = torch.ones(1, requires_grad=True)
        y = torch.compile(layer, backend=backend)(x)
        pairs.append((y.item(), torch.autograd.grad(y, x)[0].item()))
    return pairs


print("torch", torch.__version__)
right = [(2.0, 2.0), (3.0, 3.0)]
for backend in ("eager", "inductor"):
    found = values_and_gradients([Layer(make(k).apply) for k in (2.0, 3.0)], backend)
    print(f"{backend}: with setup_context, k = 2 and 3: (value, gradient)", found, "right would be", right)
    assert found == [(2.0, 2.0), (2.0, 2.0)], "the behaviour has changed"
    found = values_and_gradients([Layer(make_without_setup_context(k).apply) for k in (2.0, 3.0)], backend)
    print(f"{backend}: without setup_context:                            ", found)
    assert found == right, "the behaviour has changed"
    found = values_and_gradients([Layer(ScaleBy.apply, k) for k in (2.0, 3.0)], backend)
    print(f"{backend}: k as an argument of apply:                        ", found)
    assert found == right, "the cure no longer helps"
EOF
"$folder/venv/bin/python" "$folder/example.py"
