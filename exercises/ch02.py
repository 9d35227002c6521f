"""Checks for chapter 02: a cap on turns."""

from __future__ import annotations

from typing import Any

from catalogue import catalogue
from exercises import no_script, number, right, wrong
from loops import capped_loop
from workbook import OPENING, client_for

CAP, MANY = 3, 30


def check_1(answer: Any) -> None:
    """The cost of a runaway of 200 turns, in dollars."""
    number(
        answer,
        2.684398,
        "Nearly four times the cost of half the turns, and no need to spend it to know it.",
        {
            2.808792: "Four times the cost of 100 turns is a little too much: a part of the cost "
            "grows only as fast as the turns.",
            1.404396: "Twice the cost of 100 turns would be right if every turn cost the same.",
            2.629198: "That is what is read. What is written is paid, too.",
            0.0552: "That is what is written. What is read is most of the bill.",
        },
        "Read: read_in_all(200), at $2 a million. Written: 23 tokens a turn, at $12 a million.",
    )


def check_2(answer: Any) -> None:
    """The largest cap that keeps a runaway under five cents."""
    number(
        answer,
        23,
        "One turn more would pass five cents: the turn that breaks a limit is the dearest one.",
        {
            24: "24 turns cost $0.051790. One less.",
            50: "50 turns cost far more. The answer lies between two rows of the table.",
        },
        "Add up the cost turn by turn, and stop before it passes $0.05.",
    )


def check_3(answer: Any) -> None:
    """Tool results that no turn of the capped runaway ever read."""
    number(
        answer,
        1,
        "The last call was run though no turn was left to read its result. Had it deleted "
        "something, the model would not know. Chapter 04 looks at the cap first.",
        {
            0: "Look at the last message: who reads it?",
            8: "Seven of the eight results were read: each by the turn after it.",
            7: "Seven were read. How many were not?",
        },
        "Each result is read by the turn that comes after it. How many turns are there?",
    )


async def check_4(answer: Any) -> None:
    """A script that runs thirty tools under a cap of three turns."""
    if no_script(answer):
        return
    messages, client = [*OPENING], client_for(answer, max_retries=0)
    try:
        await capped_loop(client, catalogue(), messages, max_turns=CAP)
    except Exception as problem:
        wrong(f"The loop broke: {type(problem).__name__}: {problem}")
        return
    runs = sum(message["role"] == "tool" for message in messages)
    if runs < MANY:
        wrong(f"{runs} tool runs. A message may ask for more than one call, each with its own id.")
    else:
        right(
            f"{runs} tool runs under a cap of {CAP} turns: a cap does not count what a turn does."
        )
