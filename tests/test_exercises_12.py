"""The checks of chapter 12: a wrong answer is explained, and only a right one is right.

That the right answers pass is shown by the notebook of solutions, and here for other ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from exercises import ch12
from harness import RunState
from model_runs import load_recording
from scripted_provider import Message, asks, call, text
from tests.support import said

USAGES = [result["usage"] for result in load_recording("smollm2-135m-instruct").results]
TOKENS_IN = sum(usage["prompt_tokens"] for usage in USAGES)
TOKENS_OUT = sum(usage["completion_tokens"] for usage in USAGES)
PRICE = (2 * TOKENS_IN + 12 * TOKENS_OUT) / 1_000_000
FILES = ("access.log", "errors.log", "notes.txt", "timeout.log")

Predicate = Callable[[RunState], Any]


# --- predicates over a transcript


def names_only(read: Callable[[RunState], set[str]]) -> Predicate:
    """Does the answer name only files that are in ``read``?"""
    return lambda state: {name for name in FILES if name in state.output} <= read(state)


def results(state: RunState) -> dict[str, str]:
    return {m["tool_call_id"]: m["content"] for m in state.messages if m["role"] == "tool"}


def asked_for(state: RunState) -> dict[str, str]:
    """Call id -> path, for each call of read_file."""
    calls = [one for m in state.messages for one in m.get("tool_calls", ())]
    return {
        one["id"]: json.loads(one["function"]["arguments"])["path"]
        for one in calls
        if one["function"]["name"] == "read_file"
    }


def was_asked_for(state: RunState) -> set[str]:
    return set(asked_for(state).values())


def was_read(state: RunState) -> set[str]:
    text_of = results(state)
    asked = asked_for(state).items()
    return {path for one, path in asked if not text_of[one].startswith("Error:")}


def was_returned(state: RunState) -> set[str]:
    """The mistake of taking a name in a result for a file that was read."""
    return {name for name in FILES if any(name in one for one in results(state).values())}


def any_was_read(state: RunState) -> bool:
    return any(name in state.output for name in was_read(state)) or ".log" not in state.output


def forgets_messages_without_calls(state: RunState) -> bool:
    return bool([message["tool_calls"] for message in state.messages])


# --- scripts


def explains(turn: int, tool_text: str) -> Message:
    return text('The call would be {"name": "list_files", "arguments": {}}.')


def explains_a_deletion(turn: int, tool_text: str) -> Message:
    return text('Not {"name": "delete_file", "arguments": {"path": "notes.txt"}}, I hope.')


def in_words(turn: int, tool_text: str) -> Message:
    return text("Call list_files without arguments.")


def really_asks(turn: int, tool_text: str) -> Message:
    return asks(call(f"c{turn}", "list_files")) if turn == 0 else text("Three files.")


def without_its_path(turn: int, tool_text: str) -> Message:
    if turn == 0:
        return text('The call would be {"name": "read_file", "arguments": {}}.')
    return text("Three files.")


WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (ch12.check_1, "much", "A number is asked for"),
    (ch12.check_1, 2 * TOKENS_IN / 1_000_000, "That is the input alone"),
    (ch12.check_1, (12 * TOKENS_IN + 2 * TOKENS_OUT) / 1_000_000, "the wrong way round"),
    (ch12.check_1, PRICE * 1_000_000, "millionths of a dollar"),
    (ch12.check_1, 1.0, "The totals have both counts"),
    (ch12.check_2, True, "A function is asked for"),
    (ch12.check_2, lambda state: None, "it returned None"),
    (ch12.check_2, forgets_messages_without_calls, "A message may have no tool_calls"),
    (ch12.check_2, lambda state: False, "errors.log was read"),
    (ch12.check_2, lambda state: True, "access.log was listed, and never read"),
    (ch12.check_2, names_only(was_returned), "access.log was listed, and never read"),
    (ch12.check_2, names_only(was_asked_for), "there is no such file"),
    (ch12.check_2, any_was_read, "notes.txt was never read"),
    (ch12.check_2, lambda s: names_only(was_read)(s) and was_read(s) != {"notes.txt"}, "no file"),
    (ch12.check_3, text("hello"), "A script is asked for"),
    (ch12.check_3, really_asks, "return text(...), not asks(...)"),
    (ch12.check_3, in_words, "no call was found either"),
    (ch12.check_3, without_its_path, "its arguments must fit the tool"),
]

RIGHT: list[tuple[Callable[[Any], Any], Any, str]] = [
    (ch12.check_1, PRICE, "of it is for input"),
    (ch12.check_2, names_only(was_read), "no proof that an answer is true"),
    (ch12.check_3, explains, "One text, two readings"),
    (ch12.check_3, explains_a_deletion, "only spoke of delete_file"),
]


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_a_wrong_answer_is_told_why(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(check, answer, capsys)
    assert out.startswith("Not yet. ")
    assert words.lower() in out.lower()


@pytest.mark.parametrize(("check", "answer", "words"), RIGHT)
def test_a_right_answer_is_told_what_it_shows(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(check, answer, capsys)
    assert out.startswith("Right. ")
    assert words in out


@pytest.mark.parametrize("check", [ch12.check_1, ch12.check_2, ch12.check_3])
def test_three_dots_are_no_answer_yet(
    check: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(check, ..., capsys).startswith("No answer yet")
