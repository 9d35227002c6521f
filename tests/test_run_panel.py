"""The panel's logic, as functions: who decides, what a click does, what two panels do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import run_panel
from catalogue import catalogue, workspace
from harness import (
    Limits,
    RunBusyError,
    RunState,
    Tool,
    load,
    new_run,
    run,
    run_as_tool,
    waiting_calls,
)
from run_panel import Reader, RunPanel, scripted_reader
from scripted_provider import Message, asks, call, text
from tests.support import counted, go
from workbook import SYSTEM, TASK, client_for

PERSON = Reader(delay_s=300)  # in these tests the person is always faster
ALL_FILES = ["access.log", "errors.log", "notes.txt"]
STOP = "user pressed Stop"


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What the panels of a test display; and no panel outlives its test."""
    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(run_panel, "display", lambda bundle, raw: bundles.append(bundle))
    yield bundles
    left, run_panel._live[:] = list(run_panel._live), []
    assert left == []


class Desk:
    """Log files, tools over them that note what they do, and a person at the panels."""

    def __init__(self, step_s: float = 0.01) -> None:
        self.logs = workspace()
        self.done: list[str] = []
        self.tools = counted(catalogue(self.logs, step_s=step_s), self.done)

    def panel(self, script: str | Callable[[int, str], Message], **options: Any) -> RunPanel:
        state = options.pop("state", None) or new_run(SYSTEM, TASK)
        options = {"reader": PERSON, "tools": self.tools, **options}
        return RunPanel(state, options.pop("tools"), client_for(script), **options)

    def files(self) -> list[str]:
        return sorted(file.name for file in self.logs.iterdir())


def session(panel: RunPanel) -> run_panel._Session:
    assert panel._session is not None
    return panel._session


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.002)


async def until_waiting(panel: RunPanel, calls: int = 1) -> None:
    await until(lambda: session(panel).phase == "waiting" and len(session(panel).cards) == calls)


async def until_scanning(panel: RunPanel) -> None:
    await until(lambda: "scanned" in session(panel).live.step())


def press(panel: RunPanel, approved: bool, call_id: str = "c2", reason: str = "") -> None:
    card = session(panel).cards[call_id]
    card.reason.value = reason
    card.press(approved)


def press_stop(panel: RunPanel) -> None:
    session(panel).stop(STOP, "person")


def told(state: RunState, call_id: str) -> str:
    answers = [m["content"] for m in state.messages if m.get("tool_call_id") == call_id]
    assert len(answers) == 1
    return str(answers[0])


def two_deletions(turn: int, tool_text: str) -> Message:
    if turn == 0:
        first = call("c1", "delete_file", {"path": "access.log"})
        return asks(first, call("c2", "delete_file", {"path": "notes.txt"}))
    return text(f"Both settled: {tool_text}")


# --- Stop ---------------------------------------------------------------------------------------


def test_stop_in_the_middle_of_a_tool() -> None:
    async def scenario() -> None:
        panel = Desk(step_s=5.0).panel("scan")
        panel.start()
        await until(lambda: "running scan_archive" in session(panel).live.step())
        assert not session(panel).stop_button.disabled
        press_stop(panel)
        assert session(panel).stop_button.disabled  # at once, not when the run has ended
        session(panel).stop("another reason", "script")
        outcome = await panel.outcome()
        assert str(outcome) == f"interrupted: {STOP}\n1 turn · $0.000684"
        assert outcome.stopped_by == "person"
        assert outcome.stop_s is not None
        assert outcome.stop_s < 5.0
        assert session(panel).stop_button.disabled
        assert f"Ended · interrupted: {STOP}" in session(panel)._head.value

    go(scenario())


def test_a_click_from_another_thread_reaches_the_loop() -> None:
    async def scenario() -> None:
        panel = Desk(step_s=5.0).panel("scan")
        panel.start()
        await until(lambda: "running scan_archive" in session(panel).live.step())
        threading.Thread(target=session(panel).stop_button.click).start()
        assert (await panel.outcome()).state.interruption == {"type": "cancelled", "reason": STOP}

    go(scenario())


def test_a_stopped_run_goes_on_when_it_is_started_again() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("scan")
        panel.start()
        await until_scanning(panel)
        press_stop(panel)
        assert (await panel.outcome()).state.resumable
        panel.start()
        outcome = await panel.outcome()
        assert outcome.state.status == "completed"
        assert outcome.stopped_by is None

    go(scenario())


def test_an_interrupt_of_the_awaiting_cell_stops_the_run() -> None:
    async def scenario() -> None:
        panel = Desk(step_s=5.0).panel("scan")
        panel.start()
        cell = asyncio.create_task(panel.outcome())
        await until(lambda: "running scan_archive" in session(panel).live.step())
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell
        reason = {"type": "cancelled", "reason": "the kernel was interrupted"}
        assert panel.state.interruption == reason
        assert (await panel.outcome()).state.status == "interrupted"

    go(scenario())


# --- Approve and Reject -------------------------------------------------------------------------


def test_a_run_that_waits_has_stopped_and_is_saved(tmp_path: Path) -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("destructive", store=tmp_path)
        panel.start()
        await until_waiting(panel)
        saved = load(tmp_path, panel.state.run_id)
        assert saved.status == "interrupted"
        assert [one["args"] for one in waiting_calls(saved)] == [{"path": "access.log"}]
        assert desk.files() == ALL_FILES
        assert all(not widget.disabled for widget in _controls(panel))
        press_stop(panel)
        await panel.outcome()

    go(scenario())


def _controls(panel: RunPanel) -> list[Any]:
    cards = session(panel).cards.values()
    return [widget for card in cards for widget in (card.reason, card.approve, card.reject)]


def test_approve_pressed_twice_executes_once_and_counts_before_reject() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("destructive")
        panel.start()
        await until_waiting(panel)
        controls = _controls(panel)
        card = session(panel).cards["c2"]
        card.press(True)
        assert all(widget.disabled for widget in controls)
        card.press(True)
        card.press(False)
        outcome = await panel.outcome()
        assert desk.done.count("delete_file:access.log") == 1
        assert [str(decision) for decision in outcome.decisions] == [
            'The person approved delete_file({"path": "access.log"})'
        ]
        assert str(outcome).endswith("Answer: Deleted access.log to free space.")

    go(scenario())


def test_the_reason_of_a_rejection_reaches_the_model() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("destructive")
        panel.start()
        await until_waiting(panel)
        press(panel, False, reason="  the audit needs it ")
        outcome = await panel.outcome()
        assert told(panel.state, "c2").endswith("Reason: the audit needs it")
        assert "rejected" in str(outcome)
        assert "because: the audit needs it" in str(outcome)
        assert outcome.state.output == "I did not delete anything: you declined the deletion."
        assert desk.files() == ALL_FILES

    go(scenario())


@pytest.mark.parametrize("first", ["c1", "c2"])
def test_two_waiting_calls_are_decided_apart(first: str) -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel(two_deletions)
        panel.start()
        await until_waiting(panel, 2)
        press(panel, first == "c1", first, reason="mine")
        await until_waiting(panel, 1)
        second = "c2" if first == "c1" else "c1"
        press(panel, second == "c1", second, reason="mine")
        outcome = await panel.outcome()
        assert desk.files() == ["errors.log", "notes.txt"]
        assert told(panel.state, "c1") == "deleted access.log"
        assert told(panel.state, "c2").endswith("Reason: mine")
        assert [one.call["call_id"] for one in outcome.decisions] == [first, second]

    go(scenario())


def test_a_click_that_comes_while_the_run_is_busy_is_kept_for_its_next_stop() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel(two_deletions)
        panel.start()
        await until_waiting(panel, 2)
        cards = dict(session(panel).cards)
        cards["c1"].press(True)
        cards["c2"].press(True)  # in the same moment: the first is not yet executed
        await panel.outcome()
        assert desk.files() == ["errors.log"]

    go(scenario())


def test_a_typed_reason_survives_the_decision_on_another_call() -> None:
    async def scenario() -> None:
        panel = Desk().panel(two_deletions)
        panel.start()
        await until_waiting(panel, 2)
        session(panel).cards["c2"].reason.value = "half a sen"
        session(panel).cards["c1"].press(False)
        await until_waiting(panel, 1)
        assert session(panel).cards["c2"].reason.value == "half a sen"
        press_stop(panel)
        await panel.outcome()

    go(scenario())


def test_stop_leaves_a_call_undecided_and_start_asks_again() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("destructive")
        panel.start()
        await until_waiting(panel)
        press_stop(panel)
        outcome = await panel.outcome()
        assert str(outcome) == (
            "interrupted: delete_file waits for approval\n2 turns · $0.001570\nUser pressed Stop"
        )
        assert session(panel).cards == {}
        panel.start()
        await until_waiting(panel)
        press(panel, True)
        assert (await panel.outcome()).state.status == "completed"
        assert desk.done.count("delete_file:access.log") == 1

    go(scenario())


def test_a_loaded_run_is_decided_in_a_panel_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        desk = Desk()
        client = client_for("destructive")
        state = new_run(SYSTEM, TASK, "n1")
        await run(state, desk.tools, client, store=tmp_path)
        panel = desk.panel("destructive", state=load(tmp_path, "n1"), store=tmp_path)
        panel.start()
        await until_waiting(panel)
        press(panel, True)
        await panel.outcome()
        saved = load(tmp_path, "n1")
        assert (saved.status, saved.turns) == ("completed", 3)
        assert desk.done == ["list_files", "delete_file:access.log"]

    go(scenario())


def test_a_call_of_a_child_run_is_decided_in_the_parent_panel() -> None:
    def parent(turn: int, tool_text: str) -> Message:
        if turn == 0:
            return asks(call("p1", "ask_child", {"task": "tidy up"}))
        return text(f"The child says: {tool_text}")

    async def scenario() -> None:
        desk = Desk()
        child: Tool = run_as_tool(
            "ask_child", "Delegates.", SYSTEM, desk.tools, client_for("destructive")
        )
        panel = desk.panel(parent, tools=[child])
        panel.start()
        await until_waiting(panel)
        assert list(session(panel).cards) == ["p1/c2"]
        press(panel, True, "p1/c2")
        outcome = await panel.outcome()
        assert outcome.state.output == "The child says: Deleted access.log to free space."
        assert desk.files() == ["errors.log", "notes.txt"]

    go(scenario())


# --- nobody clicks ------------------------------------------------------------------------------


def test_the_environment_shortens_the_patience_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBOOK_READER_DELAY_S", "0.5")
    assert scripted_reader().delay_s == 0.5
    assert scripted_reader(delay_s=0.1).delay_s == 0.1
    monkeypatch.delenv("WORKBOOK_READER_DELAY_S")
    assert scripted_reader().delay_s == Reader().delay_s
    assert scripted_reader(delay_s=float("inf")).delay_s == float("inf")


@pytest.mark.parametrize(
    ("approve", "expected"),
    [(True, True), (False, False), (["c2"], True), ({"delete_file"}, True), (["c9"], False)],
)
def test_the_script_approves_what_it_was_told_to(approve: Any, expected: bool) -> None:
    waiting = {"call_id": "c2", "tool_name": "delete_file", "args": {}}
    assert scripted_reader(approve=approve).approves(waiting) is expected


def test_the_script_rejects_unless_told_otherwise_and_says_that_it_was_the_script() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("destructive", reader=scripted_reader(delay_s=0.01))
        panel.start()
        words = str(await panel.outcome())
        assert 'The script rejected delete_file({"path": "access.log"}), because: ' in words
        assert "nobody was there to approve it" in told(panel.state, "c2")
        assert desk.files() == ALL_FILES

    go(scenario())


def test_the_script_approves_one_of_two_calls() -> None:
    async def scenario() -> None:
        desk = Desk()
        reader = scripted_reader(approve=["c1"], reason="not this one", delay_s=0.01)
        panel = desk.panel(two_deletions, reader=reader)
        panel.start()
        outcome = await panel.outcome()
        assert [(one.approved, one.by) for one in outcome.decisions] == [
            (True, "script"),
            (False, "script"),
        ]
        assert desk.files() == ["errors.log", "notes.txt"]

    go(scenario())


def test_the_script_does_nothing_until_the_outcome_is_awaited() -> None:
    async def scenario() -> None:
        panel = Desk().panel("destructive", reader=Reader(delay_s=0.0))
        panel.start()
        await until_waiting(panel)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert session(panel).phase == "waiting"
        assert "take your time" in session(panel)._note()
        assert (await panel.outcome()).decisions[0].by == "script"

    go(scenario())


def test_the_script_leaves_the_decision_to_a_person_who_types() -> None:
    async def scenario() -> None:
        panel = Desk().panel("destructive", reader=Reader(delay_s=0.1))
        panel.start()
        cell = asyncio.create_task(panel.outcome())
        await until_waiting(panel)
        assert "a script decides" in session(panel)._note()
        reason = session(panel).cards["c2"].reason
        reason.value = "b"
        await until(lambda: "You are typing" in session(panel)._note())
        assert not reason.continuous_update  # the rest comes whole, before the click
        await asyncio.sleep(0.2)
        press(panel, False, reason="because")
        assert (await cell).decisions[0].by == "person"

    go(scenario())


def test_the_script_presses_stop_where_it_is_told_to() -> None:
    async def scenario() -> None:
        panel = Desk(step_s=5.0).panel("scan", reader=scripted_reader(stop=True, delay_s=0.02))
        panel.start()
        outcome = await panel.outcome()
        assert str(outcome).startswith("interrupted: the script pressed Stop\n")
        assert outcome.stopped_by == "script"

    go(scenario())


# --- twice, and two -----------------------------------------------------------------------------


def test_the_same_run_in_a_new_panel_replaces_the_old_one() -> None:
    async def scenario() -> None:
        desk = Desk()
        old = desk.panel("scan")
        old.start()
        await until_scanning(old)
        new = desk.panel("scan", state=old.state)
        new.start()
        assert session(old).stop_button.disabled
        outcome = await new.outcome()
        assert outcome.state.status == "completed"
        assert session(old).task.done()
        assert session(old).problem is None

    go(scenario())


@pytest.mark.parametrize("second_execution", ["e2", "e1"])
def test_a_cell_that_is_run_again_replaces_its_panel_but_two_panels_of_one_run_stay(
    monkeypatch: pytest.MonkeyPatch, second_execution: str
) -> None:
    async def scenario() -> None:
        desk = Desk()
        monkeypatch.setattr(run_panel, "_this_cell", lambda: ("cell", "e1"))
        first = desk.panel("scan")
        first.start()
        await until_scanning(first)
        monkeypatch.setattr(run_panel, "_this_cell", lambda: ("cell", second_execution))
        second = desk.panel("scan")
        second.start()
        replaced = second_execution == "e2"
        assert session(first).signal.aborted is replaced
        await second.outcome()
        outcome = await first.outcome()
        expected = "interrupted" if replaced else "completed"
        assert outcome.state.status == expected
        assert second.state.status == "completed"

    go(scenario())


def test_a_panel_started_twice_has_one_live_run() -> None:
    async def scenario() -> None:
        desk = Desk()
        panel = desk.panel("scan")
        panel.start()
        first = session(panel)
        await until_scanning(panel)
        panel.start()
        outcome = await panel.outcome()
        assert first.task.done()
        assert session(panel) is not first
        assert outcome.state.status == "completed"
        assert outcome.state.turns == 2

    go(scenario())


def test_two_panels_run_side_by_side() -> None:
    async def scenario() -> None:
        desk = Desk()
        left, right = desk.panel("scan"), desk.panel("scan")
        left.start()
        right.start()
        await until_scanning(left)
        await until_scanning(right)
        press_stop(left)
        assert (await left.outcome()).state.status == "interrupted"
        assert (await right.outcome()).state.status == "completed"

    go(scenario())


def test_of_two_panels_over_one_stored_run_one_wins_and_the_other_says_why(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        desk = Desk()
        await run(
            new_run(SYSTEM, TASK, "n1"), desk.tools, client_for("destructive"), store=tmp_path
        )
        tabs = [
            desk.panel("destructive", state=load(tmp_path, "n1"), store=tmp_path) for _ in range(2)
        ]
        for tab in tabs:
            tab.start()
            await until(lambda tab=tab: session(tab).phase in ("waiting", "broken"))  # type: ignore[misc]
        for tab in tabs:
            if session(tab).phase == "waiting":
                press(tab, True)
        results = await asyncio.gather(*(tab.outcome() for tab in tabs), return_exceptions=True)
        assert desk.done.count("delete_file:access.log") == 1
        refused = [one for one in results if isinstance(one, RunBusyError)]
        assert len(refused) == 1
        broken = next(tab for tab in tabs if session(tab).problem)
        assert "RunBusyError" in session(broken)._head.value
        assert load(tmp_path, "n1").status == "completed"

    go(scenario())


# --- errors -------------------------------------------------------------------------------------


async def _falls_over(*args: Any, **options: Any) -> RunState:
    raise LookupError("<b>no such thing</b>")


def test_an_error_behind_the_panel_shows_there_and_in_the_awaiting_cell() -> None:
    async def scenario() -> None:
        panel = Desk().panel("scan", runner=_falls_over)
        panel.start()
        with pytest.raises(LookupError, match="no such thing"):
            await panel.outcome()
        shown = session(panel)._head.value
        assert "✖ Error in the panel" in shown
        assert "LookupError: &lt;b&gt;no such thing&lt;/b&gt;" in shown
        assert session(panel).stop_button.disabled

    go(scenario())


def test_an_error_in_a_callback_ends_the_run_and_is_told() -> None:
    def fails() -> None:
        raise ZeroDivisionError("in a callback")

    async def scenario() -> None:
        panel = Desk(step_s=5.0).panel("scan")
        panel.start()
        await until(lambda: "running scan_archive" in session(panel).live.step())
        session(panel).hop(fails)(None)
        with pytest.raises(ZeroDivisionError, match="in a callback"):
            await panel.outcome()
        assert panel.state.status == "interrupted"
        assert "ZeroDivisionError: in a callback" in session(panel)._head.value

    go(scenario())


def test_a_limit_of_the_harness_is_an_outcome_not_an_error() -> None:
    async def scenario() -> None:
        panel = Desk().panel("runaway", limits=Limits(max_turns=4))
        panel.start()
        outcome = await panel.outcome()
        assert str(outcome) == "max_turns_exceeded\n4 turns · $0.003510"

    go(scenario())


def test_what_is_called_too_early_says_what_to_do() -> None:
    panel = Desk().panel("plan")
    with pytest.raises(RuntimeError, match="no running event loop"):
        panel.start()
    with pytest.raises(RuntimeError, match=r"panel\.start\(\)"):
        go(panel.outcome())


# --- what else goes through the panel -----------------------------------------------------------


def test_the_trace_goes_on_to_a_file_or_a_function(tmp_path: Path) -> None:
    async def scenario() -> None:
        events: list[dict[str, Any]] = []
        to_a_function = Desk().panel("plan", trace=events.append)
        to_a_file = Desk().panel("plan", trace=tmp_path / "trace.jsonl")
        for panel in (to_a_function, to_a_file):
            panel.start()
            await panel.outcome()
        lines = (tmp_path / "trace.jsonl").read_text("utf-8").splitlines()
        kinds = [json.loads(line)["type"] for line in lines]
        assert kinds == [event["type"] for event in events]
        assert kinds[-1] == "run_stopped"
        shown_too = session(to_a_file).live.lines
        assert shown_too[0].startswith("turn 1 · 204 in + 23 out tokens")

    go(scenario())


def test_options_go_to_the_runner_and_on_progress_is_called() -> None:
    async def scenario() -> None:
        labels: list[str] = []
        panel = Desk().panel("scan", on_progress=labels.append)
        panel.start()
        await panel.outcome()
        assert labels[0] == "scanned 200 of 1,200 files"
        assert len(labels) == 6

    go(scenario())


def test_what_is_displayed_leaves_words_when_the_widget_is_gone(
    shown: list[dict[str, Any]],
) -> None:
    async def scenario() -> None:
        panel = Desk().panel("plan")
        panel.start()
        await panel.outcome()

    go(scenario())
    widget, words = shown
    assert list(widget) == ["application/vnd.jupyter.widget-view+json"]
    assert "after a restart, run the cell again" in words["text/plain"]
    assert words["text/plain"] in words["text/html"]


def test_a_tool_of_the_caller_in_a_thread_reports_to_the_panel() -> None:
    async def scenario() -> None:
        desk = Desk()

        def scan(args: dict[str, Any], ctx: Any) -> str:
            ctx.progress("3 of 6")
            ctx.signal.wait_blocking(10)
            return "stopped in between"

        tools = [replace(tool, run=scan) for tool in desk.tools if tool.name == "scan_archive"]
        panel = desk.panel("scan", tools=tools)
        panel.start()
        await until(lambda: session(panel).live.share == 0.5)
        press_stop(panel)
        assert (await panel.outcome()).state.status == "interrupted"

    go(scenario())


def test_a_stop_that_the_exit_does_not_mention_is_told_beside_it() -> None:
    async def deaf(*args: Any, signal: Any, **options: Any) -> RunState:
        return await run(*args, **options)

    async def scenario() -> None:
        panel = Desk().panel("scan", runner=deaf, reader=Reader(stop=True, delay_s=0.01))
        panel.start()
        words = str(await panel.outcome())
        assert words.startswith("completed\n2 turns")
        assert "\nThe script pressed Stop\n" in words

    go(scenario())
