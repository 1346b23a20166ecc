"""A causal depthwise convolution layer."""

import torch
from torch import Tensor

from torchgraft.arguments import flag, positive
from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.causal_conv1d import causal_conv1d, causal_conv1d_update
from torchgraft.operators.causal_conv1d.arguments import MOST_TAPS, Activation, is_silu


class CausalConv1d(torch.nn.Conv1d):
    """A depthwise convolution along time that sees no future, computed by `torchgraft.causal_conv1d`.

    Parameters, their names and initialisation are those of `torch.nn.Conv1d(channels, channels, kernel_size,
    groups=channels, padding=kernel_size - 1)`, whose first outputs it gives: checkpoints of Mamba's layers fit.

    Args:
        channels: of the input.
        kernel_size: taps of a kernel, 1 to 256.
        bias: whether a number a channel is added.
        activation: 'silu', or None for none.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: channels or kernel_size is not positive, kernel_size is above 256, or there is no such activation.
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        channels: int,
        kernel_size: int = 4,
        bias: bool = True,
        activation: Activation = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = "CausalConv1d"
        channels, kernel_size = positive(name, "channels", channels), positive(name, "kernel_size", kernel_size)
        if kernel_size > MOST_TAPS:
            raise ValueError(f"{name}: kernel_size must be at most {MOST_TAPS}, got {kernel_size}")
        is_silu(name, activation)
        super().__init__(
            channels,
            channels,
            kernel_size,
            padding=kernel_size - 1,
            groups=channels,
            bias=flag(name, "bias", bias),
            device=device,
            dtype=dtype,
        )
        self.activation = activation

    def extra_repr(self) -> str:
        """The arguments that are not the default's."""
        parts = [str(self.in_channels), f"kernel_size={self.kernel_size[0]}"]
        if self.bias is None:
            parts.append("bias=False")
        if self.activation is not None:
            parts.append(f"activation={self.activation!r}")
        return ", ".join(parts)

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        *,
        initial_state: Tensor | None = None,
        return_final_state: bool = False,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Input (batch, channels, length) to the same shape; the other arguments are those of causal_conv1d."""
        return causal_conv1d(
            input,
            self.weight.squeeze(1),
            self.bias,
            activation=self.activation,
            initial_state=initial_state,
            return_final_state=return_final_state,
            seq_idx=seq_idx,
            cu_seqlens=cu_seqlens,
        )

    def step(
        self,
        input: Tensor,
        state: Tensor,
        *,
        cache_seqlens: Tensor | None = None,
        state_indices: Tensor | None = None,
    ) -> Tensor:
        """Computes the next outputs in decoding, and writes the new inputs into the state.

        Args:
            input: (batch, channels), or (batch, channels, length) for several elements at once.
            state: (batch, channels, state_length), as for `torchgraft.causal_conv1d_update`.
            cache_seqlens: as there.
            state_indices: as there.

        Returns:
            The output, of the shape of input.

        Raises:
            TypeError: as there.
            ValueError: as there.
        """
        return causal_conv1d_update(
            input,
            state,
            self.weight.squeeze(1),
            self.bias,
            activation=self.activation,
            cache_seqlens=cache_seqlens,
            state_indices=state_indices,
        )
