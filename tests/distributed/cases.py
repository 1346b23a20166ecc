"""The work of each of several processes: cases in turn, compared with one process. `python cases.py FOLDER [CASE ...]`.

A process knows its place by RANK and WORLD_SIZE. It writes down the names of the cases that hold, and ends with the
first that does not.
"""

from __future__ import annotations

import datetime
import gc
import json
import logging
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torchgraft
from distributed.models import Bottlenecks, CharLLTM, ConvNeXt, images, text

PAGE = Path(__file__).parents[2] / "docs/distributed.md"
STEPS = 50
_SECONDS = 180

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Makes a function a case: a decorator."""
    CASES[function.__name__] = function
    return function


def device() -> torch.device:
    """The device of this process."""
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")


def mesh(*shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """A mesh of all devices."""
    return init_device_mesh(device().type, shape or (dist.get_world_size(),), mesh_dim_names=names)


def run_block_of_page(word: str, **names: Any) -> dict[str, Any]:
    """Runs the first block of docs/distributed.md that holds a word, with these names; what they are after it."""
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(next(block for block in blocks if word in block), names)
    return names


def part(values: Tensor) -> Tensor:
    """This process's part of a batch."""
    return values.chunk(dist.get_world_size())[dist.get_rank()]


def make(kind: Callable[..., nn.Module], **options: Any) -> nn.Module:
    """A model, the same in every process."""
    torch.manual_seed(0)
    return kind(**options).double().to(device())


def whole(parameter: Tensor) -> Tensor:
    """All of a parameter."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def train(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    steps: int = STEPS,
) -> tuple[list[float], list[Tensor]]:
    """Losses of some steps, and the parameters after the first."""
    # On GPUs an optimizer updates all parameters in one call, which takes no mixture of kinds: those of a model that is
    # in part parallel are two.
    is_mixed = len({isinstance(each, DTensor) for each in model.parameters()}) > 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False if is_mixed else None)
    losses, first = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).double(), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:
            first = [whole(each.detach()).clone() for each in model.parameters()]
    return losses, first


def expect_alike(
    found: tuple[list[float], list[Tensor]],
    expected: tuple[list[float], list[Tensor]],
    *,
    averaged: bool,
    rough: bool = False,
) -> None:
    """Compares with one process: one step to rounding, and all losses."""
    losses = torch.tensor(found[0], dtype=torch.float64, device=device())
    if averaged:
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
    wanted = torch.tensor(expected[0], dtype=torch.float64, device=device())
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if rough else {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(losses, wanted, **tolerance)
    assert wanted[-1] < wanted[0] or len(wanted) < STEPS, "the reference does not learn"
    if not rough:
        for one, other in zip(found[1], expected[1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def batch_of(kind: type) -> tuple[Tensor, Tensor]:
    """Inputs and targets for a model."""
    count = 4 * dist.get_world_size()
    if kind is CharLLTM:
        return text(count, device())
    return images(count, 6 if kind is Bottlenecks else 3, device(), torch.float64)


def compare_data_parallel(
    kind: type, wrap: Callable[[nn.Module], nn.Module], *, steps: int = STEPS, rough: bool = False, **options: Any
) -> None:
    """Trains a model on parts of a batch, and one process on all of it."""
    inputs, targets = batch_of(kind)
    expected = train(make(kind), inputs, targets, steps)
    found = train(wrap(make(kind, **options)), part(inputs), part(targets), steps)
    expect_alike(found, expected, averaged=True, rough=rough)


def in_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def in_fsdp(model: nn.Module, **options: Any) -> nn.Module:
    for block in getattr(model, "blocks", ()):
        fully_shard(block, **options)
    return fully_shard(model, **options)


def grafted(model: nn.Module) -> nn.Module:
    model = torchgraft.graft(model)
    assert torchgraft.graft_report(model).grafted
    return model


@case
def ddp() -> None:
    compare_data_parallel(ConvNeXt, lambda model: in_ddp(grafted(model)))
    compare_data_parallel(CharLLTM, in_ddp)


@case
def fsdp() -> None:
    compare_data_parallel(ConvNeXt, lambda model: in_fsdp(grafted(model)))
    compare_data_parallel(CharLLTM, in_fsdp)


@case
def fsdp_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    compare_data_parallel(ConvNeXt, lambda model: in_fsdp(grafted(model), mp_policy=policy), rough=True)


@case
def grafted_after_wrapping() -> None:
    compare_data_parallel(ConvNeXt, lambda model: grafted(in_ddp(model)), steps=3)
    compare_data_parallel(ConvNeXt, lambda model: grafted(in_fsdp(model)), steps=3)


@case
def as_the_page_shows() -> None:
    known = {"torchgraft": torchgraft, "DistributedDataParallel": DistributedDataParallel}
    compare_data_parallel(
        ConvNeXt, lambda model: run_block_of_page("DistributedDataParallel", model=model, **known)["model"], steps=2
    )


@case
def checkpointed() -> None:
    compare_data_parallel(ConvNeXt, lambda model: in_ddp(grafted(model)), steps=3, checkpointed=True)
    compare_data_parallel(ConvNeXt, lambda model: in_fsdp(grafted(model)), steps=3, checkpointed=True)


@case
def compiled() -> None:
    for wrap in (in_ddp, in_fsdp):
        compare_data_parallel(
            ConvNeXt, lambda model, wrap=wrap: torch.compile(wrap(grafted(model)), backend="aot_eager"), steps=2
        )
        torch._dynamo.reset()


def in_tensor_parallel(model: nn.Module, devices: DeviceMesh) -> nn.Module:
    for block in model.blocks:
        run_block_of_page("ChannelwiseParallel", block=block, mesh=devices)
    return model


@case
def channel_parallel() -> None:
    inputs, targets = batch_of(Bottlenecks)
    expected = train(make(Bottlenecks), inputs, targets)
    found = train(in_tensor_parallel(make(Bottlenecks), mesh()), inputs, targets)
    expect_alike(found, expected, averaged=False)


@case
def channel_parallel_moves_nothing_inside() -> None:
    model = in_tensor_parallel(make(Bottlenecks), mesh())
    block = model.blocks[0]
    pixels = batch_of(Bottlenecks)[0].permute(0, 2, 3, 1)
    wide = block.expand(pixels).permute(0, 3, 1, 2)
    assert wide.placements == (Shard(1),)
    wide = wide.detach().requires_grad_()
    with CommDebugMode() as moved:
        result = block.depthwise(wide)
        result.backward(torch.ones_like(result))
    assert moved.get_total_counts() == 0, moved.get_comm_counts()
    assert result.placements == wide.grad.placements == (Shard(1),)
    assert block.depthwise.weight.grad.placements == block.depthwise.bias.grad.placements == (Shard(0),)
    # All of a block: one sum of what the devices give.
    with CommDebugMode() as moved:
        block(pixels)
    assert moved.get_total_counts() == 1, moved.get_comm_counts()


@case
def channel_parallel_compiled() -> None:
    inputs, targets = batch_of(Bottlenecks)
    expected = train(make(Bottlenecks), inputs, targets, 2)
    model = torch.compile(in_tensor_parallel(make(Bottlenecks), mesh()), backend="aot_eager")
    expect_alike(train(model, inputs, targets, 2), expected, averaged=False)


@case
def both_ways_on_a_mesh_of_two_dimensions() -> None:
    count = dist.get_world_size()
    devices = mesh(count // 2, 2, names=("data", "channels"))
    inputs, targets = batch_of(Bottlenecks)
    expected = train(make(Bottlenecks), inputs, targets)
    model = in_tensor_parallel(make(Bottlenecks), devices["channels"])
    for block in model.blocks:
        fully_shard(block, mesh=devices["data"])
    fully_shard(model, mesh=devices["data"])
    at = devices.get_local_rank("data")
    parts = [each.chunk(count // 2)[at] for each in (inputs, targets)]
    # Devices of one row of the mesh have the same loss.
    expect_alike(train(model, *parts), expected, averaged=True)


@case
def pytorch_does_not_cut_channels() -> None:
    devices = mesh()
    count = dist.get_world_size()
    torch.manual_seed(0)
    images, weight = torch.randn(2, 4 * count, 5, 5), torch.randn(4 * count, 1, 3, 3)
    expected = F.conv2d(images, weight, padding=1, groups=4 * count)
    images, weight, expected = (each.to(device()) for each in (images, weight, expected))
    cut = distribute_tensor(images, devices, [Shard(1)]), distribute_tensor(weight, devices, [Shard(0)])
    found = torchgraft.depthwise_conv2d(*cut, padding=1)
    assert found.placements == (Shard(1),)
    torch.testing.assert_close(found.full_tensor(), expected)
    try:
        of_pytorch = F.conv2d(*cut, padding=1, groups=4 * count).full_tensor()
    except Exception:
        return
    assert of_pytorch.shape != expected.shape or not torch.allclose(of_pytorch, expected)


@case
def lltm_by_batch() -> None:
    devices, count = mesh(), dist.get_world_size()
    torch.manual_seed(0)
    layer = make(torchgraft.nn.LLTM, input_size=3, hidden_size=4)
    inputs = torch.randn(5, 4 * count - 1, 3, dtype=torch.float64, device=device())
    expected = layer(inputs)[0]
    gradients = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    for name, parameter in list(layer.named_parameters()):
        replicated = nn.Parameter(distribute_tensor(parameter.detach(), devices, [Replicate()]))
        layer.register_parameter(name, replicated)
    found = layer(distribute_tensor(inputs, devices, [Shard(1)]))[0]
    assert found.placements == (Shard(1),)
    torch.testing.assert_close(found.full_tensor(), expected)
    found.square().sum().backward()
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(whole(parameter.grad), gradient)


@case
def bad_placements_are_refused_everywhere() -> None:
    devices = mesh()
    images = distribute_tensor(torch.randn(2, 4, 8, 8, device=device()), devices, [Shard(2)])
    weight = distribute_tensor(torch.randn(4, 1, 3, 3, device=device()), devices, [Replicate()])
    said = ""
    try:
        torchgraft.depthwise_conv2d(images, weight)
    except ValueError as error:
        said = str(error)
    assert "depthwise_conv2d: input is sharded along dimension 2" in said, said
    assert "dimension 0 (N) or 1 (C)" in said, said
    everywhere = torch.ones(1, device=device())
    dist.all_reduce(everywhere)
    assert everywhere.item() == dist.get_world_size()


@case
def checkpoints_between_meshes() -> None:
    import torch.distributed.checkpoint as dcp

    inputs, targets = batch_of(ConvNeXt)
    model = in_fsdp(grafted(make(ConvNeXt)))
    train(model, part(inputs), part(targets), 2)
    saved = [whole(each.detach()).clone() for each in model.parameters()]
    with shared_folder() as folder:
        dcp.save(model.state_dict(), checkpoint_id=folder)
        # On one device, without a mesh.
        alone = grafted(make(ConvNeXt))
        state = alone.state_dict()
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        alone.load_state_dict(state)
        for one, other in zip(alone.parameters(), saved, strict=True):
            assert torch.equal(one, other)
        # And on a mesh of another shape, of what one device saved.
        if dist.get_rank() == 0:
            dcp.save(alone.state_dict(), checkpoint_id=f"{folder}/alone", no_dist=True)
        dist.barrier()
        devices = mesh(1, dist.get_world_size(), names=("replicated", "cut"))
        other_mesh = in_fsdp(grafted(make(ConvNeXt)), mesh=devices)
        state = other_mesh.state_dict()
        dcp.load(state, checkpoint_id=f"{folder}/alone")
        other_mesh.load_state_dict(state)
        for one, other in zip(other_mesh.parameters(), saved, strict=True):
            assert torch.equal(whole(one), other)


@contextmanager
def shared_folder() -> Iterator[str]:
    """A folder that all processes know."""
    names: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, device=device())
    yield names[0]
    dist.barrier()


def dies() -> None:
    """The last process ends, and the others wait for it."""
    everywhere = torch.ones(1, device=device())
    # Connections are made by the first collective, which no timeout of the group's ends. NCCL's calls return at once:
    # what waits is whoever asks for the sum.
    dist.all_reduce(everywhere)
    assert everywhere.item() == dist.get_world_size()
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(3)
    dist.all_reduce(everywhere)
    everywhere.item()


def main() -> int:
    """All cases, or some."""
    folder, *names = sys.argv[1:]
    rank, count, backend = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["BACKEND"]
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("error", category=torchgraft.PerformanceWarning)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    seconds = float(os.environ.get("SECONDS", _SECONDS))
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=seconds),
    )
    if names == ["dies"]:
        dies()
        return 0
    outcomes = {}
    for name, function in CASES.items():
        if names and name not in names:
            continue
        try:
            function()
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = traceback.format_exc()
        Path(folder, f"{rank}.json").write_text(json.dumps(outcomes))
        if outcomes[name]:
            os._exit(1)
        dist.barrier()
    # A model of DDP that outlives its group may wait for ever as it is freed.
    gc.collect()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
