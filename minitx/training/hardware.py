"""What a figure was measured on: without that, a time says little."""

from __future__ import annotations

import datetime
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """The device in words, versions and the date, as plain JSON types."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
        device = f"{model or platform.processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = {"torch": torch.__version__, "lightning": version("lightning"), "python": platform.python_version()}
    return {"device": device, **versions, "date": date}


def finished_at(device: torch.device | str) -> float:
    """The clock in seconds, once the device has done what it was given: a GPU still works when Python is further."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
