"""Takes the pictures of the demo's report in docs/images; needs chromium and chromium-driver.

Run it in the root of the repository: ``python -m docs.build_screenshots``.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.report.browser import browsing

IMAGES = Path(__file__).parent / "images"
SHOTS = {  # name -> the section on top, width and height in pixels, and whether it is dark
    "page-answer": ("header", 1180, 1200, False),
    "page-row": ("#row-section", 1180, 1150, False),
    "page-programs": ("#graph-section", 1180, 760, False),
    "page-dark": ("#curve-section", 1180, 700, True),
    "page-phone": ("header", 390, 844, False),
}


def main() -> None:
    """Run the demo and take the pictures."""
    with TemporaryDirectory() as room, browsing(Path(room, "profile")) as browser:
        command = [sys.executable, "-m", "dumpcmp", "demo", "--output", f"{room}/demo_out"]
        subprocess.run(command, check=True, cwd=IMAGES.parents[1])
        for name, (section, width, height, is_dark) in SHOTS.items():
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.order("Emulation.setDeviceMetricsOverride", **size)
            browser.media(prefers_color_scheme="dark" if is_dark else "light")
            browser.open(Path(room, "demo_out", "compare.html"))
            browser.run("document.querySelector(arguments[0]).scrollIntoView()", section)
            browser.picture(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
