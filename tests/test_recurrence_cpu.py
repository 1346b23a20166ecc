"""A recurrence's steps on a CPU, for sizes either side of each limit.

There are limits of vectors, register tiles, blocks of rows, depths of a product, and of what threads share out.
"""

import random

import pytest
import torch

import cells
from torchgraft.recurrence import Cell, Recurrence

# One less and one more than vectors of 2 to 16 numbers, than three of them, and than the parts of a depth.
UNITS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 65, 97, 127, 128, 129, 145, 257)
FEATURES = (0, 1, 2, 15, 17, 48, 128, 129, 511, 512, 513, 1025)
# Of register tiles of 4 and of 9 rows, of blocks of 18 and of 36.
ROWS = (0, 1, 2, 3, 4, 5, 8, 9, 10, 17, 18, 19, 27, 28, 35, 36, 37, 55, 73)
STEPS = (1, 2, 3, 5)


@pytest.fixture(scope="module")
def recurrences(tmp_path_factory):
    """Makes recurrences, each compiled once; those of two names are those of test_recurrence.py."""
    made = {}

    def get(name, cell=None):
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TORCHGRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "recurrence cache"))
                made[name] = Recurrence(f"recurrences::{name}", cell or cells.make(name))
        return made[name]

    return get


def summed(gates):
    """A cell of so many gates, each of which means something else."""

    def step(gates, message_gates, h):
        total = h
        for i, (gate, more) in enumerate(zip(gates, message_gates, strict=True)):
            total = total + (gate + more) * ((i + 1) / 3)
        return torch.tanh(total)

    return Cell(step, gates=gates, states=1)


def given(cell, sizes, dtype, seed):
    """The arguments of the operator, whose values a float32 and a float64 both hold."""
    steps, rows, features, units = sizes
    generator = torch.Generator().manual_seed(seed)

    def values(*shape, scale=1.0):
        drawn = torch.randn(*shape, generator=generator) * scale
        return drawn.to(dtype).requires_grad_()

    width = cell.gates * units
    # The normaliser of an sLSTM is never negative, and it divides.
    states = [
        values(rows, units).detach().abs().add(0.5).requires_grad_() if name == "n" else values(rows, units)
        for name in cell.state_names
    ]
    return [
        values(steps, rows, features),
        values(width, features, scale=max(features, 1) ** -0.5),
        values(width, units, scale=units**-0.5),
        *(values(width) for _ in range(1 + cell.gates_apart)),
        *(values(units) for _ in range(cell.parameters)),
        *states,
    ]


def answers(function, arguments, reverse, visible):
    """The results that a caller sees, and all gradients."""
    found = function(*arguments, reverse, True)[:visible]
    grads = [torch.full_like(each, 0.5) - each.detach() for each in found]
    return [*found, *torch.autograd.grad(found, arguments, grads)]


def assert_right(recurrence, sizes, dtype, reverse, seed=0):
    cell, visible = recurrence.cell, 1 + recurrence.cell.states
    arguments = given(cell, sizes, dtype, seed)
    exact = [each.detach().double().requires_grad_() for each in arguments]
    found = answers(recurrence.operator.call, arguments, reverse, visible)
    expected = answers(recurrence.operator.reference, exact, reverse, visible)
    for one, other in zip(found, recurrence.operator.call(*arguments, reverse, False)[:visible], strict=False):
        assert torch.equal(one, other), f"nothing kept of {sizes}, {dtype}"
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == dtype
        assert one.shape == other.shape
        bound = 400 * torch.finfo(dtype).eps * max([1.0, *other.abs().flatten().tolist()])
        assert ((one.double() - other).abs() <= bound).all(), f"{place} of {sizes}, {dtype}"


def drawn(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        sizes = tuple(draw.choice(limits) for limits in (STEPS, ROWS, FEATURES, UNITS))
        yield sizes, draw.choice((torch.float32, torch.float64)), draw.random() < 0.5


@pytest.mark.parametrize("name", ["gru", "peephole"])
def test_sizes_either_side_of_each_limit(recurrences, name):
    for sizes, dtype, reverse in drawn(60, seed=3):
        assert_right(recurrences(name), sizes, dtype, reverse)


@pytest.mark.parametrize("sizes", [(2, 0, 3, 5), (2, 3, 0, 5), (1, 0, 0, 17)])
@pytest.mark.parametrize("name", ["gru", "peephole"])
def test_no_rows_and_no_features(recurrences, name, sizes):
    assert_right(recurrences(name), sizes, torch.float32, reverse=False)


# A cell whose gates fill one panel of three vectors, those that need three groups of units, and those beyond.
@pytest.mark.slow
@pytest.mark.parametrize("gates", [1, 2, 5, 6, 7])
def test_any_number_of_gates(recurrences, gates):
    recurrence = recurrences(f"of_{gates}_gates", summed(gates))
    for sizes, dtype, reverse in drawn(80, seed=gates):
        assert_right(recurrence, sizes, dtype, reverse)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slstm", "firing", "lltm"])
def test_other_cells(recurrences, name):
    for sizes, dtype, reverse in drawn(40, seed=7):
        assert_right(recurrences(name), sizes, dtype, reverse)


# Few rows of many units: threads share out the units, and meet in each step; of many rows they share out the rows.
@pytest.mark.parametrize("sizes", [(4, 5, 33, 300), (3, 2, 7, 515), (6, 40, 20, 70), (2, 130, 20, 530)])
@pytest.mark.parametrize("name", ["gru", "peephole"])
def test_each_number_of_threads_gives_the_same_bits(recurrences, name, sizes):
    recurrence, threads = recurrences(name), torch.get_num_threads()
    arguments = given(recurrence.cell, sizes, torch.float32, seed=1)
    visible, by_threads = 1 + recurrence.cell.states, []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            by_threads.append(answers(recurrence.operator.call, arguments, False, visible))
    finally:
        torch.set_num_threads(threads)
    assert_right(recurrence, sizes, torch.float32, reverse=False, seed=1)
    of_biases = {visible + 3 + each for each in range(1 + recurrence.cell.gates_apart)}
    for others in by_threads[1:]:
        for place, (one, other) in enumerate(zip(by_threads[0], others, strict=True)):
            # PyTorch's sums of columns are cut by the number of threads.
            if place in of_biases:
                torch.testing.assert_close(one, other)
            else:
                assert torch.equal(one, other), place


# So many rows and units that what nothing is kept of runs in pieces, the last of which is shorter or a single step.
@pytest.mark.parametrize("sizes", [(23, 70, 20, 130), (2, 520, 3, 17), (7, 300, 2, 70), (1100, 1, 1, 3)])
@pytest.mark.parametrize("name", ["gru", "peephole"])
def test_in_pieces(recurrences, name, sizes):
    for reverse in (False, True):
        assert_right(recurrences(name), sizes, torch.float32, reverse)


def test_what_was_not_kept_is_computed_again_for_a_gradient(recurrences):
    recurrence = recurrences("peephole")
    arguments = given(recurrence.cell, (4, 3, 5, 6), torch.float64, seed=5)
    kept, not_kept = (
        torch.autograd.grad(recurrence.operator.call(*arguments, False, keep)[0].sum(), arguments[:3])
        for keep in (True, False)
    )
    torch.testing.assert_close(not_kept, kept)


def test_a_call_keeps_what_a_gradient_will_need_and_nothing_else(recurrences, monkeypatch):
    recurrence, kept = recurrences("gru"), []
    input, weight_ih, weight_hh, bias, message_bias, initial = given(recurrence.cell, (4, 3, 5, 6), torch.float32, 5)
    call = recurrence.operator.call

    def watched(*arguments):
        kept.append(arguments[-1])
        return call(*arguments)

    monkeypatch.setattr(recurrence.operator, "call", watched)

    def run(*weights):
        return recurrence(input.detach(), *weights, initial.detach(), message_bias=message_bias.detach())

    run(weight_ih, weight_hh, bias)
    with torch.no_grad():
        run(weight_ih, weight_hh, bias)
    run(weight_ih.detach(), weight_hh.detach(), bias.detach())
    run(weight_ih.detach(), weight_hh.detach(), bias)
    assert kept == [True, False, False, True]


def test_a_row_that_is_not_finite_stays_alone(recurrences):
    recurrence, visible = recurrences("peephole"), 3
    arguments = given(recurrence.cell, (4, 40, 20, 70), torch.float32, seed=2)
    expected = recurrence.operator.call(*arguments, False, False)[:visible]
    with torch.no_grad():
        arguments[0][1, 7] = torch.nan
        arguments[0][2, 30] = torch.inf
    found = recurrence.operator.call(*arguments, False, False)[:visible]
    for one, other in zip(found, expected, strict=True):
        # Rows are the last dimension but one.
        keep = [row for row in range(40) if row not in (7, 30)]
        assert torch.equal(one[..., keep, :], other[..., keep, :])
    assert found[0][1:, 7].isnan().all()
    assert found[0][:1, 7].isfinite().all()
    assert found[0][:2, 30].isfinite().all()
