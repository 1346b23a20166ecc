"""Trains a ConvNeXt on one GPU or on many, and on CPUs: a script to start from.

    torchrun --nproc-per-node 4 examples/train_imagenet_like.py --strategy fsdp --amp --checkpoints run

Every process trains on batches of its own. Images are made up as they are needed, so that nothing is downloaded: put a
`DataLoader` with a `DistributedSampler` in the place of `make_batch`. A run that was killed goes on from its last
checkpoint when it is started again, on as many devices or on another number of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchgraft

CLASSES = 1000
# Depths and channels of each stage.
MODELS = {
    "convnext-t": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "convnext-s": ((3, 3, 27, 3), (96, 192, 384, 768)),
    "small": ((1, 1), (16, 32)),
}


class Norm(nn.LayerNorm):
    """Normalizes the channels of images."""

    def forward(self, images: Tensor) -> Tensor:
        """Images to images."""
        return super().forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, images: Tensor) -> Tensor:
        """Images to images."""
        pixels = self.norm(self.depthwise(images).permute(0, 2, 3, 1))
        pixels = self.scale * self.project(F.gelu(self.expand(pixels)))
        return images + pixels.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """ConvNeXt: stages of blocks, each at half the size of the one before."""

    def __init__(self, depths: tuple[int, ...], channels: tuple[int, ...]) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        before = 3
        for depth, width in zip(depths, channels, strict=True):
            step = 4 if before == 3 else 2
            norms = [] if before == 3 else [Norm(before, eps=1e-6)]
            self.blocks.extend([*norms, nn.Conv2d(before, width, step, step)])
            self.blocks.extend(Block(width) for _ in range(depth))
            before = width
        self.norm = nn.LayerNorm(before, eps=1e-6)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits."""
        return self.head(self.norm(self.blocks(images).mean((2, 3))))


def make_batch(size: int, pixels: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise in the colour of its class: something that can be learnt."""
    generator = torch.Generator(device).manual_seed(seed)
    classes = torch.randint(CLASSES, (size,), generator=generator, device=device)
    images = torch.randn(size, 3, pixels, pixels, generator=generator, device=device)
    colours = torch.stack([torch.sin(classes * factor) for factor in (1.0, 2.0, 3.0)], 1)
    images = images + colours[:, :, None, None]
    return images.contiguous(memory_format=torch.channels_last), classes


def wrap(model: nn.Module, strategy: str, amp: bool, device: torch.device) -> nn.Module:
    """The model over all devices."""
    if strategy == "ddp":
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if amp else MixedPrecisionPolicy()
    )
    for block in model.modules():
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Training:
    """A model, its optimizer, and how far they are."""

    def __init__(self, model: nn.Module, options: argparse.Namespace, device: torch.device) -> None:
        self.model, self.options, self.device = model, options, device
        self.optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
        self.step = 0

    def train_step(self) -> Tensor:
        """One step on a batch of this process's own."""
        options = self.options
        seed = self.step * dist.get_world_size() + dist.get_rank()
        images, classes = make_batch(options.batch, options.pixels, seed, self.device)
        # FSDP's own policy computes in bfloat16.
        casts = options.amp and options.strategy == "ddp"
        with torch.autocast(self.device.type, torch.bfloat16) if casts else contextlib.nullcontext():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), classes)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.detach()

    def save(self, folder: Path) -> None:
        """Writes a checkpoint; what names it is written last, so that one that was not finished is not found."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder / f"step-{self.step}")
        if dist.get_rank() == 0:
            beside = folder / "latest.part"
            beside.write_text(str(self.step))
            beside.replace(folder / "latest")
        dist.barrier()

    def load(self, folder: Path) -> bool:
        """Goes on from the latest checkpoint, where there is one."""
        latest = folder / "latest"
        if not latest.exists():
            return False
        model, optimizer = get_state_dict(self.model, self.optimizer)
        step = int(latest.read_text())
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder / f"step-{step}")
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.step = step
        return True


def time_steps(training: Training, steps: int) -> float:
    """Images a second of this process, over some steps after a few others."""
    for _ in range(max(2, steps // 4)):
        training.train_step()
    wait(training.device)
    started = time.perf_counter()
    for _ in range(steps):
        training.train_step()
    wait(training.device)
    return steps * training.options.batch / (time.perf_counter() - started)


def profile_step(training: Training) -> dict[str, float]:
    """Shares of a step in which the GPU computes, only waits for data of other GPUs, and waits for the host."""
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(3):
            training.train_step()
        wait(training.device)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            spans["nccl" in event.name].append((event.time_range.start, event.time_range.end))
    every = spans[True] + spans[False]
    if not every:
        return {}
    whole = max(end for _, end in every) - min(start for start, _ in every)
    computes, busy = covered(spans[False]) / whole, covered(every) / whole
    return {"computes": computes, "waits_for_others": busy - computes, "waits_for_host": 1 - busy}


def covered(spans: list[tuple[float, float]]) -> float:
    """How long at least one of these spans of time lasts."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def wait(device: torch.device) -> None:
    """Waits for what a GPU still does."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mean_over_devices(value: float, device: torch.device) -> float:
    """The mean of what each process has."""
    total = torch.tensor(value, device=device, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def build(options: argparse.Namespace, device: torch.device) -> nn.Module:
    """The model, the same in every process."""
    torch.manual_seed(0)
    # Weights stay contiguous, which FSDP asks for; images are channels_last.
    model = ConvNeXt(*MODELS[options.model]).to(device)
    return model if options.plain else torchgraft.graft(model)


def run(options: argparse.Namespace) -> dict[str, object]:
    """Trains in a group of processes, and says how quickly."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    figures = train(options, device)
    # The models are gone before the group is. One that is left keeps the threads of the group, and ends them when it is
    # freed itself, holding the lock of Python's interpreter, which such a thread may need to end: both wait for ever.
    # Or the interpreter ends first, and the thread aborts the process.
    gc.collect()
    dist.destroy_process_group()
    return figures


def train(options: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Trains, and says how quickly."""
    count, first = dist.get_world_size(), dist.get_rank() == 0

    # What each device does where it need not wait for others: the measure of what many do.
    lone = argparse.Namespace(**{**vars(options), "strategy": "ddp"})
    alone = mean_over_devices(time_steps(Training(build(options, device), lone, device), options.measured), device)

    model = wrap(build(options, device), options.strategy, options.amp, device)
    training = Training(torch.compile(model) if options.compile else model, options, device)
    if options.checkpoints and training.load(options.checkpoints) and first:
        print(f"going on from step {training.step}", flush=True)
    loss = torch.zeros((), device=device)
    rates = []
    while training.step < options.steps:
        started, before = time.perf_counter(), training.step
        while training.step < min(options.steps, before + options.every):
            loss = training.train_step()
        wait(device)
        rates.append(
            mean_over_devices((training.step - before) * options.batch / (time.perf_counter() - started), device)
        )
        said = mean_over_devices(loss.item(), device)
        if first:
            rate = rates[-1]
            print(
                f"step {training.step}: loss {said:.4f}, {rate * count:.1f} images/s on {count} devices,"
                f" {100 * rate / alone:.0f} % of what they do alone",
                flush=True,
            )
        if options.checkpoints:
            training.save(options.checkpoints)
    rates = rates[1:] or rates
    rate = sum(rates) / len(rates) if rates else 0.0
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    final = mean_over_devices(loss.item(), device)
    shares = profile_step(training) if options.profile and device.type == "cuda" else {}
    if shares and first:
        said = ", ".join(f"{name.replace('_', ' ')} {100 * share:.1f} %" for name, share in shares.items())
        print(f"of a step, the first GPU {said}", flush=True)
    return {
        "model": options.model,
        "grafted": not options.plain,
        "strategy": options.strategy,
        "amp": options.amp,
        "compiled": options.compile,
        "batch": options.batch,
        "pixels": options.pixels,
        "devices": count,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "images_per_second": rate * count,
        "alone_images_per_second": alone,
        "peak_memory_bytes": memory,
        "loss": final,
        "shares_of_step": shares,
        "torch": torch.__version__,
    }


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains a ConvNeXt on one device or on many. Start it with torchrun.")
    parser.add_argument("--model", choices=MODELS, default="convnext-t")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--plain", action="store_true", help="leave PyTorch's own convolutions in the model")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("--batch", type=int, default=128, help="images a step of each device")
    parser.add_argument("--pixels", type=int, default=224, help="height and width of an image")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two lines, and between two checkpoints")
    parser.add_argument("--measured", type=int, default=10, help="steps that each device is timed for alone")
    parser.add_argument("--profile", action="store_true", help="say what a GPU waits for in three more steps")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument(
        "--checkpoints", type=Path, metavar="FOLDER", help="write checkpoints, and go on from the latest"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    """The command."""
    options = read_options()
    if options.checkpoints:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
    figures = run(options)
    if options.json and int(os.environ.get("RANK", "0")) == 0:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
