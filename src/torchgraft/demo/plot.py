"""The loss curves of a comparison as a picture."""

from pathlib import Path

from matplotlib.figure import Figure

from torchgraft.demo.comparison import GRAFTED, ORIGINAL, Comparison

_ORIGINAL_COLOR = "#f2a65a"
_GRAFTED_COLOR = "#1b4965"


def save_plot(comparison: Comparison, path: Path) -> None:
    """Writes a PNG: both loss curves above, the difference between them below."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    losses, differences = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    steps = range(1, len(comparison.differences) + 1)

    # Wide below narrow: where the curves are the same, both are still seen.
    original, grafted, times = comparison.original, comparison.grafted, comparison.step_times[0]
    losses.plot(steps, original.losses, color=_ORIGINAL_COLOR, linewidth=4, label=ORIGINAL)
    losses.plot(steps, grafted.losses, color=_GRAFTED_COLOR, linewidth=1, label=GRAFTED)
    losses.set_yscale("log")
    losses.set_ylabel("cross-entropy of a batch")
    losses.legend(frameon=False, fontsize=11)
    losses.set_title(f"{comparison.experiment.title}, before and after graft(model)\n", fontsize=13, loc="left")
    facts = f"test accuracy {original.accuracy:.1%} and {grafted.accuracy:.1%}"
    if times.trusted:
        facts += f", a step in {times.original:.1f} and {times.grafted:.1f} ms ({times.layout})"
    losses.text(0, 1.02, facts, transform=losses.transAxes, fontsize=10, color="#555555")
    machine = f"{comparison.environment.chip}, PyTorch {comparison.environment.torch}"
    figure.supxlabel(machine, x=0.99, ha="right", fontsize=8, color="#777777")

    # A difference of exactly zero has no place on a logarithmic axis.
    visible = [difference or float("nan") for difference in comparison.differences]
    differences.plot(steps, visible, ".", color=_GRAFTED_COLOR, markersize=3)
    differences.axhline(comparison.experiment.tolerance, color="#999999", linestyle="--", linewidth=1)
    differences.annotate(
        "tolerance; where there is no dot, both losses are the same to the last bit",
        (1, comparison.experiment.tolerance),
        xytext=(0, -11),
        textcoords="offset points",
        color="#777777",
        fontsize=9,
    )
    differences.set_yscale("log")
    differences.set_ylabel("difference of the two")
    differences.set_xlabel("training step")
    for axes in (losses, differences):
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=150)
