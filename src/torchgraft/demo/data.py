"""Data small enough to come with a package: nothing is downloaded."""

from pydoc_data.topics import topics
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor

# How many characters `documentation` tells apart.
CHARACTERS = 97
# Of its text, and of each piece.
_CHARACTERS, _LENGTH = 120_000, 64


class Data(NamedTuple):
    """Examples to learn from and others to be tested on; targets are class numbers."""

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def to(self, device: torch.device) -> "Data":
        """The same on a device."""
        return Data(*(each.to(device) for each in self))


def digits() -> Data:
    """Scikit-learn's 1,797 handwritten digits as (N, 1, 32, 32), a fifth of them for the test; always the same split.

    The scans have 8 x 8 pixels and are scaled up, so that a 7x7 kernel has something to look at.
    """
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1)
    images = F.interpolate(images, size=(32, 32), mode="bilinear")
    images = (images - images.mean()) / images.std()
    targets = torch.from_numpy(bunch.target).long()
    train, test = train_test_split(range(len(targets)), test_size=0.2, random_state=0, stratify=bunch.target)
    return Data(images[train], targets[train], images[test], targets[test])


def documentation() -> Data:
    """Pieces of the documentation that Python ships, 65 characters each, to say of each character which comes next.

    Inputs and targets are (N, 64), numbers of characters; rare ones are one class, the last. Every tenth piece is for
    the test.
    """
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")[:_CHARACTERS]
    # Printable characters, and the end of a line; whatever else there is.
    known = torch.full((256,), CHARACTERS - 1)
    known[10] = 0
    known[32:127] = torch.arange(1, 96)
    pieces = known[torch.frombuffer(bytearray(text), dtype=torch.uint8).long()].unfold(0, _LENGTH + 1, _LENGTH)
    inputs, targets = pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()
    tested = torch.arange(len(pieces)) % 10 == 9
    return Data(inputs[~tested], targets[~tested], inputs[tested], targets[tested])
