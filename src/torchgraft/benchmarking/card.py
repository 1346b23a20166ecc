"""Clock and temperature of a GPU while it is measured, from NVIDIA's management library.

A card that is hot or that others share runs slower; a figure beside which neither stands cannot be trusted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class CardReading(NamedTuple):
    """One look at a card: megahertz of its multiprocessors, degrees Celsius."""

    clock: int
    temperature: int


def read_card(device: torch.device) -> CardReading | None:
    """The state of a GPU; None of a CPU, without the package nvidia-ml-py, and where the driver does not tell."""
    if device.type != "cuda":
        return None
    try:
        import pynvml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        # By its UUID: the library numbers cards in an order of its own.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return CardReading(
            int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
