"""Checks for chapter 06: the same call twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from exercises import number, right, unanswered, wrong
from harness import AbortSignal, Limits, RunState, Tool, ToolContext, new_run, run
from workbook import client_for


def check_1(answer: Any) -> None:
    """The price of five equal calls, with a cache."""
    number(
        answer,
        0.006472,
        "Six turns, one tool run, and the price of six turns: a cache gives back no turn.",
        {
            0.002446: "That is the script of the chapter, with two calls.",
            0.001396: "That is the price of one call. The cache saves executions, not turns.",
            0.005596: "That is one call, and four times the price of the second one. Each repeat "
            "costs more than the one before it, because the transcript has grown.",
        },
        "Write the script, run it with dedupe=True, and read state.cost_usd. "
        "Is the call made in exactly five turns, to read_file, with errors.log?",
    )


def check_2(answer: Any) -> None:
    """How often the tool runs for three spellings of one call."""
    number(
        answer,
        2,
        "The order of the keys is made equal, so the first two are one call. The third leaves "
        "the default out: the same to the tool, another call to the cache.",
        {
            1: "To the tool they are one call. The cache does not know the tool: it compares "
            "texts. Which of the three has another text?",
            3: "The cache sorts the keys before it compares: see key = ... in settle.",
        },
        "The tool runs between one and three times.",
    )


async def check_3(answer: Any) -> None:
    """A script that goes wrong with a cache of a read-only tool."""
    if unanswered(answer):
        return
    if not inspect.isfunction(answer):
        wrong("A function is asked for: it takes turn and tool_text and returns a message.")
        return
    plain, cached = await _with_job(answer, False), await _with_job(answer, True)
    if plain.status != "completed":
        why = plain.error or "it reached the turn cap"
        wrong(f"Without a cache the run must complete; it ended as {plain.status}: {why}.")
    elif len(plain.started) < 2:
        wrong(f"Without a cache job_status ran {len(plain.started)} times. Ask more than once.")
    elif cached.status == "completed" and cached.output == plain.output:
        wrong(
            "With the cache the run gave the same answer. Let the script depend on what the "
            "second reading says."
        )
    else:
        right(
            f"Without the cache: {plain.status} after {plain.turns} turns. With it: "
            f"{cached.status} after {cached.turns}. Read-only does not mean that the world "
            "stands still."
        )


async def _with_job(script: Callable[..., Any], dedupe: bool) -> RunState:
    return await run(
        new_run("You watch a job.", "Tell me when the job is done."),
        [job_status()],
        client_for(script, max_retries=0),
        limits=Limits(max_turns=8),
        dedupe=dedupe,
    )


def job_status() -> Tool:
    """A read-only tool over a job that is done at the third look."""
    looks: Iterator[str] = iter(("running", "running"))

    def look(args: dict[str, Any], ctx: ToolContext) -> str:
        return next(looks, "done")

    return Tool("job_status", "Say how the job stands.", None, look, read_only=True)


def _context(run_id: str, call_id: str) -> ToolContext:
    return ToolContext(AbortSignal(), print, run_id, call_id, f"{run_id}:{call_id}")


FIRST = {"order": 17, "instalment": 1, "cents": 500}
SECOND = {"order": 17, "instalment": 2, "cents": 500}
OTHER = {"order": 18, "instalment": 1, "cents": 500}


def check_4(answer: Any) -> None:
    """A key for instalments."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes args and ctx and returns the key, a string.")
        return
    try:
        key = answer(FIRST, _context("shop-1", "c1"))
        crashed = answer(FIRST, _context("shop-1", "c1"))
        repeated = answer(FIRST, _context("shop-1", "c2"))
        again = answer(FIRST, _context("shop-2", "c1"))
        second = answer(SECOND, _context("shop-1", "c2"))
        other = answer(OTHER, _context("shop-1", "c2"))
    except Exception as problem:
        wrong(f"Your function raised {type(problem).__name__}: {problem}")
        return
    if not isinstance(key, str):
        wrong(f"A key is a string; yours has the type {type(key).__name__}.")
    elif key != crashed:
        wrong("The same call after a crash gets another key, and is charged twice.")
    elif key != repeated:
        wrong("A repeat of the model (another call id) gets another key, and is charged twice.")
    elif key != again:
        wrong("A second run for the same instalment gets another key, and is charged twice.")
    elif key == second:
        wrong("The second instalment gets the key of the first, and is never charged.")
    elif key == other:
        wrong("Another customer's order gets the same key, and is never charged.")
    else:
        right("The key names what is paid, not who asks for it or how often.")
