"""Checks for chapter 09: a Stop that stops."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

from exercises import number, right, unanswered, wrong
from harness import AbortSignal, RunState, Tool, new_run, run
from scripted_provider import Message, asks, call, encoding, text
from workbook import client_for

STOP_S, WORK_S = 0.5, 2.0
# "Within a fifth of a second", and as much again for a machine that has other things to do.
OBEYED_S = 0.4


def check_1(answer: Any) -> None:
    """The files that a function has counted which looks after each step."""
    number(
        answer,
        600,
        "Stop falls into the third step. Nothing wakes time.sleep, so the step is finished and "
        "counted, and then comes the look.",
        {
            400: "That is what wait_blocking would give: it wakes in the middle of a step. What "
            "does time.sleep do?",
            1200: "That is the function that never looks.",
            480: "The files are counted in steps, at the end of each.",
        },
        "Write down when each step ends, and where Stop falls.",
    )


def work_once(turn: int, tool_text: str) -> Message:
    """Calls the tool once, and reports what it said."""
    return asks(call("c1", "work")) if turn == 0 else text(tool_text)


async def _stopped(
    function: Callable[..., Any], stop_s: float = STOP_S
) -> tuple[RunState, float, list[str]]:
    """A run of the tool with a Stop: its state, how much later it had ended, the progress."""
    signal, labels = AbortSignal(), list[str]()
    encoding()  # reading the vocabulary takes longer than a Stop
    timer = asyncio.get_running_loop().call_later(stop_s, signal.abort, "user pressed Stop")
    began = time.perf_counter()
    state = await run(
        new_run("You work.", "Do it."),
        [Tool("work", "Work for a while.", None, function)],
        client_for(work_once),
        signal=signal,
        on_progress=labels.append,
    )
    timer.cancel()
    return state, time.perf_counter() - began - stop_s, labels


async def check_2(answer: Any) -> None:
    """A plain function that reports, works, and obeys."""
    if unanswered(answer):
        return
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        wrong("A plain function is asked for: def, not async def. It takes args and ctx.")
        return
    if sys.platform == "emscripten":
        print("Not checked here: a page has no threads. On a computer, this cell tells you.")
        return
    state, late, labels = await _stopped(answer)
    said = str(state.messages[-1]["content"])
    if state.status != "interrupted":
        ended = state.messages[-2]["content"] if state.status == "completed" else state.error
        wrong(f"It had ended before the Stop, after less than {STOP_S} s: {ended}")
    elif "may still be running" in said:
        wrong("The run gave up on it: the function did not look at ctx.signal in time.")
    elif said.startswith(("Error", "Interrupted")):
        wrong(f"It must return a text after the Stop. The transcript says: {said}")
    elif late > OBEYED_S:
        wrong("It stopped, but too late. Wait with ctx.signal.wait_blocking, or in short pieces.")
    elif not labels:
        wrong("It reported no progress before the Stop. Call ctx.progress after each step.")
    elif not any(character.isdigit() for character in said):
        wrong(f'The text does not say how far it came: "{said}"')
    elif await _work_took(answer) < WORK_S:
        wrong(f"Undisturbed, it must work for at least {WORK_S:g} s.")
    else:
        right("It reports, it obeys, and the transcript says how far it came.")


async def _work_took(function: Callable[..., Any]) -> float:
    """How long the tool works when nobody stops it (a Stop comes once it has worked enough)."""
    stop_s = WORK_S + 0.3
    state, late, _ = await _stopped(function, stop_s)
    return stop_s if state.status == "interrupted" else stop_s + late


_marks: list[float] = []


def still_here() -> None:
    """Leave a mark: the tool that calls this is alive."""
    _marks.append(time.perf_counter())


async def check_3(answer: Any) -> None:
    """An async tool that outlives its run."""
    if unanswered(answer):
        return
    if not inspect.iscoroutinefunction(answer):
        wrong("An async function is asked for: async def. It takes args and ctx.")
        return
    state, _, _ = await _stopped(answer, stop_s=0.2)
    if state.status != "interrupted":
        wrong(f"The run must be stopped while the tool works; it ended as {state.status}.")
        return
    end = time.perf_counter()
    for _ in range(50):
        if any(mark > end for mark in _marks):
            break
        await asyncio.sleep(0.02)
    else:
        wrong("The run ended, and within a second no further call of ch09.still_here() came.")
        return
    said = str(state.messages[-1]["content"])
    if "may still be running" in said:
        right("The run is over, the tool is not, and the transcript says so.")
    else:
        right(
            "The run is over, and what the tool has started is not. The transcript does not "
            "know: it saw the tool end."
        )
