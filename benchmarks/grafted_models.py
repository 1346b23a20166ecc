"""Times training steps of thirty models of timm: PyTorch's, and grafted with and without an example batch.

Each model is timed in turn with its copies, one of which is PyTorch's again: what that one differs by is noise. A step
is a forward pass, a backward pass and new weights, by the host's clock, launches included. A run that is stopped keeps
what it came to, and the next goes on from there; parts that several GPUs measured become one file by `--join`.

    python benchmarks/grafted_models.py benchmarks/results/h200/grafted_models.json --device cuda --batch 64
    python benchmarks/grafted_models.py benchmarks/results/cpu/grafted_models.json --batch 2 --dtype float32
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import nn

from torchgraft import graft, graft_report
from torchgraft.machine.environment import describe_environment
from torchgraft.machine.figures import as_json

# Of many families and years; levit_conv_128s and coatnet_0_rw_224 have few depthwise layers or none.
MODELS = (
    "coatnet_0_rw_224",
    "convnext_atto",
    "convnext_tiny",
    "convnextv2_nano",
    "davit_tiny",
    "edgenext_small",
    "efficientnet_b0",
    "efficientnet_lite0",
    "fastvit_t8",
    "ghostnet_100",
    "inception_next_tiny",
    "lcnet_100",
    "levit_conv_128s",
    "mambaout_tiny",
    "mixnet_s",
    "mnasnet_100",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "mobilenetv4_conv_medium",
    "mobilenetv4_conv_small",
    "mobileone_s0",
    "mobilevitv2_100",
    "pvt_v2_b0",
    "repghostnet_100",
    "repvit_m1",
    "rexnet_100",
    "starnet_s1",
    "tf_efficientnetv2_b0",
    "tiny_vit_5m_224",
    "xception41",
)
_SIZE = 224
_CLASSES = 100
# A way is timed this often, for about this many seconds each time.
_ROUNDS = 11
_SECONDS = 0.1
_LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def _stepper(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """Makes the function that trains a model for one step."""
    # Small: the time of a step does not depend on it, and weights that became NaN would.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
    device = images.device.type

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def _seconds(step: Callable[[], None], times: int, device: str) -> float:
    """Seconds of a step, the mean of some."""
    start = time.perf_counter()
    for _ in range(times):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure(name: str, options: argparse.Namespace, layout: str) -> dict[str, Any]:
    """Times a model in a layout, in all ways in turn; milliseconds."""
    import timm

    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    memory_format = _LAYOUTS[layout]
    model = timm.create_model(name, num_classes=_CLASSES).to(options.device, memory_format=memory_format).train()
    shape = options.batch, 3, _SIZE, _SIZE
    images = torch.randn(shape, device=options.device).contiguous(memory_format=memory_format)
    labels = torch.randint(_CLASSES, (options.batch,), device=options.device)
    with torch.autocast(options.device, dtype, enabled=dtype is not torch.float32):
        exemplified = graft(copy.deepcopy(model), example=images)
    ways = {
        "pytorch": model,
        "again": copy.deepcopy(model),
        "grafted": graft(copy.deepcopy(model)),
        "example": exemplified,
    }
    report = graft_report(exemplified)
    steps = {way: _stepper(each, images, labels, dtype) for way, each in ways.items()}
    for step in steps.values():
        _seconds(step, 3, options.device)
    times = max(1, round(_SECONDS / _seconds(steps["pytorch"], 2, options.device)))
    rounds: dict[str, list[float]] = {way: [] for way in steps}
    for turn in range(_ROUNDS):
        # Every other round goes backwards: what warms up or cools down is then shared by all.
        for way in list(steps)[:: 1 if turn % 2 else -1]:
            rounds[way].append(1e3 * _seconds(steps[way], times, options.device))
    return {
        "model": name,
        "layout": layout,
        "layers": len(report.grafted),
        "left by measurement": len(set(report.left) & set(report.measured)),
        **{way: statistics.median(each) for way, each in rounds.items()},
        "least": {way: min(each) for way, each in rounds.items()},
    }


def _speedups(rows: list[dict[str, Any]], way: str, *, least: bool = False) -> list[float]:
    """How many times as fast as PyTorch a way is, by row; of medians, or of the least times."""
    figures = [row["least"] if least else row for row in rows]
    return [each["pytorch"] / each[way] for each in figures]


def _table(figures: dict[str, Any]) -> str:
    """The results for a page."""
    lines = [
        "| model | layout | ms before | times as fast | with an example | PyTorch again |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    rows = figures["rows"]
    for row in rows:
        ratios = " | ".join(f"{row['pytorch'] / row[way]:.2f}x" for way in ("grafted", "example", "again"))
        lines.append(f"| {row['model']} | {row['layout']} | {row['pytorch']:.1f} | {ratios} |")
    said = []
    for way, words in (("grafted", "Grafted"), ("example", "With an example"), ("again", "PyTorch again")):
        speedups = _speedups(rows, way)
        said.append(f"{words}: {statistics.geometric_mean(speedups):.2f}x in the mean, least {min(speedups):.2f}x.")
    environment = figures["environment"]
    lines += [
        "",
        f"Training steps, batch {figures['batch']}, {figures['dtype']}, the median of {_ROUNDS} rounds in turn. "
        + " ".join(said),
        "",
        f"{environment['chip']}, {environment['threads']} CPU threads, PyTorch {environment['torch']}, "
        f"{environment['date'][:10]}.",
        "",
    ]
    return "\n".join(lines)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Makes one of several parts, in the order of the models.

    Raises:
        ValueError: the parts differ in what was measured, or in the machine or PyTorch that measured it.
    """
    alike = [{**part, "rows": [], "environment": {**part["environment"], "date": ""}} for part in parts]
    if any(each != alike[0] for each in alike):
        raise ValueError(f"parts of different measurements cannot be one file: {alike}")
    rows = [row for part in parts for row in part["rows"]]
    return {**parts[0], "rows": sorted(rows, key=lambda row: (MODELS.index(row["model"]), row["layout"]))}


def write(path: Path, figures: dict[str, Any]) -> None:
    """Writes figures, and the table of them beside the file."""
    path.write_text(as_json(figures))
    path.with_suffix(".md").write_text(_table(figures))


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("path", type=Path, help="the JSON to write; a table goes beside it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16", help="of autocast")
    parser.add_argument("--layout", choices=tuple(_LAYOUTS), action="append", help="may be repeated; default: both")
    parser.add_argument("--model", action="append", help="may be repeated; default: all")
    parser.add_argument("--join", type=Path, nargs="+", help="measure nothing: take the rows of these files")
    options = parser.parse_args()
    if options.join:
        write(options.path, joined([json.loads(path.read_text()) for path in options.join]))
        return
    torch.backends.cudnn.benchmark = True
    figures: dict[str, Any] = {
        "environment": vars(describe_environment(torch.device(options.device))),
        "batch": options.batch,
        "dtype": options.dtype,
        "rows": [],
    }
    if options.path.is_file():
        figures = joined([json.loads(options.path.read_text()), figures])
    cases = [(name, layout) for name in options.model or MODELS for layout in options.layout or _LAYOUTS]
    measured = {(row["model"], row["layout"]) for row in figures["rows"]}
    for name, layout in track([case for case in cases if case not in measured], "models"):
        figures["rows"].append(measure(name, options, layout))
        # What is measured is kept, whatever ends the run.
        write(options.path, figures)


if __name__ == "__main__":
    main()
