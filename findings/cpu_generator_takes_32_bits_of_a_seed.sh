#!/bin/sh
# PyTorch 2.13.0: on a CPU, torch.manual_seed and Generator.manual_seed use the low 32 bits of a seed of 64 bits.
#
# Call: `torch.Generator().manual_seed(seed)` for seeds whose low 32 bits are equal, as `rank << 32 | step` has them for
# all ranks, and then rand, randn, randperm and bernoulli_.
#
# Expected: a seed may be any number of 64 bits, as the documentation says, and `initial_seed()` returns all of it: other
# seeds begin other sequences.
#
# What happens: the sequences are the same, bit for bit, also for the seed 7 - 2**32, which is negative. Nothing warns.
#
# Why it matters: a seed that is put together of two numbers, or a hash of 64 bits, loses one of them or a half of it. And
# who compares a kernel with a definition that draws from such a generator does not see that the kernel loses them too.
#
# What to do: mix all bits of a seed into its low 32 before it is handed over, or draw it from a generator.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'END'
import torch


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    assert generator.initial_seed() == seed % 2**64
    return [
        torch.rand(1000, generator=generator),
        torch.randn(1000, generator=generator),
        torch.randperm(1000, generator=generator),
        torch.empty(1000).bernoulli_(0.5, generator=generator),
    ]


def same(one, other):
    return all(map(torch.equal, drawn(one), drawn(other)))


step = 7
of_ranks = [same(step, rank << 32 | step) for rank in (1, 2, 1000)]
print(f"torch {torch.__version__}: rank << 32 | step, the same for all ranks: {of_ranks}")
print(f"7 and 7 - 2**32 the same: {same(7, 7 - 2**32)}; 7 and 8 the same: {same(7, 8)}")
assert all(of_ranks) and same(7, 7 - 2**32) and not same(7, 8), "the behaviour has changed"
END
"$folder/venv/bin/python" "$folder/example.py"
