"""Checks for chapter 14: stopping is plural."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from catalogue import catalogue
from exercises import no_script, right, unanswered, wrong
from harness import RunState, StopCondition, new_run, pending, run
from workbook import SYSTEM, TASK, client_for

MOST_CHARACTERS = 500
LOOKS_LIKE_AN_ANSWER = {"langchain", "smolagents"}


def _length(state: RunState) -> int:
    return sum(len(message["content"] or "") for message in state.messages)


async def check_1(answer: Any) -> None:
    """A predicate that is true once the transcript is too long."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes the state and returns True or False.")
        return
    steps: list[int] = []

    def watched(state: RunState) -> bool:
        steps.append(_length(state))
        return bool(answer(state))

    state = await run(
        new_run(SYSTEM, TASK), catalogue(), client_for("runaway"), stop_when=[watched]
    )
    if state.status == "failed":
        wrong(f"Your function raised: {state.error}. A message with calls has the content None.")
    elif state.status != "interrupted":
        wrong(f"The run went on to {_length(state):,} characters. Does your function add up all?")
    elif steps[-1] <= MOST_CHARACTERS:
        wrong(f"It stopped the run at {steps[-1]:,} characters already.")
    elif len(steps) > 1 and steps[-2] > MOST_CHARACTERS:
        wrong(f"It let the run go on at {steps[-2]:,} characters.")
    else:
        right(f"It stopped the run after {state.turns} turns, at {steps[-1]:,} characters.")


def check_2(answer: Any) -> None:
    """The libraries whose capped run looks like an answer."""
    if unanswered(answer):
        return
    if not isinstance(answer, set | frozenset | list | tuple):
        wrong('A set of names is asked for, like {"langgraph", "pydantic-ai"}.')
        return
    given = set(answer)
    if given == LOOKS_LIKE_AN_ANSWER:
        right(
            "One returns a sentence of its own, the other whatever the model said when it was "
            "asked once more. The other three raise, and a caller cannot overlook that."
        )
    elif "harness" in given:
        wrong("The harness is not one of the five, and its status says what happened.")
    elif extra := given - LOOKS_LIKE_AN_ANSWER:
        wrong(f"Look again at {', '.join(sorted(map(str, extra)))}: raised is not returned.")
    else:
        wrong("One is missing. Which of them returned, though no answer had been given?")


def check_3(answer: Any) -> None:
    """The conjunction of two stop conditions."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes two StopConditions and returns one.")
        return
    state = new_run("", "x")
    for first in (True, False):
        for second in (True, False):
            condition = answer(_always("a", first), _always("b", second))
            if not isinstance(condition, StopCondition):
                wrong(f"It must return a StopCondition; it returned {type(condition).__name__}.")
                return
            if bool(condition.met(state)) != (first and second):
                wrong(f"With {first} and {second} it says {condition.met(state)}.")
                return
    name = answer(_always("a", True), _always("b", True)).name
    if name != "a and b":
        wrong(f"The name of both('a', 'b') should be 'a and b'; it is {name!r}.")
    else:
        right("Predicates combine, and numbers do not: that is what makes stopping plural.")


def _always(name: str, value: bool) -> StopCondition:
    met: Callable[[RunState], bool] = lambda state: value  # noqa: E731
    return StopCondition(name, met)


async def check_4(answer: Any, detector: StopCondition) -> None:
    """A runaway that the repeat detector does not see."""
    if no_script(answer):
        return
    state = await run(new_run(SYSTEM, TASK), catalogue(), client_for(answer), stop_when=[detector])
    if state.status == "max_turns_exceeded":
        right(
            f"{state.turns} turns, ${state.cost_usd:.6f}, and no three calls alike in a row. "
            "A detector knows the loops that somebody thought of; the cap and the budget stay."
        )
    elif state.status == "completed":
        wrong(f"It answered after {state.turns} turns. A runaway never does.")
    elif state.status == "failed":
        wrong(f"The run failed: {state.error}")
    elif pending(state) and (state.interruption or {}).get("type") == "approval":
        wrong("It waits for a person now. Use tools that need no approval.")
    else:
        wrong(f"Caught after {state.turns} turns. What makes two calls different?")
