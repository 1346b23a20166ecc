"""Where and with what a figure was measured: a figure without it says nothing."""

import ctypes
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

from torchgraft.version import __version__


@dataclass(frozen=True)
class Environment:
    """The machine, the software and the moment of a measurement.

    Attributes:
        date: with the time, in UTC.
        device: the kind, 'cpu' or 'cuda'.
        chip: the name of the processor or the GPU.
        threads: of PyTorch on the CPU.
        torchgraft: its version.
        torch: that of PyTorch.
        python: that of Python.
        platform: the operating system and its versions.
        driver: the version of the GPU's driver; empty on a CPU, where it is not known, and in results of earlier
            versions.
    """

    date: str
    device: str
    chip: str
    threads: int
    torchgraft: str
    torch: str
    python: str
    platform: str
    driver: str = ""

    def __str__(self) -> str:
        software = f"torchgraft {self.torchgraft}, PyTorch {self.torch}, Python {self.python}"
        software += f", driver {self.driver}" if self.driver else ""
        threads = f"{self.threads} CPU thread{'' if self.threads == 1 else 's'}"
        return f"{self.chip} ({self.device}), {threads}; {software}; {self.date}"


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
        driver=_driver() if device.type == "cuda" else "",
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _driver() -> str:
    """The version of NVIDIA's driver, from its library of management; empty where it does not tell."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    if nvml.nvmlInit_v2() != 0:
        return ""
    version = ctypes.create_string_buffer(80)
    failed = nvml.nvmlSystemGetDriverVersion(version, len(version))
    nvml.nvmlShutdown()
    return "" if failed else version.value.decode()
