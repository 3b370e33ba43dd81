"""How long the page takes: to start, to its first view, to redraw. ``python benchmarks/web.py`` needs Chromium.

Writes benchmarks/results/web.json. Times are of this machine as it is, its browser included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import environment

RESULTS = Path(__file__).resolve().parent / "results" / "web.json"

# Watches for the next time plotly has drawn, from the moment a control is moved.
_ARM = """selector => {
  window.__drawn = new Promise(done => {
    const plot = document.querySelector(selector + ' .js-plotly-plot').parentElement;
    const start = performance.now();
    const seen = new MutationObserver(() => {
      const drawn = document.querySelector(selector + ' .js-plotly-plot');
      if (drawn && drawn.data && JSON.stringify(drawn.data[0].y).slice(0, 400) !== window.__before) {
        seen.disconnect();
        requestAnimationFrame(() => done(performance.now() - start));
      }
    });
    window.__before = JSON.stringify(document.querySelector(selector + ' .js-plotly-plot').data[0].y).slice(0, 400);
    seen.observe(document.querySelector(selector), {childList: true, subtree: true, attributes: true});
  });
}"""


def start_server() -> tuple[subprocess.Popen[str], str, float]:
    """The command as users run it, and how long until it says where it listens."""
    begun = time.perf_counter()
    code = "from ordinate.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "explore", "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    return process, address, time.perf_counter() - begun


def first_view(page: Page, address: str) -> float:
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("#plot-a .main-svg")
    return time.perf_counter() - begun


def redraws(page: Page, times: int) -> list[float]:
    """Seconds from a moved option to the new figure, at the page's own sizes."""
    page.click("#view-a input")
    page.get_by_role("option", name="score against distance", exact=True).click()
    page.wait_for_function("document.querySelector('#plot-a .gtitle')?.textContent.includes('score')")
    page.wait_for_timeout(500)
    found = []
    for index in range(times):
        page.evaluate(_ARM, "#plot-a")
        page.fill("#log_base-a input[type=number]", str(5 + (index % 2) + index / 100))
        page.press("#log_base-a input[type=number]", "Enter")
        found.append(page.evaluate("window.__drawn") / 1000)
        page.wait_for_timeout(200)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    process, address, started = start_server()
    try:
        with sync_playwright() as playwright:
            path = shutil.which("chromium") or playwright.chromium.executable_path
            browser = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox", "--disable-gpu"]
            )
            views = []
            for _ in range(times):
                context = browser.new_context(viewport={"width": 1400, "height": 1000})  # an empty cache
                page = context.new_page()
                views.append(first_view(page, address))
                last, page_context = page, context
                if len(views) < times:
                    context.close()
            moved = redraws(last, 2 * times)
            page_context.close()
            version = browser.version
            browser.close()
    finally:
        process.terminate()
        process.wait()
    record = {
        **environment.describe(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "browser": f"Chromium {version}",
        "seconds": {
            "command to address printed": round(started, 3),
            "first view, cold cache": _spread(views),
            "option to redrawn figure": _spread(moved),
        },
        "aims": {"first view, cold cache": 3.0, "option to redrawn figure": 0.5},
    }
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record["seconds"], indent=2))


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "fastest": round(min(values), 3),
        "slowest": round(max(values), 3),
        "times": len(values),
    }


if __name__ == "__main__":
    main()
