"""Failures that were found by search or by review, each with its shortest way to happen.

What the state machine finds, shrunk, becomes a test here, under a name that says what was wrong.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import (
    AbortSignal,
    Limits,
    RunState,
    StopCondition,
    Tool,
    ToolContext,
    budget,
    load,
    new_run,
    run,
    save,
)
from scripted_provider import asks, call, changed, says, text
from tests.rig import TEXT_PARAMETER, Rig, client_of, journal_of, tool

MAIL = call("m1", "send_mail", {"text": "hello"})
ADD = call("a1", "add_note", {"text": "a"})
ASK_CHILD = call("p1", "ask_child", {"task": "go"})


# --- starts --------------------------------------------------------------------------------------


def test_stop_between_the_note_of_a_start_and_the_start(tmp_path: Path) -> None:
    """The note was saved, the signal came, and the tool started all the same."""
    rig = Rig(asks(ADD), text("ok"), store=tmp_path)

    def stop_at_the_save(self: Any, **options: bool) -> None:
        if rig.state.started:
            rig.stop()
        original(self, **options)

    original = harness._Run.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness._Run, "save", stop_at_the_save)
        rig.run()
    assert rig.state.status == "interrupted"
    assert (rig.effects, rig.state.started) == ([], [])
    assert load(tmp_path, "rig").started == []
    rig.run()
    assert rig.effects == ["add_note:a1"]


def test_stop_at_the_trace_line_of_a_start() -> None:
    """A trace function that presses Stop at tool_start: the tool's first step ran after it."""
    rig = Rig(asks(ADD), text("ok"))
    rig.on_event = lambda event: rig.stop() if event["type"] == "tool_start" else None
    rig.run()
    assert rig.state.status == "interrupted"
    assert rig.effects == []


def test_a_trace_that_fails_at_a_start(tmp_path: Path) -> None:
    """The call stood as started for ever after, though it never was."""

    def fails(event: dict[str, Any]) -> None:
        if event["type"] == "tool_start":
            raise OSError("disk full")

    state, runs = new_run("", "Do it.", "r1"), list[str]()
    add = tool("add_note", lambda args, ctx: runs.append("ran"), TEXT_PARAMETER)
    asyncio.run(run(state, [add], client_of(asks(ADD)), store=tmp_path, trace=fails))
    assert (state.status, state.started, runs) == ("failed", [], [])
    assert load(tmp_path, "r1").started == []


# --- approvals -----------------------------------------------------------------------------------


def test_a_question_that_changes_its_mind_does_not_let_the_call_through() -> None:
    """What a person was asked about waits for them, even if the predicate says no the next time."""
    answers = [True, False, False]
    moody = tool("moody", lambda args, ctx: "ran", needs_approval=lambda args: answers.pop(0))
    rig = Rig(asks(call("c1", "moody")), text("ok"), tools=[moody])
    for _ in range(2):
        rig.run()
        assert rig.waiting() == ["c1"]
        assert rig.effects == []
    rig.approve("c1")
    rig.run()
    assert rig.effects == ["moody:c1"]


def test_a_sibling_of_a_tool_that_is_gone_failed_the_run() -> None:
    rig = Rig(asks(MAIL, ADD), text("ok"))
    rig.run()
    rig.tools = [one for one in rig.tools if one.name != "add_note"]
    rig.run()
    assert rig.waiting() == ["m1"]


def test_what_is_approved_once_more_runs_once_more(tmp_path: Path) -> None:
    """After an unknown outcome a person may say: again. It must not be asked for ever."""
    rig = Rig(asks(ADD), text("ok"), store=tmp_path)
    rig.run(limits=Limits(max_turns=1))
    rig.state.started.append("a1")  # as a process leaves it that died in the middle of the tool
    rig.run()
    assert rig.waiting() == ["a1"]
    rig.approve("a1")
    rig.run()
    assert (rig.state.status, rig.effects) == ("completed", ["add_note:a1"])


# --- cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", range(6))
def test_cancelling_the_task_around_a_child_run(moment: int, tmp_path: Path) -> None:
    """The child ended later than the run that had raised, and the file knew nothing of it."""
    rig = Rig(asks(ASK_CHILD), text("ok"), store=tmp_path)
    rig.add_child("ask_child", asks(ADD), text("added"))

    async def cancelled() -> None:
        task = asyncio.ensure_future(rig.go_on())
        seen = [0]

        def cancel(event: dict[str, Any]) -> None:
            if seen[0] == moment:
                task.cancel()
            seen[0] += 1

        rig.on_event = cancel
        with pytest.raises(asyncio.CancelledError):
            await task
        assert load(tmp_path, "rig") == rig.state
        rig.check()

    asyncio.run(cancelled())
    for _ in range(3):
        for path in rig.waiting():
            rig.reject(path, "leave it")
        rig.run()
    assert rig.state.status == "completed"


def test_a_child_that_is_left_running_cannot_write_after_its_parent(tmp_path: Path) -> None:
    """A tool that starts a child and does not wait for it: the child saved without the lock."""
    client, background = client_of(*[asks(ADD)] * 9), list[asyncio.Task[Any]]()
    add = tool("add_note", lambda args, ctx: time.sleep(0.01), TEXT_PARAMETER)

    async def leaves(args: dict[str, Any], ctx: ToolContext) -> str:
        child = run(new_run("", "Do it."), [add], client, parent=ctx)
        background.append(asyncio.ensure_future(child))
        await asyncio.sleep(0)
        return "left"

    state, events = new_run("", "Do it.", "r1"), list[dict[str, Any]]()
    parent = client_of(asks(call("l1", "leaves")), text("ok"))

    async def both() -> tuple[bytes, RunState]:
        tools = [tool("leaves", leaves)]
        await run(state, tools, parent, store=tmp_path, trace=events.append)
        saved = (tmp_path / "r1.json").read_bytes()
        child: RunState = await background[0]
        return saved, child

    saved, child = asyncio.run(both())
    assert (tmp_path / "r1.json").read_bytes() == saved
    reason = "the run that started it has ended"
    assert child.interruption == {"type": "cancelled", "reason": reason}
    assert (events[-1]["type"], events[-1]["runId"]) == ("run_stopped", "r1")


def test_a_tool_in_a_thread_lost_what_it_returned_when_it_was_told_to_stop() -> None:
    def looks(args: dict[str, Any], ctx: ToolContext) -> str:
        ctx.signal.wait_blocking(30)
        return "partial"

    rig = Rig(asks(call("l1", "looks")), tools=[tool("looks", looks)])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    assert rig.told("l1") == "partial"


def test_a_child_that_stops_by_itself_at_the_signal_is_only_paused() -> None:
    """It ended between two awaits, and the parent's model was told that it had no answer."""
    rig = Rig(asks(ASK_CHILD), text("all done"))
    child = rig.add_child("ask_child", asks(call("n1", "read_note", {"id": 1})), text("found"))
    rig.on_event = lambda event: rig.stop() if event["runId"] != "rig" else None
    rig.run()
    assert rig.state.children["p1"].status == "interrupted"
    rig.run()
    assert rig.told("p1") == "found"
    assert len(journal_of(child)) == 2


def test_two_signals_of_a_child_both_stop_it() -> None:
    """With a signal of its own a child did not hear its parent's."""
    own, child = AbortSignal(), new_run("", "Do it.")

    async def ask_child(args: dict[str, Any], ctx: ToolContext) -> str:
        slow = tool("slow", lambda args, ctx: ctx.signal.wait_blocking(30), read_only=True)
        client = client_of(asks(call("s1", "slow")))
        await run(child, [slow], client, parent=ctx, signal=own)
        return child.status

    rig = Rig(asks(call("p1", "ask_child")), tools=[tool("ask_child", ask_child)])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    assert rig.state.status == "interrupted"
    assert child.interruption == {"type": "cancelled", "reason": "the user pressed Stop"}


# --- memory --------------------------------------------------------------------------------------


def test_a_write_that_failed_was_taken_for_no_write() -> None:
    reads = [asks(call(f"r{n}", "read_note", {"id": 1})) for n in range(2)]
    rig = Rig(reads[0], asks(call("w1", "writes")), reads[1], text("ok"), dedupe=True)

    def writes(args: dict[str, Any], ctx: ToolContext) -> None:
        rig.notes[1] = "new"
        raise TimeoutError("no answer")

    rig.tools.append(rig.counted(tool("writes", writes)))
    rig.run()
    assert rig.told("r1") == "new"


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nasty", ["\udc97", "\x00\x1b[2J", "x" * 10_000])
def test_a_refusal_or_a_finish_reason_of_odd_text(nasty: str) -> None:
    """They went into the state and the trace as they came."""

    def odd(body: dict[str, Any]) -> None:
        body["choices"][0]["finish_reason"] = f"stop{nasty}"

    refusal = says({"role": "assistant", "content": None, "refusal": f"no {nasty}"})
    for answer in (refusal, changed(odd)):
        rig = Rig(answer)
        rig.run()
        assert rig.state.status in ("failed", "completed")
        assert "\x00" not in str(rig.events)
        assert len(str(rig.events[0])) < 1000


def test_an_error_of_nothing_but_control_characters_was_blank() -> None:
    rig = Rig(asks(call("c1", "fails")), tools=[])

    def fails(args: dict[str, Any], ctx: ToolContext) -> None:
        raise ConnectionError("\x00")

    rig.tools.append(tool("fails", fails))
    rig.run()
    assert rig.told("c1") == "Error: ConnectionError"


# --- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "running", "paused"])
def test_a_stop_condition_cannot_make_a_run_final(status: Any) -> None:
    """It left a completed run with an interruption and without an output."""
    rig = Rig(text("ok"))
    with pytest.raises(ValueError, match=f"cannot make a run {status}"):
        rig.run(stop_when=[StopCondition("mine", lambda state: True, status)])
    assert rig.state.turns == 0


def test_a_budget_among_the_stop_conditions_did_not_hold_children() -> None:
    rig = Rig(asks(ASK_CHILD), text("never"))
    reads = [asks(call(f"n{n}", "read_note", {"id": 1})) for n in range(9)]
    child = rig.add_child("ask_child", *reads, limits=Limits(max_turns=9))
    rig.run(stop_when=[budget(0.002)], limits=Limits(None))
    assert rig.state.status == "budget_exceeded"
    assert rig.state.children["p1"].status == "budget_exceeded"
    assert rig.state.children["p1"].turns < 9
    assert child is rig.clients[-1]


# --- saves ---------------------------------------------------------------------------------------


def test_a_failed_save_counted_as_a_revision(tmp_path: Path) -> None:
    """Two processes at the same revision: the one whose save had failed overwrote the other's."""
    state = new_run("", "Do it.", "r1")
    save(state, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save(state, tmp_path)
    assert state.revision == load(tmp_path, "r1").revision == 1


def test_a_tool_that_changes_the_directory_does_not_move_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of a start went to another file than the one that a resume would read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def moves(args: dict[str, Any], ctx: ToolContext) -> str:
        monkeypatch.chdir(tmp_path / "elsewhere")
        return "moved"

    rig = Rig(asks(call("c1", "moves"), ADD), text("ok"), tools=[tool("moves", moves)])
    rig.run(store="runs", trace=rig.note_event)
    assert load(tmp_path / "runs", "rig") == rig.state
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_state_without_the_list_of_its_starts_was_loaded(tmp_path: Path) -> None:
    """The list was taken for empty, and what had been started would have been started again."""
    save(new_run("", "Do it.", "r1"), tmp_path)
    state = json.loads((tmp_path / "r1.json").read_text("utf-8"))
    del state["started"]
    (tmp_path / "r1.json").write_text(json.dumps(state), "utf-8")
    with pytest.raises(Exception, match="is damaged: 'started'"):
        load(tmp_path, "r1")


def test_a_tools_schema_that_refers_to_itself_and_deep_arguments() -> None:
    """The check ran out of stack, and the run failed with it."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}},
    }
    deep = '{"next": ' * 900 + "{}" + "}" * 900
    one = Tool("deep", "Deep.", schema, lambda args, ctx: "ran")
    rig = Rig(asks(call("d1", "deep", deep)), text("ok"), tools=[one])
    rig.run()
    assert rig.state.status == "completed"
