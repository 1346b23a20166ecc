"""The public function beside the operator, which `graft check` proves."""

import pytest
import torch
from causal_conv1d import causal_conv1d


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_call_goes_on_where_another_ended(activation, length):
    input, weight, bias = drawn(2, 3, 12), drawn(3, 4), drawn(3)
    whole = causal_conv1d(input, weight, bias, activation=activation)
    first, state = causal_conv1d(input[..., :length], weight, bias, activation=activation, return_final_state=True)
    second = causal_conv1d(input[..., length:], weight, bias, initial_state=state, activation=activation)
    torch.testing.assert_close(torch.cat([first, second], 2), whole)


def test_a_step_is_that_of_a_padded_convolution():
    input, weight = drawn(2, 3, 12), drawn(3, 4)
    expected = torch.nn.functional.conv1d(input, weight[:, None], padding=3, groups=3)[..., :12]
    torch.testing.assert_close(causal_conv1d(input, weight), expected)
    torch.testing.assert_close(causal_conv1d(input, weight, activation="silu"), torch.nn.functional.silu(expected))


def test_mistakes_are_told():
    input, weight = drawn(2, 3, 12), drawn(3, 4)
    with pytest.raises(ValueError, match="activation must be None or 'silu', got 'gelu'"):
        causal_conv1d(input, weight, activation="gelu")
    with pytest.raises(ValueError, match=r"weight must have the shape \(3, width\).* got \(3, 5\)"):
        causal_conv1d(input, drawn(3, 5))
    with pytest.raises(ValueError, match=r"initial_state must have the shape \(2, 3, 3\), got \(2, 3, 4\)"):
        causal_conv1d(input, weight, initial_state=drawn(2, 3, 4))
