"""The checks of chapter 10's exercises: the trace."""

from __future__ import annotations

import json
from typing import Any

from catalogue import catalogue
from exercises import number, right, unanswered, wrong
from harness import Limits, new_run, run
from workbook import SYSTEM, TASK, client_for


def check_1(answer: Any) -> None:
    """The cost of one turn, from costs so far."""
    number(
        answer,
        0.000758,
        "costUsd is the cost so far: a turn's own cost is its line less the turn before. That also "
        "holds over three processes, since each went on from the saved cost.",
        {
            0.002328: "That is the cost of the whole run: costUsd adds up.",
            0.004582: "That is the sum of the three lines. costUsd is already a sum: the cost so "
            "far.",
            0.00157: "That is the cost after turn 2.",
        },
        "Look at costUsd in the three turn lines of n1. Is it the cost of the turn?",
    )


def _event(run_id: str, kind: str) -> dict[str, Any]:
    return {"runId": run_id, "type": kind, "ts": "2026-01-01T00:00:00.000+00:00"}


_CASES: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    ("an empty trace", [], []),
    ("a run that stopped", [_event("a", "turn"), _event("a", "run_stopped")], []),
    ("a run that did not", [_event("a", "turn"), _event("a", "tool_start")], ["a"]),
    (
        "three runs whose lines are mixed; c and a did not stop",
        [
            _event("c", "turn"),
            _event("a", "turn"),
            _event("b", "turn"),
            _event("c", "tool_start"),
            _event("b", "run_stopped"),
        ],
        ["c", "a"],
    ),
    (
        "a run that stopped for an approval, was resumed, and died",
        [_event("a", "turn"), _event("a", "run_stopped"), _event("a", "tool_start")],
        ["a"],
    ),
]


def check_2(answer: Any) -> None:
    """A function that finds the runs without an end."""
    if unanswered(answer):
        return
    for case, events, expected in _CASES:
        try:
            given = answer([dict(event) for event in events])
        except Exception as problem:
            wrong(f"For {case}, it raised {type(problem).__name__}: {problem}.")
            return
        if given != expected:
            wrong(f"For {case}, it should return {expected}, and it returned {given!r}.")
            return
    right(
        "It is the last line of a run that counts. A run_stopped anywhere else was followed by a "
        "resume. Whether such a run is still going or has died, the time of its last line tells."
    )


async def check_3(answer: Any) -> None:
    """A script that makes the trace large."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong(f"A function of (turn, tool_text) is asked for; this is a {type(answer).__name__}.")
        return
    events: list[dict[str, Any]] = []
    state = new_run(SYSTEM, TASK, "exercise")
    state = await run(
        state, catalogue(), client_for(answer), limits=Limits(max_turns=5), trace=events.append
    )
    longest = max(events, key=lambda event: len(json.dumps(event)))
    length = len(json.dumps(longest))
    if length <= 10_000:
        wrong(
            f"The longest line has {length:,} characters and is a {longest['type']}. Which field "
            "of a line is a text that the model wrote?"
        )
        return
    right(
        f"A {longest['type']} line of {length:,} characters: the model's own words are in it, as "
        "long as it likes, with whatever it was told. Cut them, or leave them out, before a trace "
        "is kept for long or shown to others: trace= also takes a function."
    )
