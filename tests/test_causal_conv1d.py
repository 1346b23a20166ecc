"""causal_conv1d: what its functions and its layer do beside the operators, which `graft check` proves."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraft
from torchgraft import causal_conv1d, causal_conv1d_update
from torchgraft.nn import CausalConv1d

D = torch.float64


def drawn(*shape, dtype=D, seed=0):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed + len(shape))).to(dtype)


def channels_last(tensor):
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def by_pytorch(input, weight, bias=None, silu=False):
    length, width = input.shape[2], weight.shape[1]
    sums = F.conv1d(input, weight[:, None], bias, padding=width - 1, groups=input.shape[1])[..., :length]
    return F.silu(sums) if silu else sums


def offsets(*lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def ids(*lengths):
    return torch.cat([torch.full((length,), number, dtype=torch.int32) for number, length in enumerate(lengths)])[None]


class TestValues:
    @pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 16, 31, 256])
    @pytest.mark.parametrize("layout", [torch.clone, channels_last])
    def test_outputs_are_those_of_a_padded_convolution(self, width, layout):
        input, weight, bias = layout(drawn(2, 19, 300)), drawn(19, width), drawn(19)
        for silu in (False, True):
            output = causal_conv1d(input, weight, bias, activation="silu" if silu else None)
            torch.testing.assert_close(output, by_pytorch(input, weight, bias, silu))
            assert output.stride() == input.stride()

    @pytest.mark.parametrize("width", [2, 4, 7, 40])
    @pytest.mark.parametrize("layout", [torch.clone, channels_last])
    def test_gradients_are_those_of_a_padded_convolution(self, width, layout):
        tensors = [layout(drawn(2, 19, 90)), drawn(19, width), drawn(19)]
        found = [tensor.clone().requires_grad_() for tensor in tensors]
        expected = [tensor.clone().requires_grad_() for tensor in tensors]
        output_grad = drawn(2, 19, 90, seed=1)
        causal_conv1d(*found, activation="silu").backward(output_grad)
        by_pytorch(*expected, silu=True).backward(output_grad)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.grad, other.grad)

    def test_halves_are_summed_in_float32(self):
        weight = torch.ones(1, 256, dtype=torch.bfloat16)
        # Summed in bfloat16 the sum would stay at 256.
        output = causal_conv1d(torch.ones(1, 1, 512, dtype=torch.bfloat16).mul_(1.0078125), weight)
        assert output[0, 0, -1] == torch.tensor(256 * 1.0078125).bfloat16()

    def test_a_weight_of_float32_is_rounded_and_its_gradient_is_not(self):
        input, weight, bias = drawn(2, 3, 50, dtype=torch.bfloat16), drawn(3, 4).float(), drawn(3).float()
        weight.requires_grad_(), bias.requires_grad_()
        output = causal_conv1d(input, weight, bias)
        assert torch.equal(output, causal_conv1d(input, weight.bfloat16(), bias.bfloat16()))
        output.sum().backward()
        assert weight.grad.dtype == bias.grad.dtype == torch.float32
        torch.testing.assert_close(weight.grad[:, 3], input.float().sum((0, 2)), rtol=1e-5, atol=1e-4)

    def test_autocast_lowers_the_input_alone(self):
        input, weight = drawn(2, 3, 9).float(), drawn(3, 4).float()
        with torch.autocast("cpu", torch.bfloat16):
            output = causal_conv1d(input, weight)
        assert torch.equal(output, causal_conv1d(input.bfloat16(), weight))

    @pytest.mark.parametrize("activation", [None, "silu"])
    @pytest.mark.parametrize("length", [0, 1, 2, 7])
    @pytest.mark.parametrize("width", [4, 9])
    def test_a_call_goes_on_where_another_ended(self, activation, length, width):
        input, weight, bias = drawn(2, 3, 12), drawn(3, width), drawn(3)
        whole = causal_conv1d(input, weight, bias, activation=activation)
        first, state = causal_conv1d(input[..., :length], weight, bias, activation=activation, return_final_state=True)
        second = causal_conv1d(input[..., length:], weight, bias, initial_state=state, activation=activation)
        torch.testing.assert_close(torch.cat([first, second], 2), whole)


LENGTHS = {
    "the last cut short": (9, 7, 1),
    "of no length at both ends and between": (0, 3, 0, 0, 14, 0),
    "of one element": (1, 1, 1, 1, 1),
    "of several stretches": (3, 260, 1, 70),
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("width", [2, 4, 9])
@pytest.mark.parametrize("layout", [torch.clone, channels_last])
class TestPacked:
    def apart(self, lengths, input, weight, bias, states):
        """Each sequence in a call of its own."""
        pieces = zip(input.split(lengths, 2), states.split(1), strict=True)
        results = [
            causal_conv1d(piece, weight, bias, activation="silu", initial_state=state, return_final_state=True)
            for piece, state in pieces
        ]
        return torch.cat([output for output, _ in results], 2), torch.cat([final for _, final in results])

    def test_offsets_are_as_calls_of_their_own(self, lengths, width, layout):
        tensors = layout(drawn(1, 19, sum(lengths))), drawn(19, width), drawn(19), drawn(len(lengths), 19, width - 1)
        found = [tensor.clone().requires_grad_() for tensor in tensors]
        expected = [tensor.clone().requires_grad_() for tensor in tensors]
        input, weight, bias, states = found
        results = causal_conv1d(
            input,
            weight,
            bias,
            activation="silu",
            initial_state=states,
            return_final_state=True,
            cu_seqlens=offsets(*lengths, dtype=torch.int64),
        )
        others = self.apart(lengths, *expected)
        torch.testing.assert_close(results, others)
        for outcome in results, others:
            sum(
                (each * torch.arange(each.numel(), dtype=D).reshape(each.shape).cos()).sum() for each in outcome
            ).backward()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.grad, other.grad)

    def test_ids_are_as_offsets(self, lengths, width, layout):
        lengths = [length for length in lengths if length]
        input, weight, first = layout(drawn(1, 19, sum(lengths))), drawn(19, width), drawn(1, 19, width - 1)
        states = torch.cat([first, torch.zeros(len(lengths) - 1, 19, width - 1, dtype=D)])
        leaves = [tensor.clone().requires_grad_() for tensor in (input, weight)]
        others = [tensor.clone().requires_grad_() for tensor in (input, weight)]
        output, state = causal_conv1d(
            *leaves, initial_state=first, return_final_state=True, seq_idx=ids(*lengths), activation="silu"
        )
        expected, final_states = causal_conv1d(
            *others, initial_state=states, return_final_state=True, cu_seqlens=offsets(*lengths), activation="silu"
        )
        assert torch.equal(output, expected)
        assert torch.equal(state, final_states[-1:])
        (output.sin().sum() + state.cos().sum()).backward()
        (expected.sin().sum() + final_states[-1].cos().sum()).backward()
        for one, other in zip(leaves, others, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def test_padding_is_zero_and_not_read():
    input, weight, bias = drawn(1, 3, 8), drawn(3, 4), drawn(3)
    seq_idx = torch.tensor([[-1, -1, 0, 0, 0, -5, 0, 0]], dtype=torch.int32)
    input[..., seq_idx[0] < 0] = float("nan")
    input.requires_grad_(), weight.requires_grad_()
    output = causal_conv1d(input, weight, bias, seq_idx=seq_idx, activation="silu")
    assert (output[..., seq_idx[0] < 0] == 0).all()
    # What comes back behind padding begins anew.
    torch.testing.assert_close(output[..., 6:], by_pytorch(input[..., 6:], weight, bias, silu=True))
    output.sum().backward()
    assert (input.grad[..., seq_idx[0] < 0] == 0).all()
    assert weight.grad.isfinite().all()


class TestUpdate:
    @pytest.mark.parametrize("width", [1, 4, 9])
    @pytest.mark.parametrize("more", [0, 3])
    @pytest.mark.parametrize("is_circular", [False, True])
    @pytest.mark.parametrize("at_once", [1, 4])
    def test_steps_are_one_call(self, width, more, is_circular, at_once):
        input, weight, bias = drawn(2, 70, 24), drawn(70, width), drawn(70)
        state = torch.zeros(2, 70, width - 1 + more, dtype=D)
        outputs = [
            causal_conv1d_update(
                input[..., time : time + at_once],
                state,
                weight,
                bias,
                activation="silu",
                cache_seqlens=torch.full((2,), time, dtype=torch.int32) if is_circular else None,
            )
            for time in range(0, 24, at_once)
        ]
        torch.testing.assert_close(torch.cat(outputs, 2), by_pytorch(input, weight, bias, silu=True))
        if state.shape[2] and not is_circular:
            assert torch.equal(state, input[..., -state.shape[2] :])

    def test_rows_and_padding(self):
        input, weight, state = drawn(3, 5), drawn(5, 4), drawn(6, 5, 3)
        before = state.clone()
        rows = torch.tensor([4, -1, 0], dtype=torch.int32)
        output = causal_conv1d_update(input, state, weight, state_indices=rows)
        assert (output[1] == 0).all()
        for entry, row in ((0, 4), (2, 0)):
            alone = before[row : row + 1].clone()
            torch.testing.assert_close(
                output[entry : entry + 1], causal_conv1d_update(input[entry : entry + 1], alone, weight)
            )
            assert torch.equal(state[row : row + 1], alone)
        untouched = [1, 2, 3, 5]
        assert torch.equal(state[untouched], before[untouched])

    @pytest.mark.parametrize(
        "part",
        [
            lambda state: state,
            lambda state: state[..., :1],
            lambda state: state[..., 1],
            lambda state: state[..., 1:],
            lambda state: state.transpose(0, 1),
            lambda state: state[:, :, ::2],
            lambda state: state[:1, :, :2].expand(3, 3, 2),
        ],
    )
    @pytest.mark.parametrize("named", [{}, {"cache_seqlens": [1, 2, 0]}, {"state_indices": [2, 0, -1]}])
    def test_an_input_that_is_a_part_of_the_state_is_read_as_it_was(self, part, named):
        indices = {name: torch.tensor(values, dtype=torch.int32) for name, values in named.items()}
        state, weight = drawn(3, 3, 3), drawn(3, 3)
        expected_state = state.clone()
        expected = causal_conv1d_update(part(state).clone(), expected_state, weight, **indices)
        assert torch.equal(causal_conv1d_update(part(state), state, weight, **indices), expected)
        assert torch.equal(state, expected_state)

    def test_so_are_a_weight_and_a_bias(self):
        state, input = drawn(40, 3, 2), drawn(40, 3)
        expected_state = state.clone()
        expected = causal_conv1d_update(input, expected_state, state[0].clone(), state[1, :, 0].clone())
        assert torch.equal(causal_conv1d_update(input, state, state[0], state[1, :, 0]), expected)
        assert torch.equal(state, expected_state)

    def test_a_state_that_needs_a_gradient_is_refused(self):
        with pytest.raises(ValueError, match="state is written to, so it must not need a gradient"):
            causal_conv1d_update(drawn(2, 3), drawn(2, 3, 3).requires_grad_(), drawn(3, 4))


def test_compiled_as_one_graph():
    def step(input, weight, state, offsets):
        output, final = causal_conv1d(
            input, weight, activation="silu", initial_state=state, return_final_state=True, cu_seqlens=offsets
        )
        return causal_conv1d_update(output[0].T, torch.zeros(9, 3, 3, dtype=D), weight).sum() + final.sum()

    arguments = drawn(1, 3, 9), drawn(3, 4), drawn(2, 3, 3), offsets(4, 5)
    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(*arguments), step(*arguments))


class TestMistakes:
    input, weight = drawn(2, 3, 12), drawn(3, 4)

    @pytest.mark.parametrize(
        ("named", "message"),
        [
            ({"activation": "gelu"}, "activation must be None or 'silu', got 'gelu'"),
            ({"weight": drawn(3, 0)}, "weight must have a width of 1 to 256, got 0"),
            ({"weight": drawn(3, 257)}, "weight must have a width of 1 to 256, got 257"),
            (
                {"weight": drawn(4, 4)},
                r"weight must have the shape \(channels, width\), where channels is 3 as in input",
            ),
            (
                {"bias": drawn(4)},
                r"bias must have the shape \(channels,\), where channels is 3 as in input, got \(4,\)",
            ),
            ({"initial_state": drawn(2, 3, 4)}, r"initial_state must be \(2, 3, 3\) for a weight of width 4, got"),
            ({"seq_idx": ids(12)}, r"seq_idx must have the shape \(batch, length\), where batch is 2 .* got \(1, 12\)"),
            ({"seq_idx": ids(12), "cu_seqlens": offsets(12)}, "give one of them, got both"),
            ({"cu_seqlens": offsets(12)}, "input must have a batch of 1 with cu_seqlens, got 2"),
            ({"input": drawn(3, 12)}, r"input must have the shape \(batch, channels, length\), got \(3, 12\)"),
        ],
    )
    def test_are_told(self, named, message):
        with pytest.raises(ValueError, match=message):
            causal_conv1d(**{"input": self.input, "weight": self.weight, **named})

    @pytest.mark.parametrize(
        "wrong", [[0, 5, 4, 12], [0, 5, 11], [0, 5, 13], [1, 12], [-1, 12], [0], [0, 2**31 - 1, 12]]
    )
    def test_of_offsets(self, wrong):
        for dtype in (torch.int32, torch.int64):
            with pytest.raises(
                ValueError, match=r"causal_conv1d_packed: cu_seqlens (must begin with 0|has no sequence)"
            ):
                causal_conv1d(self.input[:1], self.weight, cu_seqlens=torch.tensor(wrong, dtype=dtype))

    def test_of_offsets_through_torch_ops(self):
        arguments = self.input[:1], self.weight, None, None, torch.tensor([0, 13], dtype=torch.int32), False
        with pytest.raises(
            RuntimeError, match=r"cu_seqlens must begin with 0, never fall, and end with 12, got \[0, 13\]"
        ):
            torch.ops.torchgraft.causal_conv1d_packed(*arguments)

    @pytest.mark.parametrize(
        ("named", "error", "message"),
        [
            (
                {"seq_idx": ids(12).long().repeat(2, 1)},
                TypeError,
                "seq_idx has dtype torch.int64, expected one of int32",
            ),
            ({"return_final_state": 1}, TypeError, "return_final_state must be a bool, got int"),
            ({"weight": drawn(3, 4).long()}, TypeError, "weight has dtype torch.int64"),
            ({"input": None}, TypeError, "input must be a Tensor"),
        ],
    )
    def test_of_types(self, named, error, message):
        with pytest.raises(error, match=message):
            causal_conv1d(**{"input": self.input, "weight": self.weight, **named})

    @pytest.mark.parametrize(
        ("named", "message"),
        [
            ({"state": drawn(2, 3, 2)}, r"state must keep 3 times or more, got \(2, 3, 2\)"),
            ({"state": drawn(3, 3, 3)}, r"state must have 2 rows, as input has such a batch, got \(3, 3, 3\)"),
            (
                {"state": drawn(1, 3, 3).expand(2, 3, 3)},
                "state is written to, and must not be expanded: clone it first",
            ),
            ({"cache_seqlens": torch.tensor([1, -1], dtype=torch.int32)}, r"must not be negative, got \[1, -1\]"),
            (
                {"cache_seqlens": torch.tensor([1], dtype=torch.int32)},
                r"cache_seqlens must have the shape \(batch,\).* got \(1,\)",
            ),
            ({"state_indices": torch.tensor([0, 2], dtype=torch.int32)}, "must be below the 2 rows of state, got"),
            ({"state_indices": torch.tensor([1, 1], dtype=torch.int32)}, "must name each row of state once at most"),
            ({"activation": True}, "activation must be None or 'silu', got True"),
        ],
    )
    def test_of_a_step_are_told_and_leave_the_state(self, named, message):
        state = named.get("state", drawn(2, 3, 3))
        before = state.clone()
        with pytest.raises(ValueError, match=message):
            causal_conv1d_update(**{"input": drawn(2, 3), "weight": self.weight, "state": state, **named})
        assert torch.equal(state, before)


class TestLayer:
    def test_gives_the_first_outputs_of_conv1d(self):
        torch.manual_seed(0)
        layer = CausalConv1d(6, 4, dtype=D)
        torch.manual_seed(0)
        other = nn.Conv1d(6, 6, 4, groups=6, padding=3, dtype=D)
        assert all(torch.equal(one, two) for one, two in zip(layer.parameters(), other.parameters(), strict=True))
        layer.load_state_dict(other.state_dict())
        input = drawn(2, 6, 9)
        torch.testing.assert_close(layer(input), other(input)[..., :9])

    def test_decodes_what_it_computes_at_once(self):
        layer = CausalConv1d(6, 4, bias=False, activation="silu", dtype=D).requires_grad_(False)
        input = drawn(2, 6, 9)
        output, state = layer(input[..., :5], return_final_state=True)
        steps = [layer.step(input[..., time], state) for time in range(5, 9)]
        torch.testing.assert_close(torch.cat([output, torch.stack(steps, 2)], 2), layer(input))

    def test_prints_its_arguments(self):
        assert repr(CausalConv1d(6, activation="silu")) == "CausalConv1d(6, kernel_size=4, activation='silu')"
        assert repr(CausalConv1d(6, 3, bias=False)) == "CausalConv1d(6, kernel_size=3, bias=False)"

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((0,), ValueError, "channels must be positive, got 0"),
            ((6, 257), ValueError, "kernel_size must be at most 256, got 257"),
            ((True,), TypeError, "channels must be an int, got bool"),
            ((6, 4, True, "relu"), ValueError, "activation must be None or 'silu', got 'relu'"),
        ],
    )
    def test_refuses(self, arguments, error, message):
        with pytest.raises(error, match=message):
            CausalConv1d(*arguments)


def test_vmap_of_sequences_that_differ():
    input, weight = drawn(4, 2, 3, 6), drawn(3, 4)
    seq_idx = torch.tensor(
        [[[0, 0, 1, 1, 1, 2]] * 2, [[0] * 6] * 2, [[0, 1, 2, 3, 4, 5]] * 2, [[0] * 5 + [1]] * 2]
    ).int()
    found = torch.vmap(lambda one, its: torchgraft.causal_conv1d(one, weight, seq_idx=its))(input, seq_idx)
    for one, its, output in zip(input, seq_idx, found, strict=True):
        assert torch.equal(output, causal_conv1d(one, weight, seq_idx=its))
