"""What the panel is like to use: by keyboard, in both themes, enlarged."""

from __future__ import annotations

import json
import urllib.request

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from tests.browser.conftest import Opener
from tests.browser.page import NotebookPage
from tests.browser.server import Server

pytestmark = pytest.mark.browser

# The contrast (WCAG 2) of each text of a panel with what is behind it, by what it says.
CONTRASTS = """
panel => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = color => {
    const [r, g, b] = rgba(color).map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return "white";
  };
  const found = {};
  for (const node of panel.querySelectorAll("*")) {
    const own = [...node.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("").trim();
    const said = node.matches("input") ? node.value : own;
    if (!said || node.matches("style") || !node.checkVisibility()) continue;
    const [light, dark] = [luminance(getComputedStyle(node).color), luminance(behind(node))]
      .sort((a, b) => b - a);
    found[said] = (light + 0.05) / (dark + 0.05);
  }
  return found;
}
"""
# Whatever is cut off at the side, or sticks out of the panel.
OVERFLOWING = """
panel => [...panel.querySelectorAll("*")].filter(node => {
  const [inner, outer] = [node.getBoundingClientRect(), panel.getBoundingClientRect()];
  return node.checkVisibility() && (inner.right > outer.right + 1 || inner.left < outer.left - 1
    || (node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX === "hidden"));
}).map(node => node.outerHTML.slice(0, 200))
"""


def set_theme(server: Server, theme: str) -> None:
    name = "@jupyterlab/apputils-extension:themes"
    request = urllib.request.Request(
        f"{server.url}/lab/api/settings/{name}",
        method="PUT",
        data=json.dumps({"raw": json.dumps({"theme": theme})}).encode(),
        headers={"Authorization": f"token {server.token}"},
    )
    urllib.request.urlopen(request, timeout=10).close()


def show_a_question(page: NotebookPage) -> None:
    page.run_cells("imports", "delete")
    expect(page.status("delete")).to_contain_text("waits for your decision")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_every_text_can_be_read_in_both_themes(
    open_notebook: Opener, server: Server, theme: str
) -> None:
    set_theme(server, theme)
    try:
        page = open_notebook("panels.ipynb")
        page.page.wait_for_function(
            "theme => document.body.dataset.jpThemeName === theme", arg=theme
        )
        show_a_question(page)
        page.panel("delete").get_by_label("If you reject it, why?").fill("because")
        waiting = page.panel("delete").evaluate(CONTRASTS)
        page.button("delete", "Reject").click()
        expect(page.status("delete")).to_contain_text("Ended")
        ended = page.panel("delete").evaluate(CONTRASTS)
    finally:
        set_theme(server, "JupyterLab Light")
    assert {"Approve", "Reject", "because"} <= set(waiting)
    assert "◼ Ended · completed" in ended
    faint = {text: contrast for text, contrast in {**waiting, **ended}.items() if contrast < 4.5}
    assert not faint


@pytest.mark.parametrize("zoom", [1.0, 1.25, 2.0])
def test_nothing_is_cut_off_when_enlarged(
    open_notebook: Opener, browser: Browser, zoom: float
) -> None:
    size = ViewportSize(width=int(1200 / zoom), height=int(1000 / zoom))
    with browser.new_context(viewport=size, device_scale_factor=zoom) as enlarged:
        page = open_notebook("panels.ipynb", window=enlarged)
        show_a_question(page)
        assert page.panel("delete").evaluate(OVERFLOWING) == []


def test_every_control_is_reached_and_pressed_by_keyboard(open_notebook: Opener) -> None:
    page = open_notebook("panels.ipynb")
    show_a_question(page)
    keyboard = page.page.keyboard
    page.type_reason("delete", "not today")
    focused = page.page.locator(":focus")
    for name in ("Approve", "Reject", "Stop"):
        keyboard.press("Tab")
        expect(focused).to_have_text(name)
        expect(focused).to_have_css("outline-style", "solid")
        expect(focused).to_have_css("outline-width", "3px")
    keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", "Trace of the run")
    keyboard.press("Shift+Tab")
    keyboard.press("Shift+Tab")
    expect(focused).to_have_text("Reject")
    keyboard.press("Enter")
    expect(page.status("delete")).to_contain_text("completed")
    assert "because: not today" in page.printed("delete-outcome")


def test_typing_a_reason_does_not_reach_the_notebook(open_notebook: Opener) -> None:
    """`d d` in command mode deletes a cell, and Enter opens one to edit."""
    page = open_notebook("panels.ipynb")
    show_a_question(page)
    cells = page.notebook.locator(".jp-Cell").count()
    reason = page.panel("delete").get_by_label("If you reject it, why?")
    reason.press_sequentially("dd")
    reason.press("Enter")
    reason.press_sequentially("dd")
    expect(reason).to_have_value("dddd")
    expect(reason).to_be_focused()
    expect(page.notebook.locator(".jp-Cell")).to_have_count(cells)


def test_the_state_is_told_in_words(open_notebook: Opener) -> None:
    """Colour is never the only signal: each status has its words, each meter its numbers."""
    page = open_notebook("panels.ipynb")
    show_a_question(page)
    panel = page.panel("delete")
    expect(panel).to_contain_text("Turns: 2 of 20")
    expect(panel).to_contain_text("Money: $0.001570 of $0.05")
    expect(panel.get_by_role("progressbar", name="Turns: 2 of 20")).to_be_visible()
    expect(panel).to_contain_text("delete_file")
    expect(panel.get_by_role("log")).to_contain_text("turn 2 · 269 in + 29 out tokens")
