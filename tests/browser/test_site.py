"""The static edition in a real browser: Python in the page, the panel's buttons, no other host."""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.browser.conftest import opened_notebooks
from tests.browser.page import NotebookPage
from tests.browser.server import Server
from tools import site

pytestmark = pytest.mark.browser

LOADING_S = 120  # for the slowest machine; nothing here is measured
KERNEL_IS_READY = """
() => ["idle", "busy"].includes(
  window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status)
"""
# From the page, and from a worker of it, which is where Python runs.
ASK = "url => fetch(url, {mode: 'no-cors'}).then(() => 'answered', () => 'refused')"
ASK_FROM_A_WORKER = """
url => new Promise(resolve => {
  const source = `fetch("${url}").finally(() => postMessage("asked")).catch(() => 0)`;
  new Worker(URL.createObjectURL(new Blob([source]))).onmessage = () => resolve("asked");
})
"""


class SitePage(NotebookPage):
    """A chapter in the static edition: no server behind it has a kernel."""

    def __init__(self, page: Page, url: str, chapter: Path) -> None:
        server = Server(url, "", site.SITE / "files", Path())
        super().__init__(page, server, chapter.name)

    def open(self) -> None:
        self.page.goto(f"{self.server.url}/lab/index.html?path={self.name}")
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        expect(self.notebook).to_be_visible(timeout=LOADING_S * 1000)
        self.page.wait_for_function(KERNEL_IS_READY, timeout=LOADING_S * 1000)

    def write_cell(self, cell_id: str, source: str) -> None:
        """Replace the source of a cell, as a reader would."""
        self.cell(cell_id).locator(".cm-content").first.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)


def chapter(number: str) -> Path:
    return next((site.ROOT / "notebooks").glob(f"{number}_*.ipynb"))


def code_cells(path: Path) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell["id"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_up_to(page: SitePage, last: str) -> None:
    cells = code_cells(chapter(page.name[:2]))
    page.run_cells(*cells[: cells.index(last) + 1])


# --- the site, a browser's window on it, and a watch on every other host ------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of dist/site, served on loopback."""
    if not (site.SITE / "index.html").exists():
        pytest.skip("the static edition is not built: `make site` does it, and needs npm")
    assert is_current(), "dist/site is older than what it was made of: run `make site`"
    with site.server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def is_current() -> bool:
    """Whether the built site has the modules and the notebooks as they are now."""
    (wheel,) = (site.SITE / "static" / "pyodide").glob(f"{site.OURS}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        if any(archive.read(name) != content for name, content in site.our_files()):
            return False
    files = site.SITE / "files"
    return all(
        json.loads((files / path.relative_to(site.ROOT / "notebooks")).read_text("utf-8"))
        == site.for_the_browser(json.loads(path.read_text("utf-8")))
        for path in site.notebook_paths()
    )


@pytest.fixture(scope="module")
def watch() -> Iterator[tuple[str, list[str]]]:
    """A proxy that notes each request to another host, and lets none through; what it noted."""
    asked: list[str] = []

    class Refuse(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            asked.append(self.path)
            self.send_error(403)

        do_GET = do_HEAD = do_POST = do_PUT = do_OPTIONS = do_CONNECT = refuse

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_port}", asked
        proxy.shutdown()
        thread.join()


@pytest.fixture
def window(browser: Browser, watch: tuple[str, list[str]]) -> Iterator[BrowserContext]:
    """A window that has loaded nothing before, and reaches no host but this one.

    A new one for each test: a page opens again what was open in the window before.
    """
    context = browser.new_context(
        viewport={"width": 1200, "height": 1000},
        proxy={"server": watch[0], "bypass": "127.0.0.1"},
    )
    yield context
    context.close()


@pytest.fixture
def elsewhere(
    window: BrowserContext, watch: tuple[str, list[str]], url: str
) -> Iterator[list[str]]:
    """Requests to other hosts during a test: those that the page tells of, and the proxy's."""
    asked = watch[1]
    asked.clear()

    def note(request: Request) -> None:
        if not request.url.startswith((f"{url}/", "data:", "blob:")):
            asked.append(request.url)

    window.on("request", note)
    yield asked
    window.remove_listener("request", note)


@pytest.fixture
def open_chapter(
    request: pytest.FixtureRequest, window: BrowserContext, url: str, elsewhere: list[str]
) -> Iterator[Callable[[str], SitePage]]:
    """Opens a chapter; afterwards no other host must have been asked for anything."""
    opened = opened_notebooks(request.node)

    def open_one(number: str) -> SitePage:
        page = SitePage(window.new_page(), url, chapter(number))
        opened.append(page)
        return page

    yield open_one
    for notebook in opened:
        notebook.page.close()
    assert elsewhere == []


# --- the tests ----------------------------------------------------------------------------------


class FromTheFrontPage(SitePage):
    """Opened as a reader does it: by a link, with an eye on what the page says meanwhile."""

    def open(self) -> None:
        self.page.goto(f"{self.server.url}/")
        links = self.page.get_by_role("listitem").get_by_role("link")
        expect(links).to_have_count(len(list((site.ROOT / "notebooks").glob("*.ipynb"))))
        links.filter(has_text="The whole idea").click()
        notice = self.page.get_by_role("status").filter(has_text="Python is loading")
        expect(notice).to_be_visible(timeout=LOADING_S * 1000)
        expect(notice).to_contain_text("MB")
        self.wait_until_ready()
        expect(notice).to_be_hidden()


def test_a_cold_start_and_chapter_01(
    request: pytest.FixtureRequest, window: BrowserContext, url: str, elsewhere: list[str]
) -> None:
    page = FromTheFrontPage(window.new_page(), url, chapter("01"))
    opened_notebooks(request.node).append(page)
    # Nothing has been stored: whatever is shown later was computed in this page.
    expect(page.notebook.locator(".jp-OutputArea-output")).to_have_count(0)
    page.menu("Run", "Run All Cells")
    page.wait_for_cell(code_cells(chapter("01"))[-1], timeout_s=LOADING_S)
    for row in ("1   204       23", "2   269       29", "3   342       18"):
        expect(page.output("ch01-per-turn")).to_contain_text(row)
    expect(page.output("ch01-run-runaway")).to_contain_text("30 turns, $0.076258")
    page.write_cell("ch01-price-run", "import sys; print(sys.platform, meter.prompt_tokens)")
    assert page.printed("ch01-price-run").startswith("emscripten ")
    expect(page.notebook.locator('[data-mime-type$="error"]')).to_have_count(0)
    assert elsewhere == []
    page.page.close()


def test_chapter_09_is_stopped_by_a_click(open_chapter: Callable[[str], SitePage]) -> None:
    page = open_chapter("09")
    run_up_to(page, "ch09-button")
    expect(page.panel("ch09-button")).to_contain_text("of 1,200 files")
    page.button("ch09-button", "Stop").click()
    expect(page.status("ch09-button")).to_contain_text("interrupted: user pressed Stop")
    outcome = page.printed("ch09-button-outcome")
    assert outcome.startswith("interrupted: user pressed Stop\n1 turn")
    # What needs a thread says so, and shows what a computer showed.
    recorded = page.printed("ch09-thread-run")
    assert recorded.startswith("Not run here: this cell needs a thread")
    assert "may still be running" in recorded


def test_chapter_07_is_rejected_with_a_reason_and_approved(
    open_chapter: Callable[[str], SitePage],
) -> None:
    page = open_chapter("07")
    run_up_to(page, "ch07-panel")
    outcome = page.decide("ch07-panel", "Reject", reason="not mine")
    assert 'The person rejected delete_file({"path": "access.log"}), because: not mine' in outcome
    assert outcome.endswith("files: ['access.log', 'errors.log', 'notes.txt']")
    page.write_cell("ch07-told", 'print(told(panel.state, "c2"))')
    assert "not mine" in page.printed("ch07-told")

    page.run_cells("ch07-panel-yes")
    outcome = page.decide("ch07-panel-yes", "Approve")
    assert 'The person approved delete_file({"path": "access.log"})' in outcome
    assert outcome.endswith("files: ['errors.log', 'notes.txt']")


def test_a_cell_that_awaits_says_that_no_click_is_heard(
    open_chapter: Callable[[str], SitePage],
) -> None:
    page = open_chapter("07")
    run_up_to(page, "ch07-panel")
    expect(page.panel("ch07-panel")).to_contain_text("take your time")
    page.start_cell("ch07-panel-outcome")
    expect(page.panel("ch07-panel")).to_contain_text("this page hears no click")
    page.wait_for_cell("ch07-panel-outcome")
    expect(page.output("ch07-panel-outcome")).to_contain_text("The script rejected delete_file")


def test_a_request_to_another_host_would_be_seen(
    window: BrowserContext, url: str, elsewhere: list[str]
) -> None:
    """The tests above rely on it."""
    page = window.new_page()
    page.goto(f"{url}/")
    page.evaluate(ASK, "http://one.invalid/")
    page.evaluate(ASK_FROM_A_WORKER, "http://two.invalid/")
    page.close()
    assert {"http://one.invalid/", "http://two.invalid/"} <= set(elsewhere)
