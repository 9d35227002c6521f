"""The checks of chapters 08, 10 and 11 explain the wrong answers that people give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalogue import catalogue
from exercises import ch08, ch10, ch11
from exercises.ch08 import alarm, alert_tool
from harness import Tool, ToolContext, approve, new_run, run
from scripted_provider import SCRIPTS, Message, asks, call, plan, text
from tests.support import go, said
from workbook import SYSTEM, TASK, client_for


def ids_over_all_messages(messages: list[Message]) -> list[str]:
    """The usual mistake: a result closes every call of its id, however old."""
    answered = {message.get("tool_call_id") for message in messages}
    calls = messages[-1].get("tool_calls") or []
    for message in messages:
        calls = message.get("tool_calls") or calls
    return [one["id"] for one in calls if one["id"] not in answered]


def forgetful(directory: Path) -> Tool:
    return replace(alert_tool(directory), idempotent=True)


def keyed_by_text(directory: Path) -> Tool:
    async def send_alert(args: dict[str, Any], ctx: ToolContext) -> str:
        outbox = directory / "outbox.txt"
        sent = outbox.read_text() if outbox.exists() else ""
        if args["text"] not in sent:
            outbox.write_text(sent + args["text"] + "\n")
        return "alert sent"

    return replace(alert_tool(directory), run=send_alert, idempotent=True)


def keyed(directory: Path) -> Tool:
    """As a plain function, which runs in a thread."""

    def send_alert(args: dict[str, Any], ctx: ToolContext) -> str:
        keys, outbox = directory / "keys.txt", directory / "outbox.txt"
        if not keys.exists() or ctx.idempotency_key not in keys.read_text().splitlines():
            with outbox.open("a") as file:
                file.write(args["text"] + "\n")
            with keys.open("a") as file:
                file.write(ctx.idempotency_key + "\n")
        return "alert sent"

    return replace(alert_tool(directory), run=send_alert, idempotent=True)


def never_stopped(events: list[dict[str, Any]]) -> list[str]:
    """The usual mistake: a run that was ever stopped counts as ended."""
    ended = {event["runId"] for event in events if event["type"] == "run_stopped"}
    return [run_id for run_id in dict.fromkeys(e["runId"] for e in events) if run_id not in ended]


def says_the_answer(turn: int, tool_text: str) -> Message:
    message = plan(turn, tool_text)
    return {**message, "content": "errors.log mentions a timeout"} if turn < 2 else message


def talks(turn: int, tool_text: str) -> Message:
    if turn < 2:
        return {**asks(call(f"c{turn}", "list_files")), "content": "Let me look."}
    return text("errors.log.")


class Appends:
    """Shows every piece, for ever."""

    def __init__(self) -> None:
        self.text = ""

    def on_delta(self, piece: str) -> None:
        self.text += piece

    def on_event(self, event: dict[str, Any]) -> None: ...


class ClearsAtTurns(Appends):
    """Forgets the words of a turn that asks for tools, and no others."""

    def on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "turn" and event["finish"] == "tool_calls":
            self.text = ""


class Clears(ClearsAtTurns):
    def on_delta(self, piece: str) -> None:
        self.text = self.text + piece if piece else ""


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (ch08.check_1, 0.00247, "what the state says"),
        (ch08.check_1, 1.0, "turn 3 twice"),
        (ch08.check_2, ids_over_all_messages, "uses the id c1 in two messages"),
        (ch08.check_2, lambda messages: messages[0]["nothing"], "raised KeyError"),
        (ch08.check_3, "a script", "A function of (turn, tool_text)"),
        (ch08.check_3, plan, "must ask for send_alert"),
        (ch08.check_3, alarm, "1 alert is out"),
        (ch08.check_4, alert_tool, "idempotent=True"),
        (ch08.check_4, forgetful, "holds 2 lines"),
        (ch08.check_4, keyed_by_text, "the text is not the key"),
        (ch10.check_1, 0.002328, "the whole run"),
        (ch10.check_2, never_stopped, "was resumed, and died"),
        (ch10.check_3, plan, "a text that the model wrote"),
        (ch11.check_1, 49, "when the last turn begins"),
        (ch11.check_2, plan, "Nothing was said in turn 1"),
        (ch11.check_2, SCRIPTS["once"], "after 2 turns"),
        (ch11.check_2, says_the_answer, "part of the answer"),
        (ch11.check_3, "a screen", "on_delta is missing"),
        (ch11.check_3, Appends, "talks in every turn"),
        (ch11.check_3, ClearsAtTurns, "breaks in the last turn"),
    ],
)
def test_a_wrong_answer_is_explained(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = said(check, answer, capsys)
    assert output.startswith("Not yet.")
    assert words in output


def test_the_costs_in_the_hints_are_the_costs_of_that_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events: list[dict[str, Any]] = []
    state = new_run(SYSTEM, TASK)
    for _ in range(2):
        go(run(state, catalogue(), client_for("destructive"), trace=events.append))
        if state.status == "interrupted":
            approve(state, "c2")
    costs = [event["costUsd"] for event in events if event["type"] == "turn"]
    assert said(ch10.check_1, costs[2] - costs[1], capsys).startswith("Right.")
    assert "costUsd adds up" in said(ch10.check_1, costs[2], capsys)
    assert "already a sum" in said(ch10.check_1, sum(costs), capsys)


@pytest.mark.parametrize(
    ("check", "answer"),
    [(ch08.check_4, keyed), (ch11.check_2, talks), (ch11.check_3, Clears)],
)
def test_another_right_answer_is_right(
    check: Callable[[Any], Any], answer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(check, answer, capsys).startswith("Right.")
