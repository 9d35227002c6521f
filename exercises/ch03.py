"""Checks for chapter 03: a cap on money."""

from __future__ import annotations

import math
from typing import Any

from catalogue import catalogue
from exercises import no_script, number, right, unanswered, wrong
from loops import priced_loop
from workbook import OPENING, Meter, client_for, usd

# What the second and the third exercise allow.
NEVER_MORE, BUDGET = 0.05, 0.01


def check_1(answer: Any) -> None:
    """How many turns of the runaway two cents buy."""
    number(
        answer,
        14,
        "Twice the money of the first budget, and five turns more.",
        {
            13: "13 turns cost less than two cents, so one more begins.",
            18: "Twice the turns for twice the money would be right if turns had one price.",
        },
        "Run it: a Meter, priced_loop, and a budget of 0.02.",
    )


async def check_2(answer: Any) -> None:
    """A budget with which the runaway buys most turns and never spends more than five cents."""
    if unanswered(answer):
        return
    if not isinstance(answer, (int, float)) or isinstance(answer, bool):
        wrong(f"A budget in dollars is asked for; this is a {type(answer).__name__}.")
        return
    if not 0 <= answer <= 1:
        wrong("A budget between $0 and $1 is asked for.")
        return
    meter = Meter(client_for("runaway"))
    await priced_loop(meter, catalogue(), [*OPENING], math.inf, answer)
    outcome = f"{usd(answer)} buys {meter.turns} turns for {usd(meter.cost_usd)}"
    if meter.cost_usd > NEVER_MORE:
        wrong(f"{outcome}. That is more than {usd(NEVER_MORE)}.")
    elif meter.turns < 23:
        wrong(f"{outcome}. More turns fit in.")
    else:
        right(f"{outcome}. To be sure of a bill, leave room for one turn, the dearest one.")


async def check_3(answer: Any) -> None:
    """A script that spends at least twice its budget."""
    if no_script(answer):
        return
    meter = Meter(client_for(answer, max_retries=0))
    try:
        await priced_loop(meter, catalogue(), [*OPENING], max_turns=20, max_budget_usd=BUDGET)
    except Exception as problem:
        wrong(f"The loop broke: {type(problem).__name__}: {problem}")
        return
    turns = "1 turn" if meter.turns == 1 else f"{meter.turns} turns"
    outcome = f"{turns} for {usd(meter.cost_usd)}, with a budget of {usd(BUDGET)}"
    if meter.cost_usd < 2 * BUDGET:
        wrong(f"{outcome}. What is written costs six times what is read. Let a turn write more.")
    else:
        right(
            f"{outcome}. The overshoot is at most one turn, and nothing limits a turn. "
            "Real endpoints take max_tokens for that."
        )
