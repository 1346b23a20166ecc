"""The kernel of seeded_dropout.

A program owns 4 x 1024 elements, and draws the words of 1024 counters of Philox for them: each counter gives four.
Every element is read once and written once.
"""

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from seeded_dropout.operator import COUNTERS, scale_of, seeded_dropout, threshold_of
from torchgraft import wrap_triton


@triton.jit
def _keep(input_ptr, output_ptr, place, elements, word, threshold, scale):
    inside = place < elements
    values = tl.load(input_ptr + place, mask=inside, other=0)
    # In float32, and in float64 for float64.
    scaled = values * scale if values.dtype == tl.float64 else values.to(tl.float32) * scale.to(tl.float32)
    kept = tl.where(word.to(tl.int64) >= threshold, scaled, 0.0)
    tl.store(output_ptr + place, kept.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["seed", "threshold", "scale_bits"])
def _drop(input_ptr, output_ptr, elements, seed, threshold, scale_bits, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    scale = scale_bits.to(tl.int64).to(tl.float64, bitcast=True)
    counter = block * BLOCK + lane
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    zero = low * 0
    first, second, third, fourth = tl.philox(seed, low, high, zero, zero)
    place = block * (4 * BLOCK) + lane
    _keep(input_ptr, output_ptr, place, elements, first, threshold, scale)
    _keep(input_ptr, output_ptr, place + BLOCK, elements, second, threshold, scale)
    _keep(input_ptr, output_ptr, place + 2 * BLOCK, elements, third, threshold, scale)
    _keep(input_ptr, output_ptr, place + 3 * BLOCK, elements, fourth, threshold, scale)


@seeded_dropout.kernel("cuda", triton=True)
def seeded_dropout_blocks(input: Tensor, seed: int, p: float) -> Tensor:
    """One program for each 4096 elements."""
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    if output.numel():
        wrap_triton(_drop)[(triton.cdiv(output.numel(), 4 * COUNTERS),)](
            input.contiguous(),
            output,
            output.numel(),
            seed,
            threshold_of(p),
            # Triton takes Python's numbers in float32; the bits of a float64 arrive as they are.
            struct.unpack("<q", struct.pack("<d", scale_of(p)))[0],
            BLOCK=COUNTERS,
            num_warps=4,
        )
    return output
