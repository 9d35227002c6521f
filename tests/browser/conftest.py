"""A browser and a JupyterLab for the tests of this folder; what is left of a test that failed."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.page import FrontEnd, NotebookPage
from tests.browser.server import Server, serving_lab
from tests.browser.written import write_notebooks

FLAGS = [
    "--no-sandbox",  # which a container gives no leave for, and these pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # What the browser itself would ask its maker's servers, which is not the page's doing.
    "--disable-features=AutofillServerCommunication,OptimizationHints,Translate",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
NO_BROWSER = """There is no Chromium or Chrome here for the browser tests. To get one:
  Debian, Ubuntu   sudo apt-get install chromium
  Fedora           sudo dnf install chromium
  macOS            brew install --cask google-chrome
  elsewhere        https://www.google.com/chrome
Or name one: WORKBOOK_CHROMIUM=/path/to/chromium make test-browser"""

Opener = Callable[..., NotebookPage]

_opened = pytest.StashKey[list[NotebookPage]]()
_kept_in: list[Path] = []


def find_chromium() -> str | None:
    """The browser that WORKBOOK_CHROMIUM names, or else one that is installed."""
    if named := os.environ.get("WORKBOOK_CHROMIUM"):
        return named
    on_the_path = (shutil.which(name) for name in NAMES)
    in_its_place = (place for place in PLACES if Path(place).exists())
    return next(filter(None, on_the_path), None) or next(in_its_place, None)


def opened_notebooks(test: pytest.Item) -> list[NotebookPage]:
    """The notebooks that a test has opened: if it fails, their pages are kept."""
    return test.stash.setdefault(_opened, [])


# For this package only: while playwright is open, its event loop runs in this thread, and tests
# of other folders want one of their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.exit(NO_BROWSER, returncode=1)
    expect.set_options(timeout=15_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_lab(tmp_path_factory.mktemp("jupyter")) as server:
        write_notebooks(server.directory)
        yield server


@pytest.fixture(scope="package")
def window(browser: Browser) -> BrowserContext:
    """The window of most tests: one for all, so that it has JupyterLab's scripts already."""
    return browser.new_context(viewport={"width": 1200, "height": 1000})


@pytest.fixture
def open_notebook(
    request: pytest.FixtureRequest, window: BrowserContext, server: Server
) -> Iterator[Opener]:
    """Opens notebooks; afterwards their pages are closed and their kernels ended."""
    pages: list[Page] = []
    opened = opened_notebooks(request.node)

    def open_one(
        name: str, front_end: FrontEnd = "lab", window: BrowserContext = window
    ) -> NotebookPage:
        pages.append(window.new_page())
        notebook = NotebookPage(pages[-1], server, name, front_end)
        opened.append(notebook)
        return notebook

    yield open_one
    for page in pages:
        page.close()
    server.end_kernels()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    opened = item.stash.get(_opened, None)
    if report.failed and opened:
        directory = _evidence_of(item.name)
        for number, notebook in enumerate(opened):
            notebook.keep_evidence(directory / str(number))
        report.sections.append(("The page", f"Its picture and its log are in {directory}"))
    return report


def _evidence_of(test: str) -> Path:
    """Where to keep what a failed test leaves: not a directory that pytest clears."""
    if not _kept_in:
        named = os.environ.get("WORKBOOK_BROWSER_EVIDENCE")
        _kept_in.append(Path(named or tempfile.mkdtemp(prefix="browser-tests-")))
    return _kept_in[0] / re.sub(r"\W+", "_", test)


def pytest_terminal_summary() -> None:
    if _kept_in:
        sys.stdout.write(f"Pictures and logs of failed pages: {_kept_in[0]}\n")
