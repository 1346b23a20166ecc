"""The loss curves of comparisons as a picture."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchgraft.demo.comparison import Comparison

_RIVAL_COLOR = "#f2a65a"
_OUR_COLOR = "#1b4965"


def draw_plot(comparisons: Sequence[Comparison]) -> bytes:
    """A PNG: of each comparison both loss curves, and where they should be the same their difference below."""
    heights = [6.0 if each.experiment.tolerance is not None else 4.2 for each in comparisons]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(comparisons), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, comparison in zip(parts, comparisons, strict=True):
        if comparison.experiment.tolerance is None:
            all_axes = [part.subplots()]
        else:
            all_axes = list(part.subplots(2, 1, sharex=True, height_ratios=(2.2, 1)))
            _draw_differences(all_axes[1], comparison, comparison.experiment.tolerance)
        _draw_losses(all_axes[0], comparison)
        all_axes[-1].set_xlabel("training step")
        for axes in all_axes:
            axes.set_yscale("log")
            axes.grid(color="#e5e5e5", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
    machine = f"{comparisons[0].environment.chip}, PyTorch {comparisons[0].environment.torch}"
    parts[-1].supxlabel(machine, x=0.99, ha="right", fontsize=8, color="#777777")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()


def _draw_losses(axes: Axes, comparison: Comparison) -> None:
    experiment, rival, ours, times = (
        comparison.experiment,
        comparison.rival,
        comparison.ours,
        comparison.step_times[0],
    )
    steps = range(1, len(rival.losses) + 1)
    # Wide below narrow: where the curves are the same, both are still seen.
    axes.plot(steps, rival.losses, color=_RIVAL_COLOR, linewidth=4, label=experiment.rival.name)
    axes.plot(steps, ours.losses, color=_OUR_COLOR, linewidth=1, label=experiment.ours.name)
    axes.set_ylabel("cross-entropy of a batch")
    axes.legend(frameon=False, fontsize=11)
    axes.set_title(f"{experiment.title}\n", fontsize=13, loc="left")
    facts = f"test accuracy {rival.accuracy:.1%} and {ours.accuracy:.1%}"
    if times.trusted:
        facts += f", a step in {times.rival:.1f} and {times.ours:.1f} ms ({times.layout})"
    axes.text(0, 1.02, facts, transform=axes.transAxes, fontsize=10, color="#555555")


def _draw_differences(axes: Axes, comparison: Comparison, tolerance: float) -> None:
    # A difference of exactly zero has no place on a logarithmic axis.
    visible = [difference or float("nan") for difference in comparison.differences]
    axes.plot(range(1, len(visible) + 1), visible, ".", color=_OUR_COLOR, markersize=3)
    axes.axhline(tolerance, color="#999999", linestyle="--", linewidth=1)
    axes.annotate(
        "tolerance; where there is no dot, both losses are the same to the last bit",
        (1, tolerance),
        xytext=(0, -11),
        textcoords="offset points",
        color="#777777",
        fontsize=9,
    )
    axes.set_ylabel("difference of the two")
