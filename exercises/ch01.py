"""Checks for chapter 01: the bare loop."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from catalogue import catalogue
from chat_client import ProviderError
from exercises import no_script, number, right, wrong
from loops import bare_loop
from run_state import Message
from scripted_provider import http_error
from workbook import OPENING, client_for

# After so many turns the account of an exercise is empty.
CREDIT = 12


def check_1(answer: Any) -> None:
    """The prompt tokens of the fourth turn of ``runaway``."""
    number(
        answer,
        397,
        "The same two messages came on top of the third turn's.",
        {
            333: "That is the third turn. Turns of scripts and faults are counted from zero.",
            461: "That is the fifth turn. Turns of scripts and faults are counted from zero.",
            1203: "That is the sum of four turns. The last one alone is asked for.",
        },
        "Let the account run out after four turns and look at the last of meter.usages.",
    )


async def check_2(answer: Any) -> None:
    """A script that never answers and never makes the same call twice in a row."""
    if no_script(answer):
        return
    messages, problem = await _stopped(answer)
    if problem is None:
        wrong(f"The script answered: {messages[-1]['content']!r}. It must never answer.")
        return
    calls = [message["tool_calls"] for message in messages if message.get("tool_calls")]
    if not isinstance(problem, ProviderError) or len(calls) < CREDIT:
        wrong(f"The loop broke after {len(calls)} turns: {_said(problem)}")
        return
    made = [[call["function"] for call in of_one_turn] for of_one_turn in calls]
    if any(first == second for first, second in pairwise(made)):
        wrong("Two turns in a row make the same call. Let the call depend on the turn.")
    else:
        right(
            f"{len(calls)} turns, no answer, no call twice in a row. Looking for repetition does "
            "not find every runaway."
        )


async def check_3(answer: Any) -> None:
    """A script that ends the loop with an exception in its first turn."""
    if no_script(answer):
        return
    messages, problem = await _stopped(answer)
    turns = sum(message["role"] == "assistant" for message in messages)
    if problem is None:
        wrong(f"The loop ended in order: {messages[-1]['content']!r}")
    elif turns == 0:
        wrong(f"The provider gave no first answer, so nothing reached the loop: {_said(problem)}")
    elif turns > 1 or isinstance(problem, ProviderError):
        wrong(f"The first turn went well. The loop ended after {turns}: {_said(problem)}")
    else:
        right(
            f"One message of the model ended the program: {_said(problem)}. Chapter 05 gives such "
            "an error back to the model."
        )


async def _stopped(script: Any) -> tuple[list[Message], Exception | None]:
    """Run the bare loop until it answers, breaks, or the account is empty."""
    messages = [*OPENING]
    client = client_for(script, faults={CREDIT: http_error(402)}, max_retries=0)
    try:
        await bare_loop(client, catalogue(), messages)
    except Exception as problem:
        return messages, problem
    return messages, None


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"
