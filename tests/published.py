"""The functions of the package causal-conv1d, with its names and parameters, in PyTorch."""

import torch
from torch.nn import functional


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    past, length = weight.shape[1] - 1, x.shape[2]
    before = x.new_zeros(*x.shape[:2], past) if initial_states is None else initial_states
    windows = torch.cat([before, x], 2).unfold(2, past + 1, 1)
    if seq_idx is not None:
        ids = torch.cat([seq_idx[:, :1].expand(-1, past), seq_idx], 1).unfold(1, past + 1, 1)
        windows = windows * (ids == seq_idx[..., None])[:, None]
    output = (windows * weight[:, None]).sum(3) + (0 if bias is None else bias[:, None])
    output = output if activation is None else functional.silu(output)
    if not return_final_states:
        return output
    state = torch.cat([before, x], 2)[..., length:]
    return output, state if final_states_out is None else final_states_out.copy_(state)


def causal_conv1d_update(
    x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None
):
    assert cache_seqlens is None
    assert conv_state_indices is None
    inputs = x if x.dim() == 3 else x[..., None]
    together = torch.cat([conv_state, inputs], 2)
    conv_state.copy_(together[..., inputs.shape[2] :])
    output = functional.conv1d(together, weight[:, None], bias, groups=len(weight))[..., -inputs.shape[2] :]
    output = output if activation is None else functional.silu(output)
    return output if x.dim() == 3 else output[..., 0]
