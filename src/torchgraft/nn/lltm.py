"""Recurrent layers of the Long-Long-Term-Memory unit."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torchgraft.arguments import positive, record_call, require_tensor
from torchgraft.nn.recording import recorded_mode, refuse_scripting
from torchgraft.nn.sequences import Kind, kinds, run_sequences
from torchgraft.operators.lltm import lltm, lltm_cell

States = tuple[Tensor, Tensor]


class LLTMCell(torch.nn.Module):
    """One step of the Long-Long-Term-Memory unit, computed by `torchgraft.lltm_cell`.

    Used as `torch.nn.LSTMCell` is. Weights begin uniformly within 1 / sqrt(hidden_size) of zero.

    Args:
        input_size: features of the input, I.
        hidden_size: units, S.
        bias: whether a number a gate is added.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a size that is no whole number.
        ValueError: a size that is not positive.

    Attributes:
        weight_ih: (3 * S, I), the weights of the input, gate by gate: input, output, candidate.
        weight_hh: (3 * S, S), those of the hidden state.
        bias: (3 * S), or None.
    """

    bias: torch.nn.Parameter | None
    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        input_size = positive("LLTMCell", "input_size", input_size)
        hidden_size = positive("LLTMCell", "hidden_size", hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight_ih = _parameter(3 * hidden_size, input_size, device=device, dtype=dtype)
        self.weight_hh = _parameter(3 * hidden_size, hidden_size, device=device, dtype=dtype)
        if bias:
            self.bias = _parameter(3 * hidden_size, device=device, dtype=dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        _reset(self, self.hidden_size)

    def load_tutorial_weights(self, weights: Tensor, bias: Tensor | None = None) -> None:
        """Takes over the parameters of the LLTM of PyTorch's tutorial on C++ extensions.

        Args:
            weights: (3 * S, S + I), of which the first S columns belong to the hidden state.
            bias: (3 * S), with one dimension or as a row; None where this cell has none.

        Raises:
            ValueError: sizes that are not this cell's, or a bias where it has none.
        """
        expected = (3 * self.hidden_size, self.hidden_size + self.input_size)
        if tuple(weights.shape) != expected:
            raise ValueError(f"load_tutorial_weights: weights must be {expected}, got {tuple(weights.shape)}")
        if (bias is None) != (self.bias is None):
            raise ValueError(
                f"load_tutorial_weights: bias must be {'None' if self.bias is None else 'a Tensor'}, as this cell has"
                f" {'no bias' if self.bias is None else 'a bias'}"
            )
        if bias is not None and bias.numel() != expected[0]:
            raise ValueError(f"load_tutorial_weights: bias must be ({expected[0]},), got {tuple(bias.shape)}")
        with torch.no_grad():
            self.weight_hh.copy_(weights[:, : self.hidden_size])
            self.weight_ih.copy_(weights[:, self.hidden_size :])
            if bias is not None and self.bias is not None:
                self.bias.copy_(bias.reshape(-1))

    def forward(self, input: Tensor, hx: States | None = None) -> States:
        """Takes a step.

        Args:
            input: (B, I) or (I).
            hx: (h, c), each (B, S) or (S); zeros where it is None.

        Returns:
            (h', c').

        Raises:
            TypeError: an input or states that are no tensors, or of another dtype than the parameters.
            ValueError: an input of neither one nor two dimensions, or sizes that do not fit.
        """
        return _step(input, hx, self.weight_ih, self.weight_hh, self.bias)

    def extra_repr(self) -> str:
        """Sizes, and what is not as usual."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is not None else ", bias=False")


class LLTM(torch.nn.Module):
    """Layers of the Long-Long-Term-Memory unit over whole sequences, computed by `torchgraft.lltm`.

    Used as `torch.nn.LSTM` is, and with parameters named as there, except that a layer has one bias. Weights begin
    uniformly within 1 / sqrt(hidden_size) of zero.

    Args:
        input_size: features of the input, I.
        hidden_size: units, S.
        num_layers: layers, L, each of which reads what the one before put out.
        bias: whether a number a gate is added.
        batch_first: whether inputs and outputs are (B, T, ...), not (T, B, ...).
        dropout: the probability with which an output of any layer but the last becomes zero in training.
        bidirectional: whether each layer runs backwards, too; D is 2 then, and 1 otherwise.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a size that is no whole number.
        ValueError: sizes that are not positive, or a dropout that is no probability.
    """

    __prepare_scriptable__ = refuse_scripting

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
        super().__init__()
        input_size = positive("LLTM", "input_size", input_size)
        hidden_size = positive("LLTM", "hidden_size", hidden_size)
        num_layers = positive("LLTM", "num_layers", num_layers)
        given: Any = dropout
        if isinstance(given, bool) or not isinstance(given, numbers.Real) or not 0 <= dropout <= 1:
            raise ValueError(f"LLTM: dropout must be a probability, got {dropout!r}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "LLTM: dropout is applied after all layers but the last, so with one layer it does nothing",
                stacklevel=2,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional = bidirectional
        for layer in range(num_layers):
            features = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                kind: dict[str, Any] = {"device": device, "dtype": dtype}
                self.register_parameter(f"weight_ih{suffix}", _parameter(3 * hidden_size, features, **kind))
                self.register_parameter(f"weight_hh{suffix}", _parameter(3 * hidden_size, hidden_size, **kind))
                if bias:
                    self.register_parameter(f"bias{suffix}", _parameter(3 * hidden_size, **kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        _reset(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Does nothing: parameters may lie anywhere in memory. `torch.nn.LSTM` has this method."""

    @property
    def all_weights(self) -> list[list[torch.nn.Parameter]]:
        """The parameters of each layer and direction."""
        return [
            [each for each in self._weights(suffix) if each is not None]
            for layer in range(self.num_layers)
            for suffix in self._suffixes(layer)
        ]

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def _weights(self, suffix: str) -> tuple[Any, Any, Any]:
        bias = getattr(self, f"bias{suffix}") if self.bias else None
        return getattr(self, f"weight_ih{suffix}"), getattr(self, f"weight_hh{suffix}"), bias

    @overload
    def forward(self, input: Tensor, hx: States | None = None) -> tuple[Tensor, States]: ...

    @overload
    def forward(self, input: PackedSequence, hx: States | None = None) -> tuple[PackedSequence, States]: ...

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        """Runs over sequences.

        Args:
            input: (T, B, I), with batch_first (B, T, I), without a batch (T, I), or a PackedSequence.
            hx: (h_0, c_0), each (L * D, B, S), or (L * D, S) without a batch; zeros where it is None.

        Returns:
            (output, (h_n, c_n)): output as input, with S * D features; the states as hx.

        Raises:
            TypeError: input is not a tensor, hx is not a pair of tensors, or one has another dtype than the
                parameters.
            ValueError: sizes do not fit, or the sequence has no steps.
        """
        weights = [self._weights(suffix) for layer in range(self.num_layers) for suffix in self._suffixes(layer)]
        training = self.training
        if self.dropout > 0 and not (isinstance(input, Tensor) and isinstance(weights[0][0], Tensor)):
            training = recorded_mode(self, input, weights[0][0])
        return run_sequences("LLTM", input, hx, weights, self._directions, self.batch_first, self.dropout, training)

    def extra_repr(self) -> str:
        """Sizes, and what is not as usual."""
        usual = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        others = [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return ", ".join([str(self.input_size), str(self.hidden_size), *others])


def _step(input: Tensor, hx: States | None, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None) -> States:
    """One step of an LLTMCell, whose forward pass says what goes in and what comes out."""
    if not (isinstance(input, Tensor) and isinstance(weight_ih, Tensor) and _are_states(hx)):
        recorded = record_call(_step, input, hx, weight_ih, weight_hh, bias)
        if recorded is not None:
            return recorded[0], recorded[1]
        require_tensor("LLTMCell", "input", input)
        _require_states("LLTMCell", ("h", "c"), hx)
    features, size = weight_ih.shape[1], weight_hh.shape[1]
    if input.dim() not in (1, 2):
        raise ValueError(f"LLTMCell: input must be (B, {features}) or ({features},), got {tuple(input.shape)}")
    _require_features("LLTMCell", input, features)
    rows = input.unsqueeze(0) if input.dim() == 1 else input
    if hx is None:
        h = c = rows.new_zeros(rows.shape[0], size)
    else:
        h, c = (state.unsqueeze(0) for state in hx) if input.dim() == 1 else hx
    h, c = lltm_cell(rows, h, c, weight_ih, weight_hh, bias)
    return (h.squeeze(0), c.squeeze(0)) if input.dim() == 1 else (h, c)


def _run(
    values: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    output, h_n, c_n = lltm(values, *states, *weights, batch_sizes, reverse)  # type: ignore[arg-type,call-arg]
    return output, (h_n, c_n)


kinds["LLTM"] = Kind(("h_0", "c_0"), _run)


def _are_states(hx: Any) -> bool:
    """Whether a layer can take states as they are: a pair of tensors, or None."""
    if hx is None:
        return True
    return isinstance(hx, (tuple, list)) and len(hx) == 2 and isinstance(hx[0], Tensor) and isinstance(hx[1], Tensor)


def _require_states(layer: str, names: tuple[str, str], hx: Any) -> None:
    if hx is None:
        return
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise TypeError(f"{layer}: hx must be a pair ({names[0]}, {names[1]}), got {type(hx).__name__}")
    for name, state in zip(names, hx, strict=True):
        require_tensor(layer, name, state)


def _require_features(layer: str, input: Tensor, features: int) -> None:
    if input.shape[-1] != features:
        raise ValueError(f"{layer}: input must have {features} features, got {input.shape[-1]}")


def _parameter(*size: int, device: torch.device | str | None, dtype: torch.dtype | None) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(size, device=device, dtype=dtype))


def _reset(layer: torch.nn.Module, hidden_size: int) -> None:
    bound = 1 / math.sqrt(hidden_size)
    for parameter in layer.parameters(recurse=False):
        torch.nn.init.uniform_(parameter, -bound, bound)
