"""Measures how training scales over the GPUs of this machine: `python benchmarks/scaling.py --chip h200`.

Runs `examples/train_imagenet_like.py` on 1, 2, 4, ... GPUs: a plain and a grafted ConvNeXt-T, DDP and FSDP2, bfloat16.
Then it measures what an all-reduce, an all-gather and a reduce-scatter of the gradients' size take. What it found is
benchmarks/results/<chip>/scaling.json, with the command; `python benchmarks/scaling.py --page` writes the tables of
docs/distributed.md from it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from torchgraft.machine.figures import as_json

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "train_imagenet_like.py"
RESULTS = Path(__file__).parent / "results"
FRAGMENT = ROOT / "docs" / "fragments" / "scaling.md"
# How many GPUs a table looks ahead to, and how many are in one host.
AHEAD, IN_HOST = (64, 1024), 8
# A network between hosts, as it is sold with such GPUs: one adapter of 400 Gbit/s a GPU.
NETWORK_BYTES_A_SECOND = 50e9
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def run_workers(count: int, *arguments: str) -> None:
    """Runs a script in a process a GPU."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *arguments]
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    subprocess.run([sys.executable, *command], env=environment, check=True)


def measure_training(count: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The results that the script writes, for each strategy, plain and grafted, on so many GPUs."""
    found = []
    for batch, strategy, is_plain in product(options.batch, options.strategies, (True, False)):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "figures.json")
            flags = ["--strategy", strategy, "--amp", "--profile", "--json", str(file), "--model", options.model]
            flags += ["--batch", str(batch), "--pixels", str(options.pixels), "--steps", str(options.steps)]
            flags += ["--every", str(max(1, options.steps // 4)), "--measured", str(max(2, options.steps // 4))]
            run_workers(count, str(SCRIPT), *flags, *(["--plain"] if is_plain else []))
            found.append(json.loads(file.read_text()))
    return found


def measure_collectives(file: Path, sizes: list[int]) -> None:
    """In one of several processes: how long collectives of some sizes in bytes take."""
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    count, found = dist.get_world_size(), []
    for size, name in product(sizes, COLLECTIVES):
        elements = size // 4 // count * count
        whole = torch.zeros(elements, device=device)
        part = torch.zeros(elements // count, device=device)
        calls = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),
            "all_gather": lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole),
        }
        times = []
        for _ in range(15):
            dist.barrier()
            if on_gpu:
                torch.cuda.synchronize()
            started = time.perf_counter()
            calls[name]()
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        seconds = sorted(times[5:])[5]
        sent = (2 if name == "all_reduce" else 1) * elements * 4 * (count - 1) / count
        found.append(
            {
                "collective": name,
                "devices": count,
                "bytes": elements * 4,
                "seconds": seconds,
                "bytes_a_second": sent / seconds,
            }
        )
    if dist.get_rank() == 0:
        file.write_text(json.dumps(found))
    dist.destroy_process_group()


def page() -> str:
    """The tables of each chip, from what was measured."""
    return "\n".join(_tables(json.loads(path.read_text())) for path in sorted(RESULTS.glob("*/scaling.json")))


def _tables(found: dict[str, Any]) -> str:
    """Those of one chip."""
    rows = found["training"]
    rates = {(*_place(row), row["grafted"]): row["images_per_second"] for row in rows}
    lines = [
        "| GPUs | images a GPU | strategy | PyTorch, images/s | of linear | grafted | of linear | times as fast |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for batch, strategy, count in sorted({_place(row) for row in rows}):
        both = [rates[batch, strategy, count, grafted] for grafted in (False, True)]
        shares = [rate / count / rates[batch, strategy, 1, grafted] for grafted, rate in enumerate(both)]
        cells = " | ".join(f"{rate:,.0f} | {100 * share:.0f} %" for rate, share in zip(both, shares, strict=True))
        lines.append(f"| {count} | {batch} | {strategy} | {cells} | {both[1] / both[0]:.2f} |")
    lines += ["", f"{rows[0]['device']}, {rows[0]['model']}, bfloat16: `{'`, `'.join(found['commands'])}`", ""]
    return "\n".join([*lines, *_shares(rows), *_ahead(found)])


def _place(row: dict[str, Any]) -> tuple[int, str, int]:
    """The subject of a row of a table."""
    return row["batch"], row["strategy"], row["devices"]


def _shares(rows: list[dict[str, Any]]) -> list[str]:
    """The work of a GPU in a step, as the profiler saw it: the reason where scaling falls short."""
    profiled = [row for row in rows if row["shares_of_step"]]
    if not profiled:
        return []
    lines = ["| GPUs | images a GPU | strategy | model | computes | waits for other GPUs | waits for the host |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(profiled, key=lambda row: (*_place(row), row["grafted"])):
        shares = " | ".join(f"{100 * share:.1f} %" for share in row["shares_of_step"].values())
        kind = "grafted" if row["grafted"] else "PyTorch"
        lines.append(f"| {row['devices']} | {row['batch']} | {row['strategy']} | {kind} | {shares} |")
    return [*lines, "", "Shares of a step of the first GPU, of the profiler's record of three steps.", ""]


def _ahead(found: dict[str, Any]) -> list[str]:
    """The gain of more GPUs, computed: a step of one, and the all-reduce that no backward pass hides."""
    reduces = [each for each in found["collectives"] if each["collective"] == "all_reduce"]
    if not reduces:
        return []
    inside = max(each["bytes_a_second"] for each in reduces)
    lines = ["| GPUs | plain: share of linear, nothing hidden / all hidden | grafted |", "| --- | --- | --- |"]
    for count in AHEAD:
        cells = []
        for grafted in (False, True):
            (row,) = (
                each
                for each in found["training"]
                if _place(each) == (found["training"][0]["batch"], "ddp", 1) and each["grafted"] is grafted
            )
            step = row["batch"] / row["images_per_second"]
            size = 4 * row["parameters"]
            hosts = count // IN_HOST
            # Within a host, and then each GPU with its like of other hosts, of what is its part.
            seconds = 2 * size * (IN_HOST - 1) / IN_HOST / inside
            seconds += 2 * size / IN_HOST * (hosts - 1) / hosts / NETWORK_BYTES_A_SECOND
            # A backward pass takes two thirds of a step, and hides as much.
            hidden = step / (step + max(0.0, seconds - 2 / 3 * step))
            cells.append(f"{100 * step / (step + seconds):.0f} % / {100 * hidden:.0f} %")
        lines.append(f"| {count} | {cells[0]} | {cells[1]} |")
    within, between = (f"{each / 1e9:.0f} GB/s" for each in (inside, NETWORK_BYTES_A_SECOND))
    said = f"Computed from one GPU's step, {within} measured between two GPUs and {between} assumed between hosts of"
    return [*lines, "", f"{said} {IN_HOST} GPUs.", ""]


def main() -> int:
    """The command."""
    about = "Measures how training scales over the GPUs of this machine."
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("--chip", default="h200", help="the folder of benchmarks/results, where no --output is named")
    parser.add_argument("--devices", type=int, nargs="+", help="how many; default: 1, 2, 4, ... of those that are here")
    parser.add_argument("--model", default="convnext-t")
    parser.add_argument("--batch", type=int, nargs="+", default=[128], help="images of each GPU")
    parser.add_argument("--strategies", choices=("ddp", "fsdp"), nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, help="the file to write, in the place of that of the chip")
    parser.add_argument("--add", action="store_true", help="keep what the file has, and add to it")
    parser.add_argument("--page", action="store_true", help="measure nothing, write docs/fragments/scaling.md")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [1 << 20, 1 << 24, 1 << 27]
    if options.page:
        FRAGMENT.write_text(page())
        return 0
    if options.worker is not None:
        measure_collectives(options.worker, sizes if options.model != "small" else sizes[:1])
        return 0
    import torch

    here = max(1, torch.cuda.device_count())
    counts = options.devices or [count for count in (1, 2, 4, 8) if count <= here]
    path = options.output or RESULTS / options.chip / "scaling.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    empty: dict[str, Any] = {"commands": [], "training": [], "collectives": []}
    found = json.loads(path.read_text()) if options.add else empty
    # Where the file lies says nothing of what was measured.
    said = shlex.join(["python", *sys.argv])
    found["commands"].append(re.sub(r" --output[= ]\S+", "", said))
    for count in counts:
        found["training"] += measure_training(count, options)
        if count > 1:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "collectives.json")
                run_workers(count, str(Path(__file__).resolve()), "--worker", str(file), "--model", options.model)
                found["collectives"] += json.loads(file.read_text())
        # After each, so that a run that is stopped has left what it found.
        path.write_text(as_json(found))
    print(f"{path}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
