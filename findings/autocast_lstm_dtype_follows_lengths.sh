#!/bin/sh
# PyTorch 2.13.0: under autocast on a CPU, the dtype of an LSTM's results depends on the lengths of its sequences.
#
# Call: under `torch.autocast("cpu", torch.bfloat16)`, layers of float32: nn.LSTM of a padded batch, of packed sequences of
# the same length, and of packed sequences of two lengths; with oneDNN switched off; with a projection; nn.GRU, without an
# initial state and with one of bfloat16.
#
# Expected: one dtype for all, as the products run in bfloat16 in all of them; or at least for all calls of one layer.
#
# What happens: a padded batch, and packed sequences that are equally long, go to oneDNN's LSTM, whose results are
# bfloat16. Sequences of several lengths, and all where oneDNN is off, go through steps made of PyTorch's operators. There
# the initial state, zeros in the dtype of the input, makes each state float32 again: the values have the precision of
# bfloat16, and the dtype float32. With a projection h is bfloat16, which a product made, and c is float32. A GRU has the
# dtype of its initial state.
#
# Why it matters: one training has batches of both kinds. What follows the LSTM is compiled twice, takes twice the memory
# for some batches, and a kernel that takes one dtype fails when the first batch of equal lengths comes, or the last.
#
# What to do: convert what an LSTM or GRU returns under autocast on a CPU.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'END'
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

print("torch", torch.__version__)
torch.manual_seed(0)
input, half = torch.randn(5, 2, 8), torch.zeros(1, 2, 4, dtype=torch.bfloat16)
equal, unequal = pack_sequence([input[:, 0], input[:, 1]]), pack_sequence([input[:, 0], input[:3, 1]])
lstm, projected, gru = nn.LSTM(8, 4), nn.LSTM(8, 4, proj_size=2), nn.GRU(8, 4)
exact = lstm(unequal)[0].data
found = {}
with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
    found["LSTM, padded"] = lstm(input)[0].dtype
    found["LSTM, packed, lengths 5 and 5"] = lstm(equal)[0].data.dtype
    steps = lstm(unequal)[0].data
    found["LSTM, packed, lengths 5 and 3"] = steps.dtype
    with torch.backends.mkldnn.flags(enabled=False):
        found["LSTM, padded, without oneDNN"] = lstm(input)[0].dtype
    _, (h, c) = projected(input)
    found["LSTM, projected, h"], found["LSTM, projected, c"] = h.dtype, c.dtype
    found["GRU"] = gru(input)[0].dtype
    found["GRU, initial state of bfloat16"] = gru(input, half)[0].dtype
for name, dtype in found.items():
    print(f"{name}: {dtype}")
error = (steps - exact).abs().max().item()
print("the float32 of two lengths differs from float32 by", error)
whole, low = torch.float32, torch.bfloat16
assert list(found.values()) == [low, low, whole, whole, low, whole, whole, low], "the behaviour has changed"
assert error > 1e-4, "the behaviour has changed"
END
"$folder/venv/bin/python" "$folder/example.py"
