"""`graft bench --draw`: what is drawn, what of it is timed, and what many rows come to."""

import itertools
import json
import math
from dataclasses import replace
from random import Random

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
from documents import read_document
from reports import make_report, make_row
from torchgraft import Operator
from torchgraft.benchmarking import drawn, suite
from torchgraft.benchmarking.distribution import distribution_json, distribution_markdown, is_slower, quantile
from torchgraft.benchmarking.drawn import plan_drawn
from torchgraft.benchmarking.results import report_from_dict
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.rows import RivalResult
from torchgraft.benchmarking.suite import Wanted
from torchgraft.benchmarking.timing import Ratio, Stopwatch, Time
from torchgraft.checking.subject import Subject, find_subjects
from torchgraft.cli import app
from torchgraft.kernels.precision import equal_precision
from torchgraft.sampling import Benchmark, Budget, Distribution, Drawn, Sample, Samples, log_uniform, rounded

pytestmark = pytest.mark.usefixtures("busy_machine")

CPU = torch.device("cpu")
# So high that nothing is faster.
ROOFS = Roofs({2**20: 1e18}, {"float32": 1e21}, {"float32": 1e21}, 1e-12)
STOPWATCH = Stopwatch(CPU, 0.001)
NETWORKS = {each.name: each.samples.networks for each in find_subjects([]) if each.samples.networks}


def draw_many(networks, budget, count):
    random = Random(0)
    found = (networks.draw(random, budget) for _ in itertools.count())
    return list(itertools.islice((each for each in found if each is not None), count))


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_drawn_fits_its_budget_and_can_be_called(name):
    [subject] = find_subjects([name])
    budget = Budget(2**20, 2**27)
    for benchmark in draw_many(NETWORKS[name], budget, 40):
        assert 0 < benchmark.sample.elements <= 2 * budget.elements
        on_meta = subject.operator.declaration.with_defaults(benchmark.sample.make("meta", torch.float32))
        subject.operator.explain(*on_meta)
        assert subject.operator.declaration.flops is None or benchmark.operations is None or benchmark.operations > 0


def test_convolutions_are_drawn_of_all_kinds_that_networks_have():
    windows = [
        each.sample.arguments[1].shape[2:] + tuple(each.sample.arguments[3:])
        for each in draw_many(NETWORKS["depthwise_conv2d"], Budget(2**27, 2**36), 2000)
    ]
    assert {3, 5, 7, *range(9, 32, 2)} == {height for height, *_ in windows}
    assert {(stride, dilation) for _, _, stride, *_, dilation in windows} == {(1, 1), (2, 1), (1, 2), (1, 3)}
    # Some without padding.
    assert 0.02 < sum(padding == 0 for _, _, _, _, padding, *_ in windows) / len(windows) < 0.12


def test_the_same_seed_draws_the_same():
    def drawn_with(seed, **wanted):
        planned = plan_drawn(
            find_subjects(["depthwise_conv2d"]), Wanted(CPU, directions=(), **wanted), 12, seed, named=True
        )
        return [each.key for each in planned]

    assert drawn_with(3) == drawn_with(3)
    assert not set(drawn_with(3)) & set(drawn_with(4))
    # Each in every pass.
    assert [key[-1] for key in drawn_with(3)] == 12 * ["forward", "input_grad", "weight_grad"]
    assert {key[4] for key in drawn_with(3)} == {"contiguous", "channels_last"}
    narrowed = drawn_with(3, layouts=("channels_last",), dtypes=(torch.bfloat16,))
    assert {key[3:5] for key in narrowed} == {("bfloat16", "channels_last")}
    assert len(narrowed) == 36


def test_what_does_not_fit_into_memory_is_drawn_again(monkeypatch):
    plan = lambda: plan_drawn(find_subjects(["mul_constant"]), Wanted(CPU, directions=()), 50, 0, named=True)  # noqa: E731

    def largest():
        return max(int(each.sample.split()[0].replace(",", "")) for each in plan())

    before = largest()
    monkeypatch.setattr(drawn, "_memory_of", lambda device: 2**22)
    assert largest() * 4 * drawn._COPIES <= 2**22 < before * 4 * drawn._COPIES
    monkeypatch.setattr(drawn, "_memory_of", lambda device: 0)
    with pytest.raises(LookupError, match="no call drawn for mul_constant"):
        plan()


def test_tf32_is_drawn_for_gpus_alone_and_only_where_float32_is_asked_for():
    sequences = draw_many(NETWORKS["lltm"], Budget(2**20, 2**27), 60)
    assert {each.devices for each in sequences} == {("cuda",), ("cpu", "cuda")}
    assert all((each.devices == ("cuda",)) == each.sample.tf32 for each in sequences)
    planned = plan_drawn(find_subjects(["lltm"]), Wanted(CPU, directions=()), 30, 0, named=True)
    assert {each.key[3] for each in planned} == {"float32"}


def declare(name, factor, gradient=2.0):
    """An operator that should double, and whose gradient should."""
    operator = Operator(
        f"drawn_test::{name}(Tensor input, Tensor other) -> Tensor",
        reference=lambda input, other: 2 * input + other,
        output=lambda input, other: torch.empty_like(input),
        gradient=lambda needs, grads, saved, *arguments: (gradient * grads[0], grads[0]),
    )
    for each in (name, f"_{name}"):
        operator._library.impl(each, lambda input, other: factor * input + other, "CPU")
    tensors = Drawn((33, 7)), Drawn((33, 7))
    networks = Distribution(
        lambda random, budget: Benchmark(Sample("a few", tensors), "drawn"),
        "pytorch",
        ("forward", "input_grad", "other_grad", "forward_backward"),
    )
    samples = Samples(
        (Sample("a few", tensors),), rivals={"pytorch": lambda input, other: 2 * input + other}, networks=networks
    )
    return Subject(operator, samples)


def measured(subject, *passes):
    planned = plan_drawn([subject], Wanted(CPU, directions=passes), 1, 0, named=True)
    return {each.key[-1]: each.measure(STOPWATCH, ROOFS) for each in planned}


def test_every_pass_is_timed_beside_the_rival():
    rows = measured(declare("right", 2.0))
    assert list(rows) == ["forward", "input_grad", "other_grad", "forward_backward"]
    for row in rows.values():
        assert not row.problem
        assert row.rivals["pytorch"].ratio.median > 0
        assert row.time.median > 0
    # Both arguments and the result; and then the incoming gradient and two that go out, beside what was read.
    assert rows["forward"].moved == rows["input_grad"].moved == 3 * 33 * 7 * 4
    assert rows["forward_backward"].moved == (3 + 3 + 2) * 33 * 7 * 4


@pytest.mark.parametrize(
    ("factor", "gradient", "refused"),
    [(2.1, 2.0, {"forward"}), (2.0, 2.1, {"input_grad", "forward_backward"}), (2.0, 2.0, set())],
)
def test_a_result_that_differs_from_the_rivals_refuses_the_row(factor, gradient, refused):
    rows = measured(declare(f"wrong_{factor}_{gradient}".replace(".", "_"), factor, gradient))
    assert {name for name, row in rows.items() if row.problem} == refused
    assert all("beside pytorch, the result is wrong" in rows[name].problem.replace(", part 1", "") for name in refused)


def test_gradients_are_those_of_the_argument():
    passes = plan_drawn(find_subjects(["depthwise_conv2d"]), Wanted(CPU, directions=()), 3, 5, named=True)
    rows = [each.measure(STOPWATCH, ROOFS) for each in passes]
    # Each was compared with what PyTorch's autograd gave.
    assert not [row.problem for row in rows if row.problem]
    assert {row.direction for row in rows} == {"forward", "input_grad", "weight_grad"}


def test_kernels_are_chosen_by_measuring_where_that_is_asked_for():
    def choices_of(*, measured):
        torchgraft.forget_choices()
        wanted = Wanted(CPU, directions=("forward",), measured=measured)
        [planned] = plan_drawn(find_subjects(["depthwise_conv2d"]), wanted, 1, 5, named=True)
        with equal_precision():
            row = planned.measure(STOPWATCH, ROOFS)
        assert not row.problem
        return [each.operator for each in torchgraft.choices()]

    assert choices_of(measured=False) == []
    assert choices_of(measured=True) == ["torchgraft::depthwise_conv2d"]
    torchgraft.forget_choices()


@pytest.mark.parametrize(
    ("targets", "passes", "message"),
    [
        (["depthwise_conv2d_weight_grad"], (), "depthwise_conv2d_weight_grad has nothing to draw from"),
        (["linear"], ("sideways",), "there is no pass 'sideways'; choose from 'forward', 'forward_backward'"),
    ],
)
def test_mistakes_are_told(targets, passes, message):
    with pytest.raises(LookupError, match=message):
        plan_drawn(find_subjects(targets), Wanted(CPU, directions=passes), 1, 0, named=True)


def test_numbers_are_drawn_evenly_by_their_logarithm():
    random = Random(1)
    found = [log_uniform(random, 10, 1000) for _ in range(4000)]
    assert min(found) >= 10
    assert max(found) <= 1000
    assert sum(each < 100 for each in found) / 4000 == pytest.approx(0.5, abs=0.03)
    assert {rounded(random, each, 8, 1.0) % 8 for each in found} == {0}
    assert sum(rounded(random, each, 8, 0.5) % 8 == 0 for each in found) / 4000 == pytest.approx(0.56, abs=0.03)
    assert rounded(random, 0.1, 8, 1.0) == 8
    assert rounded(random, 0.1, 8, 0.0) == 1


def test_quantiles_lie_between_values_and_pass_over_what_is_missing():
    values = [4.0, 1.0, 3.0, 2.0, math.nan]
    assert [quantile(values, share) for share in (0, 0.5, 1, 0.25)] == [1.0, 2.5, 4.0, 1.75]
    assert math.isnan(quantile([math.nan], 0.5))


def made_report():
    """Ten rows of a pass, of which two are slower beyond noise and one of them below 0.9; one refused; and another."""
    ratios = [2.0] * 7 + [0.95, 0.5, 0.99]
    rows = [make_row(f"8,{number},7x7", 1e-4, ratio) for number, ratio in enumerate(ratios)]
    rows[-2] = replace(rows[-2], chosen=("gather_any",), floor=1e-6)
    rows.append(make_row("8,99,7x7", ratio=None))
    rows.append(make_row("8,98,7x7", 1e-4, 3.0, dtype="float16", direction="input_grad"))
    forced = RivalResult(Time(5e-5, 5e-5, 5e-5), Ratio(0.5, 0.5, 0.5), "")
    rows[3] = replace(rows[3], rivals={**rows[3].rivals, "kernel tiles": forced}, chosen=("strips",))
    return make_report(rows, drawn=(11, 5))


def test_the_table_shows_shares_quantiles_and_the_worst():
    report = made_report()
    assert [is_slower(row) for row in report.rows[7:10]] == [True, True, False]
    text = distribution_markdown(report)
    # Of the ten rows that have a ratio; the fifth part from below lies between 0.5 and 0.95.
    mean = math.exp(sum(map(math.log, [2.0] * 7 + [0.95, 0.5, 0.99])) / 10)
    assert (
        f"| forward | 11 | {mean:.2f}x | 0.70x | 1.24x | 2.0x | 2.0x | 2.0x | 20.0% | 20.0% | 10.0% | 0.50x |" in text
    )
    assert "| input_grad | 1 | 3.0x" in text
    worst = text.partition("### Worst against the rival")[2].partition("###")[0].splitlines()
    assert worst[4].startswith("| twice, forward: 8,8,7x7, fp32, NCHW | 100 us | 0.50x | 100 | memory | gather_any |")
    assert "0.95x" in worst[5]
    assert "refused: pytorch on 8,99,7x7" in text
    assert "- 11 calls of each operator, sampled at random with seed 5." in text
    better = text.partition("### Where another kernel is faster: 1 of 11 rows")[2]
    assert "| twice, forward: 8,3,7x7, fp32, NCHW | 100 us | 2.0x | strips | tiles | 0.50 |" in better


def test_a_report_outlives_json():
    report = made_report()
    again = report_from_dict(json.loads(distribution_json(report)))
    assert distribution_markdown(again) == distribution_markdown(report)
    assert distribution_json(again) == distribution_json(report)
    assert len(again.rows) == len(report.rows)


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], catch_exceptions=False)


class TestCommand:
    """`graft bench --draw` as a person meets it."""

    def test_rows_are_drawn_shown_and_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)
        monkeypatch.setitem(drawn._BUDGETS, "cpu", Budget(2**16, 2**22))
        monkeypatch.setitem(drawn.SECONDS, "cpu", 0.001)
        options = "--draw", 2, "--seed", 7, "--device", "cpu", "--pass", "forward,weight_grad"
        done = run("depthwise_conv2d", *options, "--json", tmp_path / "draw.json", "--markdown", tmp_path / "draw.md")
        assert done.exit_code == 0, done.output
        assert "2 calls of each operator, sampled at random with seed 7." in done.output
        report = report_from_dict(read_document("bench", (tmp_path / "draw.json").read_text()))
        assert report.drawn == (2, 7)
        assert [row.direction for row in report.rows] == 2 * ["forward", "weight_grad"]
        assert "### depthwise_conv2d: times as fast as pytorch" in (tmp_path / "draw.md").read_text()
        assert run("compare", tmp_path / "draw.json", tmp_path / "draw.json").exit_code == 0

    def test_rows_that_are_not_drawn_are_not_asked_for_at_once(self):
        done = run("mul_constant", "--draw", 2, "--quick")
        assert done.exit_code == 2
        assert done.stderr.startswith("--draw has rows of its own: leave out --models, --quick")
        assert run("mul_constant", "--draw", 0).exit_code == 2
        assert run("mul_constant", "--measured").stderr.startswith("--measured is for rows that are drawn")

    def test_what_has_no_distribution_is_one_line(self):
        done = run("lltm_grads", "--draw", 2, "--device", "cpu")
        assert done.exit_code == 2
        assert done.stderr.startswith("lltm_grads has nothing to draw from")
