"""`graft bench`: what is refused, what becomes of figures, and the command as a person meets it."""

import io
import json
import math
import re
import sys
import types
import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from documents import read_document
from reports import ENVIRONMENT, make_report, make_row
from torchgraft import Operator, native
from torchgraft.benchmarking import explaining, models, suite
from torchgraft.benchmarking.card import read_card
from torchgraft.benchmarking.explaining import Served, short_name
from torchgraft.benchmarking.live import LiveBench, print_report, print_suite
from torchgraft.benchmarking.measuring import Candidate, measure
from torchgraft.benchmarking.models import Model, Variant, measure_model
from torchgraft.benchmarking.page import render_page
from torchgraft.benchmarking.provenance import Provenance
from torchgraft.benchmarking.results import (
    compare,
    geometric_mean,
    join,
    regressions,
    report_from_dict,
    why_not_comparable,
)
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.suite import Wanted, plan, select
from torchgraft.benchmarking.summary import (
    UNVERIFIED,
    as_markdown,
    format_ratio,
    format_seconds,
    refusals,
    summarise_rows,
)
from torchgraft.benchmarking.timing import Ratio, Stopwatch, Time
from torchgraft.checking.subject import Subject, find_subjects
from torchgraft.cli import app
from torchgraft.kernels.precision import equal_precision
from torchgraft.sampling import Benchmark, Drawn, Large, Sample, Samples

pytestmark = pytest.mark.usefixtures("busy_machine")

CPU = torch.device("cpu")
# So high that nothing is faster.
ROOFS = Roofs({2**20: 1e18}, {"float32": 1e21}, {"float32": 1e21}, 1e-12)
STOPWATCH = Stopwatch(CPU, 0.01)


def declare(name, kernel):
    """An operator that doubles, with a kernel that may not."""
    operator = Operator(
        f"bench_test::{name}(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        output=torch.empty_like,
        flops=lambda shape: torch.Size(shape).numel(),
    )
    for each in (name, f"_{name}"):
        operator._library.impl(each, kernel, "CPU")
    return operator


@pytest.fixture(scope="module")
def twice():
    return declare("twice", lambda input: 2 * input)


def candidate(operator, against=(), rivals=None, direction="forward", large=None):
    benchmark = Benchmark(Sample("a few", (Drawn((33, 7)),)), "sizes", large=large)
    samples = Samples((benchmark.sample,), benchmarks=(benchmark,), rivals=rivals or {})
    return Candidate(operator, samples, benchmark, torch.float32, CPU, direction, tuple(against))


def test_a_run_that_is_stopped_reports_the_rows_that_it_came_to():
    def stop(*arguments):
        raise KeyboardInterrupt

    first = plan(find_subjects(["mul_constant"]), Wanted(CPU))[0]
    second = replace(first, measure=stop)
    report = suite.run([first, second, first], Wanted(CPU, quick=True))
    assert len(report.rows) == 1
    assert report.unmeasured == 2
    assert report_from_dict(json.loads(json.dumps(report.as_dict()))) == report
    assert "2 rows were not measured: the run was stopped" in as_markdown(report)


def test_a_cuda_graph_is_a_rival_of_a_forward_pass_on_a_gpu(twice):
    here = measure(candidate(twice, ("cuda_graph",)), STOPWATCH, ROOFS)
    assert "measures forward passes on a GPU only" in here.rivals["cuda_graph"].problem
    if torch.cuda.is_available():
        device = torch.device("cuda")
        there = measure(replace(candidate(twice, ("cuda_graph",)), device=device), Stopwatch(device), ROOFS)
        assert there.rivals["cuda_graph"].ratio.median > 0


def remembering(function):
    results = []

    def remembered(*arguments):
        if not results:
            results.append(function(*arguments))
        return results[0]

    return remembered


class TestYardsticks:
    """Functions that compute something else are timed and shown apart, and nothing of theirs is believed."""

    @pytest.fixture(params=["forward", "backward"])
    def row(self, twice, request):
        def make(input):
            weight = torch.ones(7, 7)

            def product():
                warnings.warn_explicit("advice to its user", UserWarning, "rnn.py", 1, module="torch.nn.modules.rnn")
                return input @ weight

            return product, [input, weight]

        asked = candidate(twice, ("reference", "product"), direction=request.param)
        samples = replace(asked.samples, yardsticks={"product": make})
        return measure(replace(asked, samples=samples), STOPWATCH, ROOFS)

    def test_it_is_timed_beside_the_rivals_and_is_none(self, row):
        assert set(row.rivals) == {"reference"}
        assert row.yardsticks["product"].ratio.median > 0
        assert "product" not in row.loses_to

    def test_it_is_asked_for_by_name_or_with_all(self, twice):
        samples = replace(candidate(twice).samples, yardsticks={"product": lambda input: (input.sum, [input])})

        def against(**keywords):
            [planned] = plan([Subject(twice, samples)], Wanted(CPU, **keywords))
            return planned.measure.args[0].against

        assert against() == ("reference", "product")
        assert against(against=("product",)) == ("product",)
        assert against(against=("reference",)) == ("reference",)

    def test_it_is_marked_wherever_it_is_shown(self, row):
        report = make_report([row])
        assert report_from_dict(json.loads(json.dumps(report.as_dict()))).rows == (row,)
        assert "times product*'s speed" in as_markdown(report)
        assert UNVERIFIED in as_markdown(report)
        page = render_page(report)
        assert "product*" in page
        assert UNVERIFIED in page
        console = Console(file=io.StringIO(), width=120)
        print_suite(console, report.rows)
        print_report(console, report)
        assert "product*" in console.file.getvalue()
        assert UNVERIFIED in console.file.getvalue()
        assert all("product" not in line for line in console.file.getvalue().splitlines() if "against" in line)


class TestRefusals:
    """A time that says nothing is not reported, and the row says why."""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    def test_honest_contenders_are_not_refused(self, twice, direction):
        rivals = {"pytorch": lambda input: input + input}
        row = measure(candidate(twice, ("pytorch", "reference"), rivals, direction), STOPWATCH, ROOFS)
        assert not row.problem
        assert row.time.median > 0
        assert row.noise.low <= row.noise.median <= row.noise.high
        for rival in row.rivals.values():
            assert not rival.problem
            assert rival.ratio.median > 0

    def test_a_wrong_result_of_a_rival(self, twice):
        row = measure(candidate(twice, ("wrong",), {"wrong": lambda input: 2 * input + 0.01}), STOPWATCH, ROOFS)
        assert row.time
        assert row.rivals["wrong"].time is None
        assert "the result is wrong" in row.rivals["wrong"].problem

    def test_a_result_that_a_rival_remembered(self, twice):
        rivals = {"quick": remembering(lambda input: 2 * input)}
        row = measure(candidate(twice, ("quick",), rivals), STOPWATCH, ROOFS)
        assert "the result is wrong" in row.rivals["quick"].problem

    def test_a_rival_that_raises(self, twice):
        def fail(input):
            raise RuntimeError("there is no engine\nand more")

        row = measure(candidate(twice, ("fails",), {"fails": fail}), STOPWATCH, ROOFS)
        assert row.rivals["fails"].problem == "RuntimeError: there is no engine"
        assert row.time

    def test_a_wrong_result_of_ours_refuses_the_row(self):
        operator = declare("wrong", lambda input: 2 * input + (input > 2))
        row = measure(candidate(operator, ("reference",)), STOPWATCH, ROOFS)
        assert row.time is None
        assert "the result is wrong" in row.problem
        assert row.rivals["reference"].ratio is None
        assert math.isnan(row.share)

    @pytest.mark.parametrize(("wrong_from", "refused"), [(32, True), (0, True), (33, False)])
    def test_of_a_large_result_parts_are_verified(self, wrong_from, refused):
        operator = declare(
            f"wrong_from_{wrong_from}", lambda input: 2 * input + (torch.arange(33) >= wrong_from)[:, None]
        )
        row = measure(candidate(operator, large=Large(Sample("a few", (Drawn((33, 7)),)))), STOPWATCH, ROOFS)
        assert ("of the first dimension on is wrong" in row.problem) == refused

    def test_a_result_that_ours_remembered_refuses_the_row(self):
        operator = declare("remembering", remembering(lambda input: 2 * input))
        assert "the result is wrong" in measure(candidate(operator), STOPWATCH, ROOFS).problem

    def test_a_time_below_the_floor(self, twice):
        slow = replace(ROOFS, bandwidth={2**20: 1.0})
        row = measure(candidate(twice, ("reference",)), STOPWATCH, slow)
        assert row.time is None
        assert "so the measurement is wrong" in row.problem
        # The floor is measured too.
        assert "Measure again on an idle machine" in row.problem
        assert row.bound == "memory"

    def test_a_row_may_need_fewer_operations_than_the_operator_counts(self, twice):
        counted = candidate(twice)
        fewer = replace(counted, benchmark=replace(counted.benchmark, operations=7))
        assert measure(counted, STOPWATCH, ROOFS).operations == 33 * 7
        assert measure(fewer, STOPWATCH, ROOFS).operations == 7

    def test_what_does_not_fit_into_memory(self, twice, monkeypatch):
        def exhaust(*arguments, **keywords):
            raise torch.OutOfMemoryError("Tried to allocate 9 EiB\nand more")

        monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)
        wanted = Wanted(CPU)
        [planned] = plan([Subject(twice, candidate(twice).samples)], wanted)
        report = suite.run([replace(planned, measure=exhaust)], wanted)
        assert report.rows[0].problem == "it does not fit into memory: Tried to allocate 9 EiB"

    def test_where_no_kernel_runs_the_row_says_so(self):
        operator = Operator(
            "bench_test::kernelless(Tensor input) -> Tensor",
            reference=lambda input: 2 * input,
            output=torch.empty_like,
        )
        row = measure(candidate(operator), STOPWATCH, ROOFS)
        assert row.time
        assert row.fallbacks
        assert any(line.startswith("no kernel ran: a few") for line in refusals([row]))


class TestJoin:
    """Several runs as one."""

    def test_of_a_row_the_last_counts_and_each_keeps_what_it_was_measured_on(self):
        first, second = Provenance("0ld", torch="2.12.0"), Provenance("new", torch="2.13.0")
        old = make_report([make_row("a", 2e-4, provenance=first), make_row("b", 2e-4, provenance=first)])
        new = make_report([make_row("b", 1e-4, provenance=second)], environment=replace(ENVIRONMENT, torch="2.13.0"))
        joined = join([old, new])
        assert [(row.sample, row.time.median, row.provenance) for row in joined.rows] == [
            ("a", 2e-4, first),
            ("b", 1e-4, second),
        ]
        assert joined.environment == new.environment
        assert report_from_dict(json.loads(json.dumps(joined.as_dict()))) == joined

    def test_a_report_of_before_that_names_commits_can_be_read(self):
        figures = json.loads(json.dumps(make_report([make_row()]).as_dict()))
        figures["environment"]["commit"] = figures["rows"][0]["commit"] = "0123abc"
        del figures["rows"][0]["provenance"]
        assert report_from_dict(figures) == make_report([make_row()])


class TestExplain:
    """The kernel that serves a call is named on request."""

    @pytest.mark.parametrize(
        ("launched", "shown"),
        [
            (
                "void ours::cuda::(anonymous namespace)::planes<float, ours::Patch<3, 1> >(float*, int)",
                "planes<float, Patch<3, 1> >",
            ),
            (
                "void at::native::vectorized<4, at::Add<float>, Array<char*, 3ul> >(int, Array<char*, 3ul>)",
                "vectorized<4, Add<float>, Array<char*, 3ul> >",
            ),
            ("void planes<(int)3, (bool)0>(float const*)", "planes<3, 0>"),
            ("cutlass_80_tensorop_s1688", "cutlass_80_tensorop_s1688"),
            ("aten::mkldnn_convolution", "aten::mkldnn_convolution"),
        ],
    )
    def test_a_kernel_has_a_short_name(self, launched, shown):
        assert short_name(launched) == shown

    def test_a_row_names_what_serves_each_contender(self, twice, monkeypatch):
        # Whatever share of the time each takes, which on a busy machine is any.
        monkeypatch.setattr(explaining, "_LEAST_SHARE", 0.0)
        rivals = {"pytorch": lambda input: input.sin().cos()}
        asked = replace(candidate(twice, ("pytorch",), rivals), explained=True)
        row = measure(asked, STOPWATCH, ROOFS)
        assert {"aten::sin", "aten::cos"} <= {each.name for each in row.served["pytorch"]}
        assert row.served["ours"]
        assert not measure(replace(asked, explained=False), STOPWATCH, ROOFS).served

    def test_a_row_names_the_kernels_that_its_library_chose(self, twice, monkeypatch):
        calls = []

        def chosen(namespace, device, call):
            calls.append((namespace, device, call()))
            return "quick_kernel", "other_kernel"

        monkeypatch.setattr(native, "chosen_kernels", chosen)
        asked = candidate(twice)
        row = measure(asked, STOPWATCH, ROOFS)
        assert row.chosen == ("quick_kernel", "other_kernel")
        [(namespace, device, result)] = calls
        assert (namespace, device) == (asked.operator.namespace, "cpu")
        assert result is not None
        console = Console(file=io.StringIO(), width=200)
        print_suite(console, [row])
        assert "quick_kernel, other_kernel" in console.file.getvalue()
        assert "quick_kernel, other_kernel" in as_markdown(make_report([row]))
        assert "quick_kernel, other_kernel" in render_page(make_report([row])).replace("<wbr>", "")

    def test_what_takes_little_of_every_call_is_not_told_and_one_that_was_interrupted_hides_none(self, monkeypatch):
        calls = iter([{"view": 1.0, "sin": 4.0, "cos": 900.0}, {"view": 800.0, "sin": 4.0, "cos": 5.0}] * 2)
        monkeypatch.setattr(explaining, "_seconds", lambda call, device: Counter(next(calls)))
        monkeypatch.setattr(explaining, "_LEAST_SHARE", 0.2)
        assert explaining.explain(lambda: None, CPU) == (Served("sin", 4.0), Served("cos", 5.0))

    def test_it_is_printed_and_outlives_json(self, twice):
        row = measure(replace(candidate(twice), explained=True), STOPWATCH, ROOFS)
        console = Console(file=io.StringIO(), width=100)
        print_suite(console, [row])
        assert re.search(r"ours +[\d.,]+ us  (aten|bench_test)::", console.file.getvalue())
        report = make_report([row])
        read = report_from_dict(json.loads(json.dumps(report.as_dict())))
        assert read.rows[0].served == row.served


class TestPlan:
    """Which rows there are."""

    def test_devices_dtypes_layouts_and_quick(self, twice):
        def benchmark(name, *, channels_last=False, **keywords):
            return Benchmark(Sample(name, (Drawn((1, 2, 3, 4), channels_last),)), "sizes", **keywords)

        benchmarks = (
            benchmark("one", quick=True),
            benchmark("one", channels_last=True),
            benchmark("elsewhere", devices=("cuda",)),
        )
        subjects = [Subject(twice, Samples((), benchmarks=benchmarks))]

        def titles(**keywords):
            wanted = Wanted(CPU, **keywords)
            return [each.title for each in select(plan(subjects, wanted), wanted)]

        name = "bench_test::twice, one, float32"
        assert titles() == [f"{name}, contiguous", f"{name}, channels_last"]
        assert titles(quick=True) == [f"{name}, contiguous"]
        assert titles(quick=True, sample="one") == titles()
        assert titles(layouts=("channels_last",)) == [f"{name}, channels_last"]
        assert len(titles(dtypes=(torch.float64, torch.float16), directions=("forward", "backward"))) == 8
        for mistake in ({"sample": "elsewhere"}, {"suites": ("none",)}, {"against": ("nobody",)}, {"layouts": ("x",)}):
            with pytest.raises(LookupError, match="there is no"):
                titles(**mistake)

    def test_against_whom(self, twice):
        with_rival = replace(candidate(twice).samples, rivals={"pytorch": torch.add})

        def against(samples, **keywords):
            [planned] = plan([Subject(twice, samples)], Wanted(CPU, **keywords))
            return planned.measure.args[0].against

        assert against(candidate(twice).samples) == ("reference",)
        assert against(with_rival) == ("pytorch",)
        assert against(with_rival, against=("reference", "pytorch")) == ("reference", "pytorch")

    def test_precision_is_equal_and_put_back(self):
        before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        with equal_precision():
            assert torch.backends.cudnn.benchmark
            assert not torch.backends.cudnn.allow_tf32
        after = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        assert after == before


class TestFigures:
    """Rows as figures: round trip, means, comparison."""

    def test_a_report_survives_json(self, tmp_path):
        report = make_report()
        path = tmp_path / "bench.json"
        from torchgraft.machine.figures import as_json

        path.write_text(as_json(report.as_dict()))
        again = report_from_dict(json.loads(path.read_text()))
        # nan is not equal to itself.
        assert math.isnan(again.rows[-1].floor)
        known = replace(report, rows=report.rows[:-1])
        assert replace(again, rows=again.rows[:-1]) == known

    def test_what_rows_come_to(self):
        rows = [make_row("a", ratio=4.0), make_row("b", ratio=1.0), make_row("c", ratio=0.5), make_row("d", ratio=None)]
        summary = summarise_rows(rows)
        against = summary.against["pytorch"]
        assert against.ratio == pytest.approx(2.0 ** (1 / 3))
        assert (against.won, against.even, against.lost, against.refused) == (1, 1, 1, 1)
        assert str(against) == "1 faster, 1 slower, 1 within noise, 1 refused and not counted"
        assert summary.share == pytest.approx(0.5)
        assert [row.sample for row in rows if row.loses_to] == ["c"]

    def test_means_of_nothing(self):
        assert math.isnan(geometric_mean([]))
        assert summarise_rows([]).against == {}

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [
            (0, "0.000 us"),
            (4.3e-7, "0.430 us"),
            (8.62e-6, "8.62 us"),
            (1.234e-4, "123 us"),
            (0.0204, "20.4 ms"),
            (3, "3.00 s"),
        ],
    )
    def test_seconds(self, seconds, shown):
        assert format_seconds(seconds) == shown

    @pytest.mark.parametrize(
        ("ratio", "shown"), [(0.918, "0.92x"), (1.994, "1.99x"), (1.996, "2.0x"), (9.94, "9.9x"), (31.4, "31x")]
    )
    def test_ratios(self, ratio, shown):
        assert format_ratio(ratio) == shown

    @pytest.mark.parametrize(
        ("factor", "verdict"), [(1.0, "same"), (1.02, "same"), (0.98, "same"), (1.2, "slower"), (0.8, "faster")]
    )
    def test_verdicts(self, factor, verdict):
        [change] = compare(make_report([make_row()]), make_report([make_row(median=1e-4 * factor)]))
        assert change.verdict == verdict
        assert change.ratio == pytest.approx(factor)

    def test_a_noisy_row_must_change_more(self):
        noisy = make_row(noise=Ratio(1.0, 0.8, 1.2))
        [change] = compare(make_report([noisy]), make_report([make_row(median=1.2e-4)]))
        assert change.verdict == "same"

    def test_a_row_that_lost_its_time_is_a_regression(self):
        new = make_report([make_row(time=None, problem="it is wrong"), make_row("new")])
        changes = compare(make_report([make_row(), make_row("gone")]), new)
        assert [change.verdict for change in changes] == ["lost"]
        assert regressions(changes) == changes

    def test_runs_on_different_machines_cannot_be_compared(self):
        report = make_report()
        other = replace(report, environment=replace(ENVIRONMENT, chip="Another"))
        assert "A made-up card in the old run, Another in the new one" in why_not_comparable(report, other)
        threads = replace(report, environment=replace(ENVIRONMENT, threads=9))
        assert not why_not_comparable(report, threads)
        on_cpu = [replace(each, environment=replace(each.environment, device="cpu")) for each in (report, threads)]
        assert "threads" in why_not_comparable(*on_cpu)

    def test_a_noisy_run_is_told(self):
        assert make_report().doubts == []
        noisy = make_row(time=Time(1.0, 0.8, 1.4))
        assert "1 row is noisy" in make_report([noisy]).doubts[0]


class TestShown:
    """The text that a person reads."""

    @pytest.mark.parametrize("width", [80, 120])
    def test_a_table_fits_the_terminal(self, width):
        report = make_report()
        stream = io.StringIO()
        console = Console(file=stream, width=width)
        first, *others = report.suites.values()
        print_suite(console, first)
        # What there is no room for is left out.
        assert ("host" in stream.getvalue()) == (width == 120)
        for rows in others:
            print_suite(console, rows)
        print_report(console, report)
        text = stream.getvalue()
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert "0.50x ▼" in text
        assert "1.01x ~" in text
        assert "refused: pytorch on <b>one</b> image, fp32, contiguous" in text.replace("\n", " ")
        assert "1 row refused" in text

    def test_markdown_holds_every_row(self):
        text = as_markdown(make_report())
        for row in make_report().rows:
            assert row.sample in text
        assert "| twice, sizes | pytorch | 2.4x ▼1, 50% | 3.0x, 50% | 1.01x, 50% |" in text


OPERATOR = """
import torch

from torchgraft import Operator
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

scaled = Operator(
    "bench_command::{name}(Tensor input) -> Tensor",
    reference=lambda input: 2 * input,
    output=torch.empty_like,
)
for each in ("{name}", "_{name}"):
    scaled._library.impl(each, lambda input: {factor} * input, "CPU")

_ROWS = (Sample("few", (Drawn((9,)),)), Sample("many", (Drawn((9, 99)),)))
samples = Samples(_ROWS, benchmarks=[Benchmark(each, "sizes") for each in _ROWS], rivals={{"pytorch": lambda x: x + x}})
"""


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def low_roofs(monkeypatch):
    monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)


def folder_of(tmp_path, name, factor):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "operator.py").write_text(OPERATOR.format(name=name, factor=factor))
    return folder


@pytest.mark.usefixtures("low_roofs")
class TestCommand:
    """`graft bench` on an operator of one's own."""

    def test_everything_is_written(self, tmp_path):
        folder = folder_of(tmp_path, "bench_right", 2)
        output = tmp_path / "results" / "here"
        result = run(
            folder, "--device", "cpu", "--sample", "many", "--against", "pytorch,reference", "--output", output
        )
        assert result.exit_code == 0, result.output
        assert "bench_command::bench_right  sizes, fp32, contiguous" in result.output
        assert "against reference" in result.output
        assert {path.name for path in output.iterdir()} == {
            "bench.json",
            "bench.html",
            "bench.md",
            "bench-rows.md",
            "bench.svg",
        }
        report = report_from_dict(json.loads((output / "bench.json").read_text()))
        assert [row.sample for row in report.rows] == ["many"]
        assert list(report.rows[0].rivals) == ["pytorch", "reference"]
        assert run("compare", output / "bench.json", output / "bench.json").exit_code == 0

    def test_json_alone_goes_to_standard_output(self, tmp_path):
        folder = folder_of(tmp_path, "bench_json", 2)
        result = run(folder, "--device", "cpu", "--sample", "few", "--dtype", "float64", "--json", "-")
        assert result.exit_code == 0
        assert read_document("bench", result.stdout)["rows"][0]["dtype"] == "float64"

    def test_a_wrong_operator_ends_with_1(self, tmp_path):
        folder = folder_of(tmp_path, "bench_wrong", 2.1)
        result = run(folder, "--device", "cpu", "--sample", "few")
        assert result.exit_code == 1
        assert "the result is wrong" in result.output.replace("\n", " ")

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (["--suite", "none"], "there is no suite 'none'; choose from 'sizes'"),
            (["--sample", "none"], "there is no sample 'none'; choose from 'few', 'many'"),
            (
                ["--against", "nobody"],
                "there is no rival 'nobody'; choose from 'pytorch', 'reference', 'compile', 'cuda_graph'",
            ),
            (["--layout", "upside_down"], "there is no layout 'upside_down'"),
            (["--pass", "sideways"], "there is no pass 'sideways'; choose from 'forward', 'backward'"),
            (["--quick"], "nothing to measure: no benchmark has this combination"),
            (["no_such_operator"], "there is no operator 'no_such_operator'"),
        ],
    )
    def test_mistakes_are_one_line(self, tmp_path, arguments, what):
        name = f"bench_mistake_{len(what)}_{len(arguments[0])}"
        result = run(folder_of(tmp_path, name, 2), "--device", "cpu", *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith(what)
        assert result.stderr.count("\n") == 1

    def test_a_dtype_that_there_is_not(self):
        result = run("mul_constant", "--dtype", "float7")
        assert result.exit_code == 2
        assert "float7" in result.stderr


class TestSubcommands:
    """`graft bench NAME` is short for `graft bench run NAME`; what used to be an option says what became of it."""

    @pytest.mark.parametrize("arguments", [["nobody", "--quick"], ["--quick", "nobody"], ["run", "nobody", "--quick"]])
    def test_run_need_not_be_written(self, arguments):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("there is no operator 'nobody'")

    def test_help_lists_the_subcommands_and_those_of_run(self):
        assert all(word in run("--help").output for word in ("run", "show", "compare", "overhead", "memory"))
        assert "--against" in run("mul_constant", "--help").output

    @pytest.mark.parametrize(
        ("arguments", "successor"),
        [
            ("--compare old.json new.json", "--compare is now `graft bench compare OLD.json NEW.json`"),
            ("--from=old.json --html old.html", "--from is now `graft bench show FILE.json...`"),
            ("--overhead --json -", "--overhead is now `graft bench overhead`"),
            ("lltm --memory", "--memory is now `graft bench memory [OPERATOR]...`"),
            ("run --seconds 3", "--seconds is now `graft bench overhead --seconds SECONDS`"),
        ],
    )
    def test_an_option_that_became_a_subcommand_names_it(self, arguments, successor):
        result = run(*arguments.split())
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{successor}\n")


class TestCompareCommand:
    """`graft bench compare` and `graft bench show`."""

    @pytest.fixture
    def write(self, tmp_path):
        from torchgraft.machine.figures import as_json

        def write(name, *arguments, **keywords):
            path = tmp_path / name
            path.write_text(as_json(make_report(*arguments, **keywords).as_dict()))
            return path

        return write

    def test_within_noise(self, write):
        result = run("compare", write("old.json"), write("new.json"))
        assert result.exit_code == 0
        assert "7 within noise" in result.stdout

    def test_slower(self, write):
        old = write("old.json", [make_row("a"), make_row("b"), make_row("c")])
        new = write("new.json", [make_row("a", 2e-4), make_row("b", 5e-5), make_row("d")])
        result = run("compare", old, new)
        assert result.exit_code == 1
        assert "1 slower, 1 faster" in result.stdout
        assert "200%" in result.stdout
        assert "1 row only in the old run" in result.stdout
        assert "1 row only in the new run" in result.stdout
        assert run("compare", new, old).exit_code == 1

    def test_only_faster(self, write):
        assert (
            run("compare", write("old.json", [make_row()]), write("new.json", [make_row(median=5e-5)])).exit_code == 0
        )

    def test_runs_are_shown_again_and_joined(self, write, tmp_path):
        one = write("one.json", [make_row("a"), make_row("b")])
        two = write("two.json", [make_row("b", 2e-4), make_row("c", suite="awkward")])
        result = run("show", one, two, "--output", tmp_path / "both")
        assert result.exit_code == 0, result.output
        report = report_from_dict(json.loads((tmp_path / "both" / "bench.json").read_text()))
        assert [(row.sample, row.time.median) for row in report.rows] == [("a", 1e-4), ("b", 2e-4), ("c", 1e-4)]
        assert report.seconds == pytest.approx(246.8)
        assert (tmp_path / "both" / "bench.html").exists()
        other = write("other.json", environment=replace(ENVIRONMENT, chip="Another"))
        assert run("show", one, other).exit_code == 2

    def test_of_what_was_measured_some_rows_are_shown(self, tmp_path):
        file = tmp_path / "all.json"
        rows = [make_row(dtype=dtype) for dtype in ("float32", "bfloat16")]
        file.write_text(json.dumps(make_report(rows).as_dict()))
        assert run("show", file, "--dtype", "bfloat16", "--json", tmp_path / "some.json").exit_code == 0
        assert [row["dtype"] for row in json.loads((tmp_path / "some.json").read_text())["rows"]] == ["bfloat16"]
        nothing = run("show", file, "--suite", "none")
        assert nothing.exit_code == 2
        assert "no measured row matches" in nothing.output

    def test_another_chip(self, write):
        other = write("new.json", environment=replace(ENVIRONMENT, chip="Another"))
        result = run("compare", write("old.json"), other)
        assert result.exit_code == 2
        assert "cannot be compared" in result.stderr

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": []}'])
    def test_what_is_no_report(self, write, tmp_path, text):
        (tmp_path / "other.json").write_text(text)
        result = run("compare", write("old.json"), tmp_path / "other.json")
        assert result.exit_code == 2
        assert "is not a report of `graft bench --json`" in result.stderr
        nothing = run("compare", tmp_path / "none.json", tmp_path / "none.json")
        assert nothing.exit_code == 2
        assert nothing.stderr.split() == f"{tmp_path / 'none.json'} cannot be read: No such file or directory".split()


def test_a_missing_template_engine_is_one_line(monkeypatch, tmp_path):
    for name in list(sys.modules):
        if name.startswith("torchgraft.benchmarking.page"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = run("--html", tmp_path / "report.html")
    assert result.exit_code == 3
    assert result.stderr == "jinja2 is not installed: run pip install 'torchgraft[bench]'\n"


def test_a_missing_collection_of_models_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    result = run("--device", "cpu", "convnext_tiny")
    assert result.exit_code == 3
    assert result.stderr == "timm is not installed: run pip install timm\n"


def small_network(dropout=0.0):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Dropout(dropout),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 1000),
    )


class TestModels:
    """A training step before and after graft(model)."""

    @staticmethod
    def variant(make, layout="channels_last"):
        return Variant(Model("small", "torch", "cpu", 2, (3, 16, 16), make), torch.float32, layout, False, CPU)

    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    def test_a_step_is_timed(self, layout):
        row = measure_model(self.variant(small_network, layout), STOPWATCH, ROOFS)
        assert not row.problem
        assert not row.fallbacks
        assert row.rivals["pytorch"].ratio.median > 0
        assert row.key == ("small", "training step", "2,3,16x16 eager", "float32", layout, "training")

    def test_steps_that_differ_are_refused(self):
        row = measure_model(self.variant(lambda: small_network(dropout=0.9)), STOPWATCH, ROOFS)
        assert row.time is None
        assert "of the first step is" in row.problem

    def test_what_cannot_be_trained_is_refused(self):
        row = measure_model(self.variant(lambda: nn.Linear(3, 4)), STOPWATCH, ROOFS)
        assert row.problem.startswith("RuntimeError")

    def test_a_model_without_a_layer_to_graft_says_so(self):
        row = measure_model(self.variant(lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 1000))), STOPWATCH, ROOFS)
        assert row.fallbacks == ("no layer was grafted: see graft_report(model)",)

    def test_the_command_takes_their_names(self, monkeypatch):
        monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)
        small = Model("small", "torch", "cpu", 2, (3, 16, 16), small_network)
        monkeypatch.setitem(models.MODELS, "small", small)
        result = run("small", "--device", "cpu", "--layout", "contiguous", "--quick", "--json", "-")
        assert result.exit_code == 2
        result = run("small", "--device", "cpu", "--quick", "--json", "-")
        assert result.exit_code == 0, result.output
        [row] = json.loads(result.stdout)["rows"]
        assert row["operator"] == "small"
        assert row["floor"] is None

    def test_all_of_a_device_without_names(self):
        pytest.importorskip("transformers")
        planned = models.plan_models([], Wanted(CPU))
        assert {each.operator for each in planned} == {
            name for name, each in models.MODELS.items() if each.device == "cpu"
        }
        assert any(each.quick for each in planned)
        assert {each.suite for each in planned} == {"training step"}


class TestCard:
    """Clock and temperature of a GPU, from a management library that is made up here."""

    @pytest.fixture
    def library(self, monkeypatch):
        class MissingError(Exception):
            pass

        library = types.SimpleNamespace(
            NVMLError=MissingError,
            NVML_CLOCK_SM=1,
            NVML_TEMPERATURE_GPU=0,
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
            nvmlDeviceGetClockInfo=lambda handle, kind: 1980 if handle == "GPU-1234" else 0,
            nvmlDeviceGetTemperature=lambda handle, kind: 41,
        )
        monkeypatch.setitem(sys.modules, "pynvml", library)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))
        return library

    def test_is_read_by_the_uuid_of_the_device(self, library):
        assert read_card(torch.device("cuda")) == (1980, 41)
        assert read_card(CPU) is None

    def test_is_absent_where_the_driver_does_not_tell(self, library):
        def fail():
            raise library.NVMLError

        library.nvmlInit = fail
        assert read_card(torch.device("cuda")) is None

    def test_is_absent_without_the_library(self, library, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert read_card(torch.device("cuda")) is None


def test_a_bar_fits_a_narrow_terminal(twice):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    planned = plan([Subject(twice, candidate(twice).samples)], Wanted(CPU))
    with LiveBench(console, planned) as live:
        live.start("an operator, " + "a long name of a sample, " * 5)
        live.finish(planned[0], make_row())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", shown) if "an operator" in line]
    assert lines
    assert all(len(line) <= 80 for line in lines)
    assert "geometric mean" in shown


class TestMemory:
    def test_what_is_held_is_told_of_each_contender(self, run_memory):
        report = run_memory("--json", "-")
        peaks = {(each["sample"], each["contender"]): each for each in report["peaks"]}
        assert not any(each["problem"] for each in peaks.values())
        rows = [each.sample.name for each in find_subjects(["lltm_cell"])[0].samples.benchmarks[:1]]
        assert list(peaks) == [(row, name) for row in rows for name in ("torchgraft", "pytorch", "nn.LSTMCell")]
        # The gradients of the weights alone are 384 x 160 floats.
        assert all(each["bytes"] > 200_000 for each in peaks.values())


@pytest.fixture
def run_memory(monkeypatch, busy_machine):
    if sys.platform != "linux":
        pytest.skip("only Linux says what is resident")
    [subject] = find_subjects(["lltm_cell"])
    few = Subject(subject.operator, replace(subject.samples, benchmarks=subject.samples.benchmarks[:1]))
    monkeypatch.setattr("torchgraft.checking.subject.find_subjects", lambda targets: [few])

    def run(*arguments):
        result = CliRunner().invoke(app, ["bench", "memory", "lltm_cell", "--device", "cpu", *arguments])
        assert result.exit_code == 0, result.output
        return read_document("bench-memory", result.stdout)

    return run
