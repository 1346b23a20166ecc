"""The kernel of rotary_embedding.

A program owns one token and some of its heads, those of the query before those of the key: it reads the token's cosines
and sines once, and each element once. One launch does both tensors. Arithmetic is in float32, and in float64 for
float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rotary_embedding.operator import rotary_embedding
from torchgraft import wrap_triton

# How many pairs of columns a program turns, roughly.
_PAIRS = 1024


@triton.jit
def _widened(values):
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _turn(
    from_ptr,
    to_ptr,
    token,
    first_head,
    heads,
    half,
    cos,
    sin,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    head = first_head + tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    inside = (head < heads)[:, None] & (pair < half)[None, :]
    start = (token * heads + head)[:, None] * (2 * half)
    if INTERLEAVED:
        place = start + 2 * pair[None, :]
        apart = 1
    else:
        place = start + pair[None, :]
        apart = half
    first = _widened(tl.load(from_ptr + place, mask=inside, other=0))
    second = _widened(tl.load(from_ptr + place + apart, mask=inside, other=0))
    kept = to_ptr.dtype.element_ty
    tl.store(to_ptr + place, (first * cos - second * sin).to(kept), mask=inside)
    tl.store(to_ptr + place + apart, (second * cos + first * sin).to(kept), mask=inside)


@triton.jit
def _rotate(
    query_ptr,
    key_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    rotated_query_ptr,
    rotated_key_ptr,
    query_heads,
    key_heads,
    query_blocks,
    half,
    known_positions,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions_ptr + token)
    exists = (position >= 0) & (position < known_positions)
    pair = tl.arange(0, PAIRS)
    place = position * half + pair
    inside = (pair < half) & exists
    # In the dtype of the tensors, or float32: tables may be finer.
    wide: tl.constexpr = tl.float64 if query_ptr.dtype.element_ty == tl.float64 else tl.float32
    cos = tl.load(cos_ptr + place, mask=inside, other=float("nan")).to(wide)[None, :]
    sin = tl.load(sin_ptr + place, mask=inside, other=float("nan")).to(wide)[None, :]
    if INVERSE:
        sin = -sin
    if block < query_blocks:
        _turn(
            query_ptr, rotated_query_ptr, token, block * HEADS, query_heads, half, cos, sin, HEADS, PAIRS, INTERLEAVED
        )
    else:
        first = (block - query_blocks) * HEADS
        _turn(key_ptr, rotated_key_ptr, token, first, key_heads, half, cos, sin, HEADS, PAIRS, INTERLEAVED)


@rotary_embedding.kernel("cuda", triton=True)
def rotary_embedding_tokens(
    query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    """One program for each token and some heads."""
    tokens, query_heads, columns = query.shape
    key_heads, half = key.shape[1], columns // 2
    rotated_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    rotated_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    pairs = triton.next_power_of_2(half)
    most = max(_PAIRS // pairs, 1)
    heads = min(triton.next_power_of_2(max(query_heads, key_heads, 1)), triton.next_power_of_2(most))
    query_blocks, key_blocks = triton.cdiv(query_heads, heads), triton.cdiv(key_heads, heads)
    if tokens and query_blocks + key_blocks:
        wrap_triton(_rotate)[(tokens, query_blocks + key_blocks)](
            query.contiguous(),
            key.contiguous(),
            positions.contiguous(),
            cos.contiguous(),
            sin.contiguous(),
            rotated_query,
            rotated_key,
            query_heads,
            key_heads,
            query_blocks,
            half,
            cos.shape[0],
            HEADS=heads,
            PAIRS=pairs,
            INTERLEAVED=interleaved,
            INVERSE=inverse,
            num_warps=4,
        )
    return rotated_query, rotated_key
