#!/bin/sh
# PyTorch 2.13.0: under torch.compile with dynamic sizes, index_put with accumulate=True cannot count into a tensor of
# one element.
#
# Call: on a CPU, `zeros(n).index_put((index,), ones(index.shape), accumulate=True)`, the usual way to count how many rows
# belong to each of n groups, compiled with `dynamic=True`, for one and for two groups and an index of three.
#
# Expected: the counts, [3] and [3, 0], as without torch.compile and as with `dynamic=False`.
#
# What happens: two groups are counted. One group raises an InductorError that says `AssertionError:` and nothing else:
# Inductor fails while it writes the loop that adds, and the message names no operation.
#
# Why it matters: a mean over groups works in every test of several groups or of one size, and stops a run when a batch
# has one group. Sizes become dynamic by themselves when a second one comes.
#
# What to do: count by `(index == arange(n)[:, None]).sum(1)` or torch.bincount where there may be one group, or use
# `dynamic=False`.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'INNER'
import torch

print("torch", torch.__version__)
index = torch.zeros(3, dtype=torch.int64)
for dynamic in (False, True):
    for groups in (2, 1):

        def count(index):
            ones = torch.ones(index.shape)
            return torch.zeros(groups).index_put((index,), ones, accumulate=True)

        torch._dynamo.reset()
        expected = count(index)
        try:
            found = torch.compile(count, dynamic=dynamic)(index)
            assert torch.equal(found, expected)
            said = f"{found.tolist()}"
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0]!r}"
        print(f"dynamic={dynamic}, {groups} groups: {said}")
        assert said.startswith("InductorError: 'AssertionError") == (dynamic and groups == 1), "the behaviour has changed"
INNER
"$folder/venv/bin/python" "$folder/example.py"
