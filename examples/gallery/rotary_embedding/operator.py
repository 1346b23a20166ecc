"""The declaration of rotary_embedding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _rotated(tensor: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The tensor (tokens, heads, columns), each pair of its columns turned by the angle of its token."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    pairs = (-1, 2) if interleaved else (2, -1)
    first, second = tensor.to(wide).unflatten(-1, pairs).unbind(-1 if interleaved else -2)
    cos, sin = cos[:, None].to(wide), sin[:, None].to(wide)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, -1 if interleaved else -2).flatten(-2).to(tensor.dtype)


def _reference(
    query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    # No position counts from the end, as an index in brackets would.
    cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
    if inverse:
        sin = -sin
    return _rotated(query, cos, sin, interleaved), _rotated(key, cos, sin, interleaved)


def _explain(
    query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, inverse: bool
) -> None:
    if not query.shape[2]:
        raise ValueError(f"rotary_embedding: query must have columns, got {tuple(query.shape)}")
    # A GPU would have to be waited for; there a kernel gives NaN for a position that does not exist.
    if positions.device.type == "cpu":
        strange = positions[(positions < 0) | (positions >= cos.shape[0])]
        if strange.numel():
            raise ValueError(
                f"rotary_embedding: positions must be from 0 to {cos.shape[0] - 1}, as cos has {cos.shape[0]} rows; got"
                f" {strange[0].item()}"
            )


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    query: None,
    key: None,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor | None, ...]:
    # Turned back by the same angles. Where nothing flows back no heads stand for it.
    given = [grad if needed else None for grad, needed in zip(output_grads, needs_grad, strict=False)]
    like = next(grad for grad in output_grads if grad is not None)
    grads = [like.new_empty(like.shape[0], 0, like.shape[2]) if grad is None else grad for grad in given]
    turned = rotary_embedding(*grads, positions, cos, sin, interleaved=interleaved, inverse=not inverse)
    found = [None if grad is None else back for grad, back in zip(given, turned, strict=True)]
    return (*found, None, None, None)


rotary_embedding = Operator(
    "gallery::rotary_embedding(Tensor query, Tensor key, Tensor positions, Tensor cos, Tensor sin, *,"
    " bool interleaved=False, bool inverse=False) -> (Tensor rotated_query, Tensor rotated_key)",
    reference=_reference,
    shapes="tokens heads 2*pairs, tokens key_heads 2*pairs, tokens, positions pairs, positions pairs"
    " -> tokens heads 2*pairs, tokens key_heads 2*pairs",
    gradient=_gradient,
    unsaved=("query", "key"),
    # Tables of what positions mean; nobody trains them.
    not_differentiable=("cos", "sin"),
    dtypes={
        "query": FLOATING,
        "key": FLOATING,
        "positions": (torch.int64,),
        "cos": (torch.float32, torch.float64),
        "sin": (torch.float32, torch.float64),
    },
    kernels={"cuda": FLOATING},
    explain=_explain,
)
