"""Takes the pictures of the page, and of a report, that README.md shows: `python -m tests.ui.pictures URL FOLDER`, at a `tandem up` that serves digits.

It sends requests meanwhile, at a rate that comes and goes, so that there is something to see; with `--all` every view, in both colour
schemes and as wide as a phone, for whoever changes the page and wants to look at it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from serving.http_client import Connection, request_bytes
from serving.local.console import read_status
from tests.gateway.conftest import SAMPLE
from tests.ui.conftest import Browser, Page

REPORT = Path(__file__).parents[2] / "docs" / "reports" / "what-if.html"
WIDE, PHONE = (1240, 860), (390, 844)


def send(url: str, is_over: threading.Event) -> None:
    """Up to 60 requests/s, of which a fourth name a pool, some have a deadline, and a few are wrong."""
    connection = Connection(url, 10)
    pools = list(read_status(url, None)["pools"])
    for number in itertools.count():
        if is_over.is_set():
            return
        headers = {"Content-Type": "application/json"}
        if number % 5 == 0:
            headers["Tandem-Deadline-Ms"] = "40"
        if number % 4 == 0:
            headers["Tandem-Pool"] = pools[number // 4 % len(pools)]
        if number % 7 == 0:
            headers["Tandem-Variant"] = "fp32"
        body = b"{}" if number % 211 == 0 else SAMPLE
        connection.send(request_bytes("POST", url, "/v2/models/digits/infer", headers, body))
        time.sleep(1 / (40 + 25 * math.sin(time.time() / 40)))


def shown(page: Page, url: str, view: str) -> None:
    page.open(f"{url}/#/{view}")
    page.wait("document.getElementById('pools').children.length > 0")
    if view.startswith("try"):
        page.wait("document.getElementById('grid') !== null && document.getElementById('side-b').options.length > 1")
        page.js(
            "document.getElementById('side-b').selectedIndex = document.getElementById('side-b').options.length - 1"
        )
        page.js("document.getElementById('example').click()")
        page.wait("document.getElementById('sides').children.length > 1")
    time.sleep(2.5)  # a sample more, and fonts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="of requests before the pictures")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    is_over = threading.Event()
    sender = threading.Thread(target=send, args=(options.url, is_over), daemon=True)
    sender.start()
    time.sleep(options.seconds)
    shots = [("live", "live", WIDE, False), ("playground", "try/digits", WIDE, False)]
    if options.all:
        views = [("live", "live"), ("decisions", "decisions"), ("models", "models"), ("playground", "try/digits")]
        shots = [
            (f"{name}{'-phone' if size is PHONE else ''}{'-dark' if dark else ''}", view, size, dark)
            for name, view in views
            for size in (WIDE, PHONE)
            for dark in (False, True)
        ]
    with tempfile.TemporaryDirectory() as folder, closing(Browser(Path(folder))) as browser, browser.page() as page:
        for name, view, (width, height), dark in shots:
            page.look(width, height, is_dark=dark)
            shown(page, options.url, view)
            (options.folder / f"{name}.png").write_bytes(page.picture(is_whole=options.all))
        page.look(*WIDE, is_dark=False)
        page.open(REPORT.as_uri())
        page.wait("document.readyState === 'complete'")
        (options.folder / "report.png").write_bytes(page.picture(is_whole=False))
        print(json.dumps(page.complaints))
    is_over.set()
    sender.join()


if __name__ == "__main__":
    main()
