"""The declaration of seeded_dropout. Its reference draws the very mask of its kernel, with Philox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING

# Philox-4x32-10: what counters are multiplied by, what keys rise by, and the number of rounds.
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
# A counter gives four words. The first words of so many counters stand side by side, then their second words, and on.
COUNTERS = 1024


def threshold_of(p: float) -> int:
    """An element is dropped where its word, of 32 bits, is less than this."""
    return round(p * 2**32)


def scale_of(p: float) -> float:
    """The factor of what is kept."""
    return 1 / (1 - p) if p < 1 else 1.0


def _words(counters: Tensor, seed: int) -> Tensor:
    """The four words (4, counters) of each counter, as int64."""
    zeros = torch.zeros_like(counters)
    words = [counters & _LOW, (counters >> 32) & _LOW, zeros, zeros]
    keys = [seed & _LOW, (seed >> 32) & _LOW]
    for _ in range(_ROUNDS):
        # Of products beyond 63 bits the lower 64 are right, and the sign that is shifted in is cut off.
        one, other = words[0] * _FACTORS[0], words[2] * _FACTORS[1]
        words = [
            ((other >> 32) & _LOW) ^ words[1] ^ keys[0],
            other & _LOW,
            ((one >> 32) & _LOW) ^ words[3] ^ keys[1],
            one & _LOW,
        ]
        keys = [(key + step) & _LOW for key, step in zip(keys, _STEPS, strict=True)]
    return torch.stack(words)


def _reference(input: Tensor, seed: int, p: float) -> Tensor:
    blocks = (input.numel() + 4 * COUNTERS - 1) // (4 * COUNTERS)
    counters = torch.arange(blocks * COUNTERS, device=input.device)
    words = _words(counters, seed).unflatten(1, (blocks, COUNTERS)).transpose(0, 1).flatten()
    kept = (words[: input.numel()] >= threshold_of(p)).reshape(input.shape)
    return torch.where(kept, input * scale_of(p), 0)


def _explain(input: Tensor, seed: int, p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"seeded_dropout: p must be a probability, from 0 to 1, got {p}")


def _gradient(
    needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, input: None, seed: int, p: float
) -> tuple[Tensor]:
    # The same seed gives the same mask, so none is kept.
    return (seeded_dropout(output_grads[0], seed, p),)


seeded_dropout = Operator(
    "gallery::seeded_dropout(Tensor input, SymInt seed, float p=0.5) -> Tensor",
    reference=_reference,
    shapes="... -> ...",
    gradient=_gradient,
    unsaved=("input",),
    random=("seed",),
    kernels={"cuda": FLOATING},
    explain=_explain,
)
