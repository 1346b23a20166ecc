"""Where and with what a figure was measured: a figure without it says nothing."""

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

from torchgraft.version import __version__

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Environment:
    """The machine, the software and the moment of a measurement."""

    date: str
    device: str
    chip: str
    threads: int
    torchgraft: str
    torch: str
    python: str
    platform: str
    commit: str | None

    def __str__(self) -> str:
        software = f"torchgraft {self.torchgraft}, PyTorch {self.torch}, Python {self.python}"
        commit = f", commit {self.commit[:12]}" if self.commit else ""
        return f"{self.chip} ({self.device}), {_plural(self.threads, 'CPU thread')}; {software}{commit}; {self.date}"


def describe_environment(device: torch.device | str = "cpu") -> Environment:
    """The present machine and software, as seen by work on a device."""
    device = torch.device(device)
    return Environment(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        device=device.type,
        chip=torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        threads=torch.get_num_threads(),
        torchgraft=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        commit=_commit(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str | None:
    """The commit of the checkout that this package is part of, `-dirty` where files differ from it; or None.

    A copy of a checkout, without its history, is told by the variable TORCHGRAFT_COMMIT.
    """
    if named := os.environ.get("TORCHGRAFT_COMMIT"):
        return named
    try:
        root = _git("rev-parse", "--show-toplevel")
        # Installed, the package can lie in a checkout of something else.
        if Path(root, "src", "torchgraft").resolve() != _PACKAGE.resolve():
            return None
        return _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
