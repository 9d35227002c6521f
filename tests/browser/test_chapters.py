"""The chapters that have a panel, in a real JupyterLab: by hand, and with nobody there."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.page import FrontEnd
from tests.browser.server import ROOT

pytestmark = pytest.mark.browser

FRONT_ENDS: tuple[FrontEnd, ...] = ("lab", "notebook")
SOME_STEPS = re.compile(r"scan_archive · scanned [246]00 of 1,200 files")
CHAPTERS = [
    path
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    if "RunPanel(" in path.read_text(encoding="utf-8")
]


def code_cells(path: Path) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell["id"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def cells_before(path: Path, cell_id: str) -> list[str]:
    cells = code_cells(path)
    return cells[: cells.index(cell_id)]


def chapter(number: str) -> Path:
    return next(path for path in CHAPTERS if path.name.startswith(number))


def test_chapter_04_stopped_by_hand(open_notebook: Opener) -> None:
    path, cell = chapter("04"), "ch04-interrupted-run"
    page = open_notebook(f"notebooks/{path.name}")
    page.run_cells(*cells_before(path, cell), cell)
    expect(page.panel(cell)).to_contain_text(SOME_STEPS)
    page.button(cell, "Stop").click()
    expect(page.status(cell)).to_contain_text("Ended · interrupted: user pressed Stop")
    page.run_cells("ch04-interrupted-outcome-run")
    expect(page.output("ch04-interrupted-outcome-run")).to_contain_text(
        "{'type': 'cancelled', 'reason': 'user pressed Stop'}"
    )


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_chapter_07_decided_by_hand(open_notebook: Opener, front_end: FrontEnd) -> None:
    path = chapter("07")
    page = open_notebook(f"notebooks/{path.name}", front_end)
    page.run_cells(*cells_before(path, "ch07-panel"), "ch07-panel")
    outcome = page.decide("ch07-panel", "Reject", reason="not mine")
    assert outcome.splitlines()[2:] == [
        'The person rejected delete_file({"path": "access.log"}), because: not mine',
        "Answer: I did not delete anything: you declined the deletion.",
        "files: ['access.log', 'errors.log', 'notes.txt']",
    ]

    page.run_cells("ch07-panel-yes")
    outcome = page.decide("ch07-panel-yes", "Approve")
    assert 'The person approved delete_file({"path": "access.log"})' in outcome
    assert outcome.endswith("files: ['errors.log', 'notes.txt']")

    page.run_cells("ch07-two-script", "ch07-two-panel")
    expect(page.status("ch07-two-panel")).to_contain_text("waits for your decision")
    cards = page.panel("ch07-two-panel").locator(".rp-card")
    cards.nth(0).get_by_role("button", name="Reject").click()
    expect(cards).to_have_count(1)
    cards.get_by_role("button", name="Approve").click()
    outcome = page.printed("ch07-two-panel-outcome")
    assert "files: ['access.log', 'errors.log']" in outcome


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_chapter_09_stopped_by_hand(open_notebook: Opener, front_end: FrontEnd) -> None:
    path, cell = chapter("09"), "ch09-button"
    page = open_notebook(f"notebooks/{path.name}", front_end)
    page.run_cells(*cells_before(path, cell), cell)
    expect(page.panel(cell)).to_contain_text(SOME_STEPS)
    page.button(cell, "Stop").click()
    outcome = page.printed("ch09-button-outcome")
    assert outcome.startswith("interrupted: user pressed Stop\n1 turn")

    half = "ch09-deaf-button"
    page.run_cells("ch09-deaf-client", "ch09-deaf-run", half)
    expect(page.panel(half)).to_contain_text(SOME_STEPS)
    page.button(half, "Stop").click()
    expect(page.status(half)).to_have_text("◼ Stopping …")
    expect(page.panel(half)).to_contain_text("scanned 1,200 of 1,200 files")
    expect(page.status(half)).to_contain_text("interrupted: the request was cancelled")
    assert "User pressed Stop" in page.printed("ch09-deaf-button-outcome")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_run_all_of_a_chapter_with_nobody_clicking(open_notebook: Opener, path: Path) -> None:
    page = open_notebook(f"notebooks/unattended_{path.name}")
    page.run_cells("short-patience")
    page.menu("Run", "Run All Cells")
    page.wait_for_cell(code_cells(path)[-1], timeout_s=120)
    wrong = page.notebook.locator('[data-mime-type$="error"], [data-mime-type$="stderr"]')
    expect(wrong).to_have_count(0)
    for cell in nbformat.read(path, as_version=4)["cells"]:
        if cell["cell_type"] == "code" and "await panel.outcome()" in cell["source"]:
            stored = "".join(output["text"] for output in cell["outputs"])
            expect(page.output(cell["id"])).to_have_text(stored.strip())
