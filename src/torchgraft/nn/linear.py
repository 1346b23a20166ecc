"""A linear layer."""

import torch
from torch import Tensor
from torch.nn.functional import linear as functional_linear

from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.linear.operator import operator

_INITIAL_RANGE = 0.1


class Linear(torch.nn.Linear):
    """`torch.nn.Linear`, computed by `torchgraft.linear`, with weights that begin within 0.1 of zero.

    Args:
        in_features: size of the input's last dimension.
        out_features: size of the output's.
        bias: whether a number is added to each output feature.
        device: where the parameters are.
        dtype: the parameters' dtype.
    """

    __prepare_scriptable__ = refuse_scripting

    def reset_parameters(self) -> None:
        """Draws weight and bias anew, uniformly from -0.1 to 0.1."""
        for parameter in self.parameters(recurse=False):
            torch.nn.init.uniform_(parameter, -_INITIAL_RANGE, _INITIAL_RANGE)

    def forward(self, input: Tensor) -> Tensor:
        """Input (..., in_features) to (..., out_features)."""
        try:
            # All that `linear` comes to in the end, without the microsecond that it takes to get there.
            return functional_linear(input, self.weight, self.bias)
        except Exception as error:
            # Raises an error that names the wrong argument, or else the same error again; nothing is computed twice.
            return operator.recover(error, (input, self.weight, self.bias))
