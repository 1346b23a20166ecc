"""Styles for `torch.distributed.tensor.parallel.parallelize_module`, for layers that treat each channel by itself."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle


class ChannelwiseParallel(ParallelStyle):
    """Cuts a layer along its channels: every device has some of them, and none asks another for anything.

    For layers whose parameters all have channels in front: those of `torchgraft.nn` that treat each channel by itself,
    and each convolution that `torchgraft.graft` swapped. The input is a DTensor that is cut along dimension 1, and so
    is the output. Between a layer with `ColwiseParallel(use_local_output=False)` and one with `RowwiseParallel()`
    nothing is moved.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _cut_parameters)


def _cut_parameters(name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(parameter.detach(), device_mesh, [Shard(0)])
        module.register_parameter(key, nn.Parameter(cut, requires_grad=parameter.requires_grad))
