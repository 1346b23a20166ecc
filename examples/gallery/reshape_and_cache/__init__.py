"""reshape_and_cache: writes the keys and values of new tokens into a paged cache. An operator that only writes."""

from pathlib import Path

import torch
from torch import Tensor

import torchgraft
from torchgraft import building

NAMESPACE = "gallery_reshape_and_cache"
_SOURCE = Path(__file__).with_name("cpu.cpp")


def _explain(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    name = "reshape_and_cache"
    head_size = key.shape[2]
    blocks, _, _, block_size, width = key_cache.shape
    if key_cache.shape[2] * width != head_size:
        raise ValueError(
            f"{name}: key_cache must hold {head_size} elements a head, got {key_cache.shape[2]} times {width}"
        )
    # On a GPU it would have to be waited for.
    if slot_mapping.device.type == "cpu" and slot_mapping.numel():
        least, most = map(int, slot_mapping.aminmax())
        if least < -1 or most >= blocks * block_size:
            raise ValueError(
                f"{name}: slot_mapping must lie between -1 and {blocks * block_size - 1}, as there are {blocks} blocks"
                f" of {block_size} slots; it holds {least if least < -1 else most}"
            )


def _reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    blocks, heads, groups, block_size, width = key_cache.shape
    # One slot more than there are takes what is left out.
    slots = blocks * block_size
    taken = slot_mapping.where(slot_mapping >= 0, slots)

    def written(cache: Tensor, rows: Tensor) -> Tensor:
        rows = rows.to(cache.dtype).flatten(1)
        padded = torch.cat((cache.reshape(slots, rows.shape[1]), rows.new_zeros(1, rows.shape[1])))
        return padded.index_copy(0, taken, rows)[:slots]

    keys = written(key_cache.permute(0, 3, 1, 2, 4), key)
    values = written(value_cache.permute(0, 3, 1, 2), value)
    return (
        keys.reshape(blocks, block_size, heads, groups, width).permute(0, 2, 3, 1, 4),
        values.reshape(blocks, block_size, *value_cache.shape[1:3]).permute(0, 2, 3, 1),
    )


# reshape_and_cache(key, value, key_cache, value_cache, slot_mapping): writes to both caches and returns nothing.
reshape_and_cache = torchgraft.Operator(
    f"{NAMESPACE}::reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache,"
    " Tensor slot_mapping) -> ()",
    reference=_reference,
    shapes="tokens heads head_size, tokens heads head_size, blocks heads groups block_size width,"
    " blocks heads head_size block_size, tokens ->",
    explain=_explain,
    dtypes={
        **dict.fromkeys(("key", "value", "key_cache", "value_cache"), torchgraft.operator.FLOATING),
        "slot_mapping": (torch.int64,),
    },
    kernels={"cpu": torchgraft.operator.FLOATING},
)

building.load(NAMESPACE, [_SOURCE])
