#!/bin/sh
# PyTorch 2.13.0: torch.compile refuses a layer inside a model because of its base class, whatever the layer computes.
#
# Call: a subclass of nn.LSTM whose forward pass is `input * 2`, compiled with fullgraph=True by itself, and as a layer of
# a model; the same forward pass in a subclass of nn.RNNBase, of which nn.LSTM is another subclass, in the same model.
#
# Expected: all three compile, as none of them calls a recurrent function.
#
# What happens: the first and the last compile. The second raises "Attempted to wrap RNN, GRU, or LSTM": TorchDynamo asks
# isinstance when it meets a layer of a model, before it looks at the forward pass. Without fullgraph=True it leaves
# the layer to Python without an error, and the graph is cut there. With torch._dynamo.config.allow_rnn it compiles.
#
# Why it matters: a class that replaces the kernel of nn.LSTM is best a subclass of it, so that isinstance still holds
# for other tools; then a compiler never sees the new kernel. A test that compiles the layer by itself passes.
#
# What to do: derive from nn.RNNBase where the layer should be compiled, and test it inside of a model.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'END'
import torch
from torch import nn


class Replaced(nn.LSTM):
    def forward(self, input):
        return input * 2


class Derived(nn.RNNBase):
    def __init__(self):
        super().__init__("LSTM", 3, 4)

    def forward(self, input):
        return input * 2


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, input):
        return self.layer(input) + 1


def compiles(module, **allowed):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(**allowed):
        try:
            torch.compile(module, fullgraph=True, backend="eager")(torch.ones(2, 1, 3))
        except torch._dynamo.exc.Unsupported as error:
            print("  ", str(error).splitlines()[0])
            return False
    return True


print("torch", torch.__version__)
found = {
    "a subclass of nn.LSTM, by itself": compiles(Replaced(3, 4)),
    "a subclass of nn.LSTM, in a model": compiles(Model(Replaced(3, 4))),
    "a subclass of nn.RNNBase, in a model": compiles(Model(Derived())),
    "a subclass of nn.LSTM, in a model, with allow_rnn": compiles(Model(Replaced(3, 4)), allow_rnn=True),
}
for name, does in found.items():
    print(f"{name}: {'compiles' if does else 'is refused'}")
assert list(found.values()) == [True, False, True, True], "the behaviour has changed"
END
"$folder/venv/bin/python" "$folder/example.py"
