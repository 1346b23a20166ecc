"""nms: which boxes are kept where many overlap. A result whose size depends on the values of its inputs."""

from pathlib import Path

import torch
from torch import Tensor

import torchgraft
from torchgraft import building

NAMESPACE = "gallery_nms"
_SOURCE = Path(__file__).with_name("cpu.cpp")


def overlaps(boxes: Tensor) -> Tensor:
    """The intersection over union of each pair of boxes.

    Args:
        boxes: (N, 4), the corners x1, y1, x2, y2 of each.

    Returns:
        (N, N).
    """
    top_left, bottom_right = boxes[:, :2], boxes[:, 2:]
    areas = (bottom_right - top_left).prod(1)
    sides = torch.minimum(bottom_right[:, None], bottom_right) - torch.maximum(top_left[:, None], top_left)
    shared = sides.clamp(min=0).prod(2)
    return shared / (areas[:, None] + areas - shared)


def _reference(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    # In float64 whatever comes in: which boxes are kept must not depend on how an overlap is rounded.
    overlap_too_much = overlaps(boxes[order].double()) > iou_threshold
    dropped = torch.zeros_like(order, dtype=torch.bool)
    for best in range(len(order)):
        dropped[best + 1 :] |= overlap_too_much[best, best + 1 :] & ~dropped[best]
    return order[~dropped]


def _output(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return scores.new_empty(torchgraft.unknown_size(), dtype=torch.int64)


# nms(boxes, scores, iou_threshold): the places of the boxes that are kept, the best first.
nms = torchgraft.Operator(
    f"{NAMESPACE}::nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor",
    reference=_reference,
    output=_output,
    shapes="boxes 4, boxes -> _",
    sizes_from_data=True,
    kernels={"cpu": torchgraft.operator.FLOATING},
)

building.load(NAMESPACE, [_SOURCE])
