"""The result of a comparison, for a person and for a machine to read."""

from dataclasses import asdict
from typing import Any

from torchgraft.benchmarking.table import Table
from torchgraft.demo.comparison import GRAFTED, ORIGINAL, Comparison
from torchgraft.demo.timing import StepTime
from torchgraft.demo.training import Curve


def make_table(comparison: Comparison) -> Table:
    """The figures of a comparison, PyTorch's beside torchgraft's."""
    original, grafted = comparison.original, comparison.grafted
    rows = [
        ["test accuracy", f"{original.accuracy:.1%}", f"{grafted.accuracy:.1%}", ""],
        ["loss of the last step", f"{original.losses[-1]:.5f}", f"{grafted.losses[-1]:.5f}", ""],
        ["largest difference of the losses, first epoch", "", "", f"{comparison.first_epoch_difference:.1e}"],
        ["largest difference of the losses, all epochs", "", "", f"{comparison.largest_difference:.1e}"],
        # No ratio: the machine can have been busy in one of the runs.
        [
            "a training step, each in its run",
            *(f"{curve.step_milliseconds:.1f} ms" for curve in (original, grafted)),
            "",
        ],
    ]
    rows += [_times_row(times) for times in comparison.step_times]
    rows += [_shares_row(times) for times in comparison.step_times]
    convolutions = len(comparison.grafted_layers) + len(comparison.left_layers)
    notes = [
        f"{len(comparison.grafted_layers)} of {convolutions} convolutions are depthwise and were grafted; "
        f"{comparison.parameters:,} parameters, {comparison.epochs} epochs of batches of "
        f"{comparison.experiment.batch_size}, {len(original.losses)} steps, seed {comparison.seed}. "
        "Times are medians.",
        *(f"{each.operator} ran on its reference, not on a kernel: {each.reason}" for each in comparison.fallbacks),
        *(_spread_note(times) for times in comparison.step_times if not times.trusted),
        str(comparison.environment),
    ]
    return Table(comparison.experiment.title, ["", ORIGINAL, GRAFTED, "compared"], rows, notes)


def make_verdict(comparison: Comparison) -> str:
    """One sentence: whether both networks learnt the same."""
    if comparison.problems:
        return f"Failed: {'; '.join(comparison.problems)}."
    return (
        f"Passed: the loss curves differ by at most {comparison.largest_difference:.1e} "
        f"(tolerance {comparison.experiment.tolerance:g}), and both networks get at least "
        f"{comparison.experiment.least_accuracy:.0%} of the test data right."
    )


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """All figures of a comparison."""
    experiment = comparison.experiment
    return {
        "title": experiment.title,
        "environment": asdict(comparison.environment),
        "epochs": comparison.epochs,
        "batch_size": experiment.batch_size,
        "learning_rate": experiment.learning_rate,
        "seed": comparison.seed,
        "steps": len(comparison.original.losses),
        "parameters": comparison.parameters,
        "layers": {"grafted": list(comparison.grafted_layers), "left": list(comparison.left_layers)},
        "original": _curve_as_dict(comparison.original),
        "grafted": _curve_as_dict(comparison.grafted),
        "largest_difference": comparison.largest_difference,
        "largest_difference_first_epoch": comparison.first_epoch_difference,
        "tolerance": experiment.tolerance,
        "least_accuracy": experiment.least_accuracy,
        "step_milliseconds_in_turn": [
            asdict(times)
            | {"speedup": times.speedup, "trusted": times.trusted, "grafted_share_of_original": times.share}
            for times in comparison.step_times
        ],
        "fallbacks": [each._asdict() for each in comparison.fallbacks],
        "problems": list(comparison.problems),
        "passed": not comparison.problems,
    }


def _curve_as_dict(curve: Curve) -> dict[str, Any]:
    return {
        "accuracy": curve.accuracy,
        "step_milliseconds": curve.step_milliseconds,
        "losses": list(curve.losses),
    }


def _times_row(times: StepTime) -> list[str]:
    name = f"a training step, both in turn, {times.layout}"
    return [name, f"{times.original:.1f} ms", f"{times.grafted:.1f} ms", f"{times.speedup:.2f} times as fast"]


def _shares_row(times: StepTime) -> list[str]:
    shares = (max(0.0, 1 - times.without / each) for each in (times.original, times.grafted))
    return [f"of which in grafted layers, {times.layout}", *(f"{share:.0%}" for share in shares), ""]


def _spread_note(times: StepTime) -> str:
    return (
        f"Do not trust the times in turn, {times.layout}: their quartiles are {times.spread:.0%} apart. "
        "The machine was busy; run the demo again."
    )
