"""The checks of chapters 05 and 06: a wrong answer is explained, and only a right one is right.

That the right answers pass is shown by the notebooks of solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exercises import ch05, ch06
from harness import ToolContext
from scripted_provider import Message, asks, call, text
from tests.support import said


def answers_at_once(turn: int, tool_text: str) -> Message:
    return text("done")


def never_valid(turn: int, tool_text: str) -> Message:
    return asks(call(f"c{turn}", "no_such_tool"))


def always_valid(turn: int, tool_text: str) -> Message:
    return asks(call(f"c{turn}", "list_files"))


def wants_a_person(turn: int, tool_text: str) -> Message:
    return asks(call("c1", "delete_file", {"path": "notes.txt"}))


def raises(turn: int, tool_text: str) -> Message:
    raise KeyError("oops")


def looks_once(turn: int, tool_text: str) -> Message:
    return asks(call("c1", "job_status")) if turn == 0 else text("done")


def looks_thrice(turn: int, tool_text: str) -> Message:
    return asks(call(f"c{turn}", "job_status")) if turn < 3 else text("done")


def raising_words(error: BaseException) -> str:
    raise KeyError("oops")


def numbered_keys() -> Callable[[dict[str, Any], ToolContext], str]:
    """A key function that never gives the same key twice."""
    given: list[str] = []

    def key(args: dict[str, Any], ctx: ToolContext) -> str:
        given.append("x")
        return str(len(given))

    return key


RIGHT_2 = {error: kind for error, (kind, _) in ch05.SORTED.items()}

WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (ch05.check_1, 3, "A function is asked for"),
    (ch05.check_1, raising_words, "raised KeyError"),
    (ch05.check_1, lambda error: None, "it returned a NoneType"),
    (ch05.check_1, str, "A file name is left"),
    (ch05.check_1, lambda error: "Error. Call list_files.", "the reason is gone"),
    (ch05.check_1, lambda error: "Error: it is locked, or missing.", "ended after 2 turns"),
    (ch05.check_2, "stop", "A dict is asked for"),
    (ch05.check_2, {**RIGHT_2, "the disk is full": "data"}, "A person has to"),
    (ch05.check_2, {**RIGHT_2, "the disk is full": "halt"}, "not 'halt'"),
    (ch05.check_2, {}, "not None"),
    (ch05.check_3, 3, "three in a row"),
    (ch05.check_3, 2, "without a fault"),
    (ch05.check_3, "four", "A number is asked for"),
    (ch05.check_4, 3, "A function is asked for"),
    (ch05.check_4, answers_at_once, "It must never answer"),
    (ch05.check_4, never_valid, "stopped after 3 turns"),
    (ch05.check_4, always_valid, "19 of its calls were executed"),
    (ch05.check_4, wants_a_person, "waits for a person"),
    (ch05.check_4, raises, "raised KeyError"),
    (ch06.check_1, 0.005596, "Each repeat costs more"),
    (ch06.check_1, 0.001396, "not turns"),
    (ch06.check_2, 1, "compares texts"),
    (ch06.check_2, 3, "sorts the keys"),
    (ch06.check_3, 3, "A function is asked for"),
    (ch06.check_3, raises, "raised KeyError"),
    (ch06.check_3, looks_once, "Ask more than once"),
    (ch06.check_3, looks_thrice, "the same answer"),
    (ch06.check_3, lambda turn, seen: asks(call(f"c{turn}", "job_status")), "the turn cap"),
    (ch06.check_4, "order-17", "A function is asked for"),
    (ch06.check_4, lambda args, ctx: args["id"], "raised KeyError"),
    (ch06.check_4, lambda args, ctx: 17, "type int"),
    (ch06.check_4, numbered_keys(), "after a crash"),
    (ch06.check_4, lambda args, ctx: ctx.idempotency_key, "A repeat of the model"),
    (ch06.check_4, lambda args, ctx: f"{ctx.run_id}-{args['order']}", "A second run"),
    (ch06.check_4, lambda args, ctx: f"{args['order']}", "The second instalment"),
    (ch06.check_4, lambda args, ctx: f"{args['instalment']}", "Another customer's order"),
]


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_a_wrong_answer_is_told_why(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(check, answer, capsys)
    assert out.startswith("Not yet. ")
    assert words in out


@pytest.mark.parametrize("chapter", [ch05, ch06])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_three_dots_are_no_answer(
    chapter: Any, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(getattr(chapter, f"check_{number}"), ..., capsys).startswith("No answer yet")
