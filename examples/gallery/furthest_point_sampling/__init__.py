"""furthest_point_sampling: points of a cloud that lie far from each other. Whole numbers out of real ones."""

from pathlib import Path

import torch
from torch import Tensor

import torchgraft
from torchgraft import building

NAMESPACE = "gallery_furthest_point_sampling"
_SOURCE = Path(__file__).with_name("cpu.cpp")


def _explain(points: Tensor, count: int) -> None:
    if not 0 <= count <= points.shape[1]:
        raise ValueError(
            f"furthest_point_sampling: count must lie between 0 and the number of points, which is {points.shape[1]},"
            f" got {count}"
        )


def _reference(points: Tensor, count: int) -> Tensor:
    _explain(points, count)
    # In float64 whatever comes in: which point is chosen must not depend on how a distance is rounded.
    exact = points.detach().double()
    distances = exact.new_full(exact.shape[:2], torch.inf)
    chosen = [torch.zeros_like(distances[:, 0], dtype=torch.int64)] if count else []
    for _ in range(count - 1):
        last = exact.take_along_dim(chosen[-1][:, None, None], 1)
        distances = torch.minimum(distances, (exact - last).square().sum(2))
        chosen.append(distances.argmax(1))
    return torch.stack(chosen, 1) if chosen else distances.new_empty(len(points), 0, dtype=torch.int64)


def _output(points: Tensor, count: int) -> Tensor:
    return points.new_empty(points.shape[0], count, dtype=torch.int64)


# furthest_point_sampling(points, count): (batch, count), the places of the points that are chosen, in their order.
furthest_point_sampling = torchgraft.Operator(
    f"{NAMESPACE}::furthest_point_sampling(Tensor points, int count) -> Tensor",
    reference=_reference,
    shapes="batch points 3 -> batch count",
    output=_output,
    explain=_explain,
    kernels={"cpu": torchgraft.operator.FLOATING},
)

building.load(NAMESPACE, [_SOURCE])
