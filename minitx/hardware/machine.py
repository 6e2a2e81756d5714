"""The machine: its name for figures, a clock that waits for it, the folder that its runs share, its network."""

import datetime
import os
import platform
import socket
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from minitx.config.errors import expanded
from minitx.hardware.devices import best_device


def machine() -> dict[str, Any]:
    """The device in words, versions and the date, as plain JSON types."""
    best = best_device()
    if best == "cuda":
        device = torch.cuda.get_device_name()
    elif best == "mps":
        device = f"{platform.processor() or platform.machine()}, Apple GPU"
    else:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
        device = f"{model or platform.processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = {"torch": torch.__version__, "lightning": version("lightning"), "python": platform.python_version()}
    return {"device": device, **versions, "date": date}


def finished_at(device: torch.device | str) -> float:
    """The clock in seconds, read when the device has finished its work: a GPU computes while Python continues."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def cache_folder() -> Path:
    """The folder of tokenizers, encoded corpora and measurements that runs share: $MINITX_CACHE, or ~/.cache/minitx."""
    return expanded(os.environ.get("MINITX_CACHE") or "~/.cache/minitx", "set the environment variable MINITX_CACHE")


def unknown_host(address: str) -> str:
    """Why an address cannot be reached: its host name does not resolve, and no proxy is set. Empty if it may be."""
    host = urlsplit(address).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, None)
    except OSError:
        return f"there is no connection to {host}: its name cannot be resolved"
    return ""
