"""PyTorch's recurrent layers, computed by torchgraft's recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torchgraft.nn.recording import recorded_mode, refuse_scripting
from torchgraft.nn.sequences import Kind, kinds, run_sequences
from torchgraft.recurrence.cells.operators import gru, lstm, rnn_relu, rnn_tanh

_RECURRENCES = {"LSTM": lstm, "GRU": gru, "RNN_TANH": rnn_tanh, "RNN_RELU": rnn_relu}


def _run(
    mode: str,
    values: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    weight_ih, weight_hh, bias, message_bias = weights
    output, last = _RECURRENCES[mode](
        values,
        weight_ih,  # type: ignore[arg-type]
        weight_hh,  # type: ignore[arg-type]
        bias,
        states,
        message_bias=message_bias,
        batch_sizes=batch_sizes,
        reverse=reverse,
    )
    return output, last if isinstance(last, tuple) else (last,)


for _mode in _RECURRENCES:
    kinds[_mode] = Kind(("h_0", "c_0") if _mode == "LSTM" else ("hx",), partial(_run, _mode))


class _Sequences(torch.nn.RNNBase):
    """The forward pass of all three kinds of layer."""

    __prepare_scriptable__ = refuse_scripting

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Tensor | PackedSequence, Any]:
        """Runs over sequences.

        With D directions, L layers and S units:

        Args:
            input: (T, B, I), with batch_first (B, T, I), without a batch (T, I), or a PackedSequence.
            hx: the states before the first step, (L * D, B, S), or (L * D, S) without a batch; of an LSTM (h_0, c_0).
                None: zeros.

        Returns:
            (output, last): output as input, with D * S features; the states after the last step, as hx.

        Raises:
            TypeError: input or hx is no tensor, or has another dtype than the parameters.
            ValueError: sizes do not fit, or the sequence has no steps.
        """
        directions, biases = 2 if self.bidirectional else 1, ("bias_ih", "bias_hh")
        weights = []
        for place in range(self.num_layers * directions):
            suffix = f"_l{place // directions}" + "_reverse" * (place % directions)
            own = [getattr(self, f"{each}{suffix}") for each in ("weight_ih", "weight_hh")]
            weights.append([*own, *(getattr(self, f"{each}{suffix}") if self.bias else None for each in biases)])
        training = self.training
        if self.dropout > 0 and not (isinstance(input, Tensor) and isinstance(weights[0][0], Tensor)):
            training = recorded_mode(self, input, weights[0][0])
        return run_sequences(self.mode, input, hx, weights, directions, self.batch_first, float(self.dropout), training)


class LSTM(_Sequences):
    """Layers of long short-term memory over whole sequences, computed by a `torchgraft.Recurrence`.

    Used as `torch.nn.LSTM` is, whose parameters and results it has. It is no `torch.nn.LSTM`, as `torch.compile` looks
    into none.

    Args:
        input_size: features of the input, I.
        hidden_size: units, S.
        num_layers: layers, L, each of which reads what the one before put out.
        bias: whether each layer has two numbers a gate that are added.
        batch_first: whether inputs and outputs are (B, T, ...), not (T, B, ...).
        dropout: the probability with which an output of any layer but the last becomes zero in training.
        bidirectional: whether each layer runs backwards, too; D is 2 then, and 1 otherwise.
        proj_size: 0; a projection mixes the units of a step, which a recurrence cannot.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a size that is no whole number.
        ValueError: sizes that are not positive, a dropout that is no probability, or a projection.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if proj_size:
            raise ValueError(
                f"LSTM: proj_size must be 0, got {proj_size}: a projection mixes the units of a step, which a"
                " recurrence cannot; use torch.nn.LSTM"
            )
        sizes = (input_size, hidden_size, num_layers)
        super().__init__("LSTM", *sizes, bias, batch_first, dropout, bidirectional, 0, device, dtype)


class GRU(_Sequences):
    """Layers of gated recurrent units over whole sequences, computed by a `torchgraft.Recurrence`.

    Used as `torch.nn.GRU` is, whose parameters and results it has. It is no `torch.nn.GRU`, as `torch.compile` looks
    into none.

    Args:
        input_size: features of the input, I.
        hidden_size: units, S.
        num_layers: layers, L, each of which reads what the one before put out.
        bias: whether each layer has two numbers a gate that are added.
        batch_first: whether inputs and outputs are (B, T, ...), not (T, B, ...).
        dropout: the probability with which an output of any layer but the last becomes zero in training.
        bidirectional: whether each layer runs backwards, too; D is 2 then, and 1 otherwise.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a size that is no whole number.
        ValueError: sizes that are not positive, or a dropout that is no probability.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers)
        super().__init__("GRU", *sizes, bias, batch_first, dropout, bidirectional, 0, device, dtype)


class RNN(_Sequences):
    """Layers of units of tanh or relu over whole sequences, computed by a `torchgraft.Recurrence`.

    Used as `torch.nn.RNN` is, whose parameters and results it has. It is no `torch.nn.RNN`, as `torch.compile` looks
    into none.

    Args:
        input_size: features of the input, I.
        hidden_size: units, S.
        num_layers: layers, L, each of which reads what the one before put out.
        nonlinearity: `"tanh"` or `"relu"`.
        bias: whether each layer has two numbers a unit that are added.
        batch_first: whether inputs and outputs are (B, T, ...), not (T, B, ...).
        dropout: the probability with which an output of any layer but the last becomes zero in training.
        bidirectional: whether each layer runs backwards, too; D is 2 then, and 1 otherwise.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a size that is no whole number.
        ValueError: sizes that are not positive, a dropout that is no probability, or another nonlinearity.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        sizes = (input_size, hidden_size, num_layers)
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(mode, *sizes, bias, batch_first, dropout, bidirectional, 0, device, dtype)
