"""The temporal shift block of Shift-GCN on skeletons that it makes itself: training, a loss curve, and what was learnt.

Each skeleton waves, and the task is to say in which direction the wave runs: each joint follows its neighbour by a few
frames, or leads it. Joints never meet but by the shift, and frames never but by the shift.

python examples/shift_gcn.py [--offset-gradient shift_gcn] [--steps 60] [--device cuda]
"""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F
from char_lltm import draw
from torch import Tensor

from torchgraft.nn import Shift

FRAMES, JOINTS, CLASSES = 48, 25, 4


class Block(torch.nn.Module):
    """A spatial shift, a 1x1 convolution, a temporal shift: a block of Shift-GCN.

    Args:
        channels: of the input.
        out_channels: of the output.
        stride: frames between results.
        offset_gradient: as for Shift.
    """

    def __init__(self, channels: int, out_channels: int, stride: int, offset_gradient: str) -> None:
        super().__init__()
        # Channel c is moved along the joints by c of them, around the skeleton: every joint meets every other.
        rotated = (torch.arange(JOINTS) + torch.arange(channels)[:, None]) % JOINTS
        self.register_buffer("rotated", rotated)
        self.mix = torch.nn.Conv2d(channels, out_channels, 1)
        self.norm = torch.nn.BatchNorm2d(out_channels)
        self.shift = Shift(out_channels, stride, offset_gradient=offset_gradient)
        self.leave = torch.nn.Conv2d(out_channels, out_channels, 1)

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, T, V) to (N, out_channels, T // stride, V)."""
        neighbours = self.rotated[:, None, :].expand(len(self.rotated), input.shape[2], JOINTS)
        moved = input.gather(3, neighbours.expand(len(input), *neighbours.shape))
        return F.relu(self.leave(self.shift(F.relu(self.norm(self.mix(moved))))))


class ShiftNetwork(torch.nn.Module):
    """Three blocks and a linear head."""

    def __init__(self, channels: int, offset_gradient: str) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(
            Block(3, channels, 1, offset_gradient),
            Block(channels, channels, 2, offset_gradient),
            Block(channels, 2 * channels, 2, offset_gradient),
        )
        self.head = torch.nn.Linear(2 * channels, CLASSES)

    def forward(self, skeletons: Tensor) -> Tensor:
        """Skeletons (N, 3, T, V) to logits (N, CLASSES)."""
        return self.head(self.blocks(skeletons).mean((2, 3)))


def make_skeletons(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Skeletons (N, 3, T, V) and their classes: waves that run along the joints, either way, fast or slow."""
    classes = torch.randint(CLASSES, (count,), generator=generator)
    lag = torch.tensor([-3.0, -1.0, 1.0, 3.0])[classes][:, None, None]
    period = 12 + 8 * torch.rand(count, 1, 1, generator=generator)
    begin = 2 * math.pi * torch.rand(count, 3, 1, 1, generator=generator)
    frames, joints = torch.arange(FRAMES)[:, None], torch.arange(JOINTS)
    phase = 2 * math.pi * (frames - lag * joints) / period
    waves = torch.sin(phase[:, None] + begin)
    return waves + 0.5 * torch.randn(waves.shape, generator=generator), classes


def train(model: ShiftNetwork, steps: int, batch: int, generator: torch.Generator) -> list[float]:
    """Trains on new skeletons in each step; returns the loss of each, in nats."""
    device = next(model.parameters()).device
    offsets = [parameter for name, parameter in model.named_parameters() if name.endswith(("xpos", "ypos"))]
    others = [parameter for name, parameter in model.named_parameters() if not name.endswith(("xpos", "ypos"))]
    # Offsets are measured in frames, and steps of the published rule all have one length.
    optimizers = [torch.optim.AdamW(others, lr=5e-3), torch.optim.SGD(offsets, lr=1.0)]
    losses = []
    for _ in range(steps):
        skeletons, classes = (each.to(device) for each in make_skeletons(batch, generator))
        loss = F.cross_entropy(model(skeletons), classes)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: ShiftNetwork, count: int, generator: torch.Generator) -> float:
    """The share of new skeletons whose class the model finds."""
    device = next(model.parameters()).device
    skeletons, classes = (each.to(device) for each in make_skeletons(count, generator))
    return (model.eval()(skeletons).argmax(1) == classes).float().mean().item()


def describe(layer: Shift, before: Tensor) -> str:
    """Where the channels of a layer look, in frames: a histogram, and how far they went to get there."""
    offsets = layer.ypos.detach().cpu()
    counts = torch.histc(offsets, bins=9, min=-4.5, max=4.5).int().tolist()
    lines = [f"{frame:+3d} |{'#' * count}" for frame, count in zip(range(-4, 5), counts, strict=True)]
    moved = (offsets - before).abs().mean().item()
    return "\n".join([*lines, f"moved by {moved:.2f} frames on average"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offset-gradient", choices=("exact", "shift_gcn"), default="exact")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    model = ShiftNetwork(options.channels, options.offset_gradient).to(options.device)
    layer = model.blocks[0].shift
    before = layer.ypos.detach().cpu().clone()

    begin = time.perf_counter()
    losses = train(model, options.steps, options.batch, generator)
    taken = time.perf_counter() - begin
    print(
        f"offset_gradient='{options.offset_gradient}' on {options.device}: {options.steps} steps, "
        f"{taken / options.steps * 1e3:.1f} ms each"
    )
    print(draw(losses))
    print(f"{accuracy(model, 512, generator):.1%} of 512 new skeletons are told apart, of {CLASSES} kinds")
    print("the frames at which the first layer's channels look:")
    print(describe(layer, before))


if __name__ == "__main__":
    main()
