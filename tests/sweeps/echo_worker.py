"""Stands in for minitx.sweeps.worker: answers at once, dies, or waits to be stopped, as the job says."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def stopped(number: int, frame: object) -> None:
    Path(job["saved"]).write_text("saved")
    raise SystemExit(128 + number)


for line in sys.stdin:
    job = json.loads(line)
    if job.get("die"):
        os._exit(7)
    if job.get("wait"):
        signal.signal(signal.SIGTERM, stopped)
        Path(job["started"]).touch()
        time.sleep(60)
    threads = os.environ.get("OMP_NUM_THREADS")
    print(json.dumps({"row": {"n": job["n"], "pid": os.getpid(), "threads": threads}}), flush=True)
