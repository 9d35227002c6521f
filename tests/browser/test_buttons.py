"""Clicks that work: each button of the panel, pressed in a real JupyterLab."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Opener
from tests.browser.page import FrontEnd, NotebookPage

pytestmark = pytest.mark.browser

FRONT_ENDS: tuple[FrontEnd, ...] = ("lab", "notebook")
SOME_STEPS = re.compile(r"scan_archive · scanned [246]00 of 1,200 files")
ALL_FILES = "access.log errors.log notes.txt"


def wait_in_the_middle_of_the_scan(page: NotebookPage, cell: str) -> None:
    expect(page.panel(cell)).to_contain_text(SOME_STEPS)


def wait_for_the_question(page: NotebookPage, cell: str) -> None:
    expect(page.status(cell)).to_contain_text("waits for your decision")


def expect_no_enabled_button(panel: Locator) -> None:
    expect(panel.locator("button:enabled")).to_have_count(0)


# --- Stop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_stop_in_the_middle_of_a_scan(open_notebook: Opener, front_end: FrontEnd) -> None:
    page = open_notebook("panels.ipynb", front_end)
    page.run_cells("imports", "scan")
    wait_in_the_middle_of_the_scan(page, "scan")
    expect(page.panel("scan")).to_contain_text("turn 1 · running scan_archive · scanned")
    expect(
        page.panel("scan").get_by_role("progressbar", name="Progress of the tool")
    ).to_be_visible()
    page.button("scan", "Stop").click()
    expect(page.status("scan")).to_have_text("◼ Ended · interrupted: user pressed Stop")
    expect(page.panel("scan")).to_contain_text("Resumable: panel.start() goes on from here.")
    expect_no_enabled_button(page.panel("scan"))
    assert page.printed("scan-outcome").startswith("interrupted: user pressed Stop\n1 turn")


def test_stop_while_the_next_cell_waits(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "scan")
    page.start_cell("scan-outcome")
    wait_in_the_middle_of_the_scan(page, "scan")
    page.button("scan", "Stop").click()
    page.wait_for_cell("scan-outcome")
    expect(page.output("scan-outcome")).to_contain_text("interrupted: user pressed Stop")


def test_an_interrupt_of_the_kernel_stops_the_run(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "scan")
    page.start_cell("scan-outcome")
    wait_in_the_middle_of_the_scan(page, "scan")
    page.interrupt_kernel()
    page.wait_for_cell("scan-outcome")
    expect(page.output("scan-outcome")).to_contain_text("CancelledError")
    expect(page.status("scan")).to_contain_text("interrupted: the kernel was interrupted")


def test_ten_stops_measured(open_notebook: Opener, capsys: pytest.CaptureFixture[str]) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports")
    in_the_kernel = []
    for _ in range(10):
        page.run_cells("timed")
        expect(page.panel("timed")).to_contain_text("running scan_archive")
        page.button("timed", "Stop").click()
        expect(page.status("timed")).to_contain_text("Ended · interrupted: user pressed Stop")
        in_the_kernel.append(float(page.printed("kernel-times")))
    stopped = json.loads(page.printed("times"))
    clicked, shown = page.page.evaluate("[window.clicks, window.ends]")
    clicked, shown = clicked[-10:], shown[-10:]
    assert len(stopped) == len(clicked) == len(shown) == 10
    with capsys.disabled():
        print()
        for name, seconds in {
            "from the click to the run having stopped": _differences(clicked, stopped),
            "from the click to the page saying so": _differences(clicked, shown),
            "from the kernel's callback to the end of the run": in_the_kernel,
        }.items():
            longest, middle = max(seconds) * 1000, median(seconds) * 1000
            print(f"Stop, 10 clicks, {name}: median {middle:.1f} ms, maximum {longest:.1f} ms")


def _differences(earlier: list[float], later: list[float]) -> list[float]:
    return [after - before for before, after in zip(earlier, later, strict=True)]


# --- Approve and Reject -------------------------------------------------------------------------


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_approve_clicked_twice_executes_once(open_notebook: Opener, front_end: FrontEnd) -> None:
    page = open_notebook("panels.ipynb", front_end)
    page.run_cells("imports", "delete")
    wait_for_the_question(page, "delete")
    expect(page.panel("delete").locator(".rp-card")).to_contain_text('"path": "access.log"')
    assert page.printed("files") == ALL_FILES
    page.button("delete", "Approve").dblclick()
    expect(page.status("delete")).to_have_text("◼ Ended · completed")
    expect_no_enabled_button(page.panel("delete"))
    outcome = page.printed("delete-outcome")
    assert 'The person approved delete_file({"path": "access.log"})' in outcome
    assert outcome.endswith("Answer: Deleted access.log to free space.")
    assert page.printed("files") == "errors.log notes.txt"
    assert page.printed("deletions") == "1"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("awaited", [False, True], ids=["before the next cell", "while it waits"])
def test_reject_with_a_typed_reason(
    open_notebook: Opener, awaited: bool, front_end: FrontEnd
) -> None:
    page = open_notebook("panels.ipynb", front_end)
    page.run_cells("imports", "delete")
    wait_for_the_question(page, "delete")
    if awaited:
        page.start_cell("delete-outcome")
        expect(page.panel("delete")).to_contain_text("The next cell waits.")
    page.type_reason("delete", "keep it: the audit needs it")
    page.button("delete", "Reject").click()
    expect(page.status("delete")).to_have_text("◼ Ended · completed")
    if awaited:
        page.wait_for_cell("delete-outcome")
    else:
        page.run_cells("delete-outcome")
    expect(page.output("delete-outcome")).to_contain_text(
        'The person rejected delete_file({"path": "access.log"}), because: '
        "keep it: the audit needs it"
    )
    expect(page.output("delete-outcome")).to_contain_text("I did not delete anything")
    assert page.printed("told").endswith("Reason: keep it: the audit needs it")
    assert not [line for line in page.log if "Widgets message throttle" in line]
    assert page.printed("files") == ALL_FILES


def test_two_calls_are_decided_apart(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "two-calls")
    wait_for_the_question(page, "two-calls")
    cards = page.panel("two-calls").locator(".rp-card")
    expect(cards).to_have_count(2)
    cards.nth(1).get_by_label("If you reject it, why?").fill("the notes are mine")
    cards.nth(1).get_by_role("button", name="Reject").click()
    expect(cards).to_have_count(1)
    expect(cards).to_contain_text("access.log")
    assert page.printed("files") == ALL_FILES
    cards.get_by_role("button", name="Approve").click()
    expect(page.status("two-calls")).to_contain_text("completed")
    page.run_cells("two-calls-outcome")
    expect(page.output("two-calls-outcome")).to_contain_text("Reason: the notes are mine")
    assert page.printed("files") == "errors.log notes.txt"


def test_stop_leaves_a_call_undecided(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "delete")
    wait_for_the_question(page, "delete")
    page.button("delete", "Stop").click()
    expect(page.status("delete")).to_contain_text("delete_file waits for approval")
    expect_no_enabled_button(page.panel("delete"))
    assert "interrupted: delete_file waits for approval" in page.printed("delete-outcome")
    assert page.printed("files") == ALL_FILES


def test_a_loaded_run_is_approved_after_its_kernel_is_gone(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "stored")
    wait_for_the_question(page, "stored")
    page.restart_kernel()
    expect(page.panel("stored")).to_be_hidden()
    page.run_cells("imports", "loaded")
    wait_for_the_question(page, "loaded")
    page.button("loaded", "Approve").click()
    expect(page.status("loaded")).to_contain_text("completed")
    outcome = page.printed("loaded-outcome")
    assert outcome.startswith("completed\n3 turns · $0.002")
    assert outcome.endswith("Deleted access.log to free space. completed")
    assert page.printed("files") == "errors.log notes.txt"


# --- nobody, somebody twice, and two of them ----------------------------------------------------


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_run_all_with_nobody_clicking(open_notebook: Opener, front_end: FrontEnd) -> None:
    page = open_notebook("unattended.ipynb", front_end)
    page.run_cells("imports")
    page.menu("Run", "Run All Cells")
    page.wait_for_cell("told")
    outcome = page.output("delete-unattended-outcome")
    expect(outcome).to_contain_text("The script rejected delete_file")
    expect(outcome).to_contain_text("I did not delete anything")
    expect(page.output("files")).to_have_text(ALL_FILES)
    expect(page.output("told")).to_contain_text("Reason: nobody was there to approve it")


def test_a_cell_that_is_run_twice_has_one_run(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "twice")
    wait_in_the_middle_of_the_scan(page, "twice")
    page.run_cells("twice", "twice-earlier")
    expect(page.output("twice-earlier")).to_have_text(
        "interrupted a new panel took the place of this one"
    )
    expect(page.panel("twice")).to_have_count(1)
    wait_in_the_middle_of_the_scan(page, "twice")
    page.button("twice", "Stop").click()
    expect(page.status("twice")).to_contain_text("user pressed Stop")


def test_two_panels_at_once(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "left", "right")
    wait_in_the_middle_of_the_scan(page, "left")
    wait_in_the_middle_of_the_scan(page, "right")
    page.button("left", "Stop").click()
    expect(page.status("left")).to_contain_text("user pressed Stop")
    expect(page.status("right")).to_contain_text("Running")
    expect(page.status("right")).to_contain_text("Ended · completed")
    assert page.printed("left-outcome").startswith("interrupted")
    assert page.printed("right-outcome").startswith("completed")


# --- when something is wrong --------------------------------------------------------------------


def test_a_restart_leaves_words_in_place_of_dead_buttons(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "delete")
    words = page.output("delete").locator(".run-panel-gone")
    wait_for_the_question(page, "delete")
    expect(words).to_be_hidden()
    page.restart_kernel()
    expect(words).to_be_visible()
    expect(words).to_contain_text("after a restart, run the cell again")
    expect(page.panel("delete")).to_be_hidden()
    page.menu("File", "Save Notebook")
    expect(page.page.locator(".jp-mod-dirty")).to_have_count(0)
    page.open()
    expect(words).to_be_visible()
    expect(page.output("delete").get_by_text("model not found")).to_be_hidden()
    page.run_cells("imports", "delete")
    wait_for_the_question(page, "delete")
    expect(words).to_be_hidden()


def test_an_error_shows_in_the_panel_and_in_the_cell_that_waits(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "broken")
    expect(page.status("broken")).to_have_text("✖ Error in the panel")
    expect(page.panel("broken")).to_contain_text("LookupError: <b>no such thing</b>")
    expect_no_enabled_button(page.panel("broken"))
    page.run_cells("broken-outcome")
    expect(page.output("broken-outcome")).to_contain_text("LookupError: <b>no such thing</b>")


def test_markup_from_a_model_is_shown_as_text(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    page.run_cells("imports", "markup")
    wait_for_the_question(page, "markup")
    panel = page.panel("markup")
    expect(panel.locator(".rp-card")).to_contain_text("<img src=x onerror=document.title='!'>")
    page.button("markup", "Reject").click()
    expect(panel).to_contain_text("<script>document.title='!'</script><b>bold</b>")
    expect(panel.locator("img, script, b:text('bold')")).to_have_count(0)
    expect(page.page).not_to_have_title("!")
