#!/bin/sh
# PyTorch 2.13.0: torch.jit.script changes the Python model that it is given: layers are replaced in it by what their
# __prepare_scriptable__ returns.
#
# Call: a model holds a layer of a class that TorchScript cannot compile. The class has the hook
# __prepare_scriptable__, which returns an equal layer of a class that it can. The model is scripted between two steps
# of training, to save a snapshot.
#
# Expected: the scripted module has the other layer, and the Python model stays as it is.
#
# What happens: the search for hooks writes its results into the `_modules` of each module on its way, so the model
# itself holds the other layer from then on. Outputs are equal at that moment. The optimizer goes on with the parameters
# of the layer that is gone: the model trains no more, without a word.
#
# Why it matters: scripting is meant for a copy to deploy, and people do it while they train.
#
# What to do: script a copy.deepcopy of the model, or let the hook return a layer with the same parameters.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import copy
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated")


class Doubled(nn.Linear):
    def forward(self, *inputs):  # TorchScript takes no such arguments.
        return super().forward(*inputs)

    def __prepare_scriptable__(self):
        plain = nn.Linear(self.in_features, self.out_features)
        plain.load_state_dict(self.state_dict())
        return plain


def trained_after(script):
    """Whether a step of the optimizer still changes what the model computes; and the class of its layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(), nn.Sequential(Doubled(2, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs = torch.ones(3, 2)
    before = model(inputs)
    scripted = script(model)
    assert torch.equal(scripted(inputs), before)
    model(inputs).sum().backward()
    optimizer.step()
    return not torch.equal(model(inputs), before), type(model[1][0]).__name__


print("torch", torch.__version__)
found = {
    "the model": trained_after(torch.jit.script),
    "a copy": trained_after(lambda model: torch.jit.script(copy.deepcopy(model))),
}
for scripted, (trains, name) in found.items():
    print(f"{scripted} is scripted: the model {'trains' if trains else 'does not train'}, its layer is a {name}")
assert found == {"the model": (False, "Linear"), "a copy": (True, "Doubled")}, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
