"""The cost of a call: every path is timed, the goals are judged, and nothing is timed unnoticed on a reference."""

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
from documents import read_document
from torchgraft import Operator
from torchgraft.benchmarking import CalledOperator, Table, load, measure_overhead
from torchgraft.benchmarking.layers import MODES, Costs
from torchgraft.benchmarking.overhead import OperatorOverhead, kernel_calls, time_in_turn
from torchgraft.checking.subject import find_subjects
from torchgraft.cli import app

pytestmark = pytest.mark.usefixtures("busy_machine")
OPERATORS = {name.partition("::")[2] for name in Operator.registered if name.startswith("torchgraft::")}


def subject_of(name, *arguments):
    return CalledOperator(name, Operator.registered[f"torchgraft::{name}"], arguments)


@pytest.fixture(scope="module")
def without_kernel():
    return Operator(
        "torchgraft_test_overhead::twice(Tensor input) -> (Tensor, Tensor)",
        reference=lambda input: (2 * input, input.exp()),
        output=lambda input: (torch.empty_like(input), torch.empty_like(input)),
        gradient=lambda needs, grads, saved, input: (2 * grads[0],),
        visible_outputs=1,
    )


def test_every_path_is_timed():
    result = measure_overhead([subject_of("mul_constant", torch.ones(8), 2.0)], seconds=0.2)
    assert list(result.yardsticks) == ["torch.add"]
    (each,) = result.operators
    costs = [each.raw, each.call, each.forward, each.backward, each.function, each.kernels, each.reference]
    # From a clock's tick to a slow machine's worst: microseconds, not seconds or nanoseconds.
    assert all(0.1 < cost < 10_000 for cost in costs)
    assert each.front_door == each.call - each.raw
    assert each.excess == pytest.approx(each.backward - each.function - each.kernels)
    assert result.environment.threads == 1


@pytest.mark.parametrize(("call_seconds", "blocks"), [(1e-6, 5), (0.01, 5), (0.02, 2), (1.0, 1)])
def test_calls_that_take_longer_than_their_share_of_the_time_are_timed_in_fewer_blocks(call_seconds, blocks):
    counts = []

    class Clock:
        median = call_seconds

        def blocked_autorange(self, min_run_time):
            return self

        def timeit(self, count):
            counts.append(count)
            return self

    rounds, asked = 25, 1.25
    watch = load.LoadWatch(torch.device("cpu"), 0.0)
    costs, _ = time_in_turn({("operator", "call"): Clock()}, asked, watch, lambda why: None)
    assert costs == {("operator", "call"): call_seconds * 1e6}
    assert len(counts) == rounds * blocks
    assert call_seconds > 0.05 or sum(counts) * call_seconds == pytest.approx(asked, rel=0.25)


def test_the_yardstick_makes_the_kernels_of_forward_and_backward():
    images, weight, bias = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 1, 1), torch.ones(2)
    subject = subject_of("depthwise_conv2d", images, weight, bias, 1, 1, 0, 0, 0, 0, 1, 1)
    assert [str(call.function) for call in kernel_calls(subject)] == [
        "torchgraft._depthwise_conv2d.default",
        "torchgraft._depthwise_conv2d_input_grad.default",
        "torchgraft._depthwise_conv2d_weight_grad.default",
        "aten.sum.dim_IntList",
    ]


def test_an_operator_without_a_kernel_is_named(without_kernel):
    result = measure_overhead([CalledOperator("twice", without_kernel, (torch.ones(8),))], seconds=0.1)
    assert {each.operator for each in result.fallbacks} == {"torchgraft_test_overhead::twice"}
    assert any(
        "torchgraft_test_overhead::twice was timed on its reference" in note for note in result.tables()[0].notes
    )


@pytest.mark.parametrize(
    ("call", "backward", "cells"), [(3.5, 60.0, ("1.5 ✓", "20.0 ✓")), (3.6, 60.2, ("1.6 ✗", "20.2 ✗"))]
)
def test_goals_are_judged(call, backward, cells):
    each = OperatorOverhead(
        "op", raw=2.0, call=call, forward=9.0, backward=backward, function=30.0, kernels=10.0, reference=50.0
    )
    assert (each.cells()[3], each.cells()[7]) == cells
    assert each.front_door_reached == each.excess_reached == cells[0].endswith("✓")


def test_every_layer_is_timed_beside_the_one_that_it_replaces_in_every_mode():
    layers = [layer for each in find_subjects([]) for layer in each.samples.replaced]
    result = measure_overhead([subject_of("mul_constant", torch.ones(8), 2.0)._replace(replaced=layers)], seconds=0.2)
    replaced = {each.name.partition(",")[0]: each.replaced for each in result.layers}
    assert replaced == {
        "DepthwiseConv1d": "nn.Conv1d",
        "DepthwiseConv2d": "nn.Conv2d",
        "DepthwiseConv3d": "nn.Conv3d",
        "LLTM": "nn.LSTM",
        "LLTMCell": "nn.LSTMCell",
        "Linear": "nn.Linear",
    }
    for layer in result.layers:
        assert tuple(layer.costs) == MODES
        assert all(0.1 < cost < 10_000 for costs in layer.costs.values() for cost in costs)
        assert layer.costs["forward + backward"].ours > layer.costs["forward"].ours


@pytest.mark.parametrize(("ours", "cell"), [(10.04, "10.0 / 10.0 = 1.00 ✓"), (10.06, "10.1 / 10.0 = 1.01 ✗")])
def test_a_layer_may_cost_what_the_replaced_one_costs(ours, cell):
    assert str(Costs(ours, 10.0)) == cell


def test_the_command_prints_a_row_an_operator_and_a_layer(tmp_path):
    files = ["--json", str(tmp_path / "overhead.json"), "--markdown", str(tmp_path / "overhead.md")]
    result = CliRunner().invoke(app, ["bench", "overhead", "--seconds", "0.3", *files], catch_exceptions=False)
    assert result.exit_code == 0
    rows = {line.split()[0] for line in result.stdout.splitlines() if line.split()}
    assert {"torch.add", *OPERATORS, "DepthwiseConv2d", "LLTM", "LLTMCell", "Linear"} <= rows
    figures = read_document("bench-overhead", (tmp_path / "overhead.json").read_text())
    assert {each["name"] for each in figures["operators"]} == OPERATORS
    assert all(set(each["costs"]) == set(MODES) for each in figures["layers"])
    assert figures["environment"]["torchgraft"] == torchgraft.__version__
    assert figures["goals"] == {"front_door": 1.5, "excess": 20.0, "layer": 1.0}
    assert f"| {min(OPERATORS)} |" in (tmp_path / "overhead.md").read_text()


def test_a_table_in_markdown():
    table = Table("Title", ("", "ms"), [("a|b", "1.0"), ("c", "2.0")], ("a note",))
    assert table.markdown() == "### Title\n\n|  | ms |\n| --- | ---: |\n| a\\|b | 1.0 |\n| c | 2.0 |\n\na note\n"
