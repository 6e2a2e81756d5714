"""A replacement for minitx.sweeps.worker that answers at once, dies or waits for SIGTERM, depending on the job."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def save_and_exit(number: int, frame: object) -> None:
    Path(job["saved"]).write_text("saved")
    raise SystemExit(128 + number)


job = json.load(sys.stdin)
print(f"job {job['n']}", file=sys.stderr)
if job.get("die"):
    os._exit(7)
if job.get("wait"):
    signal.signal(signal.SIGTERM, save_and_exit)
    Path(job["started"]).write_text(str(os.getpid()))
    time.sleep(60)
print(json.dumps({"row": {"n": job["n"], "pid": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}}))
