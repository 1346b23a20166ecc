"""A cell: the step back that is derived from it, the C++ that is printed, and what is refused."""

import functools

import pytest
import torch
import torch.nn.functional as F

import cells
from torchgraft import load_inline
from torchgraft.recurrence import Cell

COMPOSED = range(16)
NAMES = [*cells.CELLS, *(f"composed {seed}" for seed in COMPOSED)]
# A compiler takes seconds for each.
PRINTED = NAMES[: len(cells.CELLS) + 5]
# Numbers at kinks, whose products and sums are exact: a comparison then has the same outcome on every path.
KINKS = torch.tensor([-2.0, -1.0, -0.5, 0.0, -0.0, 0.5, 1.0, 2.0], dtype=torch.float64)


@functools.cache
def cell_of(name):
    return cells.composed(int(name.split()[1])) if name.startswith("composed") else cells.make(name)


def drawn(name, count, at_kinks, rows=7):
    generator = torch.Generator().manual_seed(NAMES.index(name))
    if at_kinks:
        values = list(KINKS[torch.randint(len(KINKS), (count, rows, 9), generator=generator)])
    else:
        values = list(torch.randn(count, rows, 9, dtype=torch.float64, generator=generator))
    if name == "slstm":
        # A step divides by the sum of its input gates.
        place = 2 * 4 + 2
        values[place] = values[place].abs() + 0.5
    return values


def by_autograd(cell, given, grads):
    """The states, message and output after a step, the gradients of all that went in, and the message that did."""
    given = [each.clone().requires_grad_() for each in given]
    gates, message_gates = given[: cell.gates], given[cell.gates : 2 * cell.gates]
    states, own = given[2 * cell.gates :][: cell.states], given[2 * cell.gates + cell.states :]
    after = cell.step(gates, message_gates, states, own)
    results = *after, cell.message(after), cell.output(after)
    # A constant has no gradients.
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if result.requires_grad]
    differentiable, incoming = zip(*pairs, strict=True)
    found = torch.autograd.grad(differentiable, given, incoming, materialize_grads=True, allow_unused=True)
    return [each.detach() for each in results], found, cell.message(states).detach()


def expected_of(name, at_kinks):
    """For each pass, what goes in and what must come out."""
    cell = cell_of(name)
    count, gates = 2 * cell.gates + cell.states + cell.parameters, cell.gates
    values = drawn(name, count + cell.states + 2 + cell.parameters, at_kinks)
    given, grads, sums = values[:count], values[count:][: cell.states + 2], values[count + cell.states + 2 :]
    results, found, message = by_autograd(cell, given, grads)
    gates_sum = [first + second for first, second in zip(given[:gates], given[gates : 2 * gates], strict=True)]
    states, own_grads = given[2 * gates :][: cell.states], found[2 * gates + cell.states :]
    summed = [grad + total for grad, total in zip(own_grads, sums, strict=True)]
    state_grads = found[2 * gates :][: cell.states]
    if cell.gates_apart:
        biases = [torch.full_like(states[0], 0.25)] * gates
        before_bias = [each - 0.25 for each in given[gates : 2 * gates]]
        forward = [*given[:gates], *before_bias, *biases, *given[2 * gates :]], [*given[gates : 2 * gates], *results]
        backward = [*given, *grads, *sums], [*found[: 2 * gates], *state_grads, *summed, message]
    else:
        forward = given, [*gates_sum, *results]
        backward = [*gates_sum, *given[2 * gates :], *grads, *sums], [*found[:gates], *state_grads, *summed, message]
    leaves = [each.clone().requires_grad_() for each in states]
    told = cell.message(leaves)
    more = torch.autograd.grad(told, leaves, grads[0], allow_unused=True, materialize_grads=True)
    back = [grad + each for grad, each in zip(grads[1 : 1 + cell.states], more, strict=True)]
    message_back = [*states, *grads[1 : 1 + cell.states], grads[0]], back
    return {"Forward": forward, "Backward": backward, "Message": (states, [message]), "MessageBackward": message_back}


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        # Within a few roundings of numbers as large as those that were added.
        bound = 1e-14 * other.abs().clamp(min=1)
        assert ((one - other).abs() <= bound).all(), (one - other).abs().max()


@pytest.mark.parametrize("at_kinks", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_derived_passes_are_those_of_autograd(name, at_kinks):
    passes = cell_of(name).passes
    for graph, (given, expected) in zip(passes, expected_of(name, at_kinks).values(), strict=True):
        assert_close(graph.evaluate(*given), expected)


TEXT = """
#include <torchgraft/detail/recurrence_cpu.h>
#define UNDER_TEST(NUMBER, PASS) case NUMBER: return run<PASS>(read);
{cells}
template <typename Pass>
Tensor run(const Tensor& read) {{
  const int64_t count = read.size(1);
  TORCHGRAFT_CHECK(read.size(0) == Pass::kReads, "rows");
  Tensor result = empty_contiguous({{Pass::kWrites, count}}, read);
  const double* from = data_of<double>(read);
  double* to = mutable_data_of<double>(result);
  for (int64_t i = 0; i < count; ++i) {{
    double given[Pass::kReads], written[Pass::kWrites];
    for (int row = 0; row < Pass::kReads; ++row) given[row] = from[row * count + i];
    Pass::template unit<recurrence::CpuMath>(given, written);
    for (int row = 0; row < Pass::kWrites; ++row) to[row * count + i] = written[row];
  }}
  return result;
}}
Tensor passes_cpu(Tensor read, int64_t number) {{
  switch (number) {{
    {cases}
  }}
  fail("no such pass");
}}
"""
TITLES = ("Forward", "Backward", "Message", "MessageBackward")


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHGRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "cells cache"))
        sources = [f"namespace cell_{number} {{\n{cell_of(name).source()}}}" for number, name in enumerate(PRINTED)]
        cases = [
            f"UNDER_TEST({4 * number + place}, cell_{number}::Cell::{title})"
            for number in range(len(PRINTED))
            for place, title in enumerate(TITLES)
        ]
        text = TEXT.format(cells="\n".join(sources), cases="\n    ".join(cases))
        schema = "printed_cells::passes(Tensor read, int number) -> Tensor"
        return load_inline(schema, reference=lambda read, number: read, dtypes=(torch.float64,), cpu=text)


@pytest.mark.parametrize("at_kinks", [False, True])
@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_passes_are_those_of_autograd(printed, name, at_kinks):
    for place, (given, expected) in enumerate(expected_of(name, at_kinks).values()):
        read = torch.stack(given).flatten(1)
        found = printed(read, 4 * PRINTED.index(name) + place)
        assert_close(found, [each.flatten() for each in expected])


@pytest.mark.parametrize("name", cells.CELLS)
def test_gates_are_kept_apart_only_where_a_cell_needs_it(name):
    assert cell_of(name).gates_apart == (name == "gru")


def test_a_state_behind_what_is_added_first_is_added_to_the_sum():
    def early(gates, message_gates, h):
        return torch.tanh(gates[0] + message_gates[0] + h)

    def late(gates, message_gates, h):
        return torch.tanh(h + gates[0] + message_gates[0])

    assert not Cell(early, gates=1, states=1).gates_apart
    assert Cell(late, gates=1, states=1).gates_apart


def test_what_is_computed_twice_is_printed_once_and_what_nobody_needs_is_not():
    def step(gates, message_gates, h):
        torch.exp(h)
        return torch.tanh(gates[0]) * torch.tanh(gates[0]) * 1.0 + h

    forward = Cell(step, gates=1, states=1).passes.forward
    assert forward.operations.count("tanh") == 1
    assert forward.operations.count("exp") == 0
    assert forward.operations.count("mul") == 1


def test_the_slopes_of_saturated_gates_keep_their_digits(printed):
    # In float64 of PyTorch, 1 - tanh(20)**2 is zero.
    place = 4 * PRINTED.index("rnn_tanh") + 1
    read = torch.tensor([[20.0, -20.0, 400.0], [0.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3], dtype=torch.float64)
    exact = 4 * torch.exp(torch.tensor(-40.0, dtype=torch.float64))
    found = printed(read, place)[0]
    torch.testing.assert_close(found, torch.tensor([exact, exact, 0.0], dtype=torch.float64), rtol=1e-14, atol=0)


def test_the_source_can_be_read():
    source = cell_of("leaky").source()
    assert "const T tanh = M::tanh(add);  // aten.tanh" in source
    assert "(gates_0, h, h_grad, message_grad, output_grad) -> (gates_0_grad, h_grad, message)" in source
    assert max(map(len, source.splitlines())) <= 120


def test_names_of_python_become_names_of_cpp():
    def step(gates, message_gates, double, été):
        return double * 2, été + double

    source = Cell(step, gates=1, states=2).source()
    assert "const T double_ = " in source
    assert "const T ue9tue9 = read[3];" in source


def refused(step, text, error=ValueError, **counts):
    with pytest.raises(error, match=text):
        Cell(step, **{"gates": 1, "states": 1, **counts})


def test_a_step_that_mixes_units_is_refused():
    every = "every unit must be computed from its own gates and states alone"
    refused(lambda g, u, h: h - h.mean(-1, keepdim=True), every)
    refused(lambda g, u, h: torch.softmax(h, -1), every)
    refused(lambda g, u, h: F.layer_norm(h, h.shape[-1:]), every)
    refused(lambda g, u, h: h @ torch.ones(h.shape[-1], h.shape[-1], dtype=h.dtype), every)
    refused(lambda g, u, h: h.cumsum(-1), every)
    dimensions = "gates and states have rows and units, which a cell must leave as they are"
    refused(lambda g, u, h: h.flip(-1), dimensions)
    refused(lambda g, u, h: torch.cat((h[:, 1:], h[:, :1]), 1), dimensions)
    refused(lambda g, u, h: h + h[:, :1], dimensions)
    refused(lambda g, u, h: torch.roll(h, 1, -1), every)


def test_a_step_that_asks_for_sizes_is_refused():
    refused(lambda g, u, h: h / h.shape[-1], "depends on how many rows or units there are")


def test_an_operation_that_is_not_printed_is_refused_with_another_one():
    refused(lambda g, u, h: torch.hypot(h, g[0]), r"aten.hypot.default, which a cell cannot: write torch.sqrt")
    refused(lambda g, u, h: torch.sinh(h), r"aten.sinh.default, .* write \(torch.exp")
    refused(lambda g, u, h: torch.lgamma(h), r"aten.lgamma.default, .* may be made of abs, .*tanh")
    refused(lambda g, u, h: torch.div(h, 2, rounding_mode="floor"), "aten.div")
    refused(lambda g, u, h: h.float().double(), "must not convert them to torch.float32")
    refused(lambda g, u, h: h * torch.rand_like(h), "must not draw random numbers")
    refused(lambda g, u, h: F.dropout(h, 0.5), "must not draw random numbers")


def test_control_flow_that_depends_on_values_is_refused():
    refused(lambda g, u, h: h if h.sum() > 0 else -h, "decides by the values of its arguments")
    refused(lambda g, u, h: h * h[0, 0].item(), "decides by the values of its arguments")


def test_writing_to_an_argument_is_refused():
    refused(lambda g, u, h: h.mul_(0.5), "writes to its argument h: return a new tensor instead")
    refused(lambda g, u, h: h + g[0].add_(1), "writes to its argument gates_0")


def test_the_wrong_results_are_refused():
    refused(lambda g, u, h: (h, h), r"must return 1 tensor \(h\), got 2 tensors")
    refused(lambda g, u, h, c: h, r"must return 2 tensors \(h, c\), got 1 tensor", states=2)
    refused(lambda g, u, h: None, "must return the new states, 1 tensor .*, got a NoneType", TypeError)
    refused(lambda g, u, h: (0.0,), "must return the new states", TypeError)
    refused(lambda g, u, h: h > 0, "must return h in the dtype that it got", TypeError)
    refused(lambda g, u, h: h.sum(-1), "must return h in the shape that it got")
    refused(lambda g, u, h: h, "output must return one number for each unit", output=lambda h: h[:1])


def test_the_wrong_counts_are_refused():
    refused(lambda g, u, h: h, "must take gates, message_gates, 2 states and 0 parameters", states=2)
    refused(lambda g, u, h: h, "must take gates, message_gates, 1 states and 1 parameters", parameters=1)
    refused(lambda g, u, h: h, "gates must be at least 1, got 0", gates=0)
    refused(lambda g, u, h: h, "gates must be an int, got 1.5", TypeError, gates=1.5)
    refused(lambda g, u, h: h, "message must be the number of a state, or a function .*, got 1", message=1)
    refused(lambda g, u, h: h, "output must be the number of a state, or a function", output="h")


def test_a_tensor_of_each_unit_from_outside_is_refused_and_a_number_is_not():
    rates, rate = torch.rand(3, dtype=torch.float64), torch.tensor(0.5)
    refused(lambda g, u, h: h * rates, "a number of each unit must be one of its parameters")
    assert "T(0.5)" in Cell(lambda g, u, h: h * rate, gates=1, states=1).source()
    learned = torch.nn.Parameter(torch.tensor(0.5))
    refused(lambda g, u, h: h * learned, "requires a gradient, which it would never get: .* a parameter of the cell")


def test_an_error_of_pytorch_says_what_a_step_cannot_do():
    other, rates = torch.rand(16, 16, dtype=torch.float64), torch.rand(16, dtype=torch.float64)
    refused(lambda g, u, h: h @ other, "mat1 and mat2 .* the one product of a recurrence is `message @ weight_hh.T`")
    refused(lambda g, u, h: h * rates, "must match .* is a parameter of the cell")
    refused(lambda g, u, h: h + u[1], r"raised IndexError: .* has the shape \(2, 3\), rows and units")


def test_a_step_may_write_to_what_it_made():
    def step(gates, message_gates, h):
        total = gates[0] + message_gates[0]
        total.mul_(0.5).tanh_()
        return total

    assert Cell(step, gates=1, states=1).passes.forward.operations == ["add", "mul", "tanh"]
