"""The results of comparisons, for a person and for a machine to read."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchgraft.benchmarking.table import Table
from torchgraft.demo.comparison import Comparison
from torchgraft.demo.timing import StepTime


def make_table(comparison: Comparison) -> Table:
    """The figures of a comparison, the rival's beside ours."""
    experiment, rival, ours = comparison.experiment, comparison.rival, comparison.ours
    rows = [
        ["test accuracy", f"{rival.accuracy:.1%}", f"{ours.accuracy:.1%}", ""],
        ["loss of the last step", f"{rival.losses[-1]:.5f}", f"{ours.losses[-1]:.5f}", ""],
    ]
    if experiment.tolerance is not None:
        rows += [
            ["largest difference of the losses, first epoch", "", "", f"{comparison.first_epoch_difference:.1e}"],
            ["largest difference of the losses, all epochs", "", "", f"{comparison.largest_difference:.1e}"],
        ]
    # No ratio: the machine can have been busy in one of the runs.
    in_its_run = (f"{curve.step_milliseconds:.1f} ms" for curve in (rival, ours))
    rows.append(["a training step, each in its run", *in_its_run, ""])
    rows += [_times_row(times) for times in comparison.step_times]
    rows += [_shares_row(times, times.shares) for times in comparison.step_times if times.shares is not None]
    counts = " and ".join(f"{count:,}" for count in dict.fromkeys(comparison.parameters))
    sentence = (
        f"{counts} parameters, {comparison.epochs} epochs of batches of {experiment.batch_size}, {len(rival.losses)} "
        f"steps, seed {comparison.seed}. Times are medians."
    )
    notes = [
        " ".join(filter(None, (comparison.description, sentence))),
        *(f"{each.operator} ran on its reference, not on a kernel: {each.reason}" for each in comparison.fallbacks),
        *(_spread_note(times) for times in comparison.step_times if not times.trusted),
        str(comparison.environment),
    ]
    return Table(experiment.title, ["", experiment.rival.name, experiment.ours.name, "compared"], rows, notes)


def make_verdict(comparison: Comparison) -> str:
    """One sentence: whether both networks learnt what they should."""
    if comparison.problems:
        return f"Failed: {'; '.join(comparison.problems)}."
    learnt = f"both networks get at least {comparison.experiment.least_accuracy:.0%} of the test data right"
    if comparison.experiment.tolerance is None:
        return f"Passed: {learnt}."
    return (
        f"Passed: the loss curves differ by at most {comparison.largest_difference:.1e} "
        f"(tolerance {comparison.experiment.tolerance:g}), and {learnt}."
    )


def as_dict(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All figures of comparisons."""
    return {
        "parts": [_comparison_as_dict(each) for each in comparisons],
        "passed": not any(each.problems for each in comparisons),
    }


def _comparison_as_dict(comparison: Comparison) -> dict[str, Any]:
    experiment = comparison.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "environment": asdict(comparison.environment),
        "provenance": asdict(comparison.provenance),
        "epochs": comparison.epochs,
        "batch_size": experiment.batch_size,
        "learning_rate": experiment.learning_rate,
        "seed": comparison.seed,
        "steps": len(comparison.rival.losses),
        "description": comparison.description,
        "networks": [
            {
                "name": network.name,
                "parameters": parameters,
                "accuracy": curve.accuracy,
                "step_milliseconds": curve.step_milliseconds,
                "losses": list(curve.losses),
            }
            for network, parameters, curve in zip(
                (experiment.rival, experiment.ours),
                comparison.parameters,
                (comparison.rival, comparison.ours),
                strict=True,
            )
        ],
        "largest_difference": comparison.largest_difference,
        "largest_difference_first_epoch": comparison.first_epoch_difference,
        "tolerance": experiment.tolerance,
        "least_accuracy": experiment.least_accuracy,
        "step_milliseconds_in_turn": [
            asdict(times) | {"speedup": times.speedup, "trusted": times.trusted, "shares": times.shares}
            for times in comparison.step_times
        ],
        "fallbacks": [each._asdict() for each in comparison.fallbacks],
        "problems": list(comparison.problems),
        "passed": not comparison.problems,
    }


def _times_row(times: StepTime) -> list[str]:
    name = f"a training step, both in turn, {times.layout}"
    return [name, f"{times.rival:.1f} ms", f"{times.ours:.1f} ms", f"{times.speedup:.2f} times as fast"]


def _shares_row(times: StepTime, shares: tuple[float, float]) -> list[str]:
    return [f"of which in the layers that differ, {times.layout}", *(f"{share:.0%}" for share in shares), ""]


def _spread_note(times: StepTime) -> str:
    return (
        f"The times of steps in turn, {times.layout}, are not reliable: their quartiles are {times.spread:.0%} apart, "
        "because other programs kept the machine busy. Run the demo again when they have ended."
    )
