"""How large the HTML page of a report is, how long it takes to write, and to load in Chromium."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.tables import Table
from dumpcmp.comparing import compare
from dumpcmp.nouns.options import readable
from dumpcmp.report.jsonfile import as_json
from dumpcmp.report.reading import write_page
from tests.report.browser import WHY_NOT, Browser, browsing

SAMPLES = Path(__file__).parents[1] / "sample_dumps"
SIZES = (1_000, 20_000, 200_000)
LOADS = 3  # of which the median counts


def many(told: dict[str, Any], number: int) -> dict[str, Any]:
    """A report of so many rows; no two numbers in it are the same, as in a real one."""
    draw, kinds = random.Random(0).random, told["rows"]
    rows = []
    for place in range(number):
        row = dict(kinds[place % len(kinds)], token=place // len(kinds))
        rows.append({n: c * draw() if isinstance(c, float) else c for n, c in row.items()})
    return told | {"rows": rows}


def loaded(browser: Browser, page: Path) -> float:
    """Seconds that the page's thread works until everything is drawn."""
    times = []
    for _ in range(LOADS):
        browser.open(page)
        times.append(browser.busy())
    return statistics.median(times)


def lines(room: Path) -> Iterator[list[str]]:
    told = as_json(compare(SAMPLES / "golden", SAMPLES / "target", closely=24))
    with browsing(room / "profile") as browser:
        for number in SIZES:
            given = many(told, number)
            began = time.process_time()
            page = write_page(given, room / f"{number}.html")
            seconds = time.process_time() - began
            size = readable(page.stat().st_size)
            load = loaded(browser, page)
            yield [f"{number:,}", size, f"{seconds:.1f} s", f"{load:.2f} s"]


def table() -> Table:
    """Write pages and open them."""
    headings = ("rows", "page", "written in", "loaded in")
    if WHY_NOT:
        return Table("Pages", headings, [], WHY_NOT)
    with tempfile.TemporaryDirectory() as room:
        rows = list(lines(Path(room)))
    how = (
        "Written: seconds of the process. Loaded: seconds that the thread of the page works until "
        f"everything is drawn, in headless Chromium, the median of {LOADS}. Neither counts what "
        "else the machine does. Above 20,000 rows the rest is summed up."
    )
    return Table("Pages", headings, rows, how)
