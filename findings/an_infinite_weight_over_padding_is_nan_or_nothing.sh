#!/bin/sh
# PyTorch 2.13.0: on a CPU, whether an infinite weight that lies over the padding of a convolution gives NaN, or counts
# for nothing, depends on the dtype, on `groups`, and on how many images are in the batch.
#
# Call: `conv2d(ones(batch, 2, 64, 64), weight, padding=1, groups=groups)`, where one element of a weight of 3x3 is
# infinite, which lies over padding for the first column of results.
#
# Expected: one rule for padding. Zeros that are multiplied make NaN of infinity in every call; padding that is left out
# makes it in none.
#
# What happens: float64 and float16 give NaN along the border, always. float32 gives NaN for one image of a dense
# convolution, and none for the same image in a batch of eight, nor for one image with one group a channel. Under
# `torch.backends.mkldnn.flags(enabled=False)` all of them give NaN.
#
# Why it matters: a network whose weight has overflowed is found by its first NaN. It stands at the border of one batch
# and not of another, and a definition in float64 says something else than the float32 that is compared with it.
#
# What to do: look for infinite weights themselves, and compare results of such weights only where no tap lies over
# padding.
#
# Seen on an x86-64 processor with AVX-512; oneDNN, which leaves padding out, takes fewer calls on others.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'END'
import warnings

import torch
from torch.nn.functional import conv2d

warnings.filterwarnings("ignore", "TF32 acceleration")


def count(dtype, batch, groups, onednn=True):
    images = torch.ones(batch, 2, 64, 64, dtype=dtype)
    weight = torch.ones(2, 2 // groups, 3, 3, dtype=dtype)
    weight[..., 1, 0] = float("inf")
    with torch.backends.mkldnn.flags(enabled=onednn):
        result = conv2d(images, weight, padding=1, groups=groups)
    border = result[..., 0].isnan().sum().item()
    assert result.isnan().sum().item() == border, "the behaviour has changed"
    return border // batch


CALLS = ((1, 1), (8, 1), (1, 2), (8, 2))
for dtype in (torch.float64, torch.float16, torch.float32):
    found = {f"{batch} images, {groups} groups": count(dtype, batch, groups) for batch, groups in CALLS}
    print(f"torch {torch.__version__}, {dtype}: NaN of an image's first column: {found}")
    kinds = [found[name] > 0 for name in found]
    assert kinds == ([True, False, False, False] if dtype is torch.float32 else [True] * 4), "the behaviour has changed"

plain = [count(torch.float32, *call, onednn=False) for call in CALLS]
print(f"torch.float32 without oneDNN: {plain}")
assert min(plain) > 0, "the behaviour has changed"
END
"$folder/venv/bin/python" "$folder/example.py"
