"""What a panel shows: the words, and HTML in which nothing from outside is markup."""

from __future__ import annotations

from typing import Any

import pytest

from harness import Limits, RunState, new_run
from panel_view import (
    TRACE_LINES,
    Live,
    bar_html,
    call_html,
    exit_words,
    head_html,
    meters_html,
    next_words,
    share_of,
    spent_words,
    trace_html,
    trace_words,
)

MARKUP = "<img src=x onerror=alert(1)>"
SHOWN = "&lt;img src=x onerror=alert(1)&gt;"


def state_with(**changes: Any) -> RunState:
    state = new_run("", "a task", "r1")
    for name, value in changes.items():
        setattr(state, name, value)
    return state


def event(kind: str, run_id: str = "r1", **details: Any) -> dict[str, Any]:
    return {"runId": run_id, "type": kind, **details}


def turn_event(turn: int, run_id: str = "r1", **details: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 1204, "completion_tokens": 23, "costUsd": 0.000684}
    return event("turn", run_id, turn=turn, **counts, **details)


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "share"),
    [
        ("scanned 600 of 1,200 files", 0.5),
        ("600/1200", 0.5),
        ("1.5 of 2 GB", 0.75),
        ("50 %", 0.5),
        ("12.5% done", 0.125),
        ("1,300 of 1,200 files", 1.0),
        ("0 of 0 files", None),
        ("reading the index", None),
        ("file 7", None),
    ],
)
def test_how_much_is_done_is_read_from_a_label(label: str, share: float | None) -> None:
    assert share_of(label) == share


APPROVAL = {"type": "approval", "call_id": "c2", "tool_name": "delete_file", "args": {}}


@pytest.mark.parametrize(
    ("changes", "words", "what_next"),
    [
        ({"status": "completed"}, "completed", "follow_up"),
        ({"status": "failed", "error": "HTTP 401: no"}, "failed: HTTP 401: no", "Not resumable"),
        ({"status": "max_turns_exceeded"}, "max_turns_exceeded", "higher limit"),
        ({"status": "budget_exceeded"}, "budget_exceeded", "higher limit"),
        (
            {"interruption": {"type": "cancelled", "reason": "user pressed Stop"}},
            "interrupted: user pressed Stop",
            "goes on from here",
        ),
        (
            {"interruption": {"type": "stop_condition", "name": "deadline"}},
            "interrupted: deadline",
            "goes on from here",
        ),
        (
            {"interruption": APPROVAL},
            "interrupted: delete_file waits for approval",
            "asks for the decision again",
        ),
    ],
)
def test_an_exit_its_reason_and_what_comes_next_in_words(
    changes: dict[str, Any], words: str, what_next: str
) -> None:
    state = state_with(**{"status": "interrupted", **changes})
    assert exit_words(state) == words
    assert what_next in next_words(state)


def test_what_was_spent_says_how_far_it_is_known() -> None:
    assert spent_words(state_with(turns=1, cost_usd=0.000684)) == "1 turn · $0.000684"
    assert spent_words(state_with(turns=3)) == "3 turns · $0.000000"
    assert "estimated" in spent_words(state_with(cost_basis="estimated"))
    assert "unknown" in spent_words(state_with(cost_basis="unknown"))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (turn_event(2), "turn 2 · 1,204 in + 23 out tokens · $0.000684"),
        (event("tool_start", toolName="scan", args="{}"), "scan {} · started"),
        (event("tool_progress", toolName="scan", label="2 of 6"), "scan · 2 of 6"),
        (event("tool_result", toolName="scan", ok=True, ms=3015), "scan · ok · 3,015 ms"),
        (event("tool_result", toolName="scan", ok=False, ms=1), "scan · error · 1 ms"),
        (
            event("tool_result", toolName="scan", ok=False, ms=9, interrupted=True),
            "scan · interrupted",
        ),
        (
            event("tool_result", toolName="scan", ok=True, executed=False, cached=True),
            "scan · answered from memory",
        ),
        (event("tool_result", toolName="scan", ok=False, executed=False), "scan · not executed"),
        (event("approval_required", toolName="rm", args="{}"), "rm {} · waits for approval"),
        (
            event("run_stopped", status="interrupted", reason="approval"),
            "stopped · interrupted · approval",
        ),
        (event("something_new"), "something_new"),
        (turn_event(1, "r1.c1", parentRunId="r1"), "  turn 1 · 1,204 in + 23 out tokens"),
    ],
)
def test_a_line_of_the_trace_in_words(told: dict[str, Any], words: str) -> None:
    assert trace_words(told).startswith(words)


def test_long_arguments_are_cut_in_the_trace() -> None:
    line = trace_words(event("tool_start", toolName="write", args="x" * 5000))
    assert len(line) < 200
    assert "…" in line


# --- the step -----------------------------------------------------------------------------------


def test_the_step_follows_the_trace() -> None:
    live = Live(state_with())
    live.begin()
    assert live.step() == "turn 1 · asking the model"
    live.state.turns = 1
    live.take(turn_event(1))
    live.take(event("tool_start", toolName="scan_archive", args="{}"))
    assert live.step() == "turn 1 · running scan_archive"
    live.take(event("tool_progress", toolName="scan_archive", label="600 of 1,200 files"))
    assert live.step() == "turn 1 · running scan_archive · 600 of 1,200 files"
    assert live.share == 0.5
    live.take(event("tool_result", toolName="scan_archive", ok=True, ms=3000))
    assert live.step() == "turn 2 · asking the model after scan_archive"
    assert live.share is None


def test_a_continued_run_begins_at_its_turn_with_its_open_calls() -> None:
    calls = [{"id": "c1", "function": {"name": "scan", "arguments": "{}"}}]
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
    live = Live(state_with(turns=3, messages=messages))
    live.begin()
    assert live.step() == "turn 3 · settling open calls"


def test_a_child_run_shows_beside_the_call_that_it_works_for() -> None:
    live = Live(state_with(turns=1))
    live.begin()
    live.take(turn_event(1))
    live.take(event("tool_start", toolName="ask_child", args="{}"))
    live.take(turn_event(1, "r1.c1", parentRunId="r1"))
    live.take(event("tool_start", "r1.c1", toolName="read", args="{}", parentRunId="r1"))
    assert live.step() == "turn 1 · running ask_child · turn 1 · running read"
    live.take(event("tool_result", toolName="ask_child", ok=True, ms=1))
    assert live.step() == "turn 2 · asking the model after ask_child"


# --- HTML ---------------------------------------------------------------------------------------


def test_nothing_from_outside_is_markup() -> None:
    live = Live(state_with(status="completed", output=MARKUP))
    live.steps = {"r1": f"turn 1 · running {MARKUP}"}
    call = {"call_id": MARKUP, "tool_name": MARKUP, "args": {MARKUP: MARKUP}, "note": MARKUP}
    shown = [
        head_html(live, Limits(), "running"),
        head_html(live, Limits(), "ended"),
        head_html(live, Limits(), "broken", note=MARKUP),
        call_html(call),
        trace_html([MARKUP]),
    ]
    for text in shown:
        assert MARKUP not in text
        assert SHOWN in text
    assert "alert" not in bar_html(0.5, '"><script>').replace("&quot;", "")


def test_a_failure_is_shown_with_its_reason() -> None:
    live = Live(state_with(status="failed", error=f"the tool said {MARKUP}"))
    assert f"failed: the tool said {SHOWN}" in head_html(live, Limits(), "ended")


def test_progress_is_shown_while_a_tool_reports_some() -> None:
    live = Live(state_with(), steps={"r1": "turn 1 · running scan"})
    assert "Progress of the tool" not in head_html(live, Limits(), "running")
    live.share = 0.5
    text = head_html(live, Limits(), "running")
    assert 'aria-label="Progress of the tool"' in text
    assert 'aria-valuenow="50"' in text


@pytest.mark.parametrize(("share", "percent"), [(-1.0, 0), (0.0, 0), (0.333, 33), (7.0, 100)])
def test_a_bar_stays_within_its_frame(share: float, percent: int) -> None:
    assert f"width:{percent}%" in bar_html(share, "a bar")


def test_a_meter_for_turns_and_one_for_money() -> None:
    text = meters_html(state_with(turns=2, cost_usd=0.0125), Limits(20, 0.05))
    assert "Turns: 2 of 20" in text
    assert "width:10%" in text
    assert "Money: $0.012500 of $0.05" in text
    assert "width:25%" in text


def test_meters_without_limits_and_with_limits_of_nothing() -> None:
    unlimited = meters_html(state_with(turns=2), Limits(None, None))
    assert "Turns: 2, no limit" in unlimited
    assert "progressbar" not in unlimited
    assert meters_html(state_with(), Limits(0, 0.0)).count("width:100%") == 2


def test_a_waiting_call_is_shown_in_full_with_what_a_page_would_hide() -> None:
    long = "x" * 5000
    hidden = "report\u202egpj.exe\u200b"
    text = call_html({"call_id": "c1", "tool_name": "write", "args": {"a": long, "b": hidden}})
    assert long in text
    assert "report\\u202egpj.exe\\u200b" in text
    assert "\u202e" not in text


def test_the_trace_keeps_its_last_lines() -> None:
    live = Live(state_with())
    for number in range(TRACE_LINES + 5):
        live.take(event(f"kind-{number}"))
    text = trace_html(live.lines)
    assert "kind-4\n" not in text
    assert f"kind-{TRACE_LINES + 4}" in text
