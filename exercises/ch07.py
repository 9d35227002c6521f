"""Checks for chapter 07: approval."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from catalogue import catalogue, workspace
from exercises import number, right, unanswered, wrong
from harness import Limits, RunState, new_run, reject, run, waiting_calls
from workbook import SYSTEM, TASK, client_for


def check_1(answer: Any) -> None:
    """The requests of a run that is run again and again without a decision."""
    number(
        answer,
        3,
        "Two turns to the stop, one after the approval. A run with a call that waits does not "
        "reach the model, however often it is run.",
        {
            6: "That is a request for each run in between. What comes first in the loop: asking "
            "the model, or the calls that are open?",
            2: "Those are the turns before the stop. Once approved, the run goes on to its end.",
            5: "Two turns, and three runs in between? The call is open all the time, and as long "
            "as it is, nothing is asked.",
        },
        "Run it, and count client.transport.journal.",
    )


# A path, and whether a person has to agree.
PATHS: tuple[tuple[str, bool, str], ...] = (
    ("build.tmp", False, "A scratch file may be deleted unasked"),
    ("a b.tmp", False, "A scratch file with a space in its name is still one"),
    ("access.log", True, "That is no scratch file"),
    ("tmp", True, "That is a file called tmp, which does not end in .tmp"),
    ("build.tmp.log", True, "It ends in .log"),
    ("../build.tmp", True, "It leads out of the directory"),
    ("/etc/build.tmp", True, "It leads out of the directory"),
    ("build.tmp/../access.log", True, "It leads to access.log"),
    ("cache/build.tmp", True, "It is not directly in the directory"),
    ("..\\build.tmp", True, "On Windows it leads out of the directory"),
)


def check_2(answer: Any) -> None:
    """Which deletions need a person."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes the arguments and returns True or False.")
        return
    for path, needs, why in PATHS:
        try:
            asks = bool(answer({"path": path}))
        except Exception as problem:
            wrong(f"For {path!r} your function raised {type(problem).__name__}: {problem}")
            return
        if asks is not needs:
            wrong(f"{path!r}: your function says {asks}. {why}.")
            return
    for odd in ({}, {"path": None}, {"path": [".tmp"]}, {"path": 7}):
        if not _asks_or_fails(answer, odd):
            wrong(f"{odd}: your function lets it run unasked. That is no scratch file.")
            return
    right("Small cleanups run, everything else asks, and so does what is no path at all.")


def _asks_or_fails(answer: Callable[[dict[str, Any]], Any], args: dict[str, Any]) -> bool:
    try:
        return bool(answer(args))
    except Exception:  # then the harness asks
        return True


async def check_3(answer: Any) -> None:
    """A script that was told of the rejection and reports a deletion."""
    if unanswered(answer):
        return
    if not inspect.isfunction(answer):
        wrong("A function is asked for: it takes turn and tool_text and returns a message.")
        return
    logs = workspace()
    tools, client = catalogue(logs), client_for(answer, max_retries=0)
    state = await run(new_run(SYSTEM, TASK), tools, client, limits=Limits(max_turns=8))
    waiting = waiting_calls(state)
    if not any(one["args"] == {"path": "notes.txt"} for one in waiting):
        wrong(f"The run must wait for the deletion of notes.txt; it ended as {_ended(state)}.")
        return
    for one in waiting:
        reject(state, one["call_id"], "the notes are mine")
    await run(state, tools, client, limits=Limits(max_turns=8))
    said = state.output.lower()
    if state.status != "completed":
        wrong(f"After the rejection the run must complete; it ended as {_ended(state)}.")
    elif not ("deleted" in said and "notes.txt" in said) or "not" in said.replace("notes", ""):
        wrong(f'The report must claim that notes.txt was deleted. It says: "{state.output}"')
    else:
        assert (logs / "notes.txt").exists()
        right(
            "The file is there, the transcript says rejected, and the report says deleted. Words "
            "let a model tell the truth; only the trace and the disk prove it."
        )


def _ended(state: RunState) -> str:
    return f"{state.status} ({state.error})" if state.error else state.status
