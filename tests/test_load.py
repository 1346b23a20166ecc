"""A loaded machine: what other programs do is read, waited for, and told beside the times; no test sleeps."""

import io
import json
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from reports import ENVIRONMENT, ROOFS, make_report, make_row
from torchgraft import Operator
from torchgraft.benchmarking import CalledOperator, cpp_calls, load, measure_overhead, memory, suite
from torchgraft.benchmarking.live import LiveBench, print_report
from torchgraft.benchmarking.load import Load, LoadReading, LoadWatch, others_between, take_reading
from torchgraft.benchmarking.page import render_page
from torchgraft.benchmarking.results import report_from_dict
from torchgraft.benchmarking.rows import RivalResult
from torchgraft.benchmarking.suite import Planned, Wanted
from torchgraft.benchmarking.summary import as_markdown
from torchgraft.benchmarking.timing import Ratio, Stopwatch, Time

CPU = torch.device("cpu")


class Machine:
    """A machine of two processors whose others are made up: so many busy at each look; nobody waits for its clock."""

    def __init__(self, *others):
        self.others = list(others)
        self.now = self.busy = 0.0

    def look(self):
        return LoadReading(self.now, self.busy, own=0.0, load=0.0)

    def sleep(self, seconds):
        self.now += seconds
        self.busy += seconds * (self.others.pop(0) if len(self.others) > 1 else self.others[0])

    def watch(self, patience=30.0, device=CPU):
        return LoadWatch(device, patience, self.look, self.sleep)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(load, "processors", lambda: {0, 1})


class TestReadings:
    """How many processors others keep busy."""

    def test_what_this_process_does_is_not_others(self):
        assert others_between(LoadReading(10, 100, 50, 0), LoadReading(12, 103.5, 51.5, 0)) == 1.0

    def test_ticks_may_make_it_less_than_nothing(self):
        assert others_between(LoadReading(0, 0, 0, 0), LoadReading(1, 0.99, 1.0, 0)) == 0.0

    def test_of_too_short_a_time_nothing_is_said(self):
        assert others_between(LoadReading(0, 0, 0, 0), LoadReading(0.05, 0.1, 0, 0)) is None

    def test_where_processors_are_not_counted_the_load_average_stands_for_them(self):
        assert others_between(LoadReading(0, math.nan, 0, 3.0), LoadReading(1, math.nan, 1, 3.0)) == 2.0

    def test_work_of_other_processors_does_not_count_and_that_of_other_virtual_machines_does(
        self, tmp_path, monkeypatch
    ):
        (tmp_path / "stat").write_text(
            "cpu  1 1 1 1 1 1 1 1 1 1\n"
            "cpu0 100 20 30 9999 8888 4 5 6 77 77\n"
            "cpu1 1000 200 300 9999 8888 40 50 60 77 77\n"
            "cpu2 55555 55555 55555 55555 55555 55555 55555 55555 0 0\n"
            "intr 12345\n"
        )
        monkeypatch.setattr(load, "_STATE", tmp_path / "stat")
        monkeypatch.setattr(load.os, "sysconf", lambda name: 100)
        assert take_reading().busy == pytest.approx(1.65 + 16.5)
        monkeypatch.setattr(load, "_STATE", tmp_path / "none")
        assert math.isnan(take_reading().busy)

    def test_this_machine_can_be_read(self):
        reading = take_reading()
        assert reading.own > 0
        assert reading.load >= 0


class TestWait:
    """A run waits for others, and not for ever."""

    def test_a_quiet_machine_is_asked_once(self):
        told = []
        watch = Machine(0.1).watch()
        assert watch.wait(told.append)
        assert not told
        assert watch.load.waited == 0

    def test_it_waits_until_others_have_ended_and_says_why(self):
        told = []
        watch = Machine(1.4, 1.0, 0.0).watch()
        assert watch.wait(told.append)
        assert told == [
            "waiting, 30 s at most: other programs keep 1.4 of 2 processors busy",
            "waiting, 30 s at most: other programs keep 1.0 of 2 processors busy",
        ]
        assert watch.load.waited == 1.0

    def test_patience_is_that_of_the_whole_run(self):
        machine = Machine(2.0)
        watch = machine.watch(patience=3.0)
        assert not watch.wait(lambda why: None)
        assert (machine.now, watch.load.waited) == (3.0, 3.0)
        assert not watch.wait(lambda why: None)
        assert machine.now == 3.0

    def test_without_patience_nobody_looks(self):
        machine = Machine(2.0)
        assert not machine.watch(patience=0).wait(pytest.fail)
        assert machine.now == 0

    @pytest.mark.parametrize(
        ("device", "others", "quiet"), [("cpu", 0.3, False), ("cuda", 0.9, True), ("cuda", 1.1, False)]
    )
    def test_a_gpu_needs_one_free_processor_and_a_cpu_nearly_all(self, device, others, quiet):
        assert Machine(others).watch(1.0, torch.device(device)).wait(lambda why: None) == quiet

    def test_without_a_terminal_it_is_told_once_a_wait(self):
        stream = io.StringIO()
        live = LiveBench(Console(file=stream, width=100), [])
        for why in ("busy", "still busy"):
            live.wait(why)
        live.start("a row")
        live.wait("again")
        assert stream.getvalue() == "busy\nagain\n"

    @pytest.mark.parametrize(("wanted", "patience"), [({}, 30), ({"quick": True}, 5), ({"patience": 2.0}, 2)])
    def test_how_long(self, wanted, patience):
        assert Wanted(CPU, **wanted).asked_patience == patience


class TestRun:
    """Before and during the timing of each row."""

    @pytest.fixture
    def measure(self, monkeypatch):
        monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: ROOFS)

        def measure(machine, *others, patience=30.0):
            """A run of one row, beside which so many processors are busy each time that it is measured."""
            rows = iter([make_row(others=each) for each in others])
            row = Planned(
                "twice", "sizes", "small", torch.float32, (), "", False, lambda *_: next(rows), lambda *_: None
            )
            return suite.run([row], Wanted(CPU), watch=machine.watch(patience))

        return measure

    def test_a_row_beside_which_others_worked_is_measured_again_when_they_have_ended(self, measure):
        report = measure(Machine(0.0, 1.0, 0.0), 1.2, 0.0)
        assert [row.others for row in report.rows] == [0.0]
        assert report.load == Load(2, 0.2, waited=0.5)
        assert not report.doubts

    def test_where_they_do_not_end_the_row_stands_and_the_run_says_so(self, measure):
        report = measure(Machine(1.5), 1.2, patience=2.0)
        assert report.doubts == [
            "1 row was timed while other programs kept up to 1.2 of 2 processors busy, although the run had waited 2 s "
            "for them. Run it again when they have ended."
        ]

    def test_what_others_did_is_part_of_a_timing(self):
        machine = Machine(1.5)
        stopwatch = Stopwatch(CPU, 0.01, machine.look)
        timing = stopwatch.time({"call": lambda: machine.sleep(0.1)})["call"]
        assert timing.others == pytest.approx(1.5)


def on_cpu(rows, **changes):
    return make_report(rows, environment=replace(ENVIRONMENT, device="cpu"), **changes)


def sizes(*times, floors=(1e-3, 2e-3, 4e-3, 8e-3), rival=None):
    """Rows of growing sizes with these times, in milliseconds; those of a rival may be others."""
    rows = []
    for number, (time, floor) in enumerate(zip(times, floors, strict=False)):
        other = (rival[number] if rival else 2 * time) * 1e-3
        result = RivalResult(Time(other, other, other), Ratio(2.0, 2.0, 2.0), "")
        own = Time(time * 1e-3, time * 1e-3, time * 1e-3)
        rows.append(make_row(f"size {number}", time=own, floor=floor, rivals={"pytorch": result}))
    return rows


class TestSlices:
    """Times of different sizes that are alike are slices of a scheduler."""

    def test_four_sizes_that_take_twelve_milliseconds(self):
        [said] = on_cpu(sizes(2.0, 4.1, 8.0, 16.2, rival=(12.6, 12.0, 12.8, 12.0))).doubts
        assert said.startswith(
            "twice, float32, forward: pytorch took 12.0 to 12.8 ms in each of 4 rows, although one is 8.0 times as "
            "much work as another."
        )

    def test_ours_are_asked_too(self):
        [said] = on_cpu(sizes(12.6, 12.0, 12.8, 12.0, rival=(2, 4, 8, 16))).doubts
        assert "our kernel took 12.0 to 12.8 ms" in said

    @pytest.mark.parametrize(
        "rows",
        [
            sizes(2.0, 4.1, 8.0, 16.2),
            # As much work.
            sizes(12.6, 12.0, 12.8, 12.0, floors=[1e-3, 1.1e-3, 1.2e-3, 1.3e-3]),
            # Launches take as long as each other.
            sizes(0.0126, 0.012, 0.0128, 0.012, floors=[1e-7, 2e-7, 4e-7, 8e-7]),
            # Two of a kind are chance.
            sizes(12.6, 12.0),
            [*sizes(12.6, 12.0), *sizes(30, 50, 70, 90)],
            # A model has no floor.
            sizes(12.6, 12.0, 12.8, 12.0, floors=[math.nan] * 4),
            # What has less to read and no less to compute.
            [
                replace(row, dtype=name)
                for row, name in zip(sizes(12, 12, 12), ("float64", "float32", "float16"), strict=True)
            ],
        ],
    )
    def test_others_are_not(self, rows):
        assert not on_cpu(rows).doubts

    def test_on_a_gpu_the_device_keeps_its_own_time(self):
        assert not make_report(sizes(12.6, 12.0, 12.8, 12.0)).doubts


def test_noise_beside_other_programs_is_not_told_twice():
    noisy = make_row(time=Time(1.0, 0.8, 1.4), others=1.7)
    [said] = on_cpu([noisy], load=Load(2, 0.2)).doubts
    assert "other programs" in said


class TestTold:
    """A loaded machine is told in the terminal, in JSON, in markdown and on the page."""

    @pytest.fixture
    def report(self):
        return on_cpu([make_row(others=1.7), make_row("other", others=0.0)], load=Load(2, 0.2))

    def test_everywhere(self, report):
        [said] = report.doubts
        assert said.startswith("1 row was timed while other programs kept up to 1.7 of 2 processors busy.")
        assert json.loads(report.as_json())["doubts"] == [said]
        assert said in as_markdown(report)
        assert said in render_page(report)
        console = Console(file=io.StringIO(), width=1000)
        print_report(console, report)
        assert said in console.file.getvalue()

    def test_it_outlives_json(self, report):
        assert report_from_dict(json.loads(report.as_json())) == report

    def test_a_report_from_before_says_nothing(self, report):
        figures = json.loads(report.as_json())
        del figures["load"]
        assert not report_from_dict(figures).doubts


@pytest.mark.parametrize(("noisy", "said"), [(1, False), (2, True)])
def test_of_a_few_noisy_rows_nothing_is_said(noisy, said):
    rows = [make_row(str(number)) for number in range(10)]
    rows[:noisy] = [replace(row, time=Time(1.0, 0.8, 1.4)) for row in rows[:noisy]]
    assert bool(make_report(rows).doubts) == said


class Busy(Machine):
    """A machine on which each look takes a second."""

    def look(self):
        self.sleep(1.0)
        return super().look()


class TestFigures:
    """The cost of calls and the memory that they take are measured and told likewise."""

    @pytest.mark.parametrize(("others", "told"), [((1.7,), True), ((*[1.7] * 40, 0.0), False), ((0.0,), False)])
    def test_the_quietest_round_of_calls_decides(self, others, told):
        machine, waited = Busy(*others), []
        subject = CalledOperator("twice", Operator.registered["torchgraft::mul_constant"], (torch.ones(8), 2.0))
        found = measure_overhead([subject], 0.05, on_wait=waited.append, watch=machine.watch(patience=3.0))
        said = "These calls were timed while other programs kept up to 1.7 of 2 processors busy, although the run had"
        notes = found.tables()[0].notes
        assert any(note.startswith(f"{said} waited 3 s for them. Run it") for note in notes) == told
        assert bool(waited) == (others[0] > 0)
        assert found.as_dict()["load"]["others"] == pytest.approx(1.7 if told else 0.0)

    @pytest.mark.parametrize("others", [1.7, 0.0])
    def test_calls_from_cpp_are_told_likewise(self, others, monkeypatch):
        machine, waited = Busy(others), []
        monkeypatch.setattr(cpp_calls, "_in_cpp", lambda subjects, seconds: {each.name: 0.4 for each in subjects})
        subject = CalledOperator("twice", Operator.registered["torchgraft::mul_constant"], (torch.ones(8), 2.0))
        found = cpp_calls.measure_cpp_calls([subject], 0.05, waited.append, machine.watch(patience=3.0))
        said = "These calls were timed while other programs kept up to 1.7 of 2 processors busy, although the run had"
        assert any(note.startswith(said) for note in found.tables()[0].notes) == bool(others) == bool(waited)
        assert found.as_dict()["load"]["others"] == pytest.approx(others)

    @pytest.mark.parametrize("others", [1.7, 0.0])
    def test_memory_waits_before_it_begins(self, others, monkeypatch):
        machine, told = Machine(others), []
        monkeypatch.setattr(memory, "LoadWatch", lambda device, patience: machine.watch(patience))
        found = memory.measure_memory([], CPU, torch.float32, told.append)
        said = "The measurement began while other programs kept up to 1.7 of 2 processors busy"
        assert any(note.startswith(said) for note in found.tables()[0].notes) == bool(others)
        assert any(why.startswith("waiting, 30 s at most") for why in told) == bool(others)
        assert found.as_dict()["load"]["waited"] == (30.0 if others else 0.0)
