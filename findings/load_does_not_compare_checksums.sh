#!/bin/sh
# PyTorch 2.13.0: torch.load returns changed numbers without a word where a byte of a saved file was changed.
#
# Call: torch.load(path, weights_only=True), and with mmap=True, of a file that torch.save wrote and in which one byte of a
# tensor's data has another value since, as a disk or a transfer may leave it.
#
# Expected: an error. A file of torch.save is a zip archive, torch.save writes the CRC32 of each entry into it, and
# reading the entry with Python's zipfile is an error.
#
# What happens: the tensor comes back with another number. The checksums are there and are never compared.
#
# Why it matters: a checkpoint of a long training, copied by hand or from a failing disk, trains on from wrong weights, and
# the only sign is a loss that nobody can explain.
#
# What to do: call zipfile.ZipFile(path).testzip() before torch.load, which reads the file once, or keep a hash beside it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import sys
import zipfile
from pathlib import Path

import torch

print("torch", torch.__version__)
path = Path(sys.argv[1], "weights.pt")
torch.save({"weight": torch.ones(4)}, path)

with zipfile.ZipFile(path) as archive:
    (entry,) = (each for each in archive.infolist() if each.filename.endswith("/data/0"))
    right = archive.read(entry)
content = bytearray(path.read_bytes())
at = content.index(right)
# The last byte of the first number holds its sign and most of its exponent.
content[at + 3] = 0x40
path.write_bytes(content)

found = {
    "torch.load": torch.load(path, weights_only=True)["weight"].tolist(),
    "torch.load with mmap": torch.load(path, weights_only=True, mmap=True)["weight"].tolist(),
}
with zipfile.ZipFile(path) as archive:
    found["first bad entry by zipfile"] = archive.testzip()
    found["checksum in the file is 0"] = entry.CRC == 0
for name, each in found.items():
    print(f"{name}: {each}")
assert found == {
    "torch.load": [4.0, 1.0, 1.0, 1.0],
    "torch.load with mmap": [4.0, 1.0, 1.0, 1.0],
    "first bad entry by zipfile": "weights/data/0",
    "checksum in the file is 0": False,
}, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py" "$folder"
