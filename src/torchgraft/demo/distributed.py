"""One process of `graft demo --devices N`: the small ConvNeXt, grafted, on a part of each batch, and on all of it."""

from __future__ import annotations

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchgraft.demo.data import Data
from torchgraft.demo.parts.convnext import CONVNEXT
from torchgraft.demo.training import Trainer, build_model

# Rounding alone: sums are added in another order.
_TOLERANCE = 1e-3


def main() -> int:
    """Trains for some epochs and compares; 1 where the losses of many devices are not those of one."""
    epochs, seed = int(sys.argv[1]), int(sys.argv[2])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    difference = _compare(epochs, seed, device)
    # The model of DDP is gone before the group is. Else it would end the group's threads when it is freed, holding the
    # lock of Python's interpreter, which such a thread may need to end: both would wait for ever.
    gc.collect()
    dist.destroy_process_group()
    return int(difference > _TOLERANCE)


def _compare(epochs: int, seed: int, device: torch.device) -> float:
    """Trains on all devices together and on each alone, and prints both; the largest difference of a step's loss."""
    rank, count = dist.get_rank(), dist.get_world_size()
    data = CONVNEXT.load().to(device)
    model = build_model(CONVNEXT.ours.build, seed, device)
    together = DistributedDataParallel(model)
    losses, rate = _train(together, data, epochs, seed, rank, count)
    mean = torch.tensor(losses, device=device)
    dist.all_reduce(mean)
    mean /= count
    alone, alone_rate = _train(build_model(CONVNEXT.ours.build, seed, device), data, epochs, seed, 0, 1)
    difference = (mean - torch.tensor(alone, device=device)).abs().max().item()
    if rank == 0:
        kind = torch.cuda.get_device_name() if device.type == "cuda" else "CPU processes, gloo"
        print(f"{CONVNEXT.title}, grafted, DistributedDataParallel on {count} devices ({kind})")
        print(f"  {len(alone)} steps; the last loss is {mean[-1]:.5f}, and {alone[-1]:.5f} on one device")
        print(f"  losses differ by {difference:.2g} at most; {_TOLERANCE:g} is allowed for rounding")
        print(f"  {rate:,.0f} images/s on {count} devices; {alone_rate:,.0f} where each trains the whole batch alone")
    return difference


def _train(
    model: torch.nn.Module, data: Data, epochs: int, seed: int, rank: int, count: int
) -> tuple[list[float], float]:
    """The losses of each step on a part of its batch, and the images of whole batches a second."""
    batches = len(data.train_targets) // CONVNEXT.batch_size
    trainer = Trainer(model, CONVNEXT.learning_rate, warm_up=batches, steps=epochs * batches)
    order = torch.Generator().manual_seed(seed)
    losses, milliseconds = [], []
    for _ in range(epochs):
        shuffled = torch.randperm(len(data.train_targets), generator=order).to(data.train_targets.device)
        for batch in shuffled[: batches * CONVNEXT.batch_size].split(CONVNEXT.batch_size):
            part = batch[rank::count]
            loss, _, taken = trainer.step(data.train_inputs[part], data.train_targets[part])
            # Parts may differ by an image; each loss is a mean of its own part.
            losses.append(loss * len(part) * count / len(batch))
            milliseconds.append(taken)
    return losses, 1e3 * CONVNEXT.batch_size * len(milliseconds) / sum(milliseconds)


if __name__ == "__main__":
    sys.exit(main())
