"""Checks for chapter 05: errors are data."""

from __future__ import annotations

import inspect
from typing import Any

from catalogue import catalogue
from exercises import number, right, unanswered, wrong
from harness import new_run, run
from workbook import SYSTEM, TASK, client_for

# The longest that two good calls can lie apart is two bad turns: 6 good calls in 20 turns, and
# one more for a rhythm that begins with a good one.
FEWEST_TOOL_RUNS = 7

MISSING = "no such file: timeout.log. Call list_files to see what exists."
LOCKED = "errors.log is locked by a backup. Wait a minute, then call read_file again."

SORTED: dict[str, tuple[str, str]] = {
    "the date is not of the form YYYY-MM-DD": (
        "data",
        "The model wrote the date, so it can write a better one. Tell it the form.",
    ),
    "the disk is full": (
        "stop",
        "No call that the model can make frees the disk. A person has to.",
    ),
    "the API key was revoked": (
        "stop",
        "The key is not in the model's hands, and a second call meets the same refusal.",
    ),
    "more than 1,000 rows match: narrow the query": (
        "data",
        "The message says what to do, and the model can do it.",
    ),
    "no order has this number": (
        "data",
        "The model can look the number up, or tell the user that there is none.",
    ),
}


async def check_1(answer: Any) -> None:
    """A tool_error_text without file names, with which the model recovers."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes the error and returns the words for the model.")
        return
    for message in (MISSING, LOCKED):
        problem = _problem_with_words(answer, message)
        if problem:
            wrong(problem)
            return
    state = await run(
        new_run(SYSTEM, TASK), catalogue(), client_for("recover"), tool_error_text=answer
    )
    if state.output == "errors.log mentions a timeout.":
        right(f"No name left, and the run answered after {state.turns} turns.")
    else:
        wrong(
            f"The names are hidden, but the run ended after {state.turns} turns with "
            f"{state.output!r}. Which words of the tool's message did the script look for?"
        )


def _problem_with_words(answer: Any, message: str) -> str:
    try:
        words = answer(OSError(message))
    except Exception as problem:
        return f"Your function raised {type(problem).__name__}: {problem}"
    if not isinstance(words, str):
        return f"Your function must return a string; it returned a {type(words).__name__}."
    if ".log" in words:
        return f"A file name is left in: {words}"
    if message is LOCKED and "locked" not in words:
        return (
            f"For the error {message!r} the model would read {words!r}: the reason is gone, and "
            "with it every next step. Hide the name, keep the rest."
        )
    return ""


def check_2(answer: Any) -> None:
    """Which errors go back as data, and which stop the run."""
    if unanswered(answer):
        return
    if not isinstance(answer, dict):
        wrong("A dict is asked for: each error, with 'data' or 'stop'.")
        return
    for error, (expected, why) in SORTED.items():
        given = answer.get(error)
        if unanswered(given):
            return
        if given not in ("data", "stop"):
            wrong(f"For {error!r} say 'data' or 'stop', not {given!r}.")
            return
        if given != expected:
            wrong(f"{error[:1].upper()}{error[1:]}: {why}")
            return
    right("The question is each time: is there a call, or an answer, that the model can mend?")


def check_3(answer: Any) -> None:
    """Turns of `insists` when the first two answers are spoiled."""
    number(
        answer,
        4,
        "Two spoiled turns, the call, the answer. The third turn set the count back to zero.",
        {
            2: "That is the run without a fault.",
            3: "That would be one spoiled turn, or the rule at work. The rule needs three in a "
            "row, and the third turn holds a good call here. What comes after it?",
        },
        "Count them: the spoiled turns, the turn with the call, the turn with the answer.",
    )


async def check_4(answer: Any) -> None:
    """A script that the rule of three does not stop, though nearly all of it is waste."""
    if unanswered(answer):
        return
    if not inspect.isfunction(answer):
        wrong("A function is asked for: it takes turn and tool_text and returns a message.")
        return
    state = await run(new_run(SYSTEM, TASK), catalogue(), client_for(answer, max_retries=0))
    executed = len(state.started)
    if state.status == "failed":
        wrong(f"The run was stopped after {state.turns} turns: {state.error}")
    elif state.status == "interrupted":
        wrong("The run waits for a person. Use tools that need no approval.")
    elif state.status == "completed":
        wrong(f"The script answered after {state.turns} turns. It must never answer.")
    elif executed > FEWEST_TOOL_RUNS:
        wrong(
            f"It reached the cap, but {executed} of its calls were executed: at most "
            f"{FEWEST_TOOL_RUNS} may be. How rarely does the count have to go back to zero?"
        )
    else:
        right(
            f"{state.turns} turns, {executed} tool runs, no answer. A rule about turns in a row "
            "can be walked around; the turn cap and the budget cannot."
        )
