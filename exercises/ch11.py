"""The checks of chapter 11's exercises: latency, words and steps."""

from __future__ import annotations

from typing import Any

from catalogue import catalogue
from exercises import number, right, unanswered, wrong
from harness import Limits, new_run, run
from scripted_provider import Message, asks, call, cut_body, text
from workbook import SYSTEM, TASK, client_for


def check_1(answer: Any) -> None:
    """The silence before the first word of a run."""
    number(
        answer,
        51,
        "Seven whole turns, and 2 s of the eighth. For a chat the same provider needs 2 s.",
        {
            56: "That is the whole run. The last turn is streamed.",
            49: "That is when the last turn begins. Its first word is not there yet.",
            16: "Only the last turn shows words: the seven before it ask for tools.",
            2: "That is a chat. Seven turns come before the one that answers.",
        },
        "Seven turns pass without a word. What is added to them?",
    )


async def check_2(answer: Any) -> None:
    """A script that talks while it works."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong(f"A function of (turn, tool_text) is asked for; this is a {type(answer).__name__}.")
        return
    turns_done, words = 0, list[tuple[int, str]]()

    def on_event(event: dict[str, Any]) -> None:
        nonlocal turns_done
        turns_done += event["type"] == "turn"

    state = await run(
        new_run(SYSTEM, TASK, "exercise"),
        catalogue(step_s=0.01),
        client_for(answer),
        limits=Limits(max_turns=10),
        trace=on_event,
        on_delta=lambda piece: words.append((turns_done + 1, piece)),
    )
    first = "".join(piece for turn, piece in words if turn == 1).strip()
    if state.status != "completed" or state.turns < 3:
        wrong(
            f"The run is {state.status} after {state.turns} turns"
            f"{': ' + state.error if state.error else ''}. It must answer, in turn 3 or later."
        )
        return
    if not first:
        wrong(
            "Nothing was said in turn 1. A message may have content beside its tool_calls: "
            '{**asks(...), "content": "..."}.'
        )
        return
    if first in state.output:
        wrong(f"The words of turn 1, {first!r}, are part of the answer. Say something else.")
        return
    right(
        f"The screen showed {first!r} in turn 1; the answer came in turn {state.turns}. The first "
        "word is not the beginning of the answer: a time to first token that counts it is too good."
    )


def _talkative(turn: int, tool_text: str) -> Message:
    """Says something in every turn."""
    if turn == 0:
        return {**asks(call("c1", "list_files")), "content": "I look at the files first."}
    if turn == 1:
        return {
            **asks(call("c2", "read_file", {"path": "errors.log"})),
            "content": "One looks right.",
        }
    return text("errors.log mentions a timeout.")


async def check_3(answer: Any) -> None:
    """A screen that shows the answer so far, and nothing else."""
    if unanswered(answer):
        return
    screen = answer() if isinstance(answer, type) else None
    for name in ("on_delta", "on_event", "text"):
        if not hasattr(screen, name):
            wrong(f"A class with on_delta, on_event and text is asked for; {name} is missing.")
            return
    for story, faults in (
        ("a model that talks in every turn", {}),
        ("a stream that breaks in the last turn", {2: cut_body(times=1)}),
    ):
        screen = answer()
        state = await run(
            new_run(SYSTEM, TASK, "exercise"),
            catalogue(),
            client_for(_talkative, faults=faults, sleep=_no_wait),
            on_delta=screen.on_delta,
            trace=screen.on_event,
        )
        if state.status != "completed":
            wrong(f"With {story}, a callback of the screen raised: {state.error}.")
            return
        if screen.text != state.output:
            wrong(
                f"With {story}, the screen shows {screen.text!r}; the answer is {state.output!r}."
            )
            return
    right(
        "Words before a tool_start were about the work, and an empty piece takes back what came "
        "before it. What stays is the answer."
    )


async def _no_wait(seconds: float) -> None:
    """In place of the client's pause before a retry."""
