#!/bin/sh
# PyTorch 2.13.0: FlopCounterMode counts the weight gradient of a grouped convolution as if it were dense.
#
# Call: torch.utils.flop_counter.FlopCounterMode around the forward and the backward pass of one convolution, with 1, 2,
# 4 and 8 groups of the same 8 channels.
#
# Expected: each gradient takes as many operations as the forward pass. So does the counter say of the forward pass
# itself, whose count falls in proportion to the number of groups.
#
# What happens: the gradient of the weight is counted with all pairs of channels, whatever the groups: for a depthwise
# convolution of C channels it gets C times the operations that it has. The counts of the forward pass and of the input's
# gradient are right.
#
# Why it matters: models are compared, and the share of a device's speed that a training step reaches is computed, from
# these counts. For an image network with depthwise convolutions of hundreds of channels nearly all of the count is made
# of operations that nobody performs.
#
# What to do: count the forward pass alone, and take three times as many for a training step.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def counted(groups):
    """The operations that are counted for the forward pass, and for both gradients."""
    layer = nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
    images = torch.randn(2, 8, 6, 6, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        output = layer(images)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    return forward, counter.get_total_flops()


print("torch", torch.__version__)
pairs = 2 * 6 * 6 * 9 * 8 * 8  # images, pixels, taps, and pairs of channels in a dense convolution
for groups in (1, 2, 4, 8):
    forward, backward = counted(groups)
    print(f"{groups} groups: forward {forward}, both gradients {backward}, {backward / forward:g} times as many")
    assert forward == 2 * pairs // groups
    assert backward == 2 * pairs // groups + 2 * pairs, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
