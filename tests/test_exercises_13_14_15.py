"""The checks of chapters 13 to 15: a wrong answer is explained, and only a right one is right.

That the right answers pass is shown by the notebooks of solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from catalogue import catalogue
from exercises import ch13, ch14, ch15
from harness import RunState, StopCondition, Tool
from scripted_provider import Message, asks, call, runaway, text
from tests.support import said

NEVER = StopCondition("never", lambda state: False)
AT_ONCE = StopCondition("at once", lambda state: state.turns > 2)
PAYMENT = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["to", "amount"],
}
RESEARCH = ch13.research_tool("plan", catalogue())


def answers_at_once(turn: int, tool_text: str) -> Message:
    return text("done")


def invents(turn: int, tool_text: str) -> Message:
    return asks(call(f"c{turn}", "no_such_tool"))


def wants_a_person(turn: int, tool_text: str) -> Message:
    return asks(call("c1", "delete_file", {"path": "notes.txt"}))


def too_late(state: RunState) -> bool:
    return len(state.messages) > 30


def transfer(approval: bool | Callable[[dict[str, Any]], bool], **options: Any) -> Tool:
    given = {"parameters": PAYMENT, "run": lambda args, ctx: "paid", **options}
    return Tool("transfer", "Send money.", needs_approval=approval, **given)


def large(args: dict[str, Any]) -> bool:
    return bool(args["amount"] > 100)


def last(number: int) -> Callable[[list[Message]], list[Message]]:
    return lambda messages: messages if len(messages) < 4 else messages[:2] + messages[-number:]


flood = partial(ch13.check_4, tools=catalogue())
escape = partial(ch14.check_4, detector=AT_ONCE)

WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (ch13.check_1, 6, "These are the child's"),
    (ch13.check_1, 7, "once before the child, and once after"),
    (ch13.check_1, 20, "Count the child's turns"),
    (ch13.check_2, 3, "An id is a string"),
    (ch13.check_2, "c2", "each level adds its own"),
    (ch13.check_2, "c2/p1/m1", "in another order"),
    (ch13.check_2, "p1.c2", "Look at the id in the chapter"),
    (ch13.check_3, True, "A Tool is asked for"),
    (ch13.check_3, RESEARCH, "ran before anyone had agreed"),
    (ch13.check_3, replace(RESEARCH, name="ask"), "called ask"),
    (ch13.check_3, ch13.research_tool("destructive", catalogue()), "Something in the child asked"),
    (flood, "read", "A script is asked for"),
    (flood, answers_at_once, "tokens of the parent's transcript"),
    (flood, runaway, "ended as max_turns_exceeded"),
    (ch14.check_1, 500, "A function is asked for"),
    (ch14.check_1, lambda state: len(state.messages[2]["content"]) > 500, "has the content None"),
    (ch14.check_1, lambda state: False, "the run went on"),
    (ch14.check_1, lambda state: True, "already"),
    (ch14.check_1, too_late, "It let the run go on"),
    (ch14.check_2, "langchain", "A set of names"),
    (ch14.check_2, {"langchain"}, "One is missing"),
    (ch14.check_2, {"langchain", "langgraph"}, "Look again at langgraph"),
    (ch14.check_2, {"harness"}, "not one of the five"),
    (ch14.check_3, NEVER, "A function is asked for"),
    (ch14.check_3, lambda first, second: first.met, "must return a StopCondition"),
    (ch14.check_3, lambda first, second: first, "With True and False"),
    (
        ch14.check_3,
        lambda a, b: StopCondition("both", lambda state: a.met(state) and b.met(state)),
        "should be 'a and b'",
    ),
    (escape, 3, "A script is asked for"),
    (escape, answers_at_once, "A runaway never does"),
    (escape, runaway, "Caught after 3 turns"),
    (partial(ch14.check_4, detector=NEVER), invents, "The run failed"),
    (escape, wants_a_person, "waits for a person"),
    (ch15.check_1, 9, "A window holds one"),
    (ch15.check_1, 60, "still fits"),
    (ch15.check_1, 40, "prompt_tokens of single turns"),
    (ch15.check_2, 3, "A function is asked for"),
    (ch15.check_2, lambda messages: None, "must return a list"),
    (ch15.check_2, last(3), "must answer a call of the message before it"),
    (ch15.check_2, lambda messages: messages, "holds 19 turns"),
    (ch15.check_2, last(4), "holds 2 turns"),
    (ch15.check_2, lambda messages: messages[1:], "the task itself"),
    (ch15.check_2, lambda messages: messages[:8], "the newest result is missing"),
    (ch15.check_3, 1, "A script is asked for"),
    (ch15.check_3, runaway, "What can one turn be"),
    (ch15.check_4, large, "A Tool is asked for"),
    (ch15.check_4, transfer(True), "asked a person"),
    (ch15.check_4, transfer(False), "without asking"),
    (ch15.check_4, transfer(large, read_only=True), "not read_only"),
    (ch15.check_4, transfer(large, parameters=None), "Say in the schema"),
    (ch15.check_4, replace(transfer(large), name="pay"), "no tool named transfer"),
]


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_a_wrong_answer_is_told_why(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(check, answer, capsys)
    assert out.startswith("Not yet. ")
    assert words.lower() in out.lower()


@pytest.mark.parametrize("chapter", [ch13, ch14, ch15])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_three_dots_are_no_answer(
    chapter: Any, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    check = {ch13.check_4: flood, ch14.check_4: escape}.get(
        getattr(chapter, f"check_{number}"), getattr(chapter, f"check_{number}")
    )
    assert said(check, ..., capsys).startswith("No answer yet")
