"""A notebook in the browser, as the tests speak of it: run a cell, click Stop, read the outcome."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Literal

import nbformat
from playwright.sync_api import Locator, Page, expect

from tests.browser.server import Server

FrontEnd = Literal["lab", "notebook"]

ATTEMPTS = 20

# Notes, by the clock that the kernel has too, when a button was clicked and when a run that had
# been going on was first shown as ended.
CLOCK = """
window.clicks = []; window.ends = [];
const now = () => (performance.timeOrigin + performance.now()) / 1000;
document.addEventListener("click", event => {
  if (event.target.closest("button")) window.clicks.push(now());
}, true);
new MutationObserver(changes => {
  for (const change of changes)
    for (const node of change.addedNodes)
      if (node.nodeType === 1 && node.matches(".rp-status") && node.textContent.includes("Ended"))
        window.ends.push(now());
}).observe(document, {childList: true, subtree: true});
"""
# At first there is no kernel at all, and that shows as idle too.
KERNEL_IS_IDLE = """
() => document.querySelector(".jp-KernelName")?.textContent.includes("ipykernel")
  && document.querySelector('.jp-Notebook-ExecutionIndicator[data-status="idle"], '
    + ".jp-NotebookKernelStatus-fade") !== null
"""


class NotebookPage:
    """One open notebook. Cells are found by their ids in the file."""

    def __init__(self, page: Page, server: Server, name: str, front_end: FrontEnd = "lab") -> None:
        self.page, self.server, self.name, self.log = page, server, name, list[str]()
        self._url = f"{server.url}/{'lab/tree' if front_end == 'lab' else 'notebooks'}/{name}"
        notebook = nbformat.read(server.directory / name, as_version=4)
        self._number = {cell["id"]: number for number, cell in enumerate(notebook["cells"])}
        page.add_init_script(CLOCK)
        page.on("console", lambda line: self.log.append(f"{line.type}: {line.text}"))
        page.on("pageerror", lambda error: self.log.append(f"uncaught: {error}"))
        self.notebook = page.locator(".jp-Notebook")
        self.open()

    def open(self) -> None:
        """Open the notebook, or open it again."""
        self.page.goto(f"{self._url}?token={self.server.token}&reset")
        expect(self.notebook).to_be_visible(timeout=60_000)
        self.page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)

    def cell(self, cell_id: str) -> Locator:
        number = self._number[cell_id]
        return self.notebook.locator(f'.jp-Cell[data-windowed-list-index="{number}"]')

    def start_cell(self, cell_id: str) -> None:
        """Run a cell without waiting for its end."""
        prompt = self.cell(cell_id).locator(".jp-InputPrompt")
        started = re.compile(r"\[(\*|\d+)\]")
        for _ in range(ATTEMPTS):
            self.cell(cell_id).locator(".cm-content").first.click()
            # The number of an earlier execution must not be taken for that of this one.
            prompt.evaluate("prompt => { prompt.textContent = 'before' }")
            self.page.keyboard.press("Control+Enter")
            expect(prompt).not_to_have_text("before")
            # A page that has no kernel yet, which nothing on it shows, only empties the prompt.
            with suppress(AssertionError):
                expect(prompt).to_have_text(started, timeout=1000)
                return
        raise AssertionError(f"cell {cell_id} did not start")

    def wait_for_cell(self, cell_id: str, timeout_s: float = 30) -> None:
        """Wait until a started cell has ended: its star has become a number."""
        prompt = self.cell(cell_id).locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=timeout_s * 1000)

    def run_cells(self, *cell_ids: str) -> None:
        for cell_id in cell_ids:
            self.start_cell(cell_id)
            self.wait_for_cell(cell_id)

    def output(self, cell_id: str) -> Locator:
        return self.cell(cell_id).locator(".jp-Cell-outputArea")

    def panel(self, cell_id: str) -> Locator:
        return self.output(cell_id).locator(".run-panel")

    def button(self, cell_id: str, name: str) -> Locator:
        return self.panel(cell_id).get_by_role("button", name=name, exact=True)

    def status(self, cell_id: str) -> Locator:
        return self.panel(cell_id).locator(".rp-status")

    def type_reason(self, cell_id: str, words: str) -> None:
        """Type a reason for rejecting no faster than the kernel can answer the first letter."""
        field = self.panel(cell_id).get_by_label("If you reject it, why?")
        field.press_sequentially(words[0])
        expect(self.panel(cell_id)).to_contain_text("You are typing a reason")
        field.press_sequentially(words[1:])

    def decide(self, cell_id: str, button: str, reason: str = "") -> str:
        """Click a button of the panel that waits for a person; what the next cell then prints."""
        expect(self.status(cell_id)).to_contain_text("waits for your decision")
        if reason:
            self.type_reason(cell_id, reason)
        self.button(cell_id, button).click()
        return self.printed(f"{cell_id}-outcome")

    def printed(self, cell_id: str) -> str:
        """What the cell prints when it is run now."""
        self.run_cells(cell_id)
        return self.output(cell_id).inner_text().strip()

    def menu(self, menu: str, item: str) -> None:
        bar = self.page.locator(".lm-MenuBar-itemLabel")
        bar.filter(has_text=re.compile(f"^{menu}$")).click()
        entries = self.page.locator(".lm-Menu-itemLabel")
        entries.filter(has_text=re.compile(f"^{item}$")).first.click()

    def restart_kernel(self) -> None:
        self.menu("Kernel", "Restart Kernel…")
        self.page.get_by_role("button", name="Confirm Kernel Restart").click()

    def interrupt_kernel(self) -> None:
        self.server.api("POST", f"kernels/{self.server.kernel_of(self.name)}/interrupt")

    def keep_evidence(self, directory: Path) -> None:
        """What a person needs to see why a test failed."""
        directory.mkdir(parents=True, exist_ok=True)
        if not self.page.is_closed():
            self.page.screenshot(path=directory / "page.png")
        (directory / "page.log").write_text("\n".join(self.log), encoding="utf-8")
