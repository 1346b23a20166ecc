#!/bin/sh
# PyTorch 2.13.0, CPU build: where warnings are errors, `with torch.backends.mkldnn.flags(enabled=False)` leaves oneDNN
# off for the rest of the process.
#
# Call: torch.backends.mkldnn.flags(enabled=False) as a context manager, under `-W error` or pytest's
# filterwarnings = error.
#
# Expected: oneDNN is off inside the block only. The call names one flag, and no other flag should be touched.
#
# What happens: the context manager also sets the flag for TF32, which warns in a build without Intel GPU support. As an
# error, the warning leaves the function after oneDNN was switched off and before the block in which it would be
# switched on again.
#
# Why it matters: a test suite that treats warnings as errors goes on without oneDNN after the first such test. Later
# results and times are those of other kernels, and nothing says so.
#
# What to do: set and restore torch.backends.mkldnn.enabled by hand, or ignore this warning around the call.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import warnings

import torch

print("torch", torch.__version__)
before = torch.backends.mkldnn.enabled
warnings.simplefilter("error")
try:
    with torch.backends.mkldnn.flags(enabled=False):
        raised = "nothing"
except UserWarning as warning:
    raised = str(warning).partition(".")[0]
after = torch.backends.mkldnn.enabled
print("enabled before:", before)
print("raised:", raised)
print("enabled after:", after)
assert before and "TF32" in raised and not after, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
