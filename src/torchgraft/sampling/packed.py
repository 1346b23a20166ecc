"""Samples of packed batches: sequences of several lengths, one behind the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from torchgraft.sampling.samples import Drawn, Sample


@dataclass(frozen=True)
class Packed:
    """A packed batch: sequences of several lengths that lie one behind the other in one dimension.

    Its properties are the tensors by which kernels find the sequences, and the sizes of all others. A kernel gets one
    of them; the values do not depend on a seed.

    Attributes:
        lengths: how many positions each sequence has.
        padding: how many positions behind the last sequence belong to none.
    """

    lengths: tuple[int, ...]
    padding: int = 0

    def __post_init__(self) -> None:
        if min((*self.lengths, self.padding)) < 0:
            raise ValueError(f"lengths and padding must not be negative, got {self.lengths} and {self.padding}")

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    @property
    def positions(self) -> int:
        """The size of the dimension along which the sequences lie, padding included."""
        return sum(self.lengths) + self.padding

    @property
    def longest(self) -> int:
        """The length of the longest sequence, which kernels call `max_seqlen`."""
        return max(self.lengths, default=0)

    def cu_seqlens(self, dtype: torch.dtype = torch.int32) -> Drawn:
        """The offsets at which sequences begin, and the one at which the last ends: (sequences + 1,)."""
        return _given([sum(self.lengths[:number]) for number in range(self.sequences + 1)], dtype)

    def starts(self, dtype: torch.dtype = torch.int64) -> Drawn:
        """The offsets at which sequences begin, as embedding_bag takes them: (sequences,)."""
        return _given([sum(self.lengths[:number]) for number in range(self.sequences)], dtype)

    def seq_idx(self, dtype: torch.dtype = torch.int32, *, of_padding: int = -1) -> Drawn:
        """The number of the sequence that each position belongs to: (positions,)."""
        numbers = [number for number, length in enumerate(self.lengths) for _ in range(length)]
        return _given(numbers + [of_padding] * self.padding, dtype)

    def batch_sizes(self) -> Drawn:
        """How many sequences take part in each step, the longest first, as in a `PackedSequence`: (longest,).

        Raises:
            ValueError: a sequence has no length, or there is padding, which a PackedSequence cannot have.
        """
        if self.padding or 0 in self.lengths:
            raise ValueError(f"a PackedSequence has neither padding nor sequences of no length, got {self}")
        steps = range(self.longest)
        return _given([sum(length > step for length in self.lengths) for step in steps], torch.int64)


def _given(values: Sequence[int], dtype: torch.dtype) -> Drawn:
    return Drawn((len(values),), dtype=dtype, values=tuple(map(float, values)) or None, distinct=bool(values))


# What kernels of packed batches get wrong. The border between two sequences must not be crossed.
_PACKED = {
    "one sequence": Packed((5,)),
    "one position": Packed((1,)),
    "a short last sequence": Packed((4, 3, 1)),
    "a long last sequence": Packed((1, 2, 6)),
    "all of length one": Packed((1, 1, 1, 1)),
    "a length that no vector has, and one more than a warp": Packed((7, 33, 2)),
    "more than two blocks of 128, and a short one": Packed((2, 257, 3)),
    "more sequences than a block of 128 has threads": Packed((1, 2) * 65),
    # Who steps over one border at each position goes wrong only behind the next one.
    "a sequence of no length in the middle": Packed((3, 0, 2, 1)),
    "two of no length in a row": Packed((2, 0, 0, 1, 3)),
    "sequences of no length at both ends": Packed((0, 0, 4, 2, 0)),
    "padding behind the last": Packed((3, 2), padding=3),
    "padding behind one of no length": Packed((2, 0), padding=1),
}


def packed_samples(
    make: Callable[[Packed], Sequence[Any]], *, empty: bool = True, padding: bool = True
) -> tuple[Sample, ...]:
    """Makes samples of a packed batch: one sequence, short and long ones, some of no length, padding behind the last.

    Args:
        make: the arguments of a call, from a packed batch.
        empty: whether a sequence may have no length.
        padding: whether there may be positions that belong to no sequence.
    """
    allowed = {
        name: packed
        for name, packed in _PACKED.items()
        if (empty or 0 not in packed.lengths) and (padding or not packed.padding)
    }
    return tuple(Sample(f"packed: {name}", tuple(make(packed))) for name, packed in allowed.items())


def draw_packed(random: Random, *, empty: bool = True, padding: bool = True) -> Packed:
    """Draws a small packed batch.

    Args:
        random: a source of randomness.
        empty: whether a sequence may have no length.
        padding: whether there may be positions that belong to no sequence.
    """
    lengths = tuple(random.randint(0 if empty else 1, 5) for _ in range(random.randint(1, 4)))
    return Packed(lengths, random.choice((0, 0, 1, 3)) if padding else 0)
