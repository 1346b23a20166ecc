"""The demo on a few digits: what it measures, when it fails, and what it writes."""

import dataclasses
import json
import math

import pytest
import torch
from typer.testing import CliRunner

import torchgraft.demo
from documents import read_document
from torchgraft.cli import app
from torchgraft.demo import PARTS, compare
from torchgraft.demo.data import CHARACTERS, Data, digits, documentation
from torchgraft.demo.parts.convnext import CONVNEXT
from torchgraft.demo.report import as_dict, make_table, make_verdict

PNG = b"\x89PNG\r\n\x1a\n"


def few_digits():
    data = digits()
    inputs = [each[:64, :, ::2, ::2] for each in (data.train_inputs, data.test_inputs)]
    return Data(inputs[0], data.train_targets[:64], inputs[1], data.test_targets[:64])


def small(part, **changes):
    defaults = {"epochs": 1, "batch_size": 16, "least_accuracy": 0.0, "timing_seconds": 0.1}
    return dataclasses.replace(
        part, **defaults | {"load": lambda: Data(*(each[:64] for each in part.load()))} | changes
    )


FEW = small(CONVNEXT, title="Few digits", load=few_digits)


class Recorder:
    def __init__(self):
        self.steps, self.shares = [], []

    def training(self, run, progress):
        self.steps.append((run, progress.step, progress.steps))

    def timing(self, share):
        self.shares.append(share)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    # On a busy machine threads wait for each other far longer than such small layers take.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def comparison():
    return compare(FEW, torch.device("cpu"), Recorder())


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments, **changes):
        monkeypatch.setattr(torchgraft.demo, "PARTS", (dataclasses.replace(FEW, **changes),))
        return CliRunner().invoke(app, ["demo", "--device", "cpu", *map(str, arguments)], catch_exceptions=False)

    return invoke


def changed(comparison, **changes):
    return dataclasses.replace(comparison, ours=dataclasses.replace(comparison.ours, **changes))


def test_the_digits_are_all_there_and_the_split_is_fixed():
    data, again = digits(), digits()
    assert data.train_inputs.shape == (1437, 1, 32, 32)
    assert data.test_inputs.shape == (360, 1, 32, 32)
    assert sorted(data.test_targets.unique().tolist()) == list(range(10))
    assert all(torch.equal(a, b) for a, b in zip(data, again, strict=True))


def test_the_network_has_no_operator_of_ours_until_it_is_grafted():
    model = CONVNEXT.rival.build()
    assert all(type(module).__module__.startswith(("torch.nn", "torchgraft.demo")) for module in model.modules())
    assert len(torchgraft.graft_report(model).graftable) == 4


def test_both_runs_learn_the_same(comparison):
    assert comparison.problems == ()
    assert len(comparison.rival.losses) == len(comparison.ours.losses) == 4
    assert comparison.description == "4 of 14 convolutions are depthwise and were grafted."
    assert max(comparison.differences) <= 1e-5
    assert comparison.first_epoch_difference == max(comparison.differences)


def test_the_same_seed_gives_the_same_curve_and_another_does_not(comparison):
    watch, random_state = Recorder(), torch.get_rng_state()
    again = compare(FEW, torch.device("cpu"), watch)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert again.rival.losses == comparison.rival.losses
    assert again.ours.losses == comparison.ours.losses
    assert [step for run, *step in watch.steps if run == "PyTorch"] == [[1, 4], [2, 4], [3, 4], [4, 4]]
    assert watch.shares[-1] == 1.0
    other = compare(FEW, torch.device("cpu"), watch, epochs=2, seed=1)
    assert len(other.rival.losses) == 8
    assert other.rival.losses[0] != comparison.rival.losses[0]


def test_steps_are_timed_in_both_layouts(comparison):
    assert [times.layout for times in comparison.step_times] == ["contiguous", "channels_last"]
    for times in comparison.step_times:
        assert min(times.rival, times.ours, times.without) > 0
        assert all(0 <= share < 1 for share in times.shares)
        assert times.speedup == times.rival / times.ours


@pytest.mark.parametrize("loss", [3.0, math.nan, math.inf])
def test_a_curve_that_goes_elsewhere_is_a_problem(comparison, loss):
    apart = changed(comparison, losses=(*comparison.ours.losses[:-1], loss))
    assert len(apart.problems) == 1
    assert f"the loss curves differ by {abs(loss - comparison.rival.losses[-1]):.2g}," in apart.problems[0]
    assert "Failed: the loss curves differ" in make_verdict(apart)
    assert as_dict([comparison, apart])["passed"] is False


@pytest.mark.parametrize("accuracy", [-0.1, math.nan])
def test_a_network_that_learnt_too_little_is_a_problem(comparison, accuracy):
    (problem,) = changed(comparison, accuracy=accuracy).problems
    assert problem.startswith("torchgraft gets")


def test_times_that_do_not_agree_are_not_to_be_trusted(comparison):
    steady, noisy = (dataclasses.replace(comparison.step_times[0], spread=spread) for spread in (0.25, 0.5))
    assert (steady.trusted, noisy.trusted) == (True, False)
    table = make_table(dataclasses.replace(comparison, step_times=(steady, noisy)))
    assert sum("are not reliable" in note and "50% apart" in note for note in table.notes) == 1


def test_what_ran_on_a_reference_is_said(comparison):
    fallback = torchgraft.Fallback("torchgraft::mul_constant", "cpu", "float32", "it is late", 3)
    missing = dataclasses.replace(comparison, fallbacks=(fallback,))
    assert "torchgraft::mul_constant ran on its reference, not on a kernel: it is late" in make_table(missing).notes
    assert as_dict([missing])["parts"][0]["fallbacks"][0]["reason"] == "it is late"


def test_the_command_writes_what_it_is_asked_for(run, tmp_path):
    result = run("--output", "out")
    assert result.exit_code == 0
    assert "test accuracy" in result.stdout
    assert "Passed" in result.stdout
    assert "\x1b" not in result.stdout
    assert (tmp_path / "out/demo.png").read_bytes().startswith(PNG)

    figures = json.loads((tmp_path / "out/demo.json").read_text())
    assert figures["passed"] is True
    (part,) = figures["parts"]
    assert part["steps"] == 4
    assert [(each["name"], len(each["losses"])) for each in part["networks"]] == [("PyTorch", 4), ("torchgraft", 4)]
    assert set(part["environment"]) == {
        *("date", "device", "chip", "threads", "torchgraft", "torch", "python", "platform", "driver")
    }
    assert part["environment"]["torch"] == torch.__version__
    assert [times["layout"] for times in part["step_milliseconds_in_turn"]] == ["contiguous", "channels_last"]

    markdown = (tmp_path / "out/demo.md").read_text()
    assert markdown.startswith("### Few digits\n\n|  | PyTorch | torchgraft | compared |\n| --- | ---: |")
    assert torch.__version__ in markdown


def test_json_on_standard_output_is_alone_there(run, tmp_path):
    result = run("--json", "-", "--seed", 3, "--plot", "deep/curve.png")
    figures = read_document("demo", result.stdout)
    assert figures["parts"][0]["seed"] == 3
    assert "test accuracy" in result.stderr
    assert "Loss curves: deep/curve.png" in result.stderr
    assert (tmp_path / "deep/curve.png").read_bytes().startswith(PNG)


def test_a_training_that_diverges_fails_and_is_still_written(run):
    result = run("--json", "-", learning_rate=1e30)
    assert result.exit_code == 1
    assert "the loss curves differ by nan" in result.stderr
    assert None in read_document("demo", result.stdout)["parts"][0]["networks"][0]["losses"]


def test_too_little_accuracy_exits_with_one(run, tmp_path):
    result = run(least_accuracy=0.97)
    assert result.exit_code == 1
    assert "Failed: PyTorch gets" in result.stdout
    assert (tmp_path / "torchgraft-demo.png").exists()


def test_parts_are_chosen_by_name_and_a_wrong_name_is_told_the_right_ones(run):
    assert run("convnext", "--json", "-").exit_code == 0
    wrong = run("perceptron")
    assert wrong.exit_code == 2
    told = " ".join(wrong.stderr.replace("│", " ").split())
    assert "there is no part 'perceptron'; the parts are convnext" in told


def test_networks_that_are_not_the_same_function_need_not_learn_the_same(comparison):
    free = dataclasses.replace(comparison.experiment, tolerance=None)
    apart = dataclasses.replace(changed(comparison, losses=(3.0,) * 4), experiment=free)
    assert apart.problems == ()
    assert "differ" not in make_verdict(apart)
    assert not any("largest difference" in row[0] for row in make_table(apart).rows)


@pytest.mark.parametrize("part", PARTS[1:], ids=lambda part: part.name)
def test_every_other_part_passes_on_a_little_of_its_data(part):
    def few():
        return Data(*(each[:64] for each in part.load()))

    comparison = compare(dataclasses.replace(small(part), load=few), torch.device("cpu"), Recorder())
    assert comparison.problems == ()
    assert comparison.fallbacks == ()


def test_every_character_of_a_text_is_asked_for_the_next_and_no_piece_is_in_both_sets():
    data = documentation()
    for inputs, targets in ((data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)):
        assert inputs.shape == targets.shape
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert 0 <= min(inputs.min(), targets.min()) <= max(inputs.max(), targets.max()) < CHARACTERS
    assert len(data.test_inputs) == (len(data.train_inputs) + len(data.test_inputs)) // 10
    assert all(torch.equal(one, other) for one, other in zip(data, documentation(), strict=True))
