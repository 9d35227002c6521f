"""Chapter 08: a tool with an effect that cannot be taken back, and the checks of its exercises."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exercises import number, right, unanswered, wrong
from harness import PermanentToolError, RunState, Tool, ToolContext, load, new_run, reject, run
from scripted_provider import Message, Script, asks, call, text
from workbook import SYSTEM, client_for

ALARM_TASK = "If a log mentions a timeout, alert the person on call."
TEXT_PARAMETER = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}


def alert_tool(directory: Path, wait_s: float = 0.0) -> Tool:
    """A tool that sends: what is in outbox.txt has gone out and does not come back."""

    async def send_alert(args: dict[str, Any], ctx: ToolContext) -> str:
        with (directory / "outbox.txt").open("a") as outbox:
            outbox.write(args["text"] + "\n")
        await asyncio.sleep(wait_s)  # the mail server takes its time to confirm
        return "alert sent"

    return Tool("send_alert", "Alert the person on call.", TEXT_PARAMETER, send_alert)


def alarm(turn: int, tool_text: str) -> Message:
    """Sends one alert, then reports what the transcript says of it."""
    if turn == 0:
        return asks(call("c1", "send_alert", {"text": "errors.log: worker 7 timed out"}))
    if "unknown" in tool_text:
        return text("The alert may have gone out. I did not send it again.")
    return text("I sent the alert.")


# --- the checks -----------------------------------------------------------------------------


def check_1(answer: Any) -> None:
    """The bill of a run whose third request was lost with its process."""
    number(
        answer,
        0.003370,
        "Turn 3 was asked for twice, and each answer costs $0.000900. The state knows of one only: "
        "a request under way when a process dies is the one thing that no saved state can hold.",
        {
            0.002470: "That is what the state says. Count the requests that the provider received.",
            0.003356: "That is turn 2 paid twice. Which turn was under way when Monday's process "
            "died?",
            0.004040: "That is a run that begins again from the top. Monday's run did not.",
        },
        "The provider received turn 1, turn 2, and turn 3 twice. What does one turn 3 cost? It is "
        "what Monday's run cost in the end, less what it had cost after turn 2.",
    )


_CASES: list[tuple[str, list[Message], list[str]]] = [
    ("a fresh run", [{"role": "user", "content": "Hello"}], []),
    ("one call without a result", [asks(call("c1", "list_files"))], ["c1"]),
    (
        "two calls, the first has its result",
        [
            asks(call("c1", "list_files"), call("c2", "list_files")),
            {"role": "tool", "tool_call_id": "c1", "name": "list_files", "content": "[]"},
        ],
        ["c2"],
    ),
    (
        "a model that uses the id c1 in two messages; only the first has its result",
        [
            asks(call("c1", "list_files")),
            {"role": "tool", "tool_call_id": "c1", "name": "list_files", "content": "[]"},
            asks(call("c1", "list_files")),
        ],
        ["c1"],
    ),
    ("a run that has answered", [text("Done.")], []),
]


def check_2(answer: Any) -> None:
    """A ``pending`` of the reader's own: from messages to the ids of open calls."""
    if unanswered(answer):
        return
    for case, messages, expected in _CASES:
        try:
            given = answer(messages)
        except Exception as problem:
            wrong(f"For {case}, it raised {type(problem).__name__}: {problem}.")
            return
        if given != expected:
            wrong(f"For {case}, it should return {expected}, and it returned {given!r}.")
            return
    right(
        "Only results after the last assistant message count: models use an id again, and an old "
        "result must not close a new call."
    )


async def check_3(answer: Any) -> None:
    """A script that sends twice although a person said: not again."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong(f"A function of (turn, tool_text) is asked for; this is a {type(answer).__name__}.")
        return
    directory = Path(tempfile.mkdtemp(prefix="exercise-"))
    state = await _died_while_sending(directory, answer, alert_tool)
    if state is None:
        wrong("Its first turn must ask for send_alert: the process dies while that call runs.")
        return
    tool = alert_tool(directory)
    client = client_for(answer)
    state = await run(state, [tool], client, store=directory)
    if state.status != "interrupted":
        wrong(f"The run went on without asking a person: {state.status} ({state.error}).")
        return
    reject(state, state.interruption["call_id"] if state.interruption else "", "It is in the inbox")
    state = await run(state, [tool], client, store=directory)
    sent = _alerts(directory)
    if sent < 2:
        wrong(
            f"After the crash and the person's no, {sent} alert is out and the run is "
            f"{state.status}. The harness guards one call. What does it know of the next one?"
        )
        return
    right(
        f"{sent} alerts are out. The harness keeps one call from happening twice; a new call with "
        "a new id is a new wish. If that must not happen, let the tool need approval."
    )


async def check_4(answer: Any) -> None:
    """A sending tool that a crash need not stop, since it knows what it has sent."""
    if unanswered(answer):
        return
    directory = Path(tempfile.mkdtemp(prefix="exercise-"))
    tool = answer(directory) if callable(answer) else None
    if not isinstance(tool, Tool) or tool.name != "send_alert":
        wrong("A function is asked for that takes a directory and returns the Tool send_alert.")
        return
    if not tool.idempotent:
        wrong("The harness runs a call again by itself only if the tool says idempotent=True.")
        return
    state = await _died_while_sending(directory, alarm, answer)
    if state is None:
        wrong("The tool did not run.")
        return
    state = await run(state, [tool], client_for(alarm), store=directory)
    sent = _alerts(directory)
    if sent != 1:
        wrong(
            f"After a crash and a resume, outbox.txt holds {sent} lines, not 1. The second time "
            "the tool is called with the same ctx.idempotency_key: it must find it somewhere."
        )
        return
    again = new_run(SYSTEM, ALARM_TASK, "another")
    again = await run(again, [tool], client_for(alarm), store=directory)
    if _alerts(directory) != 2:
        wrong("Another run sends the same words, and they did not go out: the text is not the key.")
        return
    right(f"One alert, {state.status}, and nobody was asked: {state.output}")


def _alerts(directory: Path) -> int:
    outbox = directory / "outbox.txt"
    return len(outbox.read_text().splitlines()) if outbox.exists() else 0


async def _died_while_sending(
    directory: Path, script: Script, tool_for: Callable[[Path], Tool]
) -> RunState | None:
    """The state that is on disk when a process dies after the effect, before the result.

    Not a real death: the file is copied aside while the tool runs, and the copy is loaded.
    """
    real = tool_for(directory)
    store, photo = directory / "first", directory / "photo"

    async def run_and_copy(args: dict[str, Any], ctx: ToolContext) -> Any:
        result = real.run(args, ctx)
        result = await result if asyncio.iscoroutine(result) else result
        if not photo.exists():
            shutil.copytree(store, photo)
        raise PermanentToolError("the process died here")

    dying = Tool(
        real.name,
        real.description,
        real.parameters,
        run_and_copy,
        idempotent=real.idempotent,
    )
    state = new_run(SYSTEM, ALARM_TASK, "crash")
    await run(state, [dying], client_for(script), store=store)
    return load(photo, "crash") if photo.exists() else None
