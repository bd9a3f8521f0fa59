"""A browser for tests: Chromium, spoken to through chromedriver in the words of WebDriver."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
WHY_NOT = "" if CHROMIUM and DRIVER else "no chromium and chromium-driver here: CONTRIBUTING.md"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900", "--force-device-scale-factor=1",
)  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, as WebDriver has it


@dataclass(frozen=True)
class Browser:
    """One window of a browser."""

    address: str

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """One request to the driver, and the value that it answers."""
        written = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self.address}{path}", written, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a file, and wait until its page has put itself together."""
        self.visit(page.resolve().as_uri() + fragment)

    def visit(self, address: str) -> None:
        """Open an address, and wait until its page has put itself together."""
        self.ask("POST", "/url", url="about:blank")
        self.logs("browser"), self.logs("performance")  # of pages before
        self.ask("POST", "/url", url=address)
        self.until("document.documentElement.dataset.ready")

    def until(self, test: str) -> None:
        """Wait until an expression is true on the page."""
        wait = """const [text, done] = arguments; const test = new Function(`return ${text}`);
        const look = () => test() ? done(true) : setTimeout(look, 20); look();"""
        assert self.ask("POST", "/execute/async", script=wait, args=[test]) is True

    def run(self, script: str, *args: Any) -> Any:
        """What a script returns."""
        return self.ask("POST", "/execute/sync", script=script, args=list(args))

    def text(self, selector: str) -> str:
        """The text of the first element that `selector` finds, as it is seen."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def click(self, selector: str) -> None:
        """Click on an element as a reader does, in its middle."""
        element = self.ask("POST", "/element", using="css selector", value=selector)[_ELEMENT]
        self.ask("POST", f"/element/{element}/click")

    def type(self, selector: str, text: str) -> None:
        """Type into an element, which is where the keyboard then is."""
        element = self.ask("POST", "/element", using="css selector", value=selector)[_ELEMENT]
        self.ask("POST", f"/element/{element}/value", text=text)

    def media(self, **features: str) -> None:
        """Let the browser prefer something, such as dark pages."""
        wanted = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.order("Emulation.setEmulatedMedia", features=wanted)

    def busy(self) -> float:
        """Seconds that the page's own thread has worked, whatever else the machine does."""
        self.order("Performance.enable", timeDomain="threadTicks")
        told = self.order("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in told if one["name"] == "TaskDuration"))

    def order(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.ask("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def logs(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since this was last asked for: the console, or requests."""
        return list(self.ask("POST", "/se/log", type=kind))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console."""
        return [one["message"] for one in self.logs("browser")]

    def requests(self) -> list[str]:
        """What was asked of anybody else than the disk and the page itself."""
        events = (json.loads(one["message"])["message"] for one in self.logs("performance"))
        asked = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        urls = [str(one["request"]["url"]) for one in asked]
        return [url for url in urls if not url.startswith(("file:", "about:", "blob:", "data:"))]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    assert DRIVER and CHROMIUM, WHY_NOT
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        port = _port(driver)
        start = Browser(f"http://127.0.0.1:{port}")
        chrome = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "goog:chromeOptions": chrome,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        found = start.ask("POST", "/session", capabilities={"alwaysMatch": wanted})
        browser = Browser(f"{start.address}/session/{found['sessionId']}")
        try:
            yield browser
        finally:
            browser.ask("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(20)
        if driver.stdout:
            driver.stdout.close()


def _port(driver: "subprocess.Popen[str]") -> int:
    """The port that a driver says it listens on."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if "started successfully on port" in line:
            return int(line.rsplit("port", 1)[1].strip(" .\n"))
    raise RuntimeError("chromedriver ended before it listened")
