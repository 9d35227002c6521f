"""Checks for chapter 04: five exits."""

from __future__ import annotations

import asyncio
from typing import Any

from catalogue import catalogue
from exercises import no_script, number, right, unanswered, wrong
from harness import AbortSignal, Limits, RunState, new_run, run
from run_state import RESUMABLE
from scripted_provider import http_error
from workbook import SYSTEM, TASK, client_for

EXITS = {"completed", "failed", "max_turns_exceeded", "budget_exceeded", "interrupted"}


def check_1(answer: Any) -> None:
    """The exits after which the same run can go on."""
    if unanswered(answer):
        return
    if isinstance(answer, str) or not isinstance(answer, (set, frozenset, list, tuple)):
        wrong("A set of statuses is asked for, such as {'completed', 'failed'}.")
        return
    given = set(answer)
    if unknown := given - EXITS:
        wrong(f"Not an exit: {', '.join(map(repr, sorted(map(str, unknown))))}.")
    elif "failed" in given:
        wrong("A failed run has no next step of its own: the same call would fail again.")
    elif "completed" in given:
        wrong("A completed run has its answer. Another question is a new message: follow_up.")
    elif missing := set(RESUMABLE) - given:
        wrong(f"{len(missing)} missing. Where is the transcript whole, and the task not done?")
    else:
        right("In each of them the transcript is whole, the task is open, and a decision is due.")


def check_2(answer: Any) -> None:
    """The smallest cap with which ``plan`` completes."""
    number(
        answer,
        3,
        "The answer itself is an exit: no cap is asked any more once it is there.",
        {
            2: "After two turns the file is not even read: max_turns_exceeded.",
            4: "A cap of 4 is enough, but there is a smaller one. When is the cap looked at?",
        },
        "Run plan with Limits(max_turns=...) and watch the status.",
    )


async def check_3(answer: Any) -> None:
    """A function from a stopped run to what its caller should do."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes a RunState and returns one of the four words.")
        return
    expected = {
        "completed": "show",
        "failed": "repair",
        "max_turns_exceeded": "allow more",
        "budget_exceeded": "allow more",
        "interrupted": "decide",
    }
    for state in await _one_of_each():
        try:
            given = answer(state)
        except Exception as problem:
            wrong(f"For {state.status} your function raised {type(problem).__name__}: {problem}")
            return
        if given != expected[state.status]:
            wrong(
                f"For {state.status} it returns {given!r}; what would help is "
                f"{expected[state.status]!r}."
            )
            return
    right("Four different answers: a caller who only knows 'it stopped' can give none of them.")


async def check_4(answer: Any) -> None:
    """A script with which a run fails, though the provider works."""
    if no_script(answer):
        return
    client = client_for(answer, max_retries=0)
    state = await run(new_run(SYSTEM, TASK), catalogue(), client)
    if state.status != "failed":
        wrong(f"The run ended as {state.status}. It has to fail.")
    elif state.turns == 0:
        wrong(f"The provider gave no answer at all, so that is its failure: {state.error}")
    else:
        right(f"Failed, and the state says why: {state.error}")


async def _one_of_each() -> list[RunState]:
    stopped = AbortSignal()
    stopped.abort("enough")
    runs: list[tuple[str, dict[int, Any], Limits, AbortSignal | None]] = [
        ("plan", {}, Limits(), None),
        ("plan", {1: http_error(401)}, Limits(), None),
        ("runaway", {}, Limits(max_turns=2), None),
        ("runaway", {}, Limits(max_budget_usd=0.001), None),
        ("plan", {}, Limits(), stopped),
    ]
    return await asyncio.gather(
        *(
            run(
                new_run(SYSTEM, TASK),
                catalogue(),
                client_for(script, faults=faults),
                limits=limits,
                signal=signal,
            )
            for script, faults, limits, signal in runs
        )
    )
