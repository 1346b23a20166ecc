#!/bin/sh
# PyTorch 2.13.0: a BatchNorm that is folded into a grouped transposed convolution makes a layer that cannot run.
#
# Call: torch.nn.utils.fusion.fuse_conv_bn_eval(convolution, norm, transpose=True), which torch.ao.quantization.fuse_modules
# and fuse_fx call, for a ConvTranspose2d of 8 channels with 1, 2, 4 and 8 groups and a BatchNorm2d in eval mode.
#
# Expected: a layer with the output of both, as for one group, or an error that says that groups are not served.
#
# What happens: the scales of all output channels are multiplied along the weight's second dimension, which holds the
# output channels of one group only. With 8 groups that broadcasts: folding succeeds, and the weight has 64 output channels
# in place of 8. The layer fails at its first call, with words about its bias. With 2 and 4 groups folding itself fails,
# with the words of a broadcast.
#
# Why it matters: a depthwise transposed convolution, as networks for segmentation have for upsampling, passes through the
# preparation for quantisation, and fails where the prepared model is used.
#
# What to do: leave such pairs out of the list of fuse_modules, or fold the scales into the weight by hand.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

print("torch", torch.__version__)
torch.manual_seed(0)
found = {}
for groups in (1, 2, 4, 8):
    convolution = nn.ConvTranspose2d(8, 8, 3, groups=groups).eval()
    norm = nn.BatchNorm2d(8).eval()
    norm.running_var.uniform_(0.5, 2)
    images = torch.randn(2, 8, 5, 5)
    try:
        fused = fuse_conv_bn_eval(convolution, norm, transpose=True)
    except RuntimeError as error:
        found[groups] = "folding fails"
        print(f"{groups} groups, folding: {error}")
        continue
    try:
        torch.testing.assert_close(fused(images), norm(convolution(images)), rtol=1e-4, atol=1e-5)
        found[groups] = "right"
        print(f"{groups} groups: right")
    except RuntimeError as error:
        found[groups] = "the call fails", tuple(fused.weight.shape)
        print(f"{groups} groups, weight {tuple(fused.weight.shape)}, call: {error}")
expected = {1: "right", 2: "folding fails", 4: "folding fails", 8: ("the call fails", (8, 8, 3, 3))}
assert found == expected, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
