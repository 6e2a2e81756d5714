"""`minitx play` in a browser: first paint, the time of a step, frames while a text grows and scrolls, memory.

python -m benchmarks.play CHECKPOINT ...        of small models, such as runs/reverse runs/python_code
Needs chromium, and the test extras (playwright).
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.common import record, table

STEPS = 20
RUNS = 500  # of one prompt, for the memory
FRAMES = """() => new Promise((done) => {
  const rows = document.querySelector(".rows-of-text"), times = [];
  const frame = (now) => {
    times.push(now);
    rows.scrollTop = rows.scrollHeight * (times.length % 60) / 60;
    if (times.length < 121) requestAnimationFrame(frame);
    else done(times.slice(1).map((time, place) => time - times[place]));
  };
  requestAnimationFrame(frame);
})"""
"""Milliseconds between 120 frames, in each of which the text is scrolled."""


SHOWN = """() => new Promise((done) => {
  const wait = () => document.querySelector(".explained").children[0]?.mark ? setTimeout(wait, 2) : done();
  wait();
})"""
"""Until the lens of another step is shown."""


@contextmanager
def served(run: str) -> Iterator[tuple[Any, str]]:
    """The process of `minitx play`, and the address of its page."""
    command = [str(Path(sys.executable).with_name("minitx")), "play", run, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.terminate()


def ask(address: str, name: str, **body: Any) -> list[dict[str, Any]]:
    """The lines of an answer."""
    request = urllib.request.Request(address + name, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return [json.loads(line) for line in answer]


def resident(process: Any) -> float:
    """MiB of memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measured(run: str, browser: Any) -> dict[str, Any]:
    """The figures of one model."""
    with served(run) as (process, address):
        context = browser.new_context(viewport={"width": 1300, "height": 900})
        page = context.new_page()
        page.goto(address)
        page.locator("body[data-examples]").wait_for()
        paint = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
        with urllib.request.urlopen(address + "examples") as answer:
            prompt = json.load(answer)[0]["prompt"]
        page.goto(f"{address}#panel=look&prompt={quote(prompt)}")
        page.locator('body[data-state="done"]').wait_for(timeout=60_000)
        taken = []
        for _ in range(STEPS):
            element = page.locator(".explained")
            before = element.evaluate("one => one.children[0] && (one.children[0].mark = true)")
            began = time.perf_counter()
            page.keyboard.press("ArrowRight" if before is not None else "Home")
            page.evaluate(SHOWN)
            taken.append(1000 * (time.perf_counter() - began))
            if page.evaluate("() => { const [a, b] = document.body.dataset.drawn.split(' '); return a - b }") == 1:
                page.keyboard.press("Home")
                page.wait_for_timeout(300)
        frames = page.evaluate(FRAMES)
        context.close()
        began = time.perf_counter()
        tokens = len(ask(address, "write", prompt=prompt)) - 3
        token = 1000 * (time.perf_counter() - began) / tokens
        sizes = []
        for count in range(RUNS + 1):
            if count in (50, RUNS):
                sizes.append(resident(process))
            ask(address, "write", prompt=prompt, options={"max_new_tokens": 20})
        row = {"run": Path(run).name, "first_paint_ms": paint, "step_ms": statistics.median(taken), "token_ms": token}
        late = sum(each > 34 for each in frames) / len(frames)
        return {**row, "tokens": tokens, "frame_ms": statistics.median(frames), "late": late, "memory_mib": sizes}


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        rows = [measured(run, browser) for run in sys.argv[1:]]
        browser.close()
    lines = [
        [row["run"], f"{row['first_paint_ms']:.0f} ms", f"{row['step_ms']:.0f} ms", f"{row['token_ms']:.1f} ms",
         f"{row['frame_ms']:.0f} ms, {100 * row['late']:.0f} %",
         " and ".join(f"{size:.0f} MiB" for size in row["memory_mib"])]
        for row in rows
    ]  # fmt: skip
    header = ["model", "first paint", "a step in Look", "a token", "frame while scrolling; later than 34 ms",
              f"memory after 50 and {RUNS} texts"]  # fmt: skip
    record("play", rows, table(header, lines), "howto/play.md")


if __name__ == "__main__":
    main()
