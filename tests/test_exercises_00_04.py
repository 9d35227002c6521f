"""The checks of chapters 00 to 04: a wrong answer is explained, and only a right one is right.

That the right answers pass is shown by the notebooks of solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exercises import ch00, ch01, ch02, ch03, ch04
from harness import RunState
from scripted_provider import Message, asks, call, runaway, text
from tests.support import said
from workbook import OPENING


def answers_at_once(turn: int, tool_text: str) -> Message:
    return text("done")


def raises(turn: int, tool_text: str) -> Message:
    raise KeyError("oops")


def says_nothing_of_a_message(turn: int, tool_text: str) -> Any:
    return None


def breaks_late(turn: int, tool_text: str) -> Message:
    return asks(call(f"c{turn}", "list_files" if turn < 3 else "no_such_tool"))


def wants_a_person(turn: int, tool_text: str) -> Message:
    return asks(call("c1", "delete_file", {"path": "notes.txt"}))


def always(word: str) -> Callable[[RunState], str]:
    return lambda state: word


UNANSWERED = {
    "model": "plan",
    "messages": [*OPENING, asks(call("c1", "list_files")), {"role": "user", "content": "?"}],
}

WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (ch00.check_1, 204, "with its tools"),
    (ch00.check_1, 40, "read usage"),
    (ch00.check_1, "41", "A number is asked for"),
    (ch00.check_2, {"model": "plan", "messages": [*OPENING]}, "The provider took it"),
    (ch00.check_2, UNANSWERED, "Find another one"),
    (ch00.check_2, "What is in the logs?", "A request is a dictionary"),
    (ch00.check_2, {"model": object()}, "cannot be written as JSON"),
    (ch01.check_1, 333, "That is the third turn"),
    (ch01.check_1, 1203, "sum of four turns"),
    (ch01.check_1, 0, "the account run out"),
    (ch01.check_2, "plan", "A script is asked for"),
    (ch01.check_2, answers_at_once, "It must never answer"),
    (ch01.check_2, runaway, "make the same call"),
    (ch01.check_2, breaks_late, "broke after 4 turns: KeyError"),
    (ch01.check_2, raises, "broke after 0 turns: ProviderError"),
    (ch01.check_3, 3, "A script is asked for"),
    (ch01.check_3, answers_at_once, "ended in order"),
    (ch01.check_3, raises, "no first answer"),
    (ch01.check_3, says_nothing_of_a_message, "no first answer"),
    (ch01.check_3, breaks_late, "The first turn went well"),
    (ch01.check_3, runaway, "The first turn went well"),
    (ch02.check_1, 2.808792, "a little too much"),
    (ch02.check_1, 2.629198, "What is written is paid"),
    (ch02.check_1, 2.6843, "read_in_all"),
    (ch02.check_2, 24, "One less"),
    (ch02.check_2, 22, "turn by turn"),
    (ch02.check_3, 0, "who reads it"),
    (ch02.check_3, 8, "Seven of the eight"),
    (ch02.check_4, 30, "A script is asked for"),
    (ch02.check_4, runaway, "3 tool runs"),
    (ch02.check_4, raises, "The loop broke"),
    (ch03.check_1, 13, "one more begins"),
    (ch03.check_1, 18, "one price"),
    (ch03.check_2, "0.05", "A budget in dollars"),
    (ch03.check_2, float("nan"), "between $0 and $1"),
    (ch03.check_2, 5, "between $0 and $1"),
    (ch03.check_2, 0.05, "more than $0.050000"),
    (ch03.check_2, 0.04, "More turns fit in"),
    (ch03.check_3, 0.02, "A script is asked for"),
    (ch03.check_3, runaway, "9 turns for $0.010780"),
    (ch03.check_3, answers_at_once, "1 turn for $"),
    (ch03.check_3, raises, "The loop broke"),
    (ch04.check_1, "interrupted", "A set of statuses"),
    (ch04.check_1, 3, "A set of statuses"),
    (ch04.check_1, {"stopped"}, "Not an exit: 'stopped'"),
    (ch04.check_1, {"failed", "interrupted"}, "fail again"),
    (ch04.check_1, {"completed"}, "follow_up"),
    (ch04.check_1, {"interrupted"}, "2 missing"),
    (ch04.check_2, 2, "not even read"),
    (ch04.check_2, 4, "a smaller one"),
    (ch04.check_3, "show", "A function is asked for"),
    (ch04.check_3, always("show"), "For failed it returns 'show'"),
    (ch04.check_3, lambda state: state.reason, "raised AttributeError"),
    (ch04.check_4, {}, "A script is asked for"),
    (ch04.check_4, runaway, "ended as max_turns_exceeded"),
    (ch04.check_4, wants_a_person, "ended as interrupted"),
    (ch04.check_4, raises, "no answer at all"),
]


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_a_wrong_answer_is_told_why(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(check, answer, capsys)
    assert out.startswith("Not yet. ")
    assert words in out


@pytest.mark.parametrize(
    "check",
    [
        check
        for chapter in (ch00, ch01, ch02, ch03, ch04)
        for name, check in vars(chapter).items()
        if name.startswith("check_")
    ],
)
def test_three_dots_are_no_answer(
    check: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(check, ..., capsys).startswith("No answer yet")
