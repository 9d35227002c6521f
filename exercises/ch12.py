"""The checks of chapter 12's exercises: what a real model costs, claims, and is taken to mean."""

from __future__ import annotations

from typing import Any

from catalogue import catalogue
from exercises import no_script, number, right, unanswered, wrong
from harness import RunState, cost, new_run, run, waiting_calls
from model_runs import load_recording
from scripted_provider import asks, call, text
from workbook import SYSTEM, TASK, client_for

ERRORS_LOG = "ERROR timeout: worker 7 timed out after 30000 ms"


def check_1(answer: Any) -> None:
    """What the six tasks would have cost at the book's price."""
    usages = [result["usage"] for result in load_recording("smollm2-135m-instruct").results]
    total = {key: sum(usage[key] for usage in usages) for key in usages[0]}
    expected = cost(total)
    only_in = cost({**total, "completion_tokens": 0})
    swapped = cost(
        {
            "prompt_tokens": total["completion_tokens"],
            "completion_tokens": total["prompt_tokens"],
        }
    )
    share = only_in / expected
    number(
        answer,
        expected,
        f"{share:.0%} of it is for input: tools and transcript, sent again with each turn.",
        {
            only_in: "That is the input alone. The answers have a price too, and a higher one.",
            swapped: "In and out are the wrong way round: input costs 2, output 12 a million.",
            expected * 1_000_000: "That is in millionths of a dollar: the prices are per million.",
        },
        f"Not {answer}. Input tokens times 2, plus output tokens times 12, by a million: "
        "the totals have both counts.",
    )


# --- does an answer name only what was read? ----------------------------------------------------


def _transcript(output: str, *read: tuple[str, str]) -> RunState:
    """A completed run that listed the files, read some of them, and answered."""
    state = new_run(SYSTEM, TASK, "exercise")
    steps: list[tuple[str, dict[str, str], str]] = [
        ("list_files", {}, '["access.log","errors.log","notes.txt"]')
    ]
    steps += [("read_file", {"path": path}, result) for path, result in read]
    for turn, (name, arguments, result) in enumerate(steps):
        asked = asks(call(f"c{turn}", name, arguments))
        answer = {"role": "tool", "tool_call_id": f"c{turn}", "name": name, "content": result}
        state.messages += [asked, answer]
    state.messages.append(text(output))
    state.turns, state.status, state.output = len(steps) + 1, "completed", output
    return state


MISSING = "Error: no such file: timeout.log. Call list_files to see what exists."
# What the answer says, what was read, whether it names only that, and what it is a case of.
CASES: list[tuple[RunState, bool, str]] = [
    (
        _transcript("errors.log mentions a timeout.", ("errors.log", ERRORS_LOG)),
        True,
        "errors.log was read, and it is the only file that the answer names",
    ),
    (
        _transcript("The largest file is access.log."),
        False,
        "access.log was listed, and never read. A name in a list says nothing of the text",
    ),
    (
        _transcript("The file timeout.log mentions a timeout.", ("timeout.log", MISSING)),
        False,
        "timeout.log was asked for, and there is no such file. A result that begins with "
        "'Error:' is no text of a file",
    ),
    (
        _transcript("errors.log and notes.txt mention it.", ("errors.log", ERRORS_LOG)),
        False,
        "notes.txt was never read. Every file that the answer names must have been",
    ),
    (
        _transcript(
            "No file mentions it.", ("notes.txt", "Remember to rotate errors.log, not access.log.")
        ),
        True,
        "the answer names no file. The names in a tool's result are not the answer's",
    ),
]


def check_2(answer: Any) -> None:
    """A predicate: does the answer name only files that were read?"""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes the state and returns True or False.")
        return
    for state, expected, why in CASES:
        try:
            given = answer(state)
        except Exception as problem:
            wrong(
                f"Your function raised {type(problem).__name__}: {problem}. A message may have "
                "no tool_calls, and a call may have no path."
            )
            return
        if not isinstance(given, bool):
            wrong(f"True or False is asked for; it returned {given!r}.")
            return
        if given != expected:
            wrong(f"For the answer {state.output!r} it says {given}: {why}.")
            return
    right(
        "That is no proof that an answer is true: a model can read a file and misread it. It is "
        "cheap, needs no model, and finds answers that cannot be known."
    )


# --- a call that nobody made --------------------------------------------------------------------


async def check_3(answer: Any) -> None:
    """A script whose answer explains a call, and a client that takes the explanation for one."""
    if no_script(answer):
        return
    plain = await run(new_run(SYSTEM, TASK), catalogue(), client_for(answer))
    taken = await run(new_run(SYSTEM, TASK), catalogue(), client_for(answer, calls_in_text=True))
    waiting = waiting_calls(taken)
    if plain.status == "failed":
        wrong(f"Without calls_in_text the run failed: {plain.error}.")
    elif plain.status != "completed" or plain.started:
        wrong(
            "Without calls_in_text the script must answer and run no tool: let it return "
            "text(...), not asks(...)."
        )
    elif not (taken.started or waiting or taken.rejected):
        wrong(
            "With calls_in_text no call was found either. It looks for a JSON object with "
            '"name", the name of a tool, and "arguments".'
        )
    elif waiting:
        right(
            f"The answer only spoke of {waiting[0]['tool_name']}, and now a person is asked "
            "whether it may run. Without the approval it would have run."
        )
    elif not taken.started:
        wrong("A call was found, but it was refused: its arguments must fit the tool.")
    else:
        right(
            f"One text, two readings: an answer after {plain.turns} turn, or {len(taken.started)} "
            "tool runs that nobody asked for. So the client looks into prose only when told to."
        )
