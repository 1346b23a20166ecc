"""lltm: its surface, its errors and its layers; what every operator must be is asked in test_operators.py."""

import contextlib
import copy
import math
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import torchgraft
from forcing import every_kernel, one_element_on
from torchgraft import native
from torchgraft.checking.kernels import listed_kernels
from torchgraft.kernels import python_kernels
from torchgraft.nn import LLTM, LLTMCell
from torchgraft.operator import FLOATING
from torchgraft.operators.lltm import operator, reference
from torchgraft.operators.lltm.operator import cell, cell_grads, sequence, sequence_grads
from torchgraft.sampling import any_size

D = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _randn(*shape, seed=0):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def _arguments(steps, batch, features, size, bias=True):
    return [
        _randn(steps, batch, features, seed=1),
        _randn(batch, size, seed=2),
        _randn(batch, size, seed=3),
        _randn(3 * size, features, seed=4),
        _randn(3 * size, size, seed=5) / size**0.5,
        _randn(3 * size, seed=6) if bias else None,
    ]


def _step(x, h, c, weight_ih, weight_hh, bias):
    """The step that the documentation describes."""
    a, b, d = (F.linear(x, weight_ih, bias) + h @ weight_hh.T).chunk(3, -1)
    c = c + F.elu(d) * torch.sigmoid(a)
    return torch.tanh(c) * torch.sigmoid(b), c


def _loop(x, h, c, *weights, reverse=False):
    outputs = {}
    steps = range(len(x))
    for t in reversed(steps) if reverse else steps:
        h, c = _step(x[t], h, c, *weights)
        outputs[t] = h
    return torch.stack([outputs[t] for t in steps]), h, c


def _exported(device, name):
    """A function of the library for a device; None where it has none of this name, or is not there."""
    found = native.libraries_of("torchgraft", torch.device(device).type)
    return found[0].function(name) if found else None


@contextlib.contextmanager
def _products_of_float32(device):
    """A scope in which a library whose products can have several precisions makes them in float32, whatever PyTorch."""
    set_products = _exported(device, "torchgraft_set_products") or (lambda products: products)
    before = set_products(1)
    try:
        yield
    finally:
        set_products(before)


def _assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


class TestFunctions:
    def test_a_cell_is_what_is_documented(self):
        x, *others = _arguments(1, 5, 3, 4)
        _assert_close(torchgraft.lltm_cell(x[0], *others), _step(x[0], *others))

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_a_sequence_is_a_loop(self, reverse, bias):
        arguments = _arguments(6, 3, 4, 5, bias)
        _assert_close(torchgraft.lltm(*arguments, reverse=reverse), _loop(*arguments, reverse=reverse))

    @pytest.mark.parametrize("permitted", [False, True])
    def test_tf32_is_permitted_where_recurrent_layers_may_use_it(self, monkeypatch, permitted):
        told = []
        monkeypatch.setattr(operator, "recurrent_tf32", lambda input: permitted)
        monkeypatch.setattr(
            sequence, "call", lambda *arguments: told.append(arguments[-1]) or sequence.raw(*arguments)[:3]
        )
        x, *others = _arguments(4, 2, 3, 5)
        torchgraft.lltm(x, *others)
        torchgraft.lltm(x.flatten(0, 1), *others, torch.tensor([2, 2, 2, 2]))
        assert told == [permitted, permitted]

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize(("batch", "size"), [(1, 5), (2, 101), (290, 33), (9, 201), (40, 300), (3, 1030)])
    def test_an_infinite_state_is_of_its_row_and_of_its_step(self, device, batch, size):
        x, c = torch.zeros(3, batch, 2), torch.zeros(batch, size)
        weights = torch.rand(3 * size, 2), torch.rand(3 * size, size) / size
        h = torch.zeros(batch, size)
        h[0, 0] = math.inf
        for dtype in (torch.float32, torch.float16):
            arguments = [each.to(device, dtype) for each in (x, h, c, *weights)]
            found = sequence.raw(*arguments, None, False, False)
            expected = reference.lltm(*(each.double() for each in arguments), None, False, False)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=2e-3)

    def test_the_state_of_float16_is_float32_between_steps(self):
        exact = _arguments(40, 2, 3, 16)
        halves = [each.half() for each in exact]
        output, _, c_n = torchgraft.lltm(*halves)
        expected, _, expected_c = _loop(*(each.double() for each in halves))
        torch.testing.assert_close(output.double(), expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(c_n.double(), expected_c, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", [[4], [3, 3, 3], [6, 4, 4, 1], [5, 4, 3, 2, 1]])
    def test_packed_sequences_are_sequences_by_themselves(self, lengths, reverse):
        x, h, c, *weights = _arguments(max(lengths), len(lengths), 3, 4)
        packed = pack_sequence([x[:length, i] for i, length in enumerate(lengths)])
        output, h_n, c_n = torchgraft.lltm(packed.data, h, c, *weights, packed.batch_sizes, reverse)
        alone = [
            _loop(x[:length, i : i + 1], h[i : i + 1], c[i : i + 1], *weights, reverse=reverse)
            for i, length in enumerate(lengths)
        ]
        expected = pack_sequence([each[0].squeeze(1) for each in alone]).data
        _assert_close((output, h_n, c_n), (expected, *(torch.cat([each[i] for each in alone]) for i in (1, 2))))

    @pytest.mark.parametrize("seed", range(20))
    def test_packed_sequences_of_any_lengths_have_the_gradients_of_sequences_by_themselves(self, seed):
        random = Random(seed)
        lengths = sorted((any_size(random, 9) for _ in range(any_size(random, 12))), reverse=True)
        features, size, reverse = any_size(random, 9), any_size(random, 40, (16, 32)), random.random() < 0.5
        arguments = _arguments(max(lengths), len(lengths), features, size, bias=random.random() < 0.5)
        leaves = [each.requires_grad_() for each in arguments if each is not None]
        x, h, c, *weights = arguments
        packed = pack_sequence([x[:length, i] for i, length in enumerate(lengths)])
        found = torchgraft.lltm(packed.data, h, c, *weights, packed.batch_sizes, reverse)
        alone = [
            _loop(x[:length, i : i + 1], h[i : i + 1], c[i : i + 1], *weights, reverse=reverse)
            for i, length in enumerate(lengths)
        ]
        output = pack_sequence([each[0].squeeze(1) for each in alone]).data
        expected = (output, *(torch.cat([each[i] for each in alone]) for i in (1, 2)))
        _assert_close(found, expected)
        incoming = [_randn(*each.shape, seed=seed + i) for i, each in enumerate(expected)]
        _assert_close(torch.autograd.grad(found, leaves, incoming), torch.autograd.grad(expected, leaves, incoming))

    @pytest.mark.parametrize(
        ("place", "shape", "message"),
        [
            (0, (2, 3), r"lltm: input must have the shape \(T, B, I\), got \(2, 3\)"),
            (0, (0, 3, 4), "at least one step"),
            (0, (6, 3, 0), r"weight_ih must have the shape \(3\*S, I\), where S is 5 as in h0 and I is 0 as in input"),
            (1, (2, 5), r"h0 must have the shape \(B, S\), where B is 3 as in input, got \(2, 5\)"),
            (2, (3, 6), r"c0 must have the shape \(B, S\), where B is 3 as in input and S is 5 as in h0,"),
            (3, (15, 3), r"weight_ih must have the shape \(3\*S, I\), where S is 5 as in h0 and I is 4"),
            (4, (14, 5), r"weight_hh must have the shape \(3\*S, S\), where S is 5"),
            (5, (5,), r"bias must have the shape \(3\*S,\), where S is 5"),
        ],
    )
    def test_sizes_that_do_not_fit_are_told(self, place, shape, message):
        arguments = _arguments(6, 3, 4, 5)
        arguments[place] = _randn(*shape)
        with pytest.raises(ValueError, match=message):
            torchgraft.lltm(*arguments)

    def test_what_is_no_tensor_is_named(self):
        x, *others = _arguments(2, 3, 4, 5)
        for place, name in enumerate(("input", "h0", "c0", "weight_ih", "weight_hh")):
            arguments = [x, *others]
            arguments[place] = None
            with pytest.raises(TypeError, match=f"lltm: {name} must be a Tensor, got NoneType"):
                torchgraft.lltm(*arguments)
            arguments[0] = arguments[0] if place == 0 else x.flatten(0, 1)
            with pytest.raises(TypeError, match=f"lltm: {name} must be a Tensor, got NoneType"):
                torchgraft.lltm(*arguments, torch.tensor([3, 3]))
            arguments[0] = arguments[0] if place == 0 else x[0]
            with pytest.raises(TypeError, match=f"lltm_cell: {name[0] if name[1] == '0' else name} must be a Tensor"):
                torchgraft.lltm_cell(*arguments)

    @pytest.mark.parametrize(
        ("batch_sizes", "message"),
        [
            ([2, 2, 2], "must be a one-dimensional tensor of integers"),
            (torch.tensor([2.0, 1.0]), "must be a one-dimensional tensor of integers"),
            (torch.tensor([1, 2]), "never grow from step to step"),
            (torch.tensor([3, 0]), "must be positive"),
            (torch.tensor([3, 2]), r"input must be \(5, I\)"),
            (torch.tensor([4, 2]), r"h0 must be \(4, S\)"),
        ],
    )
    def test_batch_sizes_that_make_no_sense_are_told(self, batch_sizes, message):
        x, *others = _arguments(2, 3, 4, 5)
        with pytest.raises(ValueError, match=message):
            torchgraft.lltm(x.flatten(0, 1), *others, batch_sizes)


def test_bad_arguments_are_refused_without_python_too():
    x, *others = _arguments(1, 2, 3, 4)
    cell, sequence = torch.ops.torchgraft.lltm_cell, torch.ops.torchgraft.lltm
    integers = [each.long() for each in others]
    with pytest.raises(RuntimeError, match="float64, float32, float16 and bfloat16"):
        cell(x[0].long(), *integers)
    with pytest.raises(RuntimeError, match=r"float64, float32, float16 (and|or) bfloat16"):
        sequence(x.long(), *integers, False, False)
    one = torch.ones(1, 1)
    many = one.expand(2**57, 1)
    with pytest.raises(RuntimeError, match="lltm: these sizes make a tensor that no memory can hold"):
        cell(many, many, many, one.expand(3, 1), one.expand(3, 1), None)


def test_what_is_kept_on_another_device_is_refused_without_python_too():
    """Kernels for CUDA are asked where one of the arguments is on the GPU."""
    x, h, _, weight_ih, weight_hh, _ = _arguments(1, 2, 3, 4)
    kernel = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    kept = torch.empty(1, 2, 12, device="meta"), torch.empty(1, 2, 4)
    arguments = x, h, weight_ih, weight_hh, *kept, None, h, h, False, False, *(True,) * 5
    with pytest.raises(RuntimeError, match="input and activations must be on the same device"):
        torch.ops.torchgraft.lltm_grads.default.redispatch(kernel, *arguments)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize(("batch", "size"), [(5, 32), (3, 128)])
def test_memory_may_begin_at_any_element(device, dtype, batch, size):
    """For every kernel; with rows of whole vectors, which kernels read at once where memory begins so too."""
    arguments = [each.to(device, dtype) for each in _arguments(2, batch, 8, size)]
    x, h, _, weight_ih, weight_hh, _ = arguments
    *_, activations, cells = sequence.raw(*arguments, False, False)
    grads = [torch.ones_like(each) for each in (x.new_empty(2, batch, size), h, h)]
    every = (False, False, *(True,) * 5)
    for asked, values, rest in (
        (sequence, arguments, every[:2]),
        (sequence_grads, [x, h, weight_ih, weight_hh, activations, cells, *grads], every),
    ):
        expected = asked.raw(*values, *rest)
        for kernel in every_kernel(asked, device):
            with kernel:
                found = asked.raw(*map(one_element_on, values), *rest)
            for one, other in zip(found, expected, strict=True):
                allowed = 16 * torch.finfo(one.dtype).eps
                if dtype.itemsize == 2:  # some kernels round weights, or sums between products
                    allowed = max(allowed, 4e-3)
                torch.testing.assert_close(one, other, rtol=allowed, atol=allowed * other.abs().max().item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_gradients_of_no_rows_are_zero(device, dtype):
    """For every kernel: weights have gradients though nothing is multiplied by them."""
    x, h, c, weight_ih, weight_hh, _ = (each.to(device, dtype) for each in _arguments(2, 0, 4, 8))
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    activations, cells = (h.new_empty(2, 0, size, dtype=kept) for size in (24, 8))
    of_steps = x, h, weight_ih, weight_hh, activations, cells, h.new_empty(2, 0, 8), h, c, False, False
    of_cell = x[0], h, c, weight_ih, weight_hh, activations[0], h, c
    for operation, arguments in ((sequence_grads, of_steps), (cell_grads, of_cell)):
        for kernel in every_kernel(operation, device):
            with kernel, _products_of_float32(device):
                grads = operation.raw(*arguments, *(True,) * 5)
            assert [tuple(each.shape) for each in grads[3:]] == [(24, 4), (24, 8), (24,)]
            assert not any(each.any() for each in grads[3:])


@pytest.mark.parametrize("device", DEVICES)
def test_the_stride_of_a_single_row_or_column_says_nothing(device):
    """Nothing lies behind it: it may be more than 32 bits hold."""
    x, h, c, weight_ih, weight_hh, bias = (each.to(device, torch.float32) for each in _arguments(1, 1, 1, 5))
    x = x[0]
    expected = cell.raw(x, h, c, weight_ih, weight_hh, bias)
    far = 2**40
    strange_h, strange_weight = h.as_strided((1, 5), (far, 1)), weight_ih.as_strided((15, 1), (1, far))
    for kernel in every_kernel(cell, device):
        for arguments in ((x, strange_h, c, weight_ih), (x, h, c, strange_weight)):
            with kernel, _products_of_float32(device):
                found = cell.raw(*arguments, weight_hh, bias)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_device_may_refuse_large_clusters(device, dtype, monkeypatch):
    """A slice of a GPU does, which the emulator is told to be: another kernel computes.

    No other test has so many units: whether there is room for their clusters is asked once in a process.
    """
    monkeypatch.setenv("TORCHGRAFT_EMULATED_CLUSTER", "4")
    arguments = [each.to(device, dtype) for each in _arguments(1, 3, 2, 330)]
    x, h, c, weight_ih, weight_hh, _ = arguments
    *_, activations, cells = expected = sequence.raw(*(each.double() for each in arguments), False, False)
    values = x, h, weight_ih, weight_hh, activations.float(), cells.float(), None, h, c, False, False
    exact = [each.double() if isinstance(each, torch.Tensor) else each for each in values]
    wanted = False, True, *(False,) * 3
    served = set()
    for operation, result, given, other in (
        (sequence, 0, (*arguments, False, False), expected),
        (sequence_grads, 1, (*values, *wanted), sequence_grads.raw(*exact, *wanted)),
    ):
        for kernel in listed_kernels(operation, device):
            with python_kernels.forced(operation, torch.device(device).type, kernel) as forced:
                found = operation.raw(*given)[result]
            served |= {kernel} if forced.served else set()
            torch.testing.assert_close(found.double(), other[result], rtol=5e-3, atol=5e-3)
    if _exported(device, "torchgraft_emulated_launches"):
        assert served
        assert not [kernel for kernel in served if "cluster_16x32" in kernel or "cluster_8x64" in kernel]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("units", [1, 3, 15])
def test_gradients_of_few_units_keep_the_digits_of_float32(device, units):
    """In bfloat16 and every kernel: the few terms of a sum may cancel each other, and what each has lost remains."""
    dtype, batch = torch.bfloat16, 10_000
    arguments = [each.to(device, dtype) for each in _arguments(1, batch, 2, units)]
    x, h, _, weight_ih, weight_hh, _ = arguments
    output, _, _, activations, cells = sequence.raw(*arguments, False, False)
    h_grad, c_grad = _randn(2, batch, units, seed=7).to(device, dtype)

    i, o, z = activations[0].double().chunk(3, -1)
    squashed = cells[0].double().tanh()
    of_c = c_grad + h_grad * o * (1 - squashed * squashed)
    slopes = z * i * (1 - i), squashed * o * (1 - o), i * torch.where(z > 0, 1, z + 1)
    gates_grad = torch.cat([of_c * slopes[0], h_grad * slopes[1], of_c * slopes[2]], -1)
    exact = gates_grad @ weight_hh.double()
    terms = gates_grad.abs() @ weight_hh.double().abs()

    for kernel in every_kernel(sequence_grads, device):
        with kernel:
            grads = torch.zeros_like(output), h_grad, c_grad
            wanted = False, True, *(False,) * 3
            found = sequence_grads.raw(x, h, weight_ih, weight_hh, activations, cells, *grads, False, False, *wanted)[1]
        excess = (found.double() - exact).abs() - torch.finfo(dtype).eps / 2 * exact.abs()
        assert (excess / terms).max() < 2**-19


@pytest.mark.parametrize("c", [0.0, 20.0, 40.0, 44.0, -43.0, 100.0])
def test_cells_that_have_grown_give_no_denormal_gradients(c):
    # With those a processor computes a hundred times as slowly, and no gate ever brings such a cell back.
    x, h, _, *weights = (each.float() for each in _arguments(16, 8, 4, 32))
    *_, activations, cells = sequence.raw(x, h, torch.full((8, 32), c), *weights, False, False)
    weight_ih, weight_hh, _ = weights
    every = (True,) * 5
    of_all = sequence_grads.raw(
        x, h, weight_ih, weight_hh, activations, cells, 1e-4 * cells, None, None, False, False, *every
    )
    of_a_step = cell_grads.raw(
        x[0], h, torch.full((8, 32), c), weight_ih, weight_hh, activations[0], 1e-4 * cells[0], None, *every
    )
    for gradient in (*of_all, *of_a_step):
        assert not ((gradient != 0) & (gradient.abs() < torch.finfo(torch.float32).tiny)).any()


class TestCell:
    def test_parameters_are_those_of_a_cell_of_pytorch(self):
        cell = LLTMCell(3, 4, dtype=D)
        shapes = {name: tuple(parameter.shape) for name, parameter in cell.named_parameters()}
        assert shapes == {"weight_ih": (12, 3), "weight_hh": (12, 4), "bias": (12,)}
        assert all(parameter.abs().max() <= 0.5 for parameter in cell.parameters())
        assert repr(cell) == "LLTMCell(3, 4)"
        assert repr(LLTMCell(3, 4, bias=False)) == "LLTMCell(3, 4, bias=False)"

    def test_states_are_optional_and_so_is_the_batch(self):
        cell = LLTMCell(3, 4, dtype=D)
        x, zeros = _randn(5, 3), torch.zeros(5, 4, dtype=D)
        _assert_close(cell(x), cell(x, (zeros, zeros)))
        h, c = _randn(5, 4, seed=1), _randn(5, 4, seed=2)
        alone = cell(x[0], (h[0], c[0]))
        assert alone[0].shape == (4,)
        _assert_close(alone, tuple(state[0] for state in cell(x, (h, c))))
        with pytest.raises(ValueError, match="LLTMCell: input must be"):
            cell(x[None])

    def test_weights_of_the_tutorial_load(self):
        cell = LLTMCell(3, 4, dtype=D)
        weights, bias = _randn(12, 7), _randn(1, 12, seed=1)
        cell.load_tutorial_weights(weights, bias)
        x, h, c = _randn(2, 3, seed=2), _randn(2, 4, seed=3), _randn(2, 4, seed=4)
        gates = F.linear(torch.cat([h, x], 1), weights, bias)
        i, o = torch.sigmoid(gates[:, :8]).chunk(2, 1)
        expected_c = c + F.elu(gates[:, 8:]) * i
        _assert_close(cell(x, (h, c)), (torch.tanh(expected_c) * o, expected_c))

    def test_what_is_not_the_tutorials_is_refused(self):
        cell = LLTMCell(3, 4)
        with pytest.raises(ValueError, match=r"weights must be \(12, 7\), got \(12, 6\)"):
            cell.load_tutorial_weights(torch.zeros(12, 6), torch.zeros(12))
        with pytest.raises(ValueError, match="bias must be a Tensor, as this cell has a bias"):
            cell.load_tutorial_weights(torch.zeros(12, 7))
        with pytest.raises(ValueError, match=r"bias must be \(12,\)"):
            cell.load_tutorial_weights(torch.zeros(12, 7), torch.zeros(4))


LAYERS = [
    {},
    {"bias": False},
    {"batch_first": True},
    {"bidirectional": True},
    {"num_layers": 3},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
]


class TestLayer:
    @pytest.mark.parametrize("options", LAYERS)
    def test_shapes_and_names_are_those_of_lstm(self, options):
        ours, theirs = LLTM(3, 4, dtype=D, **options), torch.nn.LSTM(3, 4, dtype=D, **options)
        x = _randn(5, 2, 3)
        shapes = [[tuple(each.shape) for each in (output, *states)] for output, states in (ours(x), theirs(x))]
        assert shapes[0] == shapes[1]
        weights = {name for name in theirs.state_dict() if name.startswith("weight")}
        assert {name for name in ours.state_dict() if name.startswith("weight")} == weights
        biases = {name.replace("_ih", "") for name in theirs.state_dict() if name.startswith("bias_ih")}
        assert {name for name in ours.state_dict() if name.startswith("bias")} == biases
        assert len(ours.all_weights) == len(theirs.all_weights)

    @pytest.mark.parametrize("options", LAYERS)
    def test_it_is_the_loop(self, options):
        layer = LLTM(3, 4, dtype=D, **options)
        values = x = _randn(5, 2, 3)
        directions = 2 if layer.bidirectional else 1
        h_0, c_0 = _randn(layer.num_layers * directions, 2, 4, seed=1), _randn(layer.num_layers * directions, 2, 4)
        last = []
        for number in range(layer.num_layers):
            outputs = []
            for direction in range(directions):
                suffix = f"_l{number}" + ("_reverse" if direction else "")
                weights = [getattr(layer, f"{name}{suffix}") for name in ("weight_ih", "weight_hh")]
                bias = getattr(layer, f"bias{suffix}") if layer.bias else None
                place = number * directions + direction
                output, *states = _loop(values, h_0[place], c_0[place], *weights, bias, reverse=direction == 1)
                outputs.append(output)
                last.append(states)
            values = torch.cat(outputs, -1)
        first = layer.batch_first
        output, (h_n, c_n) = layer(x.transpose(0, 1) if first else x, (h_0, c_0))
        _assert_close(output.transpose(0, 1) if first else output, values)
        _assert_close((h_n, c_n), tuple(torch.stack(states) for states in zip(*last, strict=True)))

    def test_without_a_batch(self):
        layer = LLTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, dtype=D)
        x, h, c = _randn(5, 3), _randn(4, 4, seed=1), _randn(4, 4, seed=2)
        output, states = layer(x, (h, c))
        expected, expected_states = layer(x[None], (h[:, None], c[:, None]))
        assert output.shape == (5, 8)
        _assert_close((output, *states), (expected[0], *(state[:, 0] for state in expected_states)))

    @pytest.mark.parametrize("enforce_sorted", [True, False])
    def test_packed_sequences_come_out_packed(self, enforce_sorted):
        layer = LLTM(3, 4, num_layers=2, bidirectional=True, dtype=D)
        lengths = [5, 3, 1] if enforce_sorted else [3, 5, 1]
        x, h, c = _randn(5, 3, 3), _randn(4, 3, 4, seed=1), _randn(4, 3, 4, seed=2)
        packed = pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
        output, (h_n, c_n) = layer(packed, (h, c))
        padded, found_lengths = pad_packed_sequence(output)
        assert found_lengths.tolist() == lengths
        for i, length in enumerate(lengths):
            alone, (h_alone, c_alone) = layer(x[:length, i : i + 1], (h[:, i : i + 1], c[:, i : i + 1]))
            _assert_close((padded[:length, i], h_n[:, i], c_n[:, i]), (alone[:, 0], h_alone[:, 0], c_alone[:, 0]))
        zeros = torch.zeros_like(h)
        _assert_close(layer(packed)[0].data, layer(packed, (zeros, zeros))[0].data)

    def test_gradients_flow_through_packed_sequences(self):
        layer = LLTM(2, 3, bidirectional=True, dtype=D)
        sequences = [_randn(n, 2, seed=n).requires_grad_() for n in (4, 2, 1)]

        def run(*sequences):
            output, states = layer(pack_sequence(sequences))
            return output.data, *states

        assert torch.autograd.gradcheck(run, sequences)

    def test_dropout_is_between_layers_and_in_training_only(self):
        layer = LLTM(3, 4, num_layers=2, dropout=1.0, dtype=D)
        x = _randn(5, 2, 3)
        silent = LLTM(4, 4, dtype=D)
        silent.load_state_dict(
            {name.replace("_l1", "_l0"): value for name, value in layer.state_dict().items() if "_l1" in name}
        )
        _assert_close(layer(x)[0], silent(torch.zeros(5, 2, 4, dtype=D))[0])
        assert not layer.eval()(x)[0].equal(silent(torch.zeros(5, 2, 4, dtype=D))[0])
        with pytest.warns(UserWarning, match="with one layer it does nothing"):
            LLTM(3, 4, dropout=0.5)

    def test_it_is_copied_pickled_and_printed(self):
        layer = LLTM(3, 4, num_layers=2, batch_first=True, dropout=0.25)
        assert repr(layer) == "LLTM(3, 4, num_layers=2, batch_first=True, dropout=0.25)"
        layer.eval()
        x = torch.randn(2, 5, 3)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(other(x)[0], layer(x)[0], rtol=0, atol=0)

    def test_weights_begin_within_one_by_the_root_of_the_units(self):
        torch.manual_seed(0)
        layer = LLTM(20, 25)
        for parameter in layer.parameters():
            assert 0.15 < parameter.abs().max() <= 0.2
        before = layer.weight_hh_l0.clone()
        layer.reset_parameters()
        assert not layer.weight_hh_l0.equal(before)

    def test_what_makes_no_sense_is_told(self):
        for options, message in (
            ({"hidden_size": 0}, "hidden_size must be positive"),
            ({"num_layers": 0}, "num_layers must be positive"),
            ({"dropout": 2}, "dropout must be a probability"),
            ({"dropout": "a half"}, "dropout must be a probability"),
        ):
            with pytest.raises(ValueError, match=message):
                LLTM(**{"input_size": 3, "hidden_size": 4, **options})
        for layer in (LLTM, LLTMCell):
            with pytest.raises(TypeError, match="hidden_size must be an int, got float"):
                layer(3, 4.0)
            with pytest.raises(ValueError, match="input_size must be positive, got 0"):
                layer(0, 4)
        layer = LLTM(3, 4)
        with pytest.raises(ValueError, match="two or three dimensions"):
            layer(torch.randn(3))
        with pytest.raises(ValueError, match=r"h_0 must be \(1, 2, 4\)"):
            layer(torch.randn(5, 2, 3), (torch.zeros(2, 4), torch.zeros(2, 4)))
        with pytest.raises(ValueError, match=r"c_0 must be \(1, 4\), got \(1, 1, 4\)"):
            layer(torch.randn(5, 3), (torch.zeros(1, 4), torch.zeros(1, 1, 4)))
        with pytest.raises(TypeError, match="hx must be a pair"):
            layer(torch.randn(5, 2, 3), torch.zeros(1, 2, 4))
        with pytest.raises(TypeError, match="LLTM: c_0 must be a Tensor, got NoneType"):
            layer(torch.randn(5, 2, 3), (torch.zeros(1, 2, 4), None))
        with pytest.raises(TypeError, match=r"LLTMCell: hx must be a pair \(h, c\)"):
            LLTMCell(3, 4)(torch.randn(2, 3), torch.zeros(2, 4))
        with pytest.raises(TypeError, match="LLTMCell: h must be a Tensor, got NoneType"):
            LLTMCell(3, 4)(torch.randn(2, 3), (None, torch.zeros(2, 4)))
        for each in (layer, LLTMCell(3, 4)):
            with pytest.raises(TypeError, match=f"{type(each).__name__}: input must be a Tensor, got NoneType"):
                each(None)
        for input in (torch.randn(5, 2, 7), torch.randn(5, 7), pack_sequence([torch.randn(5, 7)])):
            with pytest.raises(ValueError, match="LLTM: input must have 3 features, got 7"):
                layer(input)
        with pytest.raises(ValueError, match="LLTMCell: input must have 3 features, got 7"):
            LLTMCell(3, 4)(torch.randn(2, 7))
        with pytest.raises(ValueError, match="at least one step"):
            layer(torch.randn(0, 2, 3))
        with pytest.raises(TypeError):
            layer(torch.randn(5, 2, 3, dtype=D))

    @pytest.mark.parametrize("options", LAYERS)
    def test_a_batch_of_none_gives_none(self, options):
        layer = LLTM(3, 4, **options)
        x = torch.randn((0, 5, 3) if layer.batch_first else (5, 0, 3), requires_grad=True)
        output, (h_n, c_n) = layer(x)
        directions = 2 if layer.bidirectional else 1
        assert output.shape == (*x.shape[:2], 4 * directions)
        assert h_n.shape == c_n.shape == (layer.num_layers * directions, 0, 4)
        output.sum().backward()
        assert all(not parameter.grad.any() for parameter in layer.parameters())
        layer.flatten_parameters()

    def test_it_compiles_in_one_graph_and_trains(self):
        layer = LLTM(3, 4, num_layers=2, bidirectional=True)
        x = torch.randn(5, 2, 3)
        torch.compiler.reset()
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])
        compiled(x)[0].sum().backward()
        found = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
        layer.zero_grad()
        layer(x)[0].sum().backward()
        torch.testing.assert_close(found, {name: parameter.grad for name, parameter in layer.named_parameters()})


@pytest.mark.parametrize("layer", ["lltm", pytest.param("lstm", marks=pytest.mark.slow)])
def test_the_example_runs(layer):
    example = Path(__file__).parent.parent / "examples/char_lltm.py"
    small = ["--steps", "3", "--hidden-size", "8", "--batch", "2", "--length", "5", "--device", "cpu"]
    command = [sys.executable, str(example), "--layer", layer, *small]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{layer} on cpu: 3 steps")
    assert "The " in done.stdout
