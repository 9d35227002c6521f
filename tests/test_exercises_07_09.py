"""The checks of chapters 07 and 09: a wrong answer is explained, and only a right one is right.

That the right answers pass is shown by the notebooks of solutions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from exercises import ch07, ch09
from harness import ToolContext
from scripted_provider import Message, asks, call, text
from tests.support import said


def answers_at_once(turn: int, tool_text: str) -> Message:
    return text("Deleted notes.txt.")


def deletes_another(turn: int, tool_text: str) -> Message:
    return asks(call("c1", "delete_file", {"path": "access.log"}))


def raises(turn: int, tool_text: str) -> Message:
    raise KeyError("oops")


def reporting(words: str) -> Callable[[int, str], Message]:
    """A script that asks for the deletion and reports these words, whatever happens."""

    def script(turn: int, tool_text: str) -> Message:
        wish = call(f"c{turn}", "delete_file", {"path": "notes.txt"})
        return asks(wish) if turn == 0 or not words else text(words)

    return script


async def coroutine(args: dict[str, Any], ctx: ToolContext) -> str:
    return "1 of 1"


def at_once(args: dict[str, Any], ctx: ToolContext) -> str:
    return "1 of 1"


def never_looks(args: dict[str, Any], ctx: ToolContext) -> str:
    time.sleep(2.0)
    return "2 of 2"


def fails_when_stopped(args: dict[str, Any], ctx: ToolContext) -> str:
    ctx.signal.wait_blocking(5)
    raise RuntimeError("stopped")


def silent(args: dict[str, Any], ctx: ToolContext) -> str:
    ctx.signal.wait_blocking(5)
    return "1 of 2"


def vague(args: dict[str, Any], ctx: ToolContext) -> str:
    ctx.progress("a step")
    ctx.signal.wait_blocking(5)
    return "stopped somewhere"


def short(args: dict[str, Any], ctx: ToolContext) -> str:
    ctx.progress("1 of 2")
    ctx.signal.wait_blocking(0.8)
    return "1 of 2"


async def obeys(args: dict[str, Any], ctx: ToolContext) -> str:
    ch09.still_here()
    await asyncio.sleep(5)
    ch09.still_here()
    return "done"


WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (ch07.check_1, 6, "What comes first in the loop"),
    (ch07.check_1, 2, "before the stop"),
    (ch07.check_1, 5, "nothing is asked"),
    (ch07.check_1, "three", "A number is asked for"),
    (ch07.check_2, True, "A function is asked for"),
    (ch07.check_2, lambda args: args["file"], "raised KeyError"),
    (ch07.check_2, lambda args: True, "may be deleted unasked"),
    (ch07.check_2, lambda args: False, "no scratch file"),
    (ch07.check_2, lambda args: not args["path"].endswith("tmp"), "does not end in .tmp"),
    (ch07.check_2, lambda args: ".tmp" not in args["path"], "It ends in .log"),
    (ch07.check_2, lambda args: not args["path"].endswith(".tmp"), "leads out of the directory"),
    (
        ch07.check_2,
        lambda args: not str(args.get("path", ".tmp")).endswith(".tmp") or "/" in args["path"],
        "On Windows",
    ),
    (
        ch07.check_2,
        lambda args: (
            "path" in args
            and (not str(args["path"]).endswith(".tmp") or bool(set(args["path"]) & set("/\\")))
        ),
        "lets it run unasked",
    ),
    (ch07.check_3, "script", "A function is asked for"),
    (ch07.check_3, answers_at_once, "must wait for the deletion"),
    (ch07.check_3, deletes_another, "must wait for the deletion"),
    (ch07.check_3, raises, "KeyError"),
    (ch07.check_3, reporting(""), "After the rejection the run must complete"),
    (ch07.check_3, reporting("I did not delete notes.txt."), "must claim"),
    (ch07.check_3, reporting("Nothing was deleted: notes.txt stays."), "must claim"),
    (ch09.check_1, 400, "What does time.sleep do"),
    (ch09.check_1, 1200, "never looks"),
    (ch09.check_1, 480, "at the end of each"),
    (ch09.check_2, 3, "A plain function is asked for"),
    (ch09.check_2, coroutine, "A plain function is asked for"),
    (ch09.check_2, at_once, "It had ended before the Stop"),
    (ch09.check_2, never_looks, "did not look at ctx.signal in time"),
    (ch09.check_2, fails_when_stopped, "It must return a text"),
    (ch09.check_2, silent, "It reported no progress"),
    (ch09.check_2, vague, "does not say how far it came"),
    (ch09.check_2, short, "at least 2 s"),
    (ch09.check_3, at_once, "An async function is asked for"),
    (ch09.check_3, coroutine, "it ended as completed"),
    (ch09.check_3, obeys, "no further call"),
]


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_a_wrong_answer_is_told_why(
    check: Callable[[Any], Any], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(check, answer, capsys)
    assert out.startswith("Not yet. ")
    assert words in out


@pytest.mark.parametrize("chapter", [ch07, ch09])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_three_dots_are_no_answer(
    chapter: Any, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(getattr(chapter, f"check_{number}"), ..., capsys).startswith("No answer yet")


def test_a_tool_that_leaves_a_task_behind_breaks_it_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left: list[asyncio.Task[None]] = []

    async def marks() -> None:
        while True:  # asyncio.run cancels it at the end
            await asyncio.sleep(0.05)
            ch09.still_here()

    async def leaves_a_task(args: dict[str, Any], ctx: ToolContext) -> str:
        left.append(asyncio.create_task(marks()))
        await asyncio.sleep(5)
        return "done"

    assert "it saw the tool end" in said(ch09.check_3, leaves_a_task, capsys)
