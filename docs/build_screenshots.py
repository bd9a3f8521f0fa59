"""Takes the pictures in docs/images; needs chromium and chromium-driver.

Run it in the root of the repository: ``python -m docs.build_screenshots``. It compares the sample
dumps, opens what comes of it as a reader would, and keeps each picture as a small WebP.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dumpcmp.comparing import compare
from dumpcmp.live_server import serving
from dumpcmp.report.live import LiveView
from dumpcmp.report.page import write_html
from tests.report.browser import Browser, browsing

IMAGES = Path("docs", "images")
GOLDEN, MINE = Path("sample_dumps", "golden"), Path("sample_dumps", "target")
QUALITY = 60  # of 100: letters are still sharp


@dataclass(frozen=True)
class Shot:
    """One picture: of which page, what is on top of it, and how large and dark it is."""

    name: str
    page: str  # two: of two runs; three: with mine as it was before; live
    top: str = "header"
    width: int = 1180
    height: int = 900
    is_dark: bool = False
    before: str = ""  # a script that does what a reader does first


PHONE = {"width": 390, "height": 844}
SHOTS = (
    Shot("page-answer", "two", height=1200),
    Shot("page-row", "two", "#row-section", height=1150),
    Shot("page-programs", "two", "#graph-section", height=620),
    Shot("page-programs-all", "two", "#graph-section", height=620, is_dark=True,
         before="page.graph.openAll(true); page.graph.fit();"),
    Shot("page-dark", "two", "#curve-section", height=700, is_dark=True),
    Shot("page-phone", "two", **PHONE),
    Shot("page-three", "three", "#before-section", height=760),
    Shot("page-three-phone", "three", "#graph-section", **PHONE, is_dark=True),
    Shot("live", "live", height=820),
    Shot("live-dark", "live", height=820, is_dark=True),
    Shot("live-phone", "live", **PHONE),
)  # fmt: skip


def take(browser: Browser, shot: Shot, place: str) -> None:
    """Take one picture of what is at `place`."""
    size = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
    browser.order("Emulation.setDeviceMetricsOverride", **size)
    browser.media(prefers_color_scheme="dark" if shot.is_dark else "light")
    browser.visit(place)
    if shot.page == "live":
        browser.until("live.told && live.told.has_ended && live.table.rows.complete")
    browser.run(shot.before)
    browser.run("document.querySelector(arguments[0]).scrollIntoView()", shot.top)
    taken = browser.order("Page.captureScreenshot", format="webp", quality=QUALITY)
    (IMAGES / f"{shot.name}.webp").write_bytes(base64.b64decode(taken["data"]))


def main() -> None:
    """Compare, and take the pictures."""
    outcome = compare(GOLDEN, MINE, closely=8)
    view = LiveView(GOLDEN, MINE)
    view.finish(outcome)
    with (
        TemporaryDirectory() as room,
        serving(view) as server,
        browsing(Path(room, "profile")) as browser,
    ):
        mended = compare(GOLDEN, GOLDEN, closely=8)
        pages = {
            "two": write_html(outcome, Path(room, "two.html")).as_uri(),
            "three": write_html(mended, Path(room, "three.html"), before=outcome).as_uri(),
            "live": server.address,
        }
        for shot in SHOTS:
            take(browser, shot, pages[shot.page])


if __name__ == "__main__":
    main()
